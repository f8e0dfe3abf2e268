/*
 * problem.c: validation of the forward pass's arguments, field by field, and their normal form. No
 * arithmetic on q, k, v happens here.
 */
#include "core/dropout_args.h"
#include "core/problem.h"
#include "core/code_types.h"
#include "core/error.h"
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* Checks types: K and V have Q's type or are quantised. */
static attn_status check_types(const attn_problem *problem)
{
    const int key_types = ATTN_FLOAT_TYPES | ATTN_CODE_TYPES;
    TRY(attn_check_tensor("q", &problem->q, ATTN_FLOAT_TYPES, false));
    TRY(attn_check_tensor("k", &problem->k, key_types, false));
    TRY(attn_check_tensor("v", &problem->v, key_types, false));
    TRY(attn_check_tensor("o", &problem->o, ATTN_FLOAT_TYPES, !problem->backward));
    const bool k_codes = attn_is_code(problem->k.dtype), v_codes = attn_is_code(problem->v.dtype);
    if ((k_codes || v_codes) && problem->q.dtype == ATTN_F64) {
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT,
                         "q.dtype = %d (f64), must be f32, f16 or bf16 with quantised k or v",
                         (int)problem->q.dtype);
    }
    if ((!k_codes && problem->k.dtype != problem->q.dtype) ||
        (!v_codes && problem->v.dtype != problem->q.dtype)) {
        return attn_fail(
            ATTN_ERR_INVALID_ARGUMENT,
            "q.dtype = %d (%s), k.dtype = %d (%s) and v.dtype = %d (%s) must be the same",
            (int)problem->q.dtype, attn_type_name(problem->q.dtype), (int)problem->k.dtype,
            attn_type_name(problem->k.dtype), (int)problem->v.dtype,
            attn_type_name(problem->v.dtype));
    }
    if (problem->o.dtype != problem->q.dtype && problem->o.dtype != ATTN_F32) {
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT,
                         "o.dtype = %d (%s) must be q.dtype = %d (%s) or f32",
                         (int)problem->o.dtype, attn_type_name(problem->o.dtype),
                         (int)problem->q.dtype, attn_type_name(problem->q.dtype));
    }
    return ATTN_OK;
}

/* Checks that two tensors have equally many columns. An element of codes may hold several. */
static attn_status check_columns(const char *name, const attn_tensor *tensor, const char *like_name,
                                 const attn_tensor *like)
{
    const int64_t each = attn_code_columns(tensor->dtype),
                  like_each = attn_code_columns(like->dtype);
    if (each == like_each) {
        return attn_check_extent(name, tensor, 3, like_name, like, 3);
    }
    const int64_t have = tensor->shape[3], want = like->shape[3];
    const bool equal =
        each == 2 ? want % 2 == 0 && have == want / 2 : have % 2 == 0 && have / 2 == want;
    return equal ? ATTN_OK
                 : attn_fail(ATTN_ERR_INVALID_ARGUMENT,
                             "%s.shape[3] = %lld%s but %s.shape[3] = %lld%s", name, (long long)have,
                             each == 2 ? " of i4x2, 2 columns each," : "", like_name,
                             (long long)want, like_each == 2 ? " of i4x2, 2 columns each" : "");
}

static attn_status check_qkvo(const attn_problem *problem)
{
    TRY(check_types(problem));
    if (!problem->paged) {
        TRY(attn_check_extent("k", &problem->k, 0, "q", &problem->q, 0));
    }
    TRY(attn_check_extents("v", &problem->v, "k", &problem->k, 3));
    TRY(check_columns("k", &problem->k, "q", &problem->q));
    TRY(attn_check_extents("o", &problem->o, "q", &problem->q, 3));
    TRY(check_columns("o", &problem->o, "v", &problem->v));
    if (problem->heads > 0 && (problem->kv_heads == 0 || problem->heads % problem->kv_heads != 0)) {
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT,
                         "k.shape[2] = %lld does not divide q.shape[2] = %lld",
                         (long long)problem->kv_heads, (long long)problem->heads);
    }
    return ATTN_OK;
}

static attn_status check_rows(const char *name, const attn_tensor *tensor,
                              const attn_problem *problem, bool required)
{
    if (!required && !attn_tensor_present(tensor)) {
        return ATTN_OK;
    }
    TRY(attn_check_tensor(name, tensor, ATTN_WIDE_TYPES, !problem->backward));
    for (int a = 0; a < 3; a++) {
        TRY(attn_check_extent(name, tensor, a, "q", &problem->q, a));
    }
    return tensor->shape[3] == 1 ? ATTN_OK : attn_refuse_shape(name, tensor, "a last axis of 1");
}

/* ---- what changes scores --------------------------------------------------------------------- */

