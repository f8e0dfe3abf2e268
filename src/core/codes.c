/*
 * codes.c: validation of quantised K and V: types, scales and shifts.
 */
#include "core/codes.h"
#include "core/error.h"

enum { FACTOR_TYPES = 1 << ATTN_F32 | 1 << ATTN_F16 | 1 << ATTN_BF16 };

bool attn_codes_own_scales(const attn_tensor *scale, const attn_tensor *codes)
{
    return attn_tensor_present(scale) && scale->shape[0] == codes->shape[0] &&
           scale->shape[1] == codes->shape[1];
}

/* Checks a scale or a shift of codes with so many columns. */
static attn_status check_factor(const char *name, const attn_tensor *factor,
                                const attn_tensor *codes, int64_t columns, bool output)
{
    TRY(attn_check_tensor(name, factor, FACTOR_TYPES, output));
    for (int a = 0; a < 3; a++) {
        if (factor->shape[a] != 1 && factor->shape[a] != codes->shape[a]) {
            return attn_fail(ATTN_ERR_INVALID_ARGUMENT, "%s.shape[%d] = %lld, must be %s%lld", name,
                             a, (long long)factor->shape[a], codes->shape[a] != 1 ? "1 or " : "",
                             (long long)codes->shape[a]);
        }
    }
    if (factor->shape[3] < 1 || columns % factor->shape[3] != 0) {
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT,
                         "%s.shape[3] = %lld does not divide %lld columns", name,
                         (long long)factor->shape[3], (long long)columns);
    }
    return ATTN_OK;
}

static attn_status check_shift(const attn_code_names *names, const attn_tensor *codes,
                               const attn_tensor *scale, const attn_tensor *shift, int64_t columns,
                               bool output)
{
    if (!attn_tensor_present(shift)) {
        return ATTN_OK;
    }
    if (codes->dtype != ATTN_I8 && codes->dtype != ATTN_I4X2) {
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT, "%s is for i8 and i4x2, but %s.dtype = %d (%s)",
                         names->shift, names->codes, (int)codes->dtype,
                         attn_type_name(codes->dtype));
    }
    TRY(check_factor(names->shift, shift, codes, columns, output));
    bool alike = shift->dtype == scale->dtype;
    for (int a = 0; a < 4; a++) {
        alike = alike && shift->shape[a] == scale->shape[a];
    }
    return alike ? ATTN_OK
                 : attn_fail(ATTN_ERR_INVALID_ARGUMENT, "%s and %s differ in type or shape",
                             names->scale, names->shift);
}

attn_status attn_check_factors(const attn_code_names *names, const attn_tensor *codes,
                               const attn_tensor *scale, const attn_tensor *shift, int64_t columns,
                               bool output)
{
    const bool has_scale = attn_tensor_present(scale);
    if ((has_scale || attn_tensor_present(shift)) && !attn_is_code(codes->dtype)) {
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT, "%s is given, but %s.dtype = %d (%s)",
                         has_scale ? names->scale : names->shift, names->codes, (int)codes->dtype,
                         attn_type_name(codes->dtype));
    }
    if (!has_scale && (codes->dtype == ATTN_I8 || codes->dtype == ATTN_I4X2)) {
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT, "%s.dtype = %d (%s) needs %s", names->codes,
                         (int)codes->dtype, attn_type_name(codes->dtype), names->scale);
    }
    if (has_scale) {
        TRY(check_factor(names->scale, scale, codes, columns, output));
    }
    return check_shift(names, codes, scale, shift, columns, output);
}

attn_status attn_check_codes(attn_problem *problem, const attn_forward_args *args)
{
    static const attn_code_names k = {"k", "k_scale", "k_shift"}, v = {"v", "v_scale", "v_shift"};
    const bool k_out = attn_tensor_present(&args->k_new) &&
                       attn_codes_own_scales(&args->k_scale, &problem->k),
               v_out = attn_tensor_present(&args->v_new) &&
                       attn_codes_own_scales(&args->v_scale, &problem->v);
    problem->k_codes = (attn_codes){&args->k_scale, &args->k_shift};
    problem->v_codes = (attn_codes){&args->v_scale, &args->v_shift};
    TRY(attn_check_factors(&k, &problem->k, &args->k_scale, &args->k_shift, problem->d, k_out));
    return attn_check_factors(&v, &problem->v, &args->v_scale, &args->v_shift, problem->dv, v_out);
}
