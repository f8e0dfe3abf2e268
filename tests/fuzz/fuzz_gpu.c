/*
 * fuzz_gpu.c: bytes as calls of any size on pretended GPUs (gpu.h), beside plans of a CPU.
 *
 * The bytes choose extents, which may be any number, types, layouts of tensors and options. Memory
 * is not there: only lengths, which a CPU's plan reads, are.
 */
#include "args.h"
#include "cuda/elements/params.h"
#include "fake_driver.h"
#include "gpu.h"

#include <string.h>

enum { COUNTED = 40, PARTS = 5 };

typedef struct call {
    input *in;
    int tensors; /* so far: each has an address of its own */
    attn_forward_args f;
    attn_backward_args g;
    int64_t b, nq, nk, h, hkv, d, dv;
    int64_t numbers[2 * COUNTED];
} call;

/* ---- extents and tensors --------------------------------------------------------------------- */

static int64_t draw_extent(input *in, int64_t usual)
{
    switch (below(in, 8)) {
    case 0:
        return (INT64_C(1) << below(in, 62)) - 1 + below(in, 3);
    case 1:
        return below(in, 1 << 15) * (1 + below(in, 1 << 15));
    case 2:
        return wild(in) & INT64_MAX;
    default:
        return below(in, usual);
    }
}

static int64_t draw_columns(input *in)
{
    static const int64_t usual[] = {8, 16, 32, 64, 96, 128, 192, 256, 512, 576};
    return flip(in) ? usual[below(in, 10)] : draw_extent(in, 600);
}

/* A tensor in an order of axes, perhaps with gaps, odd steps or axes that repeat. */
static attn_tensor draw_tensor(call *c, int32_t dtype, int64_t n0, int64_t n1, int64_t n2,
                               int64_t n3)
{
    static const int orders[4][4] = {{3, 2, 1, 0}, {3, 1, 2, 0}, {3, 0, 1, 2}, {1, 3, 0, 2}};
    input *in = c->in;
    const uint64_t odd = take(in, 1);
    const int *order = orders[odd & 4 ? below(in, 4) : (int64_t)odd & 1];
    attn_tensor t = attn_tensor_bshd(fake_memory(c->tensors++), (attn_dtype)dtype, 0, 0, 0, 0);
    t.shape[0] = n0, t.shape[1] = n1, t.shape[2] = n2, t.shape[3] = n3;
    uint64_t step = 1; /* huge ones lose their upper bits */
    for (int i = 0; i < 4; i++) {
        t.stride[order[i]] = (int64_t)step;
        step *= (uint64_t)t.shape[order[i]];
        step += odd & 8 ? take(in, 1) & 24 : 0;
    }
    if (odd & 16) {
        const uint64_t repeats = take(in, 1);
        for (int a = 0; a < 4; a++) {
            t.stride[a] = repeats >> a & 1 ? 0 : t.stride[a];
        }
    }
    if (odd & 32 && odd & 64) {
        t.stride[below(in, 4)] = wild(in);
    }
    if (odd & 64 && odd & 128) {
        t.data = (char *)t.data + (size_t)below(in, 32) * attn_dtype_size(dtype);
    }
    return t;
}

/* Scores, of which each axis may be one element. */
static attn_tensor draw_scores(call *c, int32_t dtype, const int64_t n[4])
{
    const uint64_t one = take(c->in, 1);
    int64_t m[4];
    for (int a = 0; a < 4; a++) {
        m[a] = one >> a & 1 ? 1 : n[a];
    }
    return draw_tensor(c, dtype, m[0], m[1], m[2], m[3]);
}

static int32_t draw_wide(input *in)
{
    return flip(in) ? ATTN_F32 : ATTN_F64;
}

/* Numbers that lie in memory, each at most `most`; increasing ones if `sums`. */
static attn_tensor draw_numbers(call *c, int64_t *to, int64_t count, int64_t most, bool sums)
{
    for (int64_t i = 0, sum = 0; i < count; i++) {
        const int64_t room = most - sum < 200 ? most - sum : 200, n = below(c->in, room + 1);
        sum += sums ? n : 0;
        to[i] = sums ? sum : n;
    }
    return attn_tensor_bshd(to, ATTN_I64, count, 1, 1, 1);
}

