/*
 * fuzz_backward.c: bytes as arguments of attn_backward.
 *
 * The bytes choose a small legal problem, whose tensors end where ASan looks, and then up to three
 * words of the arguments that are replaced by any value. Whatever comes out, the library answers
 * with a status, the same from attn_backward_workspace, and writes nothing if that is an error; an
 * unchanged problem is run, twice, with the same bits.
 */
#include "gpu.h"
#include "grad_runs.h"
#include "problem.h"

#include <stdlib.h>
#include <string.h>

static void axes(input *in, const char *letters, char *out)
{
    uint64_t set = take(in, 1);
    for (int i = 0; letters[i] != '\0'; i++) {
        if (set >> i & 1) {
            *out++ = letters[i];
        }
    }
    *out = '\0';
}

static problem_spec choose(input *in)
{
    static const char *const start = "b=1 hq=1 nq=1 nk=1 d=1 pass=backward";
    char error[256];
    problem_spec p;
    REQUIRE(problem_parse(start, &p, error, sizeof error));
    p.b = below(in, 3), p.hkv = below(in, 3), p.hq = p.hkv * (1 + below(in, 3));
    p.nq = below(in, 130), p.nk = below(in, 150), p.d = below(in, 20), p.dv = below(in, 20);
    p.dtype = (int32_t)below(in, 4) + ATTN_F64;
    p.o_dtype = below(in, 2) ? ATTN_F32 : p.dtype, p.grad_dtype = below(in, 2) ? ATTN_F32 : p.dtype;
    uint64_t flags = take(in, 1);
    p.causal = flags & 1, p.top_left = flags >> 1 & 1, p.has_window = flags >> 2 & 1,
    p.d_lse = flags >> 3 & 1;
    p.window_left = below(in, 60) - 8, p.window_right = below(in, 60) - 8;
    p.softcap = flags >> 4 & 1 ? 1 + (double)below(in, 50) : 0;
    p.dropout = flags >> 5 & 1 ? (double)below(in, 11) / 10 : 0, p.dropout_seed = take(in, 2);
    if (flags & 128 && !p.top_left) {
        p.q_origins = p.k_origins = 1, p.q_origin[0] = below(in, 200),
        p.k_origin[0] = below(in, 200);
    }
    p.layout = (int32_t)(flags >> 6 & 1 ? LAYOUT_GAP : LAYOUT_BSHD);
    axes(in, "bhqk", p.mask);
    p.mask_dtype = (int32_t)below(in, 5) + ATTN_BOOL;
    axes(in, "bhqk", p.bias);
    axes(in, "bh", p.alibi);
    axes(in, "bh", p.sinks);
    p.d_bias_dtype = p.bias[0] != '\0' && below(in, 2) ? ATTN_F32 : 0;
    p.d_alibi = p.alibi[0] != '\0' && below(in, 2), p.d_sinks = p.sinks[0] != '\0' && below(in, 2);
    return p;
}

/* Any word of either struct but the address of one in the other, the addresses of lengths and
 * origins and a size beyond the struct's, of which wrong ones cannot be told. */
static bool change(attn_backward_args *a, attn_forward_args *f, input *in)
{
    size_t at = (size_t)take(in, 2) % ((sizeof *a + sizeof *f) / 8) * 8;
    int64_t value = wild(in);
    attn_backward_args a_before = *a;
    attn_forward_args f_before = *f;
    memcpy(at < sizeof *a ? (char *)a + at : (char *)f + (at - sizeof *a), &value, sizeof value);
    /* lengths and origins are read even to find the workspace */
    bool lengths = memcmp(&f_before.cu_seqlens_q, &f->cu_seqlens_q, 6 * sizeof(attn_tensor)) != 0;
    bool keep = !lengths && (a->forward == f || a->forward == NULL) &&
                a->struct_size <= sizeof *a && f->struct_size <= sizeof *f;
    if (!keep) {
        *a = a_before, *f = f_before;
    }
    return keep;
}

static void check(problem_tensors *t, input *in, attn_context *context)
{
    attn_forward_args f = t->args;
    attn_backward_args a = t->grad;
    char sentence[256];
    uint64_t bytes;
    bool changed = false;
    a.forward = &f;
    for (int64_t n = below(in, 4); n > 0; n--) {
        changed |= change(&a, &f, in);
    }
    attn_status status = attn_backward_workspace(context, &a, &bytes);
    gpu_backward(in, &a, status, changed ? -1 : (int)ATTN_OK);
    if (changed) {
        REQUIRE(status == ATTN_OK || attn_backward(context, &a) == status);
        REQUIRE(status == ATTN_OK || problem_tensors_intact(t));
        return;
    }
    REQUIRE(status == ATTN_OK && attn_forward(context, &t->args) == ATTN_OK);
    size_t count;
    REQUIRE(grad_runs_once(&a, NULL, 1, RUNS_ONES, sentence, sizeof sentence));
    unsigned char *first = grad_runs_copy(&a, &count);
    REQUIRE(grad_runs_once(&a, NULL, 3, RUNS_NOISE, sentence, sizeof sentence));
    unsigned char *second = grad_runs_copy(&a, &count);
    REQUIRE(memcmp(first, second, count) == 0 && problem_tensors_intact(t));
    free(first);
    free(second);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static attn_context *context;
    input in = {data, data + size};
    problem_tensors t;
    problem_spec p = choose(&in);
    REQUIRE(problem_tensors_create(&p, PLACE_PLAIN, &t));
    check(&t, &in, fuzz_context(&context, 2));
    problem_tensors_free(&t);
    return 0;
}
