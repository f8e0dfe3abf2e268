/*
 * check_cuda.c: problem lines on GPU 0 against the float64 oracle: check_cuda FILE|LINE .. (a file of problem lines, or
 * a line). Every problem runs twice, on two streams, into poisoned outputs between poisoned margins; both runs must
 * give the same bits. Exit status 77 if there is no GPU or the build has no kernels for one.
 *
 * Limits: those of the contract (A1, A3). The tensor cores take probabilities in 16 bits from inputs of 16 bits (A2):
 * an error of at most two roundings of the type on the scale of sum p |v|, or else A1 with c = 16 (large scores), and
 * over all elements an RMSE of at most 1.45 times that of rounding once.
 */
#include "args.h"
#include "errors.h"
#include "gpu.h"
#include "gpu_copy.h"
#include "problem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { SKIPPED = 77 };

static const double max_c = 4, max_lse = 8, max_rmse = 1.45, fast_c = 16;

struct check {
    attn_context *context;
    void *streams[2];
    long problems, failed, on[2]; /* on: forward_sm90, forward_sm80 */
    double worst_c, worst_lse, worst_rmse, worst_rounding;
};

/* One call on copies of the tensors; the outputs come back. False: refused. */
static bool run(struct check *c, problem_tensors *t, int stream, bool *margins)
{
    gpu_copy copies[ARGS_TENSORS];
    attn_forward_args args = t->args;
    problem_tensors_poison(t);
    for (int i = 0; i < ARGS_TENSORS; i++) {
        copies[i] = gpu_copy_tensor(args_at(&t->args, i));
        *args_at(&args, i) = copies[i].there;
    }
    args.stream = c->streams[stream];
    attn_status status = attn_forward(c->context, &args);
    gpu_wait();
    for (int i = 0; i < ARGS_TENSORS; i++) {
        if (i >= 3 && i <= 5) {
            gpu_copy_back(&copies[i]);
            *margins = *margins && gpu_margins_intact(&copies[i]);
        }
        gpu_copy_free(&copies[i]);
    }
    return status == ATTN_OK;
}

static uint64_t hash_outputs(const attn_forward_args *args)
{
    uint64_t hash = 1;
    const attn_tensor *outputs[3] = {&args->o, &args->lse, &args->row_max};
    for (int i = 0; i < 3; i++) {
        const attn_tensor *t = outputs[i];
        int64_t all = t->data == NULL ? 0 : t->shape[0] * t->shape[1] * t->shape[2] * t->shape[3];
        for (int64_t n = 0; n < all; n++) {
            int64_t rest = n, e = 0;
            for (int a = 3; a >= 0; a--) {
                e += rest % t->shape[a] * t->stride[a];
                rest /= t->shape[a];
            }
            uint64_t bits = 0;
            size_t size = attn_dtype_size(t->dtype);
            memcpy(&bits, (const char *)t->data + e * (int64_t)size, size);
            hash = (hash ^ bits) * 0x9E3779B97F4A7C15u;
            hash ^= hash >> 32;
        }
    }
    return hash;
}

static bool judge(struct check *c, const attn_forward_args *args, bool rounds, const errors *e)
{
    c->worst_lse = fmax(c->worst_lse, e->lse);
    if (!rounds) {
        c->worst_c = fmax(c->worst_c, e->c);
        return e->c <= max_c && e->lse <= max_lse;
    }
    double rounding = args->q.dtype == ATTN_F16 ? 0x1p-11 : 0x1p-8,
           ratio = e->rmse_once > 0 ? e->rmse / e->rmse_once : 0;
    bool many = args->o.shape[0] * args->o.shape[1] * args->o.shape[2] * args->o.shape[3] >= 10000;
    bool to_16 = args->o.dtype != ATTN_F32;
    c->worst_rounding = fmax(c->worst_rounding, e->relative / rounding);
    if (many && to_16) {
        c->worst_rmse = fmax(c->worst_rmse, ratio);
    }
    return (e->relative <= 2 * rounding || e->c <= fast_c) && e->lse <= max_lse && !(many && to_16 && ratio > max_rmse);
}

static bool visit(void *user, const problem *p)
{
    struct check *c = user;
    problem_tensors t;
    char line[512];
    (void)problem_print(p, line, sizeof line);
    attn_plan plan = {.struct_size = sizeof plan};
    if (!problem_tensors_create(p, PLACE_PLAIN, &t)) {
        fprintf(stderr, "no memory for %s\n", line);
        return false;
    }
    errors e = {0};
    bool ok = attn_forward_plan(c->context, &t.args, &plan) == ATTN_OK, margins = true;
    ok = ok && run(c, &t, 0, &margins);
    uint64_t first = hash_outputs(&t.args);
    ok = ok && run(c, &t, 1, &margins);
    bool sm90 = plan.kernel != NULL && strstr(plan.kernel, "sm90") != NULL, same = first == hash_outputs(&t.args);
    bool sm80 = plan.kernel != NULL && strstr(plan.kernel, "sm80") != NULL;
    bool intact = ok && problem_tensors_intact(&t) && margins;
    if (ok) {
        errors_measure(&t.args, 0, &e);
    }
    c->problems++;
    c->on[0] += sm90;
    c->on[1] += sm80;
    bool good = ok && same && intact && judge(c, &t.args, (sm90 || sm80) && t.args.q.dtype != ATTN_F32, &e);
    if (!good) {
        c->failed++;
        printf("FAIL %s\n     %s: %s%s%s c %.3g relative %.3g lse %.3g rmse %.3g of %.3g\n", line,
               plan.kernel ? plan.kernel : "no kernel", ok ? "" : attn_last_error(), same ? "" : " bits differ",
               intact ? "" : " wrote elsewhere", e.c, e.relative, e.lse, e.rmse, e.rmse_once);
    }
    problem_tensors_free(&t);
    return true;
}

int main(int argc, char **argv)
{
    struct check c = {0};
    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    attn_context_config config = {.struct_size = sizeof config, .device = ATTN_DEVICE_CUDA};
    if (attn_context_create(&config, &c.context) != ATTN_OK) {
        printf("SKIP no GPU: %s\n", attn_last_error());
        return SKIPPED;
    }
    (void)gpu_open();
    c.streams[0] = gpu_stream(), c.streams[1] = gpu_stream();
    for (int i = 1; i < argc; i++) {
        char error[600];
        problem p;
        bool ok = strchr(argv[i], '=') == NULL ? problem_suite(argv[i], visit, &c, error, sizeof error)
                                               : problem_parse(argv[i], &p, error, sizeof error) && visit(&c, &p);
        if (!ok) {
            printf("%s\n", error);
            return 1;
        }
    }
    printf(
        "%ld problems, %ld on forward_sm90, %ld on forward_sm80, %ld failed; worst c %.3g, lse %.3g; 16 bits on tensor "
        "cores: %.3g roundings, rmse %.3g\n",
        c.problems, c.on[0], c.on[1], c.failed, c.worst_c, c.worst_lse, c.worst_rounding, c.worst_rmse);
    attn_context_destroy(c.context);
    return c.failed > 0;
}
