/*
 * check.c: `attn check`: every kernel table that this machine can run, on problems of every kind,
 * against the float64 oracle, and against each other bit by bit. Every tensor ends at an
 * inaccessible page, so a read or a write beyond it ends the program with a signal. Not here: GPUs
 * (check_gpu.c).
 */
#include "accuracy.h"
#include "alike.h"
#include "check_gpu.h"
#include "check_verdict.h"
#include "progress.h"
#include "style.h"
#include "commands.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TABLES = 8 };

static const char *const standard_problems[] = {
    "nq=1 nk=1 d=1 hq=1",
    "hq=2 nq=33 nk=65 d=7 dv=5",
    "hq=3 nq=17 nk=129 d=31 dv=33",
    "hq=2 nq=256 d=64",
    "hq=2 nq=130 nk=257 d=128 causal=1",
    "hq=1 nq=64 nk=500 d=264 dv=40",
    "hq=4 hkv=2 nq=257 nk=130 d=64 causal=1",
    "hq=7 hkv=1 nq=65 d=80 causal=1 top_left=1 nk=100",
    "hq=28 hkv=4 nq=1 nk=1000 d=64",
    "hq=2 nq=200 d=64 window_left=40 window_right=0",
    "hq=2 nq=150 nk=300 d=48 window_left=7 window_right=90",
    "hq=2 nq=129 d=64 dtype=f16 causal=1",
    "hq=2 nq=129 d=64 dtype=bf16 causal=1",
    "hq=2 nq=129 nk=260 d=96 dtype=bf16 o_dtype=f32",
    "hq=2 nq=129 d=64 dtype=f64 causal=1",
    "b=2 hq=2 nq=70 nk=140 d=32 mask=bhqk",
    "b=2 hq=4 hkv=2 nq=70 nk=140 d=32 mask=bk bias=f16:hqk",
    "b=2 hq=4 nq=70 d=32 bias=1 alibi=h",
    "b=2 hq=4 hkv=2 nq=90 d=40 alibi=bh sinks=h causal=1",
    "hq=2 nq=100 d=64 softcap=5",
    "hq=2 nq=100 d=64 softcap=5 sinks=1 bias=bf16:qk scale=0.3",
    "hq=2 nq=100 d=64 scale=-0.2",
    "hq=4 hkv=2 lens_q=5,0,130,1 lens_k=70,3,130,0 d=64 causal=1",
    "hq=2 lens_q=40,9 lens_k=33,200 used_k=30,0 used_q=40,3 d=24 index=i64 sinks=h",
    "b=2 hq=4 hkv=2 nq=70 nk=90 d=32 q_origin=300,7 k_origin=250 causal=1 window_left=64 alibi=h",
    "b=3 hq=2 nq=50 nk=80 d=64 used_k=80,0,33 used_q=50,50,1 dtype=bf16",
    "b=2 hq=4 nq=66 d=40 layout=qkv causal=1",
    "b=2 hq=4 hkv=2 nq=66 nk=99 d=40 layout=gap offset=1 mask=q",
    "b=2 hq=4 hkv=2 nq=66 nk=99 d=40 layout=strided offset=3 dtype=f16",
    "b=2 hq=4 nq=66 d=40 layout=bhsd",
    "hq=2 nq=64 nk=1500 d=64 inputs=outlier",
    "hq=2 nq=129 d=64 inputs=large",
    "hq=2 nq=129 d=64 inputs=equal dtype=f16",
    "hq=2 nq=33 nk=0 d=16 sinks=h",
    "hq=2 nq=33 nk=64 d=0 dv=3",
    "hq=2 nq=64 nk=700 d=64 inputs=positive",
    "hq=2 nq=64 nk=700 d=64 inputs=offset dtype=bf16",
    "hq=2 nq=65 nk=130 d=64 causal=1 pass=training",
    "hq=4 hkv=2 nq=70 nk=90 d=40 dtype=bf16 window_left=20 window_right=9 pass=backward",
    "b=2 hq=4 nq=66 d=32 alibi=h sinks=h d_alibi=1 d_sinks=1 d_lse=1 pass=backward",
    "hq=2 nq=64 nk=90 d=24 dv=40 dtype=f64 softcap=5 dropout=0.2 pass=backward",
    "hq=2 lens_q=5,0,70,1 lens_k=70,3,40,0 d=64 dtype=f16 causal=1 pass=backward",
    "hq=2 nq=65 nk=300 d=32 inputs=positive pass=backward",
};

