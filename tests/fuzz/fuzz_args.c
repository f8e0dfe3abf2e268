/*
 * fuzz_args.c: bytes as arguments of attn_forward.
 *
 * The bytes choose a small legal problem in buffers of exactly its size (so that ASan sees one byte
 * too many), then up to three fields of any argument are replaced by any value. Whatever comes out,
 * the library answers with a status; it writes nothing if that is an error; and if every view still
 * lies inside its buffer, the problem is run.
 */
#include "args.h"
#include "gpu.h"
#include "views.h"

#include <stdlib.h>
#include <string.h>

typedef struct call {
    attn_forward_args args;
    views all;
} call;

static void create(call *c, int which, input *in, int32_t dtype, int64_t n0, int64_t n1, int64_t n2,
                   int64_t n3)
{
    const int64_t shape[4] = {n0, n1, n2, n3};
    views_create(&c->all, in, args_at(&c->args, which), args_tensors[which].output, dtype, shape);
}

/* Lengths that add up to at most total, as increasing sums if cu, else each at most `most`. */
static void create_index(call *c, int which, input *in, int64_t count, int64_t most, bool cu)
{
    create(c, which, in, flip(in) ? ATTN_I32 : ATTN_I64, count, 1, 1, 1);
    for (int64_t i = 0, sum = 0; i < count; i++) {
        const int64_t n = below(in, (cu ? most - sum : most) + 1);
        sum += n;
        views_set(args_at(&c->args, which), i, 0, cu ? sum : n);
    }
}

static void create_broadcast(call *c, int which, input *in, int32_t dtype, const int64_t shape[4])
{
    int64_t n[4];
    for (int a = 0; a < 4; a++) {
        n[a] = flip(in) ? 1 : shape[a];
    }
    create(c, which, in, dtype, n[0], n[1], n[2], n[3]);
}

/* A table over the sequences' rows of K and V as pages. */
static void create_table(call *c, input *in, int64_t b, int64_t nk)
{
    const int64_t pages = nk > 0 ? below(in, 4) : 0;
    create(c, ARGS_TABLE, in, flip(in) ? ATTN_I32 : ATTN_I64, b, pages, 1, 1);
    for (int64_t i = 0; i < b * pages; i++) {
        views_set(args_at(&c->args, ARGS_TABLE), i / pages, i % pages, below(in, b));
    }
}

/* Scale and shift of codes whose tensor has these extents. */
static void create_factors(call *c, input *in, int scale, const attn_tensor *codes)
{
    const int32_t dtype = (int32_t)below(in, 3) + ATTN_F32;
    const int64_t columns = codes->shape[3] * (codes->dtype == ATTN_I4X2 ? 2 : 1);
    int64_t n[4];
    for (int a = 0; a < 3; a++) {
        n[a] = flip(in) ? 1 : codes->shape[a];
    }
    n[3] = flip(in) && columns % 2 == 0 && columns > 0 ? 2 : 1;
    create(c, scale, in, dtype, n[0], n[1], n[2], n[3]);
    if ((codes->dtype == ATTN_I8 || codes->dtype == ATTN_I4X2) && flip(in)) {
        create(c, scale + 1, in, dtype, n[0], n[1], n[2], n[3]);
    }
}

static void create_append(call *c, input *in, int64_t nq)
{
    const attn_tensor q = c->args.q, k = c->args.k;
    const int64_t dv = c->args.o.shape[3];
    create(c, ARGS_K_NEW, in, q.dtype, q.shape[0], nq, k.shape[2], q.shape[3]);
    create(c, ARGS_V_NEW, in, q.dtype, q.shape[0], nq, k.shape[2], dv);
    c->args.rope_base = (double)below(in, 3) * 100;
    if (flip(in)) {
        const int64_t dims = 2 * below(in, q.shape[3] / 2 + 1);
        const int32_t dtype = flip(in) ? ATTN_F32 : ATTN_F64;
        c->args.rope_base = 0, c->args.rope_dims = dims;
        create(c, ARGS_COS, in, dtype, 420 + nq, dims > 0 ? dims / 2 : q.shape[3] / 2, 1, 1);
        create(c, ARGS_SIN, in, dtype, 420 + nq, dims > 0 ? dims / 2 : q.shape[3] / 2, 1, 1);
    }
}

