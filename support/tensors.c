/*
 * tensors.c: the tensors of a problem, and the check for writes outside the outputs. Strides are
 * layout.h, memory is region.h, values are inputs.h.
 */
#include "inputs.h"
#include "layout.h"
#include "problem.h"
#include "region.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_TENSORS = 24 };

/* One allocation: of one tensor, or of Q, K and V together if packed. */
struct piece {
    region region;
    attn_tensor output; /* data == NULL: an input */
    uint64_t hash;      /* hash of an input, once filled */
};

struct tensor_memory {
    struct piece piece[MAX_TENSORS];
    int count;
};

/* State shared by the functions below while they make a problem's tensors. */
struct maker {
    const problem *p;
    enum placement placement;
    struct tensor_memory *memory;
    bool failed;
};

/* ---- Memory ---------------------------------------------------------------------------------- */

/* Allocates memory for a tensor whose strides are set. */
static struct piece *place(struct maker *m, attn_tensor *t, enum placement placement)
{
    int64_t below, span = layout_span(t, &below), size = (int64_t)attn_dtype_size(t->dtype);
    struct piece *piece = &m->memory->piece[m->memory->count];
    if (m->failed ||
        !region_create(&piece->region, (size_t)((m->p->offset + span) * size), placement)) {
        m->failed = true;
        return NULL;
    }
    m->memory->count++;
    t->data = piece->region.first + (m->p->offset + below) * size;
    return piece;
}

/* ---- Kinds of tensors ------------------------------------------------------------------------ */

static void make_output(struct maker *m, attn_tensor *t, attn_tensor shape, enum role role)
{
    if (!layout_fits(&shape)) {
        m->failed = true;
        return;
    }
    layout_apply(&shape, m->p->layout, role);
    struct piece *piece = place(m, &shape, m->placement);
    if (piece != NULL) {
        piece->output = *t = shape;
    }
}

static void fill(struct maker *m, struct piece *piece, const attn_tensor *t, int which)
{
    if (piece != NULL && m->placement != PLACE_NOWHERE) {
        inputs_fill(t, m->p->inputs, m->p->seed, which);
        piece->hash = region_hash(&piece->region);
    }
}

static void make_input(struct maker *m, attn_tensor *t, attn_tensor shape, enum role role,
                       int which)
{
    if (!layout_fits(&shape)) {
        m->failed = true;
        return;
    }
    layout_apply(&shape, m->p->layout, role);
    struct piece *piece = place(m, &shape, m->placement);
    *t = shape;
    fill(m, piece, t, which);
}

/* Packs Q, K and V of one row and head one after the other: [batch][row][q, k, v][head][dim]. */
static void make_packed(struct maker *m, attn_forward_args *a, attn_tensor shape)
{
    attn_tensor all = shape, *part[3] = {&a->q, &a->k, &a->v};
    all.shape[2] *= 3;
    if (!layout_fits(&all)) {
        m->failed = true;
        return;
    }
    layout_apply(&all, LAYOUT_BSHD, ROLE_Q);
    struct piece *piece = place(m, &all, m->placement);
    for (int n = 0; n < 3 && piece != NULL; n++) {
        *part[n] = all;
        part[n]->shape[2] = shape.shape[2];
        part[n]->data = (char *)all.data +
                        n * shape.shape[2] * shape.shape[3] * (int64_t)attn_dtype_size(all.dtype);
        fill(m, piece, part[n], n == 0 ? INPUTS_Q : n == 1 ? INPUTS_K : INPUTS_V);
    }
}

/* Makes a tensor of numbers that calls read before they run: always in real memory. */
static void make_list(struct maker *m, attn_tensor *t, const int64_t *values, int64_t count)
{
    *t = layout_shaped(count, 1, 1, 1, m->p->index_dtype);
    layout_apply(t, m->p->layout, ROLE_LIST);
    struct piece *piece = place(m, t, m->placement == PLACE_NOWHERE ? PLACE_PLAIN : m->placement);
    for (int64_t i = 0; i < count && piece != NULL; i++) {
        inputs_store(t, i, 0, 0, 0, (double)values[i]);
    }
    if (piece != NULL) {
        piece->hash = region_hash(&piece->region);
    }
}

/* Makes a tensor of running sums of lengths, from the rows outside on. */
static void make_sums(struct maker *m, attn_tensor *t, const int64_t *lens)
{
    int64_t sums[PROBLEM_MAX_SEQS + 1] = {m->p->outside};
    for (int64_t i = 0; i < m->p->b; i++) {
        sums[i + 1] = sums[i] + lens[i];
    }
    make_list(m, t, sums, m->p->b + 1);
}

static int64_t pages_of(const problem *p)
{
    return p->nk / p->page + (p->nk % p->page != 0);
}

/* One page that no sequence has, and an odd number of them, for the steps of make_table. */
static int64_t pool_pages(const problem *p)
{
    return p->b * pages_of(p) / 2 * 2 + 3;
}