struct check {
    cli_list list;
    int64_t seeds, runs, limit;
    bool json, accuracy;
    int32_t device;
    const char *tables[MAX_TABLES]; /* best first */
    int count;
    int status;
    double worst_c, worst_lse, worst_grad;
    double worst_alike;   /* of O where terms may be alike, relative to its bound */
    double worst_rounded; /* likewise where probabilities are rounded */
    int64_t calls;
    bool backward; /* some problem has gradients */
};

/* One call of one table, whose bits are compared with those of the best. */
struct outcome {
    char table[16];
    struct check_verdict verdict;
    uint64_t hash;
    int32_t bits; /* attn_plan.bits */
    bool alike;   /* terms of sums may be (alike.h) */
    bool rounded; /* probabilities are (attn_plan.weight_loss) */
    errors_limits allowed;
};

/* The most that a call may be off in the arithmetic of its type alone. */
static const errors_limits usual = {CHECK_MAX_C, CHECK_MAX_LSE, CHECK_MAX_C};

/* ---- Calls ----------------------------------------------------------------------------------- */

/* Outputs with the bits of an earlier outcome have its errors. */
static void measure(const problem_tensors *tensors, const struct outcome *known,
                    struct outcome *out)
{
    struct check_verdict *verdict = &out->verdict;
    if (known != NULL && known->hash == out->hash && known->bits == out->bits) {
        verdict->errors = known->verdict.errors;
        verdict->gradients = known->verdict.gradients;
    } else {
        errors_measure(&tensors->args, 0, &verdict->errors);
        verdict->backward ? grad_errors_measure(&tensors->grad, &verdict->gradients) : (void)0;
    }
    verdict->grad_c = 0;
    for (int n = 0; n < ORACLE_GRADIENTS && verdict->backward; n++) {
        double c = verdict->gradients.c[n];
        verdict->grad_c = isnan(c) ? (double)INFINITY : fmax(verdict->grad_c, c);
    }
}

/* known: an outcome of the same problem with another table, or NULL. */
static void run_one(const problem_spec *problem, const struct outcome *known, struct outcome *out)
{
    attn_context *context = NULL;
    attn_plan plan = {.struct_size = sizeof plan};
    problem_tensors tensors;
    attn_status status = problem_context(problem, &context);
    if (!problem_tensors_create(problem, PLACE_GUARD_AFTER, &tensors)) {
        exit(cli_error(CLI_INTERNAL, "out of memory"));
    }
    status = status == ATTN_OK ? attn_forward_plan(context, &tensors.args, &plan) : status;
    attn_forward_args alone = tensors.args; /* tables have ways of their own for O alone */
    alone.lse.data = alone.row_max.data = NULL;
    status = status == ATTN_OK ? attn_forward(context, &alone) : status;
    const uint64_t hash = check_hash(&alone);
    status = status == ATTN_OK ? attn_forward(context, &tensors.args) : status;
    out->verdict = (struct check_verdict){.backward = problem->pass != PASS_FORWARD,
                                          .equal = check_hash(&alone) == hash};
    if (status == ATTN_OK && out->verdict.backward) {
        status = attn_backward(context, &tensors.grad);
    }
    if (status != ATTN_OK) {
        exit(cli_status_error(status));
    }
    out->bits = plan.bits, out->alike = alike_possible(problem);
    out->allowed = errors_allowed(plan.input_loss, plan.weight_loss);
    out->rounded = out->allowed.c > usual.c;
    if (out->alike) {
        const double kappa = alike_kappa(&tensors.args, out->verdict.backward, ALIKE_SEGMENTS);
        out->allowed = alike_limits(out->allowed, kappa);
    }
    out->hash = check_hash(&tensors.args);
    out->hash = out->verdict.backward ? check_hash_gradients(&tensors.grad, out->hash) : out->hash;
    out->verdict.intact = problem_tensors_intact(&tensors);
    measure(&tensors, known, out);
    problem_tensors_free(&tensors);
    attn_context_destroy(context);
}

