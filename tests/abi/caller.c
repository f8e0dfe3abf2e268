/*
 * caller.c: a program of every size-first struct, built with one header and run against the library
 * of a newer one (tests/abi/run).
 */
#include <attn/attn.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { N = 4, DIM = 2 };

static int failures;

static void check(int right, const char *what)
{
    if (!right) {
        printf("FAIL %s: %s\n", what, attn_last_error());
        failures++;
    }
}

/* Rows of N keys, as dense tensors. */
static attn_tensor rows(const float *data, int64_t dim)
{
    return attn_tensor_bshd(data, ATTN_F32, 1, N, 1, dim);
}

static void run_passes(attn_context *context)
{
    /* equal scores: each row is the mean of the values it sees */
    static const float zero[N * DIM], v[N * DIM] = {1, 10, 2, 20, 3, 30, 4, 40},
                                            d_o[N * DIM] = {0, 0, 0, 0, 0, 0, 4, 8};
    float o[N * DIM], lse[N], dv[N * DIM], joined[N * DIM];
    uint64_t bytes = 0;
    attn_plan plan = {.struct_size = sizeof plan};
    attn_forward_args args = {.struct_size = sizeof args,
                              .q = rows(zero, DIM),
                              .k = rows(zero, DIM),
                              .v = rows(v, DIM),
                              .o = rows(o, DIM),
                              .lse = rows(lse, 1),
                              .flags = ATTN_CAUSAL};
    const attn_backward_args grad = {
        .struct_size = sizeof grad, .forward = &args, .d_o = rows(d_o, DIM), .dv = rows(dv, DIM)};
    check(attn_forward_plan(context, &args, &plan) == ATTN_OK && plan.items > 0, "plan");
    check(attn_forward_workspace(context, &args, &bytes) == ATTN_OK, "workspace");
    check(attn_forward(context, &args) == ATTN_OK, "forward");
    check(o[6] == 2.5f && o[7] == 25 && fabsf(lse[3] - logf(4)) < 1e-6f, "O and LSE");
    check(attn_backward_plan(context, &grad, &plan) == ATTN_OK, "plan of the backward pass");
    check(attn_backward(context, &grad) == ATTN_OK, "backward");
    check(fabsf(dv[0] - 1) < 1e-6f && fabsf(dv[7] - 2) < 1e-6f, "dV");
    const attn_tensor part_o[2] = {args.o, args.o}, part_lse[2] = {args.lse, args.lse};
    const attn_merge_args merge = {.struct_size = sizeof merge,
                                   .parts = 2,
                                   .part_o = part_o,
                                   .part_lse = part_lse,
                                   .o = rows(joined, DIM)};
    check(attn_merge(context, &merge) == ATTN_OK && joined[7] == 25, "merge");
}

static void run_dropout(attn_context *context)
{
    unsigned char keep[N * N];
    memset(keep, 7, sizeof keep);
    const attn_dropout_mask_args args = {.struct_size = sizeof args,
                                         .keep = attn_tensor_bshd(keep, ATTN_BOOL, 1, 1, N, N),
                                         .dropout_p = 0.5};
    check(attn_dropout_mask(context, &args) == ATTN_OK && keep[N * N - 1] <= 1, "dropout");
}

int main(void)
{
    attn_context *context = NULL;
    attn_info info = {.struct_size = sizeof info};
    const attn_context_config config = {.struct_size = sizeof config, .threads = 2};
    check(attn_get_info(NULL, &info) == ATTN_OK && info.cpu_tables[0] != '\0', "info");
    check(attn_context_create(&config, &context) == ATTN_OK, "context");
    run_passes(context);
    run_dropout(context);
    attn_context_destroy(context);
    printf("%s: built with %zu, %zu, %zu bytes of arguments, plan, info\n",
           failures ? "FAILED" : "ok", sizeof(attn_forward_args), sizeof(attn_plan),
           sizeof(attn_info));
    return failures > 0;
}
