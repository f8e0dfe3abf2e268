/*
 * tensors.c: the tensors of a problem. Strides are layout.h, memory is region.h, values
 * are inputs.h; after calls tensors_memory.c looks at them.
 */
#include "codes.h"
#include "inputs.h"
#include "layout.h"
#include "problem.h"
#include "tensors_memory.h"

#include <stdlib.h>
#include <string.h>

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
        inputs_fill(t, which >= INPUTS_K_SCALE ? maker->spec->kv_dtype : maker->spec->inputs,
                    maker->spec->seed, which);
        const bool sink = which == INPUTS_SINKS, row = which <= INPUTS_V || which == INPUTS_GRAD_O;
        if (maker->spec->infinite > 0 && row) {
            inputs_sow(t, maker->spec->infinite, maker->spec->seed + 1, which, true);
        }
        if (maker->spec->sown > 0 && (row || sink)) {
            inputs_sow(t, sink ? 4 : maker->spec->sown, maker->spec->seed, which, false);
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

/* The number of pages: all sequences' and one more that no sequence has, an odd number, for the
 * steps of make_table. */
static int64_t pool_pages(const problem_spec *spec)
{
    return spec->b * pages_of(spec) / 2 * 2 + 3;
}

/* Makes the table of all sequences' pages: every second page of the pool, round and round. Those
 * of the prefix are the first sequence's. */
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
        const bool shared = (i % pages) * maker->spec->page < maker->spec->prefix;
        inputs_store(t, i / pages, i % pages, 0, 0,
                     (double)(2 * ((shared ? i % pages : i) + 1) % pool_pages(maker->spec)));
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

/* Makes K or V, of `columns` columns, with its scales and shifts. */
static void make_keys(struct maker *maker, attn_tensor *t, attn_tensor *scale, attn_tensor *shift,
                      int64_t columns, bool v)
{
    const problem_spec *spec = maker->spec;
    const int64_t rows = spec->page > 0 ? spec->page : spec->nk;
    const int64_t count = spec->page > 0 ? pool_pages(spec) : spec->has_lens ? 1 : spec->b;
    const int32_t dtype = spec->kv_dtype != 0 ? spec->kv_dtype : spec->dtype;
    make_input(maker, t,
               layout_shaped(count, rows, spec->hkv, columns / codes_columns(dtype), dtype),
               v ? ROLE_V : ROLE_K, v ? INPUTS_V : INPUTS_K);
    if (spec->kv_scale[0] == '\0') {
        return;
    }
    const attn_tensor shape = layout_shaped(
        strchr(spec->kv_scale, 'b') ? count : 1, strchr(spec->kv_scale, 'k') ? rows : 1,
        strchr(spec->kv_scale, 'h') ? spec->hkv : 1,
        spec->kv_group > 0 ? columns / spec->kv_group : 1, spec->kv_scale_dtype);
    const bool far = v && spec->inputs != INPUTS_UNIFORM;
    make_input(maker, scale, shape, ROLE_ROW, far ? INPUTS_V_SCALE : INPUTS_K_SCALE);
    if (spec->kv_shift) {
        make_input(maker, shift, shape, ROLE_ROW, v ? INPUTS_V_SHIFT : INPUTS_K_SHIFT);
    }
}

/* ---- The problem ----------------------------------------------------------------------------- */

static void set_options(const problem_spec *spec, attn_forward_args *args)
{
    args->struct_size = sizeof *args;
    args->flags = (spec->causal ? ATTN_CAUSAL : 0u) | (spec->top_left ? ATTN_TOP_LEFT : 0u) |
                  (spec->has_window ? ATTN_WINDOW : 0u) | (spec->has_scale ? ATTN_SCALE : 0u) |
                  (spec->precise ? ATTN_PRECISE : 0u) | (spec->bf16x3 ? ATTN_BF16X3 : 0u) |
                  (spec->prefix > 0 ? ATTN_SHARES_PAGES : 0u);
    args->window_left = spec->has_window ? spec->window_left : 0;
    args->window_right = spec->has_window ? spec->window_right : 0;
    args->softmax_scale = spec->has_scale ? spec->scale : 0;
    args->softcap = spec->softcap;
    args->dropout_p = spec->dropout;
    args->dropout_seed = spec->dropout_seed;
    args->dropout_offset = spec->dropout_offset;
}

/* Makes lengths, pages, padding and origins. */
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
        make_keys(maker, &args->k, &args->k_scale, &args->k_shift, spec->d, false);
        if (spec->view) {
            args->v = args->k;
            args->v.shape[3] = spec->dv;
        } else {
            make_keys(maker, &args->v, &args->v_scale, &args->v_shift, spec->dv, true);
        }
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
        attn_tensor mask = by_axes(spec, spec->mask, spec->mask_dtype);
        mask.shape[3] = spec->mask_dtype == ATTN_B1X8 ? (mask.shape[3] + 7) / 8 : mask.shape[3];
        make_input(maker, &args->mask, mask, ROLE_SCORES, INPUTS_MASK);
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
