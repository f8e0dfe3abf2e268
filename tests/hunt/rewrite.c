/*
 * rewrite.c: see rewrite.h. First the words of the problem change, then values move to where the
 * second form has them, then views are cut (rewrite_views.c).
 */
#include "oracle.h"
#include "rewrite_parts.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void note(rewritten *r, const char *word)
{
    const size_t used = strlen(r->name);
    snprintf(r->name + used, sizeof r->name - used, "%s%s", used ? ", " : "", word);
}

/* ---- places ---------------------------------------------------------------------------------- */

int64_t rows_of(const problem_spec *spec, int64_t b)
{
    return spec->has_lens ? spec->lens_q[b] : spec->nq;
}

int64_t keys_of(const problem_spec *spec, int64_t b)
{
    const int64_t page = spec->page > 0 ? spec->page : 1;
    return spec->has_lens ? spec->lens_k[b] : (spec->nk + page - 1) / page * page;
}

struct at place_row(const problem_spec *spec, int64_t b, int64_t i)
{
    int64_t first = spec->outside;
    for (int64_t n = 0; n < b && spec->has_lens; n++) {
        first += spec->lens_q[n];
    }
    return spec->has_lens ? (struct at){0, first + i} : (struct at){b, i};
}

struct at place_key(const problem_spec *spec, const attn_tensor *table, int64_t b, int64_t j)
{
    int64_t first = spec->outside;
    for (int64_t n = 0; n < b && spec->has_lens; n++) {
        first += spec->lens_k[n];
    }
    if (spec->page > 0) {
        return (struct at){(int64_t)oracle_element(table, b, j / spec->page, 0, 0), j % spec->page};
    }
    return spec->has_lens ? (struct at){0, first + j} : (struct at){b, j};
}

char *element(const attn_tensor *t, const int64_t at[4])
{
    int64_t offset = 0;
    for (int axis = 0; axis < 4; axis++) {
        offset += at[axis] > 0 ? at[axis] * t->stride[axis] : 0;
    }
    return (char *)t->data + offset * (int64_t)attn_dtype_size(t->dtype);
}

int64_t on_axis(const attn_tensor *t, int axis, int64_t i)
{
    return t->shape[axis] == 1 ? 0 : i;
}

/* ---- words ----------------------------------------------------------------------------------- */

static bool may_move(const problem_spec *spec)
{
    return spec->page == 0 && !spec->has_leftpad && spec->layout != LAYOUT_QKV &&
           spec->layout != LAYOUT_STRIDED && !spec->view && spec->b > 0;
}

/* Scales that follow keys but not sequences get rows of each sequence; those that follow sequences
 * alone have no place in a varlen form. */
static bool scales_move(problem_spec *spec, bool pages)
{
    const bool keys = strchr(spec->kv_scale, 'k') != NULL, batch = strchr(spec->kv_scale, 'b');
    if (keys && !batch) {
        memmove(spec->kv_scale + 1, spec->kv_scale, sizeof spec->kv_scale - 1);
        spec->kv_scale[0] = 'b';
    }
    return pages || keys || !batch;
}

static void spell_lengths(problem_spec *spec)
{
    for (int64_t b = 0; b < spec->b && !spec->has_used_q; b++) {
        spec->used_q[b] = rows_of(spec, b);
    }
    for (int64_t b = 0; b < spec->b && !spec->has_used_k; b++) {
        spec->used_k[b] = keys_of(spec, b);
    }
    spec->has_used_q = spec->has_used_k = true;
}

static void to_pages(rewritten *r, dice *d)
{
    problem_spec next = r->is;
    if (may_move(&next) && !r->backward && !next.has_lens && scales_move(&next, true)) {
        spell_lengths(&next);
        next.page = 1 + dice_roll(d, 40);
        r->is = next;
        note(r, "in pages");
    }
}

static void to_varlen(rewritten *r, dice *d)
{
    problem_spec next = r->is;
    if (may_move(&next) && !next.has_lens && scales_move(&next, false)) {
        next.outside = dice_one_in(d, 2) ? dice_roll(d, 9) : 0;
        next.has_lens = true;
        for (int64_t b = 0; b < next.b; b++) {
            next.lens_q[b] = r->is.nq, next.lens_k[b] = r->is.nk;
        }
        next.nq = next.nq * next.b + 2 * next.outside;
        next.nk = next.nk * next.b + 2 * next.outside;
        r->is = next;
        note(r, "varlen");
    }
}

static void to_dense(rewritten *r)
{
    problem_spec next = r->is;
    if (!may_move(&next) || !next.has_lens || next.kv_scale[0] != '\0') {
        return;
    }
    spell_lengths(&next);
    next.has_lens = false, next.outside = 0;
    next.nq = next.nk = 0;
    for (int64_t b = 0; b < next.b; b++) {
        next.nq = next.lens_q[b] > next.nq ? next.lens_q[b] : next.nq;
        next.nk = next.lens_k[b] > next.nk ? next.lens_k[b] : next.nk;
    }
    r->is = next;
    note(r, "padded");
}