/* Makes the table of all sequences' pages: every second one of the pool, round and round. */
static void make_table(struct maker *m, attn_tensor *t)
{
    const int64_t pages = pages_of(m->p), count = m->p->b * pages;
    *t = layout_shaped(m->p->b, pages, 1, 1, m->p->index_dtype);
    if (!layout_fits(t)) {
        m->failed = true;
        return;
    }
    layout_apply(t, m->p->layout, ROLE_LIST);
    struct piece *piece = place(m, t, m->placement == PLACE_NOWHERE ? PLACE_PLAIN : m->placement);
    for (int64_t i = 0; i < count && piece != NULL; i++) {
        inputs_store(t, i / pages, i % pages, 0, 0, (double)(2 * (i + 1) % pool_pages(m->p)));
    }
    if (piece != NULL) {
        piece->hash = region_hash(&piece->region);
    }
}

static int64_t longest(const problem *p, const int64_t *lens, int64_t dense)
{
    int64_t most = 0;
    for (int64_t i = 0; i < p->b && p->has_lens; i++) {
        most = lens[i] > most ? lens[i] : most;
    }
    return p->has_lens ? most : dense;
}

/* A tensor of axes (batch, head, query, key), 1 where the letter is missing. */
static attn_tensor by_axes(const problem *p, const char *axes, int32_t dtype)
{
    return layout_shaped(strchr(axes, 'b') ? p->b : 1, strchr(axes, 'h') ? p->hq : 1,
                         strchr(axes, 'q') ? longest(p, p->lens_q, p->nq) : 1,
                         strchr(axes, 'k') ? longest(p, p->lens_k, p->nk) : 1, dtype);
}

/* ---- The problem ----------------------------------------------------------------------------- */

static void set_options(const problem *p, attn_forward_args *a)
{
    a->struct_size = sizeof *a;
    a->flags = (p->causal ? ATTN_CAUSAL : 0u) | (p->top_left ? ATTN_TOP_LEFT : 0u) |
               (p->has_window ? ATTN_WINDOW : 0u) | (p->has_scale ? ATTN_SCALE : 0u) |
               (p->precise ? ATTN_PRECISE : 0u) | (p->bf16x3 ? ATTN_BF16X3 : 0u);
    a->window_left = p->has_window ? p->window_left : 0;
    a->window_right = p->has_window ? p->window_right : 0;
    a->softmax_scale = p->has_scale ? p->scale : 0;
    a->softcap = p->softcap;
    a->dropout_p = p->dropout;
    a->dropout_seed = p->dropout_seed;
    a->dropout_offset = p->dropout_offset;
}

static void make_tensors(struct maker *m, attn_forward_args *a)
{
    const problem *p = m->p;
    int64_t b = p->has_lens ? 1 : p->b;
    int32_t real = p->dtype == ATTN_F64 ? ATTN_F64 : ATTN_F32;
    if (p->layout == LAYOUT_QKV) {
        make_packed(m, a, layout_shaped(b, p->nq, p->hq, p->d, p->dtype));
    } else {
        make_input(m, &a->q, layout_shaped(b, p->nq, p->hq, p->d, p->dtype), ROLE_Q, INPUTS_Q);
        const int64_t rows = p->page > 0 ? p->page : p->nk, count = p->page > 0 ? pool_pages(p) : b;
        make_input(m, &a->k, layout_shaped(count, rows, p->hkv, p->d, p->dtype), ROLE_K, INPUTS_K);
        make_input(m, &a->v, layout_shaped(count, rows, p->hkv, p->dv, p->dtype), ROLE_V, INPUTS_V);
    }
    make_output(m, &a->o, layout_shaped(b, p->nq, p->hq, p->dv, p->o_dtype), ROLE_O);
    if (p->lse) {
        make_output(m, &a->lse, layout_shaped(b, p->nq, p->hq, 1, real), ROLE_ROW);
    }
    if (p->row_max) {
        make_output(m, &a->row_max, layout_shaped(b, p->nq, p->hq, 1, real), ROLE_ROW);
    }
    if (p->mask[0] != '\0') {
        make_input(m, &a->mask, by_axes(p, p->mask, p->mask_dtype), ROLE_SCORES, INPUTS_MASK);
    }
    if (p->bias[0] != '\0') {
        make_input(m, &a->bias, by_axes(p, p->bias, p->bias_dtype), ROLE_SCORES, INPUTS_BIAS);
    }
    if (p->alibi[0] != '\0') {
        make_input(m, &a->alibi_slopes, by_axes(p, p->alibi, real), ROLE_LIST, INPUTS_SLOPES);
    }
    if (p->sinks[0] != '\0') {
        make_input(m, &a->sinks, by_axes(p, p->sinks, real), ROLE_LIST, INPUTS_SINKS);
    }
    if (p->has_lens) {
        make_sums(m, &a->cu_seqlens_q, p->lens_q);
        make_sums(m, &a->cu_seqlens_k, p->lens_k);
    }
    if (p->has_used_q) {
        make_list(m, &a->seqused_q, p->used_q, p->b);
    }
    if (p->has_used_k) {
        make_list(m, &a->seqused_k, p->used_k, p->b);
    }
    if (p->page > 0) {
        make_table(m, &a->block_table);
    }
    if (p->has_leftpad) {
        make_list(m, &a->leftpad_k, p->leftpad_k, p->b);
    }
    if (p->q_origins > 0) {
        make_list(m, &a->q_origin, p->q_origin, p->q_origins);
    }
    if (p->k_origins > 0) {
        make_list(m, &a->k_origin, p->k_origin, p->k_origins);
    }
}

