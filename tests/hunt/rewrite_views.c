/*
 * rewrite_views.c: the second form's views: axes written out, other types, some of the results, one
 * sequence, some heads. See rewrite.h.
 */
#include "inputs.h"
#include "oracle.h"
#include "rewrite_parts.h"

#include <stdlib.h>
#include <string.h>

/* A dense tensor of this shape; absent without memory. */
static attn_tensor fresh(rewritten *r, const int64_t shape[4], int32_t dtype)
{
    const size_t bytes =
        (size_t)(shape[0] * shape[1] * shape[2] * shape[3]) * attn_dtype_size(dtype);
    void *data = r->owned_count < REWRITE_OWNED ? malloc(bytes + 1) : NULL;
    if (data) {
        memset(data, 0xFF, bytes + 1);
        r->owned[r->owned_count++] = data;
    }
    return attn_tensor_bshd(data, (attn_dtype)dtype, shape[0], shape[1], shape[2], shape[3]);
}

/* Writes a tensor anew with these extents, axes of one element repeated, in this type. */
static void write_out(rewritten *r, attn_tensor *t, const int64_t shape[4], int32_t dtype)
{
    const attn_tensor to = fresh(r, shape, dtype);
    int64_t at[4];
    for (at[0] = 0; to.data && at[0] < shape[0]; at[0]++) {
        for (at[1] = 0; at[1] < shape[1]; at[1]++) {
            for (at[2] = 0; at[2] < shape[2]; at[2]++) {
                for (at[3] = 0; at[3] < shape[3]; at[3]++) {
                    const int64_t from[4] = {on_axis(t, 0, at[0]), on_axis(t, 1, at[1]),
                                             on_axis(t, 2, at[2]), on_axis(t, 3, at[3])};
                    if (dtype == t->dtype) {
                        memcpy(element(&to, at), element(t, from), attn_dtype_size(dtype));
                    } else {
                        inputs_store(&to, at[0], at[1], at[2], at[3],
                                     oracle_element(t, from[0], from[1], from[2], from[3]));
                    }
                }
            }
        }
    }
    *t = to.data ? to : *t;
}

static bool drawn(const attn_tensor *t, dice *d, int64_t n)
{
    return t->data && dice_one_in(d, n);
}

void write_out_scores(rewritten *r, dice *d)
{
    attn_forward_args *a = r->args;
    attn_backward_args *g = r->grad;
    const int64_t b = r->is.b, h = r->is.hq;
    int64_t nq = 0, nk = 0;
    for (int64_t n = 0; n < b; n++) {
        nq = rows_of(&r->is, n) > nq ? rows_of(&r->is, n) : nq;
        nk = keys_of(&r->is, n) > nk ? keys_of(&r->is, n) : nk;
    }
    const bool whole =
        (double)b * (double)h * (double)nq * (double)nk < 1e6 && r->is.page == 0 && b > 0;
    const int64_t scores[4] = {b, h, nq, nk}, lists[4] = {b, h, 1, 1};
    if (drawn(&a->mask, d, 2) && whole && a->mask.dtype != ATTN_B1X8) {
        write_out(r, &a->mask, scores, a->mask.dtype);
        note(r, "mask written out");
    }
    if (drawn(&a->bias, d, 2) && whole && !g->d_bias.data) {
        write_out(r, &a->bias, scores, a->bias.dtype);
        note(r, "bias written out");
    }
    if (drawn(&a->alibi_slopes, d, 2) && !g->d_alibi_slopes.data) {
        write_out(r, &a->alibi_slopes, lists, a->alibi_slopes.dtype);
        note(r, "slopes written out");
    }
    if (drawn(&a->sinks, d, 2) && !g->d_sinks.data && !r->is.has_lens) {
        write_out(r, &a->sinks, lists, a->sinks.dtype);
        note(r, "sinks written out");
    }
}

void change_types(rewritten *r, dice *d)
{
    attn_forward_args *a = r->args;
    attn_backward_args *g = r->grad;
    const bool halves = a->q.dtype == ATTN_F16 || a->q.dtype == ATTN_BF16;
    if (halves && !r->own_bits && drawn(&g->d_o, d, 3)) { /* other products there */
        write_out(r, &g->d_o, g->d_o.shape, ATTN_F32);
        note(r, "dO in f32");
    }
    if (halves && a->o.dtype == ATTN_F32 && dice_one_in(d, 2)) {
        r->rounded = fresh(r, a->o.shape, a->q.dtype);
        if (r->rounded.data) {
            a->o_f32 = a->o, a->o = r->rounded;
            note(r, "O in two types");
        }
    }
    if (!r->backward && dice_one_in(d, 3)) {
        a->lse.data = dice_one_in(d, 2) ? NULL : a->lse.data;
        a->row_max.data = dice_one_in(d, 2) ? NULL : a->row_max.data;
        note(r, "fewer rows of results");
    }
    if (r->backward && dice_one_in(d, 2)) {
        attn_tensor *const list[] = {&g->dq,     &g->dk, &g->dv, &g->d_bias, &g->d_alibi_slopes,
                                     &g->d_sinks};
        for (int n = 0; n < 6; n++) {
            list[n]->data = dice_one_in(d, 2) ? NULL : list[n]->data;
        }
        note(r, "fewer gradients");
    }
}

