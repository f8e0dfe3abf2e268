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
    guarded_region region;
    attn_tensor output; /* data == NULL: an input */
    uint64_t hash;      /* hash of an input, once filled */
};

struct tensor_memory {
    struct piece piece[MAX_TENSORS];
    int count;
};

/* State shared by the functions below while they make a problem's tensors. */
struct maker {
    const problem_spec *spec;
    enum placement placement;
    struct tensor_memory *memory;
    bool failed;
};

/* ---- Memory ---------------------------------------------------------------------------------- */

/* Allocates memory for a tensor whose strides are set. */
static struct piece *place(struct maker *maker, attn_tensor *t, enum placement placement)
{
    int64_t below, span = layout_span(t, &below), size = (int64_t)attn_dtype_size(t->dtype);
    struct piece *piece = &maker->memory->piece[maker->memory->count];
    if (maker->failed ||
        !region_create(&piece->region, (size_t)((maker->spec->offset + span) * size), placement)) {
        maker->failed = true;
        return NULL;
    }
    maker->memory->count++;
    t->data = piece->region.first + (maker->spec->offset + below) * size;
    return piece;
}

/* ---- Kinds of tensors ------------------------------------------------------------------------ */

static void make_output(struct maker *maker, attn_tensor *t, attn_tensor shape, enum role role)
{
    if (!layout_fits(&shape)) {
        maker->failed = true;
        return;
    }
    layout_apply(&shape, maker->spec->layout, role);
    struct piece *piece = place(maker, &shape, maker->placement);
    if (piece != NULL) {
        piece->output = *t = shape;
    }
}

static void fill(struct maker *maker, struct piece *piece, const attn_tensor *t, int which)
{
    if (piece != NULL && maker->placement != PLACE_NOWHERE) {
        inputs_fill(t, maker->spec->inputs, maker->spec->seed, which);
        if (maker->spec->sown > 0 && (which <= INPUTS_V || which == INPUTS_GRAD_O)) {
            inputs_sow(t, maker->spec->sown, maker->spec->seed, which);
        }
        piece->hash = region_hash(&piece->region);
    }
}

static void make_input(struct maker *maker, attn_tensor *t, attn_tensor shape, enum role role,
                       int which)
{
    if (!layout_fits(&shape)) {
        maker->failed = true;
        return;
    }
    layout_apply(&shape, maker->spec->layout, role);
    struct piece *piece = place(maker, &shape, maker->placement);
    *t = shape;
    fill(maker, piece, t, which);
}

/* Packs Q, K and V of one row and head one after the other: [batch][row][q, k, v][head][dim]. */
static void make_packed(struct maker *maker, attn_forward_args *args, attn_tensor shape)
{
    attn_tensor all = shape, *part[3] = {&args->q, &args->k, &args->v};
    all.shape[2] *= 3;
    if (!layout_fits(&all)) {
        maker->failed = true;
        return;
    }
    layout_apply(&all, LAYOUT_BSHD, ROLE_Q);
    struct piece *piece = place(maker, &all, maker->placement);
    for (int n = 0; n < 3 && piece != NULL; n++) {
        *part[n] = all;
        part[n]->shape[2] = shape.shape[2];
        part[n]->data = (char *)all.data +
                        n * shape.shape[2] * shape.shape[3] * (int64_t)attn_dtype_size(all.dtype);
        fill(maker, piece, part[n], n == 0 ? INPUTS_Q : n == 1 ? INPUTS_K : INPUTS_V);
    }
}

/* Makes a tensor of numbers that calls read before they run: always in real memory. */
static void make_list(struct maker *maker, attn_tensor *t, const int64_t *values, int64_t count)
{
    *t = layout_shaped(count, 1, 1, 1, maker->spec->index_dtype);
    layout_apply(t, maker->spec->layout, ROLE_LIST);
    struct piece *piece =
        place(maker, t, maker->placement == PLACE_NOWHERE ? PLACE_PLAIN : maker->placement);
    for (int64_t i = 0; i < count && piece != NULL; i++) {
        inputs_store(t, i, 0, 0, 0, (double)values[i]);
    }
    if (piece != NULL) {
        piece->hash = region_hash(&piece->region);
    }
}

/* Makes a tensor of running sums of lengths, from the rows outside on. */
static void make_sums(struct maker *maker, attn_tensor *t, const int64_t *lens)
{
    int64_t sums[PROBLEM_MAX_SEQS + 1] = {maker->spec->outside};
    for (int64_t i = 0; i < maker->spec->b; i++) {
        sums[i + 1] = sums[i] + lens[i];
    }
    make_list(maker, t, sums, maker->spec->b + 1);
}

static int64_t pages_of(const problem_spec *spec)
{
    return spec->nk / spec->page + (spec->nk % spec->page != 0);
}