/* known: the first outcome whose bits are those of "scalar"; NULL: this one. */
static void judge(struct check *c, const problem_spec *problem, struct outcome *out,
                  const struct outcome *known)
{
    struct check_verdict *verdict = &out->verdict;
    verdict->equal &= out->bits != 0 || known == NULL || out->hash == known->hash;
    verdict->exact = verdict->errors.c <= out->allowed.c;
    verdict->exact_lse = verdict->errors.lse <= out->allowed.lse;
    check_judge_gradients(verdict, problem, out->allowed.grad_c);
    verdict->ok = verdict->intact && verdict->equal && verdict->exact && verdict->exact_lse &&
                  verdict->exact_grad;
    c->worst_c = out->allowed.c > usual.c ? c->worst_c : fmax(c->worst_c, verdict->errors.c);
    c->worst_lse =
        out->allowed.lse > usual.lse ? c->worst_lse : fmax(c->worst_lse, verdict->errors.lse);
    c->worst_grad =
        out->allowed.grad_c > usual.grad_c ? c->worst_grad : fmax(c->worst_grad, verdict->grad_c);
    const double share = verdict->errors.c / out->allowed.c;
    c->worst_rounded = out->rounded ? fmax(c->worst_rounded, share) : c->worst_rounded;
    c->worst_alike = out->alike && !out->rounded ? fmax(c->worst_alike, share) : c->worst_alike;
    c->calls++;
    c->status = verdict->ok ? c->status : CLI_CHECK_FAILED;
}

/* ---- Telling --------------------------------------------------------------------------------- */

static void tell_json(const problem_spec *problem, const char *line, const struct outcome *out)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "problem", line);
    cJSON_AddStringToObject(o, "table", out->table);
    check_tell_json(o, problem->seed, &out->verdict);
}

static void tell_head(const struct check *c)
{
    for (int t = 0; t < c->count; t++) {
        printf("%*s  ", c->backward ? 34 : 28, c->tables[t]);
    }
    putchar('\n');
    for (int t = 0; t < c->count; t++) {
        printf("     c      L2    bias   LSE  %s", c->backward ? "grad  " : "");
    }
    putchar('\n');
}

static void tell_text(const struct check *c, const char *line, const struct outcome *worst,
                      int count)
{
    for (int t = 0; t < count; t++) {
        const struct check_verdict *verdict = &worst[t].verdict;
        printf("%6.2f %7.0e %7.0e %5.2f ", verdict->errors.c, verdict->errors.l2,
               errors_bias(&verdict->errors), verdict->errors.lse);
        verdict->backward ? printf("%5.2f  ", verdict->grad_c)
                          : printf(c->backward ? "    -  " : " ");
    }
    printf("%*s%s\n", (c->backward ? 36 : 30) * (c->count - count), "", line);
    for (int t = 0; t < count; t++) {
        check_tell_failure(worst[t].table, &worst[t].verdict);
    }
}

