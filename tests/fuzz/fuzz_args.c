/*
 * fuzz_args.c: bytes as arguments of attn_forward.
 *
 * The bytes choose a small legal problem in buffers of exactly its size (so that ASan sees one byte
 * too many), then up to three fields of any argument are replaced by any value. Whatever comes out,
 * the library answers with a status; it writes nothing if that is an error; and if every view still
 * lies inside its buffer, the problem is run.
 */
#include "args.h"

#include <attn/attn.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define REQUIRE(condition)    \
    do {                      \
        if (!(condition)) {   \
            __builtin_trap(); \
        }                     \
    } while (0)

typedef struct input {
    const uint8_t *at, *end;
} input;

typedef struct call {
    attn_forward_args args;
    char *buffer[ARGS_TENSORS];
    size_t bytes[ARGS_TENSORS];
} call;

static uint64_t take(input *in, int bytes)
{
    uint64_t x = 0;
    for (; bytes > 0 && in->at < in->end; bytes--) {
        x = x << 8 | *in->at++;
    }
    return x;
}

static int64_t below(input *in, int64_t n)
{
    return (int64_t)take(in, n > 256 ? 2 : 1) % n;
}

static bool flip(input *in)
{
    return take(in, 1) & 1;
}

/* A contiguous view of a fresh buffer filled by repeating the input. */
static void create(call *c, int which, input *in, int32_t dtype, int64_t n0, int64_t n1, int64_t n2,
                   int64_t n3)
{
    size_t bytes = (size_t)(n0 * n1 * n2 * n3) * attn_dtype_size(dtype),
           have = (size_t)(in->end - in->at);
    char *buffer = malloc(bytes + 1);
    REQUIRE(buffer != NULL);
    for (size_t i = 0; i < bytes; i++) {
        buffer[i] = have > 0 ? (char)in->at[i % have] : 0;
    }
    c->buffer[which] = buffer;
    c->bytes[which] = bytes;
    *args_at(&c->args, which) = attn_tensor_bshd(buffer, (attn_dtype)dtype, n0, n1, n2, n3);
}