/* One page that no sequence has, and an odd number of them, for the steps of make_table. */
static int64_t pool_pages(const problem_spec *spec)
{
    return spec->b * pages_of(spec) / 2 * 2 + 3;
}

/* Makes the table of all sequences' pages: every second one of the pool, round and round. */
static void make_table(struct maker *maker, attn_tensor *t)
{
    const int64_t pages = pages_of(maker->spec), count = maker->spec->b * pages;
    *t = layout_shaped(maker->spec->b, pages, 1, 1, maker->spec->index_dtype);
    if (!layout_fits(t)) {
        maker->failed = true;
        return;
    }
    layout_apply(t, maker->spec->layout, ROLE_LIST);
    struct piece *piece =
        place(maker, t, maker->placement == PLACE_NOWHERE ? PLACE_PLAIN : maker->placement);
    for (int64_t i = 0; i < count && piece != NULL; i++) {
        inputs_store(t, i / pages, i % pages, 0, 0,
                     (double)(2 * (i + 1) % pool_pages(maker->spec)));
    }
    if (piece != NULL) {
        piece->hash = region_hash(&piece->region);
    }
}

static int64_t longest(const problem_spec *spec, const int64_t *lens, int64_t dense)
{
    int64_t most = 0;
    for (int64_t i = 0; i < spec->b && spec->has_lens; i++) {
        most = lens[i] > most ? lens[i] : most;
    }
    return spec->has_lens ? most : dense;
}

/* A tensor of axes (batch, head, query, key), 1 where the letter is missing. */
static attn_tensor by_axes(const problem_spec *spec, const char *axes, int32_t dtype)
{
    return layout_shaped(strchr(axes, 'b') ? spec->b : 1, strchr(axes, 'h') ? spec->hq : 1,
                         strchr(axes, 'q') ? longest(spec, spec->lens_q, spec->nq) : 1,
                         strchr(axes, 'k') ? longest(spec, spec->lens_k, spec->nk) : 1, dtype);
}

/* ---- The problem ----------------------------------------------------------------------------- */

static void set_options(const problem_spec *spec, attn_forward_args *args)
{
    args->struct_size = sizeof *args;
    args->flags = (spec->causal ? ATTN_CAUSAL : 0u) | (spec->top_left ? ATTN_TOP_LEFT : 0u) |
                  (spec->has_window ? ATTN_WINDOW : 0u) | (spec->has_scale ? ATTN_SCALE : 0u) |
                  (spec->precise ? ATTN_PRECISE : 0u) | (spec->bf16x3 ? ATTN_BF16X3 : 0u);
    args->window_left = spec->has_window ? spec->window_left : 0;
    args->window_right = spec->has_window ? spec->window_right : 0;
    args->softmax_scale = spec->has_scale ? spec->scale : 0;
    args->softcap = spec->softcap;
    args->dropout_p = spec->dropout;
    args->dropout_seed = spec->dropout_seed;
    args->dropout_offset = spec->dropout_offset;
}

/* Lengths, pages, padding and origins. */
static void make_lists(struct maker *maker, attn_forward_args *args)
{
    const problem_spec *spec = maker->spec;
    if (spec->has_lens) {
        make_sums(maker, &args->cu_seqlens_q, spec->lens_q);
        make_sums(maker, &args->cu_seqlens_k, spec->lens_k);
    }
    if (spec->has_used_q) {
        make_list(maker, &args->seqused_q, spec->used_q, spec->b);
    }
    if (spec->has_used_k) {
        make_list(maker, &args->seqused_k, spec->used_k, spec->b);
    }
    if (spec->page > 0) {
        make_table(maker, &args->block_table);
    }
    if (spec->has_leftpad) {
        make_list(maker, &args->leftpad_k, spec->leftpad_k, spec->b);
    }
    if (spec->q_origins > 0) {
        make_list(maker, &args->q_origin, spec->q_origin, spec->q_origins);
    }
    if (spec->k_origins > 0) {
        make_list(maker, &args->k_origin, spec->k_origin, spec->k_origins);
    }
}