static void check_problem(struct check *c, const problem_spec *given)
{
    char line[4096];
    struct outcome worst[MAX_TABLES], first;
    problem_spec problem = *given;
    bool capped = given->cpu[0] != '\0'; /* this table alone */
    problem.lse = problem.row_max = true;
    for (int64_t s = 0; s < c->seeds; s++) {
        const struct outcome *known = NULL;
        problem.seed = given->seed + (uint64_t)s;
        for (int t = 0; t < (capped ? 1 : c->count); t++) {
            struct outcome out;
            snprintf(problem.cpu, sizeof problem.cpu, "%s", capped ? given->cpu : c->tables[t]);
            problem_print(&problem, line, sizeof line);
            cli_progress("%s", line);
            snprintf(out.table, sizeof out.table, "%s", problem.cpu);
            run_one(&problem, known, &out);
            judge(c, &problem, &out, known);
            if (known == NULL && out.bits == 0) {
                first = out, known = &first;
            }
            if (c->json) {
                tell_json(&problem, line, &out);
            }
            const struct check_verdict *now = &out.verdict, *was = &worst[t].verdict;
            if (s == 0 || !now->ok ||
                (was->ok && fmax(now->errors.c, now->grad_c) > fmax(was->errors.c, was->grad_c))) {
                worst[t] = out;
            }
        }
    }
    cli_progress(NULL);
    if (!c->json) {
        problem_print(given, line, sizeof line);
        tell_text(c, line, worst, capped ? 1 : c->count);
    }
}

/* ---- The command line ------------------------------------------------------------------------ */

static const struct argp_option options[] = {
    {"seeds", 's', "K", 0, "seeds per problem (default 1)", 0},
    {"runs", 'r', "K", 0, "with --device cuda: calls per problem, of equal bits (default 3)", 0},
    {"limit", 'l', "SECONDS", 0,
     "with --device cuda: a call that takes longer has failed and ends the program (default 60)",
     0},
    {"json", 'j', NULL, 0, "one JSON object per problem, table and seed", 0},
    {"device", 'd', "NAME", 0, "cpu (default) or cuda: the kernels of this GPU instead", 0},
    {"accuracy", 'a', NULL, 0,
     "nothing but the table of accuracy, for all types, beside standard attention", 0},
    {0},
};

static const char doc[] =
    "Compares every kernel table that this machine can run, forward and with pass=backward or "
    "training backward, with attention in float64, on problems of every kind, and the tables with "
    "each other, which must give the same bits (but amx, and avx512bf16 and neonbf16 in bf16), as "
    "must O where nothing else is asked for.\v"
    "Printed per table: the worst error of O as the smallest c for which\n"
    "  |O - O64| <= 1/2 ulp(O64) + c u (1 + max_j sum |q k| scale) sum_j p_j |v_j|\n"
    "(at most 4 passes), the L2 norm of O - O64 over that of O64, bias, the mean of the signed "
    "errors in sum_j p_j |v_j| (or of those away from 0, if that is larger), and the worst error "
    "of LSE, beyond its rounding, in units of u (1 + max |score|), or of u (1 + sum_j p_j sum |q "
    "k_j| scale) / 2 where scores cancel (at most 8); u = 2^-24, for f64 2^-53. Tables amx, "
    "avx512bf16 and neonbf16 round probabilities, unless precise=1: to 8 bits in bf16, and amx to "
    "16 in f16. Their c is large there: 2^-8 and 2^-16 of sum_j p_j |v_j| more are allowed; with "
    "bf16x3=1 f32 of amx is allowed 2^-14 in place of c u. Of gradients it is the largest c by "
    "which a term of one is off, in u times the weighted sizes of its terms (docs/contract.md). "
    "Values of one sign or without spread (inputs=equal, positive, offset, even, rising, wild), "
    "codes and scales of almost 0 may give equal terms, whose rounding errors do not cancel: the "
    "bound is larger there by kappa (docs/numerics.md). The exit status is 1 if anything fails.\n\n"
    "With --device cuda every problem runs on this GPU, for O alone, and twice, on two streams, "
    "for LSE and maxima too, or as often as --runs says: all must give the same bits. Tensor cores"
    " take probabilities of f16 and bf16 in that type: one rounding of it more on the scale of "
    "sum_j p_j |v_j|, or c = 16, and an RMSE of 1.45 times that of rounding the exact result "
    "(printed as x rounding) are allowed there, 2.24 times where scores hardly differ.\n"
    "\n"
    "Examples:\n"
    "  attn check\n"
    "  attn check \"hq=4 nq=500 nk=1000 d=72 dtype=bf16 causal=1\" --seeds 10\n"
    "  attn check tests/op/smoke.txt\n"
    "  attn check --device cuda tests/cuda/fast.txt\n"
    "  attn check --accuracy --seeds 3";