static void create_extras(call *c, input *in, int64_t b, int64_t h, int64_t nq, int64_t nk)
{
    const int64_t full[4] = {b, h, nq, nk}, heads[4] = {b, h, 1, 1};
    uint64_t wanted = take(in, 2);
    if (wanted & 1) {
        create(c, ARGS_LSE, in, flip(in) ? ATTN_F32 : ATTN_F64, b, nq, h, 1);
    }
    if (wanted & 2) {
        create(c, ARGS_ROW_MAX, in, flip(in) ? ATTN_F32 : ATTN_F64, b, nq, h, 1);
    }
    if (wanted & 4) {
        const int64_t bits[4] = {b, h, nq, (nk + 7) / 8}, type = below(in, 6);
        const bool packed = type == 5; /* its last axis is never broadcast */
        create_broadcast(c, ARGS_MASK, in, packed ? ATTN_B1X8 : (int32_t)type + ATTN_BOOL,
                         packed ? bits : full);
    }
    if (wanted & 8) {
        create_broadcast(c, ARGS_BIAS, in, (int32_t)below(in, 4) + ATTN_F64, full);
    }
    if (wanted & 16) {
        create_broadcast(c, ARGS_ALIBI, in, flip(in) ? ATTN_F32 : ATTN_F64, heads);
    }
    if (wanted & 32) {
        create_broadcast(c, ARGS_SINKS, in, flip(in) ? ATTN_F32 : ATTN_F64, heads);
    }
    if (wanted & 64) {
        int64_t count = below(in, 5) + 1;
        create_index(c, ARGS_CU_Q, in, count, nq, true);
        create_index(c, ARGS_CU_K, in, count, nk, true);
    }
    if (wanted & 128) {
        create_index(c, ARGS_USED_Q, in, b, nq, false);
        create_index(c, ARGS_USED_K, in, b, nk, false);
    }
    if (wanted & 256) {
        create_index(c, ARGS_ORIGIN_Q, in, flip(in) ? 1 : b, 400, false);
        create_index(c, ARGS_ORIGIN_K, in, flip(in) ? 1 : b, 400, false);
    }
    if (wanted & 512 && b > 0) {
        create_table(c, in, b, nk);
    }
    if (wanted & 2048) {
        create_append(c, in, nq);
    }
    if (wanted & 4096) {
        create(c, ARGS_O_F32, in, ATTN_F32, b, nq, h, c->args.o.shape[3]);
    }
    if (wanted & 8192) {
        c->args.dropout_p = (double)below(in, 11) / 10;
        c->args.dropout_seed = take(in, 8), c->args.dropout_offset = take(in, 8);
    }
    if (wanted & 1024) {
        create_index(c, ARGS_LEFTPAD, in, b, 3, false);
    }
}

/* K or V: of q's type, or codes. */
static void create_keys(call *c, input *in, int which, const int64_t n[4])
{
    const int64_t code = below(in, 8);
    const int32_t dtype = code < 4 ? c->args.q.dtype : (int32_t)(code - 4) + ATTN_I8;
    create(c, which, in, dtype, n[0], n[1], n[2], dtype == ATTN_I4X2 ? n[3] / 2 : n[3]);
    if (code >= 4) {
        create_factors(c, in, which == ARGS_K ? ARGS_K_SCALE : ARGS_V_SCALE,
                       args_at(&c->args, which));
    }
}

static void create_call(call *c, input *in)
{
    attn_forward_args *a = &c->args;
    int64_t b = below(in, 4), hkv = below(in, 4), h = hkv * below(in, 4), nq = below(in, 40),
            nk = below(in, 300);
    int64_t d = below(in, 40), dv = below(in, 40);
    int32_t dtype = (int32_t)below(in, 4) + ATTN_F64;
    memset(c, 0, sizeof *c);
    a->struct_size = sizeof *a;
    a->flags = take(in, 1) & 127;
    if (a->flags & ATTN_WINDOW) {
        a->window_left = below(in, 64) - 8;
        a->window_right = below(in, 64) - 8;
    }
    if (a->flags & ATTN_SCALE) {
        a->softmax_scale = (double)(int8_t)take(in, 1);
    }
    a->softcap = flip(in) ? (double)take(in, 1) : 0;
    create(c, ARGS_Q, in, dtype, b, nq, h, d);
    create_keys(c, in, ARGS_K, (const int64_t[]){b, nk, hkv, d});
    create_keys(c, in, ARGS_V, (const int64_t[]){b, nk, hkv, dv});
    create(c, ARGS_O, in, flip(in) ? ATTN_F32 : dtype, b, nq, h, dv);
    create_extras(c, in, b, h, nq, nk);
}