static void make_tensors(struct maker *maker, attn_forward_args *args)
{
    const problem_spec *spec = maker->spec;
    int64_t b = spec->has_lens ? 1 : spec->b;
    int32_t real = spec->dtype == ATTN_F64 ? ATTN_F64 : ATTN_F32;
    if (spec->layout == LAYOUT_QKV) {
        make_packed(maker, args, layout_shaped(b, spec->nq, spec->hq, spec->d, spec->dtype));
    } else {
        make_input(maker, &args->q, layout_shaped(b, spec->nq, spec->hq, spec->d, spec->dtype),
                   ROLE_Q, INPUTS_Q);
        const int64_t rows = spec->page > 0 ? spec->page : spec->nk,
                      count = spec->page > 0 ? pool_pages(spec) : b;
        make_input(maker, &args->k, layout_shaped(count, rows, spec->hkv, spec->d, spec->dtype),
                   ROLE_K, INPUTS_K);
        make_input(maker, &args->v, layout_shaped(count, rows, spec->hkv, spec->dv, spec->dtype),
                   ROLE_V, INPUTS_V);
    }
    make_output(maker, &args->o, layout_shaped(b, spec->nq, spec->hq, spec->dv, spec->o_dtype),
                ROLE_O);
    if (spec->lse) {
        make_output(maker, &args->lse, layout_shaped(b, spec->nq, spec->hq, 1, real), ROLE_ROW);
    }
    if (spec->row_max) {
        make_output(maker, &args->row_max, layout_shaped(b, spec->nq, spec->hq, 1, real), ROLE_ROW);
    }
    if (spec->mask[0] != '\0') {
        make_input(maker, &args->mask, by_axes(spec, spec->mask, spec->mask_dtype), ROLE_SCORES,
                   INPUTS_MASK);
    }
    if (spec->bias[0] != '\0') {
        make_input(maker, &args->bias, by_axes(spec, spec->bias, spec->bias_dtype), ROLE_SCORES,
                   INPUTS_BIAS);
    }
    if (spec->alibi[0] != '\0') {
        make_input(maker, &args->alibi_slopes, by_axes(spec, spec->alibi, real), ROLE_LIST,
                   INPUTS_SLOPES);
    }
    if (spec->sinks[0] != '\0') {
        make_input(maker, &args->sinks, by_axes(spec, spec->sinks, real), ROLE_LIST, INPUTS_SINKS);
    }
    make_lists(maker, args);
}

static attn_tensor like(const attn_tensor *t, int32_t dtype)
{
    return layout_shaped(t->shape[0], t->shape[1], t->shape[2], t->shape[3], dtype);
}

static void make_gradients(struct maker *maker, const attn_forward_args *args,
                           attn_backward_args *backward)
{
    const problem_spec *spec = maker->spec;
    int32_t real = spec->dtype == ATTN_F64 ? ATTN_F64 : ATTN_F32;
    backward->struct_size = sizeof *backward;
    backward->forward = args;
    make_input(maker, &backward->d_o, like(&args->o, spec->dtype), ROLE_O, INPUTS_GRAD_O);
    if (spec->d_lse) {
        make_input(maker, &backward->d_lse, like(&args->lse, real), ROLE_ROW, INPUTS_GRAD_LSE);
    }
    make_output(maker, &backward->dq, like(&args->q, spec->grad_dtype), ROLE_O);
    make_output(maker, &backward->dk, like(&args->k, spec->grad_dtype), ROLE_O);
    make_output(maker, &backward->dv, like(&args->v, spec->grad_dtype), ROLE_O);
    if (spec->d_bias_dtype != 0) {
        make_output(maker, &backward->d_bias, like(&args->bias, spec->d_bias_dtype), ROLE_SCORES);
    }
    if (spec->d_alibi) {
        make_output(maker, &backward->d_alibi_slopes, like(&args->alibi_slopes, real), ROLE_LIST);
    }
    if (spec->d_sinks) {
        make_output(maker, &backward->d_sinks, like(&args->sinks, real), ROLE_LIST);
    }
}

bool problem_tensors_create(const problem_spec *spec, enum placement placement,
                            problem_tensors *tensors)
{
    memset(tensors, 0, sizeof *tensors);
    tensors->memory = calloc(1, sizeof *tensors->memory);
    if (tensors->memory == NULL) {
        return false;
    }
    struct maker maker = {spec, placement, tensors->memory, false};
    set_options(spec, &tensors->args);
    make_tensors(&maker, &tensors->args);
    if (spec->pass != PASS_FORWARD) {
        make_gradients(&maker, &tensors->args, &tensors->grad);
    }
    if (maker.failed) {
        problem_tensors_free(tensors);
    }
    return !maker.failed;
}

void problem_tensors_free(problem_tensors *tensors)
{
    for (int i = 0; tensors->memory != NULL && i < tensors->memory->count; i++) {
        region_free(&tensors->memory->piece[i].region);
    }
    free(tensors->memory);
    memset(tensors, 0, sizeof *tensors);
}

double problem_tensors_bytes(const problem_tensors *tensors)
{
    double sum = 0;
    for (int i = 0; i < tensors->memory->count; i++) {
        sum += (double)tensors->memory->piece[i].region.bytes;
    }
    return sum;
}

void problem_tensors_poison(problem_tensors *tensors)
{
    for (int i = 0; i < tensors->memory->count; i++) {
        struct piece *piece = &tensors->memory->piece[i];
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

bool problem_tensors_intact(const problem_tensors *tensors)
{
    for (int i = 0; i < tensors->memory->count; i++) {
        const struct piece *piece = &tensors->memory->piece[i];
        if (piece->output.data != NULL ? !gaps_intact(piece)
                                       : piece->hash != region_hash(&piece->region)) {
            return false;
        }
    }
    return true;
}