/* Finds the largest numbers of rows and keys that a mask tensor has to cover. */
static void find_longest(const attn_problem *problem, int64_t *rows, int64_t *keys)
{
    const bool told = attn_tensor_present(&problem->used_k) || attn_tensor_present(&problem->pad_k),
               differ = problem->varlen || (problem->paged && told);
    *rows = problem->varlen ? 0 : problem->q.shape[1];
    *keys = differ ? 0 : problem->keys;
    for (int64_t b = 0; b < problem->batch && !problem->device && differ; b++) {
        const attn_sequence sequence = attn_problem_lengths(problem, b);
        const int64_t n = problem->paged ? sequence.nk : sequence.k_rows;
        *rows = sequence.nq > *rows ? sequence.nq : *rows;
        *keys = n > *keys ? n : *keys;
    }
}

/* Axes (batch, head, query, key); each extent 1 or the full one. In varlen the last two may be
 * longer. */
static attn_status check_broadcast(const char *name, const attn_tensor *tensor,
                                   const attn_problem *problem, int types, int64_t nq, int64_t nk)
{
    if (!attn_tensor_present(tensor)) {
        return ATTN_OK;
    }
    TRY(attn_check_tensor(name, tensor, types, false));
    const int64_t each = attn_mask_each(tensor->dtype);
    const int64_t full[4] = {problem->batch, problem->heads, nq, nk / each + (nk % each != 0)};
    for (int a = 0; a < 4; a++) {
        bool longer =
            (problem->varlen ? a >= 2 : problem->paged && a == 3) && tensor->shape[a] > full[a];
        const bool shared = a < 3 || each == 1; /* extents of 1 are broadcast */
        if (tensor->shape[a] != full[a] && !longer && !(shared && tensor->shape[a] == 1)) {
            return attn_fail(ATTN_ERR_INVALID_ARGUMENT, "%s.shape[%d] = %lld, must be %s%lld", name,
                             a, (long long)tensor->shape[a], shared && full[a] != 1 ? "1 or " : "",
                             (long long)full[a]);
        }
    }
    return ATTN_OK;
}

static attn_status check_score_tensors(const attn_problem *problem)
{
    int64_t nq, nk;
    find_longest(problem, &nq, &nk);
    TRY(check_broadcast("mask", &problem->mask, problem, ATTN_MASK_TYPES, nq, nk));
    TRY(check_broadcast("bias", &problem->bias, problem, ATTN_FLOAT_TYPES, nq, nk));
    TRY(check_broadcast("alibi_slopes", &problem->alibi, problem, ATTN_WIDE_TYPES, 1, 1));
    return check_broadcast("sinks", &problem->sinks, problem, ATTN_WIDE_TYPES, 1, 1);
}

/* Beyond any length, so that a position plus a bound cannot overflow, is the same as unbounded. */
static int64_t window_bound(int64_t n)
{
    return n < 0 || n > INT64_MAX / 4 ? ATTN_UNBOUNDED : n;
}

/* A value whose flag is off would be ignored, which cannot be meant. */
static attn_status check_flags_of_values(const attn_forward_args *args)
{
    if (!(args->flags & ATTN_SCALE) && !(args->softmax_scale == 0)) {
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT,
                         "softmax_scale = %g, but flags = 0x%llx lacks ATTN_SCALE",
                         args->softmax_scale, (unsigned long long)args->flags);
    }
    if (!(args->flags & ATTN_WINDOW) && (args->window_left != 0 || args->window_right != 0)) {
        return attn_fail(
            ATTN_ERR_INVALID_ARGUMENT,
            "window_left = %lld and window_right = %lld, but flags = 0x%llx lacks ATTN_WINDOW",
            (long long)args->window_left, (long long)args->window_right,
            (unsigned long long)args->flags);
    }
    return ATTN_OK;
}

static attn_status check_scalars(attn_problem *problem, const attn_forward_args *args)
{
    const uint64_t known = ATTN_CAUSAL | ATTN_TOP_LEFT | ATTN_WINDOW | ATTN_SCALE | ATTN_PRECISE |
                           ATTN_BF16X3 | ATTN_ROPE_INTERLEAVED | ATTN_SHARES_PAGES;
    if (args->flags & ~known) {
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT, "flags = 0x%llx has unknown bits",
                         (unsigned long long)args->flags);
    }
    TRY(check_flags_of_values(args));
    problem->precise = (args->flags & ATTN_PRECISE) != 0;
    problem->bf16x3 = (args->flags & ATTN_BF16X3) != 0;
    problem->shares = (args->flags & ATTN_SHARES_PAGES) != 0;
    problem->top_left = (args->flags & ATTN_TOP_LEFT) != 0;
    bool window = (args->flags & ATTN_WINDOW) != 0;
    problem->window_left = window ? window_bound(args->window_left) : ATTN_UNBOUNDED;
    problem->window_right = window ? window_bound(args->window_right) : ATTN_UNBOUNDED;
    if (args->flags & ATTN_CAUSAL) {
        problem->window_right = 0;
    }
    problem->scale = args->flags & ATTN_SCALE ? args->softmax_scale
                     : problem->d == 0        ? 1.0
                                              : 1.0 / sqrt((double)problem->d);
    if (!(fabs(problem->scale) <= 1e38)) { /* times log2(e) it must be a finite f32 */
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT,
                         "softmax_scale = %g must be finite and at most 1e38", problem->scale);
    }
    problem->softcap = args->softcap;
    if (!(problem->softcap >= 0.0 && problem->softcap <= (double)FLT_MAX) ||
        (problem->softcap > 0.0 && problem->softcap < (double)FLT_MIN)) {
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT,
                         "softcap = %g must be 0 or a positive normal f32", problem->softcap);
    }
    return ATTN_OK;
}