static attn_tensor like(const attn_tensor *t, int32_t dtype)
{
    return layout_shaped(t->shape[0], t->shape[1], t->shape[2], t->shape[3], dtype);
}

static void make_gradients(struct maker *m, const attn_forward_args *a, attn_backward_args *g)
{
    const problem *p = m->p;
    int32_t real = p->dtype == ATTN_F64 ? ATTN_F64 : ATTN_F32;
    g->struct_size = sizeof *g;
    g->forward = a;
    make_input(m, &g->d_o, like(&a->o, p->dtype), ROLE_O, INPUTS_GRAD_O);
    if (p->d_lse) {
        make_input(m, &g->d_lse, like(&a->lse, real), ROLE_ROW, INPUTS_GRAD_LSE);
    }
    make_output(m, &g->dq, like(&a->q, p->grad_dtype), ROLE_O);
    make_output(m, &g->dk, like(&a->k, p->grad_dtype), ROLE_O);
    make_output(m, &g->dv, like(&a->v, p->grad_dtype), ROLE_O);
    if (p->d_bias_dtype != 0) {
        make_output(m, &g->d_bias, like(&a->bias, p->d_bias_dtype), ROLE_SCORES);
    }
    if (p->d_alibi) {
        make_output(m, &g->d_alibi_slopes, like(&a->alibi_slopes, real), ROLE_LIST);
    }
    if (p->d_sinks) {
        make_output(m, &g->d_sinks, like(&a->sinks, real), ROLE_LIST);
    }
}

bool problem_tensors_create(const problem *p, enum placement placement, problem_tensors *t)
{
    memset(t, 0, sizeof *t);
    t->memory = calloc(1, sizeof *t->memory);
    if (t->memory == NULL) {
        return false;
    }
    struct maker m = {p, placement, t->memory, false};
    set_options(p, &t->args);
    make_tensors(&m, &t->args);
    if (p->pass != PASS_FORWARD) {
        make_gradients(&m, &t->args, &t->grad);
    }
    if (m.failed) {
        problem_tensors_free(t);
    }
    return !m.failed;
}

void problem_tensors_free(problem_tensors *t)
{
    for (int i = 0; t->memory != NULL && i < t->memory->count; i++) {
        region_free(&t->memory->piece[i].region);
    }
    free(t->memory);
    memset(t, 0, sizeof *t);
}

double problem_tensors_bytes(const problem_tensors *t)
{
    double sum = 0;
    for (int i = 0; i < t->memory->count; i++) {
        sum += (double)t->memory->piece[i].region.bytes;
    }
    return sum;
}

void problem_tensors_poison(problem_tensors *t)
{
    for (int i = 0; i < t->memory->count; i++) {
        struct piece *piece = &t->memory->piece[i];
        if (piece->output.data != NULL) {
            memset(piece->region.first, 0xFF, piece->region.bytes);
        }
    }
}

/* Sets every element to 0xFF in a copy of the output's memory; all other bytes must be 0xFF
 * already. */
static bool gaps_intact(const struct piece *piece)
{
    const attn_tensor *t = &piece->output;
    size_t size = attn_dtype_size(t->dtype), bytes = piece->region.bytes;
    if ((size_t)(t->shape[0] * t->shape[1] * t->shape[2] * t->shape[3]) * size == bytes) {
        return true; /* no gaps */
    }
    unsigned char *copy = malloc(bytes);
    if (copy == NULL) {
        return false;
    }
    memcpy(copy, piece->region.first, bytes);
    int64_t origin = ((unsigned char *)t->data - piece->region.first) / (int64_t)size;
    for (int64_t i0 = 0; i0 < t->shape[0]; i0++) {
        for (int64_t i1 = 0; i1 < t->shape[1]; i1++) {
            for (int64_t i2 = 0; i2 < t->shape[2]; i2++) {
                for (int64_t i3 = 0; i3 < t->shape[3]; i3++) {
                    int64_t at = i0 * t->stride[0] + i1 * t->stride[1] + i2 * t->stride[2] +
                                 i3 * t->stride[3];
                    memset(copy + (size_t)(origin + at) * size, 0xFF, size);
                }
            }
        }
    }
    bool intact = bytes == 0 || (copy[0] == 0xFF && memcmp(copy, copy + 1, bytes - 1) == 0);
    free(copy);
    return intact;
}

bool problem_tensors_intact(const problem_tensors *t)
{
    for (int i = 0; i < t->memory->count; i++) {
        const struct piece *piece = &t->memory->piece[i];
        if (piece->output.data != NULL ? !gaps_intact(piece)
                                       : piece->hash != region_hash(&piece->region)) {
            return false;
        }
    }
    return true;
}
