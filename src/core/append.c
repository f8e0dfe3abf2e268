/*
 * append.c: validation of the arguments that change the cache: new rows of K and V, and rotation.
 */
#include "core/error.h"
#include "core/problem.h"

static attn_status check_new(const char *name, const attn_tensor *tensor,
                             const attn_problem *problem, const char *cache_name,
                             const attn_tensor *cache, int64_t columns)
{
    if (!attn_tensor_present(tensor)) {
        return ATTN_OK;
    }
    TRY(attn_check_tensor(name, tensor, 1 << problem->q.dtype, false));
    TRY(attn_check_tensor(cache_name, cache, 1 << cache->dtype, true));
    const int64_t want[4] = {problem->q.shape[0], problem->q.shape[1], cache->shape[2], columns};
    for (int a = 0; a < 4; a++) {
        if (tensor->shape[a] != want[a]) {
            return attn_fail(ATTN_ERR_INVALID_ARGUMENT, "%s.shape[%d] = %lld, must be %lld", name,
                             a, (long long)tensor->shape[a], (long long)want[a]);
        }
    }
    return ATTN_OK;
}

/* Checks that the keys in use of every sequence include its new rows. *end = the end of all
 * positions. */
static attn_status check_rows(const attn_problem *problem, bool append, int64_t *end)
{
    *end = 0;
    for (int64_t b = 0; b < problem->batch; b++) {
        const attn_sequence sequence = attn_problem_sequence(problem, b);
        const int64_t first = attn_first_position(problem, &sequence);
        if (sequence.nq_used > sequence.nk && (append || first < 0)) {
            return attn_fail(ATTN_ERR_INVALID_ARGUMENT,
                             "sequence %lld has %lld keys in use, fewer than its %lld new rows",
                             (long long)b, (long long)sequence.nk, (long long)sequence.nq_used);
        }
        const int64_t last = sequence.nq_used > 0 ? first + sequence.nq_used : 0;
        *end = last > *end ? last : *end;
    }
    return ATTN_OK;
}

static attn_status check_angles(const char *name, const attn_tensor *tensor, int64_t pairs,
                                int64_t end)
{
    TRY(attn_check_tensor(name, tensor, ATTN_WIDE_TYPES, false));
    if (tensor->shape[1] != pairs || tensor->shape[2] != 1 || tensor->shape[3] != 1) {
        return attn_refuse_shape(name, tensor, "(positions, rope_dims / 2, 1, 1)");
    }
    if (tensor->shape[0] < end) {
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT,
                         "%s.shape[0] = %lld, but a row is at position %lld", name,
                         (long long)tensor->shape[0], (long long)(end - 1));
    }
    return ATTN_OK;
}

static attn_status check_rope(attn_problem *problem, const attn_forward_args *args, int64_t end)
{
    attn_rope *rope = &problem->rope;
    const bool tables = attn_tensor_present(&rope->cos);
    if (tables != attn_tensor_present(&rope->sin)) {
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT, "rope_cos and rope_sin must be given together");
    }
    if (!(rope->base >= 0 && rope->base <= 1e300) || (tables && rope->base != 0)) {
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT,
                         "rope_base = %g must be positive and finite, or 0 with tables",
                         rope->base);
    }
    if (!tables && rope->base == 0) {
        rope->dims = 0;
        return args->rope_dims == 0 && !rope->interleaved
                   ? ATTN_OK
                   : attn_fail(
                         ATTN_ERR_INVALID_ARGUMENT,
                         "rope_dims = %lld and ATTN_ROPE_INTERLEAVED need rope_base or tables",
                         (long long)args->rope_dims);
    }
    rope->dims = args->rope_dims == 0 ? problem->d : args->rope_dims;
    if (rope->dims < 0 || rope->dims % 2 != 0 || rope->dims > problem->d) {
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT,
                         "rope_dims = %lld, must be even and in [0, %lld]", (long long)rope->dims,
                         (long long)problem->d);
    }
    if (tables) {
        TRY(check_angles("rope_cos", &rope->cos, rope->dims / 2, end));
        TRY(check_angles("rope_sin", &rope->sin, rope->dims / 2, end));
    }
    return ATTN_OK;
}

attn_status attn_check_append(attn_problem *problem, const attn_forward_args *args)
{
    const bool append =
        attn_tensor_present(&problem->k_new) || attn_tensor_present(&problem->v_new);
    const bool rotate = attn_tensor_present(&problem->rope.cos) || problem->rope.base != 0;
    int64_t end = 0;
    TRY(check_new("k_new", &problem->k_new, problem, "k", &problem->k, problem->d));
    TRY(check_new("v_new", &problem->v_new, problem, "v", &problem->v, problem->dv));
    if (append || rotate) {
        TRY(check_rows(problem, append, &end));
    }
    return check_rope(problem, args, end);
}