/* Says what a call without these words means. */
static void spell_defaults(rewritten *r, dice *d)
{
    problem_spec *spec = &r->is;
    if (spec->causal && dice_one_in(d, 2)) {
        spec->window_left = spec->has_window ? spec->window_left : -1;
        spec->causal = false, spec->has_window = true, spec->window_right = 0;
        note(r, "causal as a window");
    }
    if (!spec->has_scale && dice_one_in(d, 2)) {
        spec->has_scale = true, spec->scale = spec->d > 0 ? 1 / sqrt((double)spec->d) : 1;
        note(r, "scale spelled out");
    }
    if (dice_one_in(d, 2)) {
        spell_lengths(spec);
        note(r, "lengths spelled out");
    }
    const bool positions = spec->q_origins > 0 || spec->k_origins > 0;
    if (!positions && !spec->top_left && spec->dropout == 0 && dice_one_in(d, 3)) {
        for (int64_t b = 0; b < spec->b; b++) {
            const int64_t nq = spec->has_used_q ? spec->used_q[b] : rows_of(spec, b),
                          nk = (spec->has_used_k ? spec->used_k[b] : keys_of(spec, b)) -
                               (spec->has_leftpad ? spec->leftpad_k[b] : 0);
            spec->q_origin[b] = nk > nq ? nk - nq : 0, spec->k_origin[b] = nq > nk ? nq - nk : 0;
        }
        spec->q_origins = spec->k_origins = (int32_t)spec->b;
        note(r, "origins spelled out");
    }
}

static void draw_words(rewritten *r, dice *d)
{
    static const int32_t layouts[] = {LAYOUT_BSHD, LAYOUT_BHSD, LAYOUT_GAP, LAYOUT_LOOSE};
    if (r->is.layout != LAYOUT_STRIDED) {
        r->is.layout = layouts[dice_roll(d, 4)];
    }
    r->is.offset = dice_roll(d, 4);
    if (!dice_one_in(d, 3)) {
        spell_defaults(r, d);
    }
    if (dice_one_in(d, 2)) {
        r->is.has_lens ? to_dense(r) : dice_one_in(d, 2) ? to_pages(r, d) : to_varlen(r, d);
    }
}

/* ---- values ---------------------------------------------------------------------------------- */

/* Copies all heads and columns of a row. */
static void copy_row(const attn_tensor *to, struct at there, const attn_tensor *from,
                     struct at here)
{
    for (int64_t h = 0; to->data && h < to->shape[2]; h++) {
        for (int64_t c = 0; c < to->shape[3]; c++) {
            const int64_t put[4] = {on_axis(to, 0, there.outer), on_axis(to, 1, there.row), h, c},
                          get[4] = {on_axis(from, 0, here.outer), on_axis(from, 1, here.row), h, c};
            memcpy(element(to, put), element(from, get), attn_dtype_size(to->dtype));
        }
    }
}

/* Brings rows of Q, K, V and of what belongs to them to their places in the second form. */
static void move_values(rewritten *r)
{
    const attn_forward_args *a = &r->first.args, *to = &r->second.args;
    const attn_backward_args *g = &r->first.grad, *grad = &r->second.grad;
    for (int64_t b = 0; b < r->was.b; b++) {
        for (int64_t i = 0; i < rows_of(&r->was, b); i++) {
            const struct at here = place_row(&r->was, b, i), there = place_row(&r->is, b, i);
            copy_row(&to->q, there, &a->q, here);
            copy_row(&grad->d_o, there, &g->d_o, here);
            copy_row(&grad->d_lse, there, &g->d_lse, here);
        }
        for (int64_t j = 0; j < keys_of(&r->was, b); j++) { /* into pages: no more are in use */
            const struct at here = place_key(&r->was, &a->block_table, b, j),
                            there = place_key(&r->is, &to->block_table, b, j);
            copy_row(&to->k, there, &a->k, here);
            copy_row(&to->v, there, &a->v, here);
            copy_row(&to->k_scale, there, &a->k_scale, here);
            copy_row(&to->v_scale, there, &a->v_scale, here);
            copy_row(&to->k_shift, there, &a->k_shift, here);
            copy_row(&to->v_shift, there, &a->v_shift, here);
        }
    }
}

/* ---- both forms ------------------------------------------------------------------------------ */

static bool moved(const rewritten *r)
{
    return r->is.page != r->was.page || r->is.has_lens != r->was.has_lens;
}

bool rewrite_open(const problem_spec *spec, dice *d, bool own_bits, rewritten *r)
{
    *r = (rewritten){.was = *spec, .is = *spec, .sequence = -1, .kv_heads = spec->hkv};
    r->backward = spec->pass != PASS_FORWARD, r->own_bits = own_bits;
    draw_words(r, d);
    if (!problem_tensors_create(&r->was, PLACE_GUARD_AFTER, &r->first)) {
        return false;
    }
    if (!problem_tensors_create(&r->is, PLACE_GUARD_BEFORE, &r->second)) {
        problem_tensors_free(&r->first);
        return false;
    }
    r->args = &r->second.args, r->grad = &r->second.grad;
    if (moved(r)) {
        move_values(r);
    }
    write_out_scores(r, d);
    change_types(r, d);
    if (r->is.b > 1 && dice_one_in(d, 4)) {
        keep_sequence(r, d);
    }
    if (r->is.hkv > 1 && dice_one_in(d, 4) &&
        (spec->dropout == 0 || r->is.b == 1 || r->sequence >= 0)) {
        keep_heads(r, d);
    }
    return true;
}

void rewrite_close(rewritten *r)
{
    for (int n = 0; n < r->owned_count; n++) {
        free(r->owned[n]);
    }
    problem_tensors_free(&r->first);
    problem_tensors_free(&r->second);
}
