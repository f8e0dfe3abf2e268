/*
 * fuzz_calls.c: bytes as arguments of attn_merge, attn_merge_backward, attn_quantize,
 * attn_dequantize and attn_dropout_mask.
 *
 * The bytes choose one of these calls with small legal arguments, then up to three fields that are
 * replaced by any value. A call that was not changed succeeds, twice with the same bits. One that
 * was runs if its views still lie inside their buffers; otherwise it is given a fault that the
 * library's last check finds, so that the checks before it see the odd values. Whatever comes out,
 * inputs stay as they are, and after an error outputs do.
 */
#include "gpu.h"
#include "views.h"

#include <stdlib.h>
#include <string.h>

enum { PARTS = 3 };

enum kind { MERGE, MERGE_BACKWARD, QUANTIZE, DEQUANTIZE, DROPOUT, KINDS };

typedef struct call {
    enum kind kind;
    views all;
    attn_merge_args merge;
    attn_merge_backward_args back;
    attn_quantize_args quantize;
    attn_dropout_mask_args dropout;
    attn_tensor part_o[PARTS], part_lse[PARTS], part_d_o[PARTS], part_d_lse[PARTS];
} call;

static int32_t draw_float(input *in)
{
    return (int32_t)below(in, 4) + ATTN_F64;
}

static int32_t draw_wide(input *in)
{
    return flip(in) ? ATTN_F32 : ATTN_F64;
}

/* Extents below `most`, in this order. */
static void draw_shape(input *in, const int64_t most[4], int64_t shape[4])
{
    for (int a = 0; a < 4; a++) {
        shape[a] = below(in, most[a]);
    }
}

static void leave_out(input *in, attn_tensor *tensor)
{
    tensor->data = below(in, 8) == 0 ? NULL : tensor->data;
}

/* ---- legal arguments ------------------------------------------------------------------------- */

static void create_merge(call *c, input *in)
{
    const bool back = c->kind == MERGE_BACKWARD;
    int64_t o[4];
    draw_shape(in, (const int64_t[]){4, 6, 4, 80}, o);
    const int64_t rows[4] = {o[0], o[1], o[2], 1};
    c->merge = (attn_merge_args){.struct_size = sizeof c->merge, .parts = 1 + below(in, PARTS)};
    c->merge.part_o = c->part_o, c->merge.part_lse = c->part_lse;
    c->back = (attn_merge_backward_args){.struct_size = sizeof c->back, .forward = &c->merge};
    c->back.part_d_o = c->part_d_o, c->back.part_d_lse = c->part_d_lse;
    for (int64_t i = 0; i < c->merge.parts; i++) {
        views_create(&c->all, in, &c->part_o[i], false, draw_float(in), o);
        views_create(&c->all, in, &c->part_lse[i], false, draw_wide(in), rows);
        if (back) {
            views_create(&c->all, in, &c->part_d_o[i], true, draw_float(in), o);
            views_create(&c->all, in, &c->part_d_lse[i], true, draw_wide(in), rows);
            leave_out(in, &c->part_d_o[i]);
            leave_out(in, &c->part_d_lse[i]);
        }
    }
    views_create(&c->all, in, back ? &c->back.d_o : &c->merge.o, !back, draw_float(in), o);
    attn_tensor *lse = back ? &c->back.d_lse : &c->merge.lse;
    views_create(&c->all, in, lse, !back, draw_wide(in), rows);
    leave_out(in, lse);
}

static void create_quantize(call *c, input *in)
{
    attn_quantize_args *a = &c->quantize;
    const bool encode = c->kind == QUANTIZE;
    const int32_t dtype = (int32_t)below(in, 4) + ATTN_I8;
    const int64_t groups = 1 + below(in, 3);
    int64_t x[4];
    draw_shape(in, (const int64_t[]){4, 6, 4, 8}, x);
    x[3] *= 2 * groups;
    const int64_t codes[4] = {x[0], x[1], x[2], dtype == ATTN_I4X2 ? x[3] / 2 : x[3]};
    int64_t scale[4] = {x[0], x[1], x[2], groups};
    for (int axis = 0; axis < 3; axis++) {
        scale[axis] = flip(in) ? 1 : scale[axis];
    }
    *a = (attn_quantize_args){.struct_size = sizeof *a, .scale_given = (int32_t)below(in, 2)};
    const int32_t factor = (int32_t)below(in, 3) + ATTN_F32;
    const bool integers = dtype == ATTN_I8 || dtype == ATTN_I4X2;
    views_create(&c->all, in, &a->x, !encode, draw_float(in), x);
    views_create(&c->all, in, &a->codes, encode, dtype, codes);
    if (integers || flip(in)) {
        views_create(&c->all, in, &a->scale, encode, factor, scale);
    }
    if (integers && flip(in)) {
        views_create(&c->all, in, &a->shift, encode, factor, scale);
    }
}

static void create_origin(call *c, input *in, attn_tensor *tensor, int64_t batch)
{
    const int64_t shape[4] = {flip(in) ? 1 : batch, 1, 1, 1};
    views_create(&c->all, in, tensor, false, flip(in) ? ATTN_I32 : ATTN_I64, shape);
    for (int64_t i = 0; i < shape[0]; i++) {
        views_set(tensor, i, 0, below(in, 400));
    }
}