/* ---- the passes ------------------------------------------------------------------------------ */

static void draw_keys(call *c, bool codes)
{
    attn_forward_args *f = &c->f;
    const int32_t dtype = codes ? (int32_t)below(c->in, 4) + ATTN_I8 : f->q.dtype;
    const int64_t each = dtype == ATTN_I4X2 ? 2 : 1, pages = draw_extent(c->in, 50);
    const bool paged = f->block_table.data != NULL;
    const int64_t n[3] = {paged ? pages : f->q.shape[0], c->nk, c->hkv};
    f->k = draw_tensor(c, dtype, n[0], n[1], n[2], c->d / each);
    f->v = draw_tensor(c, dtype, n[0], n[1], n[2], c->dv / each);
    if (flip(c->in) && c->dv <= c->d) { /* a view of K */
        f->v = f->k;
        f->v.shape[3] = c->dv / each;
    }
    if (codes) {
        const int32_t factor = (int32_t)below(c->in, 3) + ATTN_F32;
        const int64_t groups = flip(c->in) ? 1 : 2;
        const uint64_t one = take(c->in, 1);
        f->k_scale = draw_tensor(c, factor, one & 1 ? 1 : n[0], one & 2 ? 1 : n[1],
                                 one & 4 ? 1 : n[2], groups);
        f->v_scale = draw_tensor(c, factor, one & 8 ? 1 : n[0], one & 16 ? 1 : n[1],
                                 one & 32 ? 1 : n[2], groups);
        if (one & 64 && (dtype == ATTN_I8 || dtype == ATTN_I4X2)) {
            f->k_shift = f->k_scale;
            f->k_shift.data = fake_memory(c->tensors++);
        }
    }
}

static void draw_lengths(call *c, uint64_t wanted)
{
    attn_forward_args *f = &c->f;
    int64_t *const second = c->numbers + COUNTED;
    const int64_t count = 1 + below(c->in, COUNTED);
    if (wanted & 1) { /* varlen */
        f->cu_seqlens_q = draw_numbers(c, c->numbers, count, c->nq, true);
        f->cu_seqlens_k = draw_numbers(c, second, count, c->nk, true);
        c->b = 1;
    } else if (wanted & 2 && c->b <= COUNTED) {
        f->seqused_q = draw_numbers(c, c->numbers, c->b, c->nq, false);
        f->seqused_k = draw_numbers(c, second, c->b, c->nk, false);
    } else if (wanted & 4) {
        f->q_origin = draw_numbers(c, c->numbers, 1, 1000, false);
        f->k_origin = draw_numbers(c, second, 1, 1000, false);
    } else if (wanted & 8) {
        f->block_table =
            draw_tensor(c, flip(c->in) ? ATTN_I32 : ATTN_I64, c->b, draw_extent(c->in, 40), 1, 1);
        f->flags |= flip(c->in) ? ATTN_SHARES_PAGES : 0;
    }
}