static void change_scalar(call *c, input *in)
{
    attn_forward_args *a = &c->args;
    int64_t value = wild(in);
    switch (below(in, 7)) {
    case 0:
        a->struct_size = (uint64_t)value;
        break;
    case 1:
        a->flags = (uint64_t)value;
        break;
    case 2:
        a->window_left = value;
        break;
    case 3:
        a->window_right = value;
        break;
    case 4:
        memcpy(&a->softmax_scale, &value, sizeof value);
        break;
    case 5:
        memcpy(&a->softcap, &value, sizeof value);
        break;
    default:
        a->workspace_bytes = (uint64_t)value;
        break;
    }
}

/* Broadcast views of a few bytes can ask for any amount of work. */
static bool affordable(const call *c)
{
    const attn_tensor *q = &c->args.q, *v = &c->args.v;
    double rows = (double)q->shape[0] * (double)q->shape[1] * (double)q->shape[2];
    double width = (double)q->shape[3] + (double)v->shape[3] + 1;
    return rows * (1 + (double)v->shape[1]) * width < 2e5 && rows * width < 2e4 &&
           (double)v->shape[1] * width < 2e4;
}

static bool has_data(const call *c)
{
    const attn_forward_args *a = &c->args;
    return a->q.data && a->k.data && a->v.data && a->o.data;
}

static void check_forward(call *c, input *in, attn_context *context)
{
    uint64_t bytes = 0;
    for (int i = 0; i < ARGS_TENSORS; i++) {
        if (args_tensors[i].kind == ARGS_LENGTHS && !views_hold(&c->all, args_at(&c->args, i))) {
            return; /* lengths are read even to find the workspace */
        }
    }
    attn_status status = attn_forward_workspace(context, &c->args, &bytes);
    if (status == ATTN_OK && !(views_inside(&c->all) && affordable(c))) {
        gpu_forward(in, &c->args, status, -1);
        return;
    }
    views_remember(&c->all);
    attn_status run = attn_forward(context, &c->args);
    /* a size is told before there is memory, and of several faults the first that a call meets */
    const bool lacks_memory = run == ATTN_ERR_OUT_OF_MEMORY || !has_data(c);
    const bool both_refuse = status != ATTN_OK && run == ATTN_ERR_INVALID_ARGUMENT;
    /* entries of a table are looked at where a call reads them, not where it is sized */
    const bool bad_page = c->args.block_table.data && run == ATTN_ERR_INVALID_ARGUMENT;
    REQUIRE(run == status || bad_page || (lacks_memory && (status == ATTN_OK || both_refuse)));
    REQUIRE(run == ATTN_OK || (attn_last_error()[0] != '\0' && views_unchanged(&c->all, true)));
    if (run == ATTN_OK) { /* once more, in a workspace of exactly the size asked for */
        c->args.workspace = malloc(bytes + 1);
        c->args.workspace_bytes = bytes;
        REQUIRE(c->args.workspace != NULL && attn_forward(context, &c->args) == ATTN_OK);
        free(c->args.workspace);
    }
    gpu_forward(in, &c->args, status, lacks_memory ? -1 : (int)run);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static attn_context *context;
    input in = {data, data + size};
    call c;
    create_call(&c, &in);
    for (int64_t changes = below(&in, 4); changes > 0; changes--) {
        if (flip(&in)) {
            views_change(args_at(&c.args, (int)below(&in, ARGS_TENSORS)), &in);
        } else {
            change_scalar(&c, &in);
        }
    }
    check_forward(&c, &in, fuzz_context(&context, 2));
    views_free(&c.all);
    return 0;
}