/* Lengths that add up to at most total, as increasing sums if cu, else each at most `most`. */
static void create_index(call *c, int which, input *in, int64_t count, int64_t most, bool cu)
{
    int32_t dtype = flip(in) ? ATTN_I32 : ATTN_I64;
    int64_t sum = 0;
    create(c, which, in, dtype, count, 1, 1, 1);
    for (int64_t i = 0; i < count; i++) {
        int64_t n = below(in, (cu ? most - sum : most) + 1);
        sum += n;
        if (dtype == ATTN_I32) {
            ((int32_t *)(void *)c->buffer[which])[i] = (int32_t)(cu ? sum : n);
        } else {
            ((int64_t *)(void *)c->buffer[which])[i] = cu ? sum : n;
        }
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
    create_index(c, ARGS_TABLE, in, b * pages, b - 1, false);
    attn_tensor *t = args_at(&c->args, ARGS_TABLE);
    t->shape[0] = b, t->shape[1] = pages, t->stride[0] = pages;
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
        create_broadcast(c, ARGS_MASK, in, (int32_t)below(in, 5) + ATTN_BOOL, full);
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
        const attn_tensor k = c->args.k, v = c->args.v;
        create(c, ARGS_K_NEW, in, k.dtype, c->args.q.shape[0], nq, k.shape[2], k.shape[3]);
        create(c, ARGS_V_NEW, in, v.dtype, c->args.q.shape[0], nq, v.shape[2], v.shape[3]);
        c->args.rope_base = (double)below(in, 3) * 100;
    }
    if (wanted & 1024) {
        create_index(c, ARGS_LEFTPAD, in, b, 3, false);
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
    a->flags = take(in, 1) & 15;
    if (a->flags & ATTN_WINDOW) {
        a->window_left = below(in, 64) - 8;
        a->window_right = below(in, 64) - 8;
    }
    if (a->flags & ATTN_SCALE) {
        a->softmax_scale = (double)(int8_t)take(in, 1);
    }
    a->softcap = flip(in) ? (double)take(in, 1) : 0;
    create(c, ARGS_Q, in, dtype, b, nq, h, d);
    create(c, ARGS_K, in, dtype, b, nk, hkv, d);
    create(c, ARGS_V, in, dtype, b, nk, hkv, dv);
    create(c, ARGS_O, in, flip(in) ? ATTN_F32 : dtype, b, nq, h, dv);
    create_extras(c, in, b, h, nq, nk);
}

static int64_t wild(input *in)
{
    static const int64_t values[] = {0,
                                     1,
                                     -1,
                                     2,
                                     3,
                                     127,
                                     128,
                                     1 << 16,
                                     INT32_MAX,
                                     INT64_C(1) << 31,
                                     INT64_C(1) << 32,
                                     INT64_C(1) << 40,
                                     INT64_C(1) << 61,
                                     INT64_C(1) << 62,
                                     INT64_MAX,
                                     INT64_MIN};
    return flip(in) ? values[below(in, sizeof values / sizeof *values)]
                    : (int64_t)take(in, flip(in) ? 1 : 8);
}

static void change_tensor(call *c, input *in)
{
    attn_tensor *t = args_at(&c->args, (int)below(in, ARGS_TENSORS));
    int64_t field = below(in, 12);
    if (field < 4) {
        t->shape[field] = wild(in);
    } else if (field < 8) {
        t->stride[field - 4] = wild(in);
    } else if (field == 8) {
        t->dtype = (int32_t)wild(in);
    } else if (field == 9) {
        t->reserved = (int32_t)wild(in);
    } else if (field == 10) {
        t->data = NULL;
    } else if (t->data != NULL) {
        t->data = (char *)t->data + 1;
    }
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

/* Every element of the view lies in its buffer; views without elements and those of unknown type
 * touch nothing. */
static bool inside(const call *c, int which)
{
    const attn_tensor *t = args_get(&c->args, which);
    __int128 size = (__int128)attn_dtype_size(t->dtype), low = 0, high = size;
    if (t->data == NULL) {
        return true;
    }
    for (int a = 0; a < 4; a++) {
        if (t->shape[a] <= 0) {
            return true;
        }
        __int128 reach = ((__int128)t->shape[a] - 1) * t->stride[a] * size;
        low += reach < 0 ? reach : 0;
        high += reach > 0 ? reach : 0;
    }
    __int128 start = (const char *)t->data - c->buffer[which];
    return start + low >= 0 && start + high <= (__int128)c->bytes[which];
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

static void check_forward(call *c, attn_context *context)
{
    uint64_t bytes = 0;
    bool all_inside = true;
    for (int i = 0; i < ARGS_TENSORS; i++) {
        if (args_tensors[i].kind == ARGS_LENGTHS && !inside(c, i)) {
            return; /* lengths are read even to find the workspace */
        }
        all_inside = all_inside && inside(c, i);
    }
    attn_status status = attn_forward_workspace(context, &c->args, &bytes);
    if (status == ATTN_OK && !(all_inside && affordable(c))) {
        return;
    }
    char *before = malloc(c->bytes[ARGS_O] + 1);
    REQUIRE(before != NULL);
    memcpy(before, c->buffer[ARGS_O], c->bytes[ARGS_O]);
    attn_status run = attn_forward(context, &c->args);
    /* a size is told before there is memory, and of several faults the first that a call meets */
    const bool lacks_memory = run == ATTN_ERR_OUT_OF_MEMORY || !has_data(c);
    const bool both_refuse = status != ATTN_OK && run == ATTN_ERR_INVALID_ARGUMENT;
    const bool bad_page = c->args.block_table.data && status == ATTN_OK &&
                          run == ATTN_ERR_INVALID_ARGUMENT; /* members that the size leaves out */
    REQUIRE(run == status || bad_page || (lacks_memory && (status == ATTN_OK || both_refuse)));
    REQUIRE(run == ATTN_OK || (attn_last_error()[0] != '\0' &&
                               memcmp(before, c->buffer[ARGS_O], c->bytes[ARGS_O]) == 0));
    free(before);
    if (run == ATTN_OK) { /* once more, in a workspace of exactly the size asked for */
        c->args.workspace = malloc(bytes + 1);
        c->args.workspace_bytes = bytes;
        REQUIRE(c->args.workspace != NULL && attn_forward(context, &c->args) == ATTN_OK);
        free(c->args.workspace);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static attn_context *context;
    input in = {data, data + size};
    call c;
    if (context == NULL) {
        attn_context_config config = {.struct_size = sizeof config, .threads = 2};
        REQUIRE(attn_context_create(&config, &context) == ATTN_OK);
    }
    create_call(&c, &in);
    for (int64_t changes = below(&in, 4); changes > 0; changes--) {
        (flip(&in) ? change_tensor : change_scalar)(&c, &in);
    }
    check_forward(&c, context);
    for (int i = 0; i < ARGS_TENSORS; i++) {
        free(c.buffer[i]);
    }
    return 0;
}