/* Keeps n indices of an axis from `first` on, where the axis is not broadcast. */
static void cut(attn_tensor *t, int axis, int64_t first, int64_t n)
{
    if (t->data && t->shape[axis] != 1) {
        int64_t at[4] = {0};
        at[axis] = first;
        t->data = element(t, at);
        t->shape[axis] = n;
    }
}

/* A gradient of something that sequences, or heads, share is not of a part of them. */
static void cut_shared(attn_tensor *gradient, int axis, int64_t first, int64_t n)
{
    gradient->data = gradient->shape[axis] == 1 && gradient->data ? NULL : gradient->data;
    cut(gradient, axis, first, n);
}

void keep_sequence(rewritten *r, dice *d)
{
    attn_forward_args *a = r->args;
    attn_backward_args *g = r->grad;
    const int64_t b = dice_roll(d, r->is.b);
    attn_tensor *const rows[] = {&a->q,       &a->o,   &a->o_f32, &a->lse,
                                 &a->row_max, &g->d_o, &g->d_lse, &g->dq},
                       *const keys[] = {&a->k,       &a->v,       &a->k_scale, &a->v_scale,
                                        &a->k_shift, &a->v_shift, &g->dk,      &g->dv},
                       *const scores[] = {&a->mask, &a->bias, &a->alibi_slopes, &a->sinks},
                       *const shared[] = {&g->d_bias, &g->d_alibi_slopes, &g->d_sinks},
                       *const lists[] = {&a->seqused_q, &a->seqused_k, &a->q_origin,
                                         &a->k_origin,  &a->leftpad_k, &a->block_table};
    for (int n = 0; n < 8 && !r->is.has_lens; n++) {
        cut(rows[n], 0, b, 1);
        if (r->is.page == 0) {
            cut(keys[n], 0, b, 1);
        }
    }
    for (int n = 0; n < 4; n++) {
        cut(scores[n], 0, b, 1);
    }
    for (int n = 0; n < 3; n++) {
        cut_shared(shared[n], 0, b, 1);
    }
    for (int n = 0; n < 6; n++) {
        cut(lists[n], 0, b, 1);
    }
    if (r->is.has_lens) {
        cut(&a->cu_seqlens_q, 0, b, 2);
        cut(&a->cu_seqlens_k, 0, b, 2);
    }
    a->dropout_offset += (uint64_t)(b * r->is.hq);
    r->sequence = b;
    note(r, "one sequence");
}

void keep_heads(rewritten *r, dice *d)
{
    attn_forward_args *a = r->args;
    attn_backward_args *g = r->grad;
    const int64_t group = r->is.hq / r->is.hkv, first = dice_roll(d, r->is.hkv),
                  n = 1 + dice_roll(d, r->is.hkv - first);
    attn_tensor *const rows[] = {&a->q,       &a->o,   &a->o_f32, &a->lse,
                                 &a->row_max, &g->d_o, &g->d_lse, &g->dq},
                       *const keys[] = {&a->k,       &a->v,       &a->k_scale, &a->v_scale,
                                        &a->k_shift, &a->v_shift, &g->dk,      &g->dv},
                       *const scores[] = {&a->mask, &a->bias, &a->alibi_slopes, &a->sinks},
                       *const shared[] = {&g->d_bias, &g->d_alibi_slopes, &g->d_sinks};
    for (int i = 0; i < 8; i++) {
        cut(rows[i], 2, first * group, n * group);
        cut(keys[i], 2, first, n);
    }
    for (int i = 0; i < 4; i++) {
        cut(scores[i], 1, first * group, n * group);
    }
    for (int i = 0; i < 3 && n < r->is.hkv; i++) {
        cut_shared(shared[i], 1, first * group, n * group);
    }
    a->dropout_offset += (uint64_t)(first * group);
    r->kv_head = first, r->kv_heads = n;
    note(r, "some heads");
}