static void draw_extras(call *c, uint64_t wanted)
{
    attn_forward_args *f = &c->f;
    input *in = c->in;
    const int64_t full[4] = {c->b, c->h, c->nq, c->nk}, heads[4] = {c->b, c->h, 1, 1};
    const int64_t bits[4] = {c->b, c->h, c->nq, c->nk / 8 + (c->nk % 8 != 0)};
    if (wanted & 1) {
        f->lse = draw_tensor(c, draw_wide(in), c->b, c->nq, c->h, 1);
    }
    if (wanted & 2) {
        f->row_max = draw_tensor(c, draw_wide(in), c->b, c->nq, c->h, 1);
    }
    if (wanted & 4) {
        const int32_t type = (int32_t)below(in, 6);
        f->mask = draw_scores(c, type == 5 ? ATTN_B1X8 : type + ATTN_BOOL, type == 5 ? bits : full);
    }
    if (wanted & 8) {
        f->bias = draw_scores(c, (int32_t)below(in, 4) + ATTN_F64, full);
    }
    if (wanted & 16) {
        f->alibi_slopes = draw_scores(c, draw_wide(in), heads);
    }
    if (wanted & 32) {
        f->sinks = draw_scores(c, draw_wide(in), heads);
    }
    if (wanted & 64) {
        f->o_f32 = draw_tensor(c, ATTN_F32, c->b, c->nq, c->h, c->dv);
    }
    if (wanted & 128) {
        f->dropout_p = (double)below(in, 11) / 10;
    }
    if (wanted & 256) {
        const uint64_t cap = take(in, 4);
        float softcap;
        memcpy(&softcap, &(uint32_t){(uint32_t)cap}, sizeof softcap);
        f->softcap = (double)softcap;
    }
    if (wanted & 512) {
        f->flags |= ATTN_SCALE;
        f->softmax_scale =
            flip(in) ? (double)(int8_t)take(in, 1) : 1e38 / (double)(1 + take(in, 4));
    }
    if (wanted & 1024) {
        f->flags |= ATTN_WINDOW;
        f->window_left = wild(in), f->window_right = wild(in);
    }
}

static void draw_append(call *c)
{
    attn_forward_args *f = &c->f;
    f->k_new = draw_tensor(c, f->q.dtype, c->b, c->nq, c->hkv, c->d);
    f->v_new = draw_tensor(c, f->q.dtype, c->b, c->nq, c->hkv, c->dv);
    f->rope_base = flip(c->in) ? 10000 : 0;
}

static void draw_forward(call *c)
{
    input *in = c->in;
    attn_forward_args *f = &c->f;
    const int32_t dtype = (int32_t)below(in, 4) + ATTN_F64;
    const uint64_t lengths = take(in, 1), extras = take(in, 2), kinds = take(in, 1);
    c->b = draw_extent(in, 5), c->nq = draw_extent(in, 600), c->nk = draw_extent(in, 5000);
    c->hkv = draw_extent(in, 5);
    /* tiles of far larger groups are counted one by one */
    c->h = (int64_t)((uint64_t)c->hkv * (flip(in) ? take(in, 1) % 9 : take(in, 2)) & INT64_MAX);
    c->d = draw_columns(in), c->dv = flip(in) ? c->d : draw_columns(in);
    f->struct_size = sizeof *f;
    f->flags = take(in, 1) & (ATTN_CAUSAL | ATTN_TOP_LEFT | ATTN_PRECISE | ATTN_BF16X3);
    draw_lengths(c, lengths);
    f->q = draw_tensor(c, dtype, c->b, c->nq, c->h, c->d);
    draw_keys(c, kinds % 8 == 0);
    f->o = draw_tensor(c, kinds & 8 ? ATTN_F32 : dtype, c->b, c->nq, c->h, c->dv);
    draw_extras(c, extras & (kinds & 16 ? 0xFFFF : take(in, 2)));
    if ((kinds & 0xE0) == 0) {
        draw_append(c);
    }
}

static void draw_backward(call *c)
{
    const attn_forward_args *f = &c->f;
    attn_backward_args *g = &c->g;
    const uint64_t wanted = take(c->in, 1);
    const int32_t dtype = wanted & 1 ? ATTN_F32 : f->q.dtype;
    const attn_tensor *like[] = {&f->q, &f->k, &f->v, &f->bias, &f->alibi_slopes, &f->sinks};
    attn_tensor *to[] = {&g->dq, &g->dk, &g->dv, &g->d_bias, &g->d_alibi_slopes, &g->d_sinks};
    *g = (attn_backward_args){.struct_size = sizeof *g, .forward = f};
    g->d_o = draw_tensor(c, dtype, c->b, c->nq, c->h, c->dv);
    for (int i = 0; i < 6; i++) {
        if (wanted >> (i + 1) & 1 && like[i]->data != NULL) {
            const int64_t *n = like[i]->shape;
            *to[i] = draw_tensor(c, i < 3 ? dtype : draw_wide(c->in), n[0], n[1], n[2], n[3]);
        }
    }
    if (wanted & 128) {
        g->d_lse = draw_tensor(c, draw_wide(c->in), c->b, c->nq, c->h, 1);
    }
}