static error_t parse(int key, char *text, struct argp_state *state)
{
    struct check *c = state->input;
    switch (key) {
    case 's':
        c->seeds = cli_integer("seeds", text, 1, 1000000);
        return 0;
    case 'r':
        c->runs = cli_integer("runs", text, 1, 1000000);
        return 0;
    case 'l':
        c->limit = cli_integer("limit", text, 1, 1000000);
        return 0;
    case 'a':
        c->accuracy = true;
        return 0;
    case 'd':
        c->device = cli_device(text);
        return 0;
    case 'j':
        c->json = true;
        return 0;
    case ARGP_KEY_ARG:
        cli_add_problems(&c->list, text);
        return 0;
    default:
        return cli_parse_other(key, text, state);
    }
}

/* names: blank-separated, modified */
static void list_tables(struct check *c, char *names)
{
    char *name;
    while ((name = strsep(&names, " ")) != NULL && c->count < MAX_TABLES) {
        if (name[0] != '\0') {
            c->tables[c->count++] = name;
        }
    }
}

static int check_cpu(struct check *c)
{
    attn_info info = {.struct_size = sizeof info};
    char names[256];
    attn_status status = attn_get_info(NULL, &info);
    if (status != ATTN_OK) {
        return cli_status_error(status);
    }
    snprintf(names, sizeof names, "%s", info.cpu_tables);
    list_tables(c, names);
    cli_refuse_large(&c->list);
    for (int i = 0; i < c->list.count; i++) {
        c->backward |= c->list.problems[i].pass != PASS_FORWARD;
    }
    if (!c->json) {
        tell_head(c);
    }
    for (int i = 0; i < c->list.count; i++) {
        check_problem(c, &c->list.problems[i]);
    }
    if (!c->json) {
        cli_print_verdict(c->status == CLI_OK);
        printf(": %lld calls, worst c %.2f of %.0f, worst LSE %.2f of %.0f", (long long)c->calls,
               c->worst_c, usual.c, c->worst_lse, usual.lse);
        c->backward ? printf(", worst gradient %.2f of %.0f", c->worst_grad, usual.grad_c) : 0;
        c->worst_rounded > 0
            ? printf(", rounded probabilities %.2f of their bound", c->worst_rounded)
            : 0;
        c->worst_alike > 0 ? printf(", terms alike %.2f of their bound\n", c->worst_alike)
                           : putchar('\n');
    }
    return c->status;
}

int cli_check(int argc, char **argv)
{
    static const struct argp argp = {options, parse, "[PROBLEM or FILE]...", doc, NULL, NULL, NULL};
    struct check c = {.seeds = 1};
    cli_parse(&argp, argc, argv, &c);
    bool given = c.list.count > 0;
    if (c.accuracy && (given || c.json || c.device != ATTN_DEVICE_CPU)) {
        exit(cli_error(CLI_USAGE, "--accuracy is of this CPU, without problems and --json"));
    }
    if (c.accuracy) {
        return accuracy_table(c.seeds);
    }
    bool gpu = c.device == ATTN_DEVICE_CUDA;
    if ((c.runs > 0 || c.limit > 0) && !gpu) {
        exit(cli_error(CLI_USAGE, "--%s is for --device cuda", c.runs > 0 ? "runs" : "limit"));
    }
    for (size_t i = 0; i < sizeof standard_problems / sizeof standard_problems[0] && !given; i++) {
        cli_add_problems(&c.list, standard_problems[i]);
    }
    int status = gpu ? check_gpu(&c.list, c.seeds, c.runs, c.limit > 0 ? c.limit : 60, c.json)
                     : check_cpu(&c);
    free(c.list.problems);
    return status;
}