static void create_dropout(call *c, input *in)
{
    attn_dropout_mask_args *a = &c->dropout;
    int64_t keep[4];
    draw_shape(in, (const int64_t[]){3, 4, 40, 70}, keep);
    keep[0]++;
    *a = (attn_dropout_mask_args){.struct_size = sizeof *a};
    a->dropout_p = (double)below(in, 11) / 10;
    a->dropout_seed = take(in, 8), a->dropout_offset = take(in, 8);
    views_create(&c->all, in, &a->keep, true, ATTN_BOOL, keep);
    if (flip(in)) {
        create_origin(c, in, &a->q_origin, keep[0]);
        create_origin(c, in, &a->k_origin, keep[0]);
    }
}

static void create(call *c, input *in)
{
    memset(c, 0, sizeof *c);
    c->kind = (enum kind)below(in, KINDS);
    (c->kind == DROPOUT          ? create_dropout
     : c->kind <= MERGE_BACKWARD ? create_merge
                                 : create_quantize)(c, in);
}

/* ---- changes --------------------------------------------------------------------------------- */

static uint64_t *size_of(call *c)
{
    return c->kind == MERGE            ? &c->merge.struct_size
           : c->kind == MERGE_BACKWARD ? &c->back.struct_size
           : c->kind == DROPOUT        ? &c->dropout.struct_size
                                       : &c->quantize.struct_size;
}

static uint64_t full_size(enum kind kind)
{
    return kind == MERGE            ? sizeof(attn_merge_args)
           : kind == MERGE_BACKWARD ? sizeof(attn_merge_backward_args)
           : kind == DROPOUT        ? sizeof(attn_dropout_mask_args)
                                    : sizeof(attn_quantize_args);
}

/* Replaces a field that is no tensor. A size beyond the struct's, or one that ends within a
 * pointer, cannot be told from a right one. */
static void change_scalar(call *c, input *in)
{
    const int64_t value = wild(in);
    const int field = (int)below(in, 4);
    if (field == 0) {
        uint64_t *size = size_of(c);
        *size = (uint64_t)value < *size ? (uint64_t)value & ~(uint64_t)7 : *size;
    } else if (c->kind <= MERGE_BACKWARD) {
        c->merge.parts = value < c->merge.parts ? value : c->merge.parts;
    } else if (c->kind <= DEQUANTIZE) {
        *(field == 1 ? &c->quantize.reserved : &c->quantize.scale_given) = (int32_t)value;
    } else {
        memcpy(&c->dropout.dropout_p, &value, sizeof value);
    }
}

/* Gives the call a fault that is found after all others, unless it has nothing to do. False: there
 * is none. */
static bool spoil(call *c)
{
    const int64_t last = c->merge.parts > 0 ? c->merge.parts - 1 : 0;
    *size_of(c) = full_size(c->kind); /* fields behind it would be absent, the fault too */
    switch (c->kind) {
    case MERGE:
        c->merge.o.data = c->part_lse[last].data;
        return c->merge.o.shape[3] != 0;
    case MERGE_BACKWARD:
        c->part_d_o[last].data = c->back.d_o.data;
        return c->back.d_o.shape[3] != 0;
    case DROPOUT:
        c->dropout.dropout_p = 2;
        return true;
    default:
        c->quantize.codes.data = c->quantize.x.data;
        return true;
    }
}

/* ---- calls ----------------------------------------------------------------------------------- */

static attn_status run(const call *c, attn_context *context)
{
    switch (c->kind) {
    case MERGE:
        return attn_merge(context, &c->merge);
    case MERGE_BACKWARD:
        return attn_merge_backward(context, &c->back);
    case QUANTIZE:
        return attn_quantize(context, &c->quantize);
    case DEQUANTIZE:
        return attn_dequantize(context, &c->quantize);
    default:
        return attn_dropout_mask(context, &c->dropout);
    }
}

static void check(call *c, input *in, bool changed)
{
    static attn_context *one, *three;
    const bool runs = views_inside(&c->all) && views_affordable(&c->all);
    views_remember(&c->all);
    if (!views_hold(&c->all, &c->dropout.q_origin) || !views_hold(&c->all, &c->dropout.k_origin) ||
        !(runs || (views_have_addresses(&c->all) && spoil(c)))) {
        return; /* origins are read by the checks */
    }
    const attn_status status = run(c, fuzz_context(&one, 1));
    REQUIRE(changed || status == ATTN_OK);
    REQUIRE(status == ATTN_OK || attn_last_error()[0] != '\0');
    REQUIRE(views_unchanged(&c->all, !runs || status != ATTN_OK));
    gpu_called(run(c, gpu_context(in)), (int)status,
               c->dropout.q_origin.data != NULL || c->dropout.k_origin.data != NULL);
    if (runs && status == ATTN_OK) {
        views_remember(&c->all);
        REQUIRE(run(c, fuzz_context(&three, 3)) == ATTN_OK && views_unchanged(&c->all, true));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    input in = {data, data + size};
    call c;
    create(&c, &in);
    const int64_t changes = below(&in, 4);
    for (int64_t n = 0; n < changes; n++) {
        if (flip(&in)) {
            views_change(c.all.list[below(&in, c.all.count)].tensor, &in);
        } else {
            change_scalar(&c, &in);
        }
    }
    check(&c, &in, changes > 0);
    views_free(&c.all);
    return 0;
}