/* ---- the other calls ------------------------------------------------------------------------- */

static void run_merge(call *c, attn_context *gpu, bool back)
{
    attn_tensor o[PARTS], lse[PARTS], d_o[PARTS];
    const int64_t b = draw_extent(c->in, 5), n = draw_extent(c->in, 600), h = draw_extent(c->in, 9),
                  d = draw_columns(c->in);
    attn_merge_args m = {.struct_size = sizeof m, .parts = 1 + below(c->in, PARTS)};
    attn_merge_backward_args g = {.struct_size = sizeof g, .forward = &m, .part_d_o = d_o};
    for (int64_t i = 0; i < m.parts; i++) {
        o[i] = draw_tensor(c, (int32_t)below(c->in, 4) + ATTN_F64, b, n, h, d);
        lse[i] = draw_tensor(c, draw_wide(c->in), b, n, h, 1);
        d_o[i] = draw_tensor(c, (int32_t)below(c->in, 4) + ATTN_F64, b, n, h, d);
    }
    m.part_o = o, m.part_lse = lse;
    m.o = g.d_o = draw_tensor(c, (int32_t)below(c->in, 4) + ATTN_F64, b, n, h, d);
    gpu_called(back ? attn_merge_backward(gpu, &g) : attn_merge(gpu, &m), -1, false);
}

static void run_quantize(call *c, attn_context *gpu, bool encode)
{
    attn_quantize_args a = {.struct_size = sizeof a, .scale_given = (int32_t)below(c->in, 2)};
    const int32_t dtype = (int32_t)below(c->in, 4) + ATTN_I8;
    const int64_t b = draw_extent(c->in, 5), n = draw_extent(c->in, 600), h = draw_extent(c->in, 9),
                  d = draw_columns(c->in), groups = flip(c->in) ? 1 : 2;
    const uint64_t one = take(c->in, 1);
    a.x = draw_tensor(c, (int32_t)below(c->in, 4) + ATTN_F64, b, n, h, d);
    a.codes = draw_tensor(c, dtype, b, n, h, dtype == ATTN_I4X2 ? d / 2 : d);
    a.scale = draw_tensor(c, ATTN_F32, one & 1 ? 1 : b, one & 2 ? 1 : n, one & 4 ? 1 : h, groups);
    gpu_called((encode ? attn_quantize : attn_dequantize)(gpu, &a), -1, false);
}

static void run_dropout(call *c, attn_context *gpu)
{
    attn_dropout_mask_args a = {.struct_size = sizeof a};
    const int64_t b = draw_extent(c->in, 5), h = draw_extent(c->in, 9);
    a.dropout_p = (double)below(c->in, 11) / 10;
    a.keep = draw_tensor(c, ATTN_BOOL, b, h, draw_extent(c->in, 600), draw_extent(c->in, 600));
    gpu_called(attn_dropout_mask(gpu, &a), -1, false);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static attn_context *cpu;
    static call c;
    input in = {data, data + size};
    const int64_t kind = below(&in, 16);
    uint64_t bytes;
    memset(&c, 0, sizeof c);
    c.in = &in;
    if (kind < 2) {
        run_merge(&c, gpu_context(&in), kind == 1);
    } else if (kind < 4) {
        run_quantize(&c, gpu_context(&in), kind == 2);
    } else if (kind == 4) {
        run_dropout(&c, gpu_context(&in));
    } else {
        draw_forward(&c);
        if (kind < 11) {
            gpu_forward(&in, &c.f, attn_forward_workspace(fuzz_context(&cpu, 2), &c.f, &bytes), -1);
        } else {
            draw_backward(&c);
            gpu_backward(&in, &c.g, attn_backward_workspace(fuzz_context(&cpu, 2), &c.g, &bytes),
                         -1);
        }
    }
    return 0;
}