static attn_status check_o_f32(const attn_problem *problem)
{
    if (!attn_tensor_present(&problem->o_f32)) {
        return ATTN_OK;
    }
    TRY(attn_check_tensor("o_f32", &problem->o_f32, 1 << ATTN_F32, !problem->backward));
    for (int a = 0; a < 4; a++) {
        TRY(attn_check_extent("o_f32", &problem->o_f32, a, "o", &problem->o, a));
    }
    return ATTN_OK;
}

/* Refuses the options of caches, which the backward pass does not have. */
static attn_status check_reach(const attn_problem *problem, const attn_forward_args *args)
{
    if (!problem->backward) {
        return ATTN_OK;
    }
    const struct {
        const char *name;
        bool given;
    } options[] = {
        {"k_new", attn_tensor_present(&args->k_new)},
        {"v_new", attn_tensor_present(&args->v_new)},
        {"rope_cos", attn_tensor_present(&args->rope_cos)},
        {"rope_base", args->rope_base != 0},
        {"block_table", problem->paged},
        {"leftpad_k", attn_tensor_present(&problem->pad_k)},
    };
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
        if (options[i].given) {
            return attn_fail(ATTN_ERR_UNSUPPORTED, "%s is for attn_forward only", options[i].name);
        }
    }
    const bool k_codes = attn_is_code(args->k.dtype);
    const int32_t dtype = k_codes ? args->k.dtype : args->v.dtype;
    return attn_is_code(dtype)
               ? attn_fail(ATTN_ERR_UNSUPPORTED,
                           "%s.dtype = %d (%s): quantised keys are for attn_forward only",
                           k_codes ? "k" : "v", (int)dtype, attn_type_name(dtype))
               : ATTN_OK;
}

attn_status attn_problem_init(attn_problem *problem, const attn_forward_args *args, int meaning)
{
    const bool backward = meaning & ATTN_OF_BACKWARD,
               interleaved = args->flags & ATTN_ROPE_INTERLEAVED;
    *problem = (attn_problem){
        .q = args->q,
        .k = args->k,
        .v = args->v,
        .o = args->o,
        .o_f32 = args->o_f32,
        .lse = args->lse,
        .row_max = backward ? (attn_tensor){.dtype = 0} : args->row_max,
        .mask = args->mask,
        .bias = args->bias,
        .alibi = args->alibi_slopes,
        .sinks = args->sinks,
        .cu_q = args->cu_seqlens_q,
        .cu_k = args->cu_seqlens_k,
        .used_q = args->seqused_q,
        .used_k = args->seqused_k,
        .q_origin = args->q_origin,
        .k_origin = args->k_origin,
        .table = args->block_table,
        .pad_k = args->leftpad_k,
        .k_new = args->k_new,
        .v_new = args->v_new,
        .rope = {args->rope_cos, args->rope_sin, args->rope_base, 0, interleaved},
        .paged = attn_tensor_present(&args->block_table),
        .batch = args->q.shape[0],
        .heads = args->q.shape[2],
        .kv_heads = args->k.shape[2],
        .d = args->q.shape[3],
        .dv = args->o.shape[3],
        .device = meaning & ATTN_OF_DEVICE,
        .backward = backward,
    };
    TRY(check_reach(problem, args));
    attn_tensor *const required[] = {&problem->q, &problem->k, &problem->v, &problem->o,
                                     &problem->lse};
    for (int i = 0; i < (backward ? 5 : 4) && meaning & ATTN_OF_SHAPES; i++) {
        attn_stand_in(required[i]);
    }
    TRY(check_qkvo(problem));
    TRY(attn_check_codes(problem, args));
    problem->group = problem->kv_heads > 0 ? problem->heads / problem->kv_heads : 1;
    TRY(check_rows("lse", &problem->lse, problem, backward));
    TRY(check_rows("row_max", &problem->row_max, problem, false));
    TRY(check_o_f32(problem));
    TRY(check_scalars(problem, args));
    TRY(attn_dropout_init(&problem->dropout, args->dropout_p, args->dropout_seed,
                          args->dropout_offset));
    TRY(attn_check_lengths(problem, meaning));
    TRY(check_score_tensors(problem));
    attn_tensor *const tensors[] = {&problem->q,        &problem->k,        &problem->v,
                                    &problem->o,        &problem->lse,      &problem->o_f32,
                                    &problem->row_max,  &problem->mask,     &problem->bias,
                                    &problem->q_origin, &problem->k_origin, &problem->table};
    for (int i = 0; i < (int)(sizeof tensors / sizeof tensors[0]); i++) {
        attn_normalise_tensor(tensors[i], i < (backward ? 5 : 4)); /* required: q, k, v, o, lse */
    }
    return attn_check_append(problem, args, meaning); /* reads normalised origins */
}
