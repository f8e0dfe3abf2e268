/*
 * check_verdict.c: see check_verdict.h.
 */
#include "check_verdict.h"
#include "oracle.h"
#include "style.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static uint64_t hash_tensor(const attn_tensor *t, uint64_t hash)
{
    int64_t all = t->data == NULL ? 0 : t->shape[0] * t->shape[1] * t->shape[2] * t->shape[3];
    for (int64_t n = 0; n < all; n++) {
        int64_t i3 = n % t->shape[3], i2 = n / t->shape[3] % t->shape[2];
        int64_t i1 = n / t->shape[3] / t->shape[2] % t->shape[1],
                i0 = n / t->shape[3] / t->shape[2] / t->shape[1];
        double x = oracle_element(t, i0, i1, i2, i3);
        uint64_t bits;
        memcpy(&bits, &x, sizeof bits);
        hash = (hash ^ (isnan(x) ? 1 : bits)) * 0x9E3779B97F4A7C15u;
        hash ^= hash >> 32;
    }
    return hash;
}

uint64_t check_hash(const attn_forward_args *args)
{
    return hash_tensor(&args->row_max, hash_tensor(&args->lse, hash_tensor(&args->o, 1)));
}

uint64_t check_hash_gradients(const attn_backward_args *args, uint64_t hash)
{
    const attn_tensor *tensors[ORACLE_GRADIENTS];
    grad_errors_tensors(args, tensors);
    for (int n = 0; n < ORACLE_GRADIENTS; n++) {
        hash = hash_tensor(tensors[n], hash);
    }
    return hash;
}

void check_judge_gradients(struct check_verdict *verdict, const problem_spec *problem,
                           double allowed)
{
    const bool random = problem->inputs == INPUTS_NORMAL && problem->sown == 0;
    verdict->exact_grad =
        verdict->grad_c <= allowed && (!random || grad_errors_proportional(&verdict->gradients));
}

void check_tell_json(cJSON *o, uint64_t seed, const struct check_verdict *verdict)
{
    cJSON_AddNumberToObject(o, "seed", (double)seed);
    cJSON_AddNumberToObject(o, "error_c", verdict->errors.c);
    cJSON_AddNumberToObject(o, "error_lse", verdict->errors.lse);
    cJSON_AddNumberToObject(o, "max_error", verdict->errors.relative);
    cJSON_AddNumberToObject(o, "error_l2", verdict->errors.l2);
    cJSON_AddNumberToObject(o, "bias", errors_bias(&verdict->errors));
    cJSON_AddNumberToObject(o, "rows", (double)verdict->errors.rows);
    for (int n = 0; n < ORACLE_GRADIENTS && verdict->backward; n++) {
        char name[32];
        snprintf(name, sizeof name, "error_%s", grad_errors_name((enum oracle_gradient)n));
        cJSON_AddNumberToObject(o, name, verdict->gradients.c[n]);
    }
    cJSON_AddBoolToObject(o, "same_bits", verdict->equal);
    cJSON_AddBoolToObject(o, "memory_intact", verdict->intact);
    cJSON_AddBoolToObject(o, "ok", verdict->ok);
    cli_print_json(o);
}

void check_tell_failure(const char *by, const struct check_verdict *verdict)
{
    if (!verdict->ok) {
        printf("  ");
        cli_print_verdict(false);
        printf(" with %s:%s%s%s%s%s\n", by, verdict->exact ? "" : " O is too far off;",
               verdict->exact_lse ? "" : " LSE is too far off;",
               verdict->exact_grad || !verdict->backward ? "" : " gradients are too far off;",
               verdict->equal ? "" : " other bits than at first;",
               verdict->intact ? "" : " wrote to an input or between the elements of an output;");
    }
}
