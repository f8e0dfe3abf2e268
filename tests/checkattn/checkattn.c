/*
 * checkattn.c: the kernel harness: every table of src/cpu/ukernel/tables.inc that this machine can
 * run, every member of it, against the scalar table bit for bit and against float64 within derived
 * bounds, in memory with guard pages (contract T4; the idea is dav1d's checkasm). Whole operations
 * are tested in tests/op.
 *
 * checkattn [--kernel=GLOB] [--isa=GLOB] [--seed=N] [--step=N] [--bench]
 * checkattn --exp2 [--isa=GLOB]
 */
#include "checks.h"
#include "cpu/machine/features.h"
#include "cpu/machine/select.h"
#include "exhaust.h"
#include "measure.h"
#include "selftest.h"

#include <argp.h>
#include <assert.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>

enum { MOST = 64 }; /* tables times types */

typedef struct settings {
    const char *kernel, *isa;
    uint64_t seed;
    bool bench, exp2;
} settings;

static const struct argp_option options[] = {
    {"kernel", 'k', "GLOB", 0, "only checks with such names (qk, softmax, ...)", 0},
    {"isa", 'i', "GLOB", 0, "only tables with such names (avx2, ...)", 0},
    {"seed", 's', "N", 0, "seed of the inputs (1)", 0},
    {"step", 't', "N", 0, "exp2, tanh and divisors: every N-th float (4099; 1 takes minutes)", 0},
    {"exp2", 'e', NULL, 0,
     "nothing but exp2, on all 2^32 floats: error, monotony, a hash; a minute per table", 0},
    {"bench", 'b', NULL, 0, "measure the kernels as well", 0},
    {0},
};

static error_t parse(int key, char *text, struct argp_state *state)
{
    settings *s = state->input;
    switch (key) {
    case 'k':
        s->kernel = text;
        return 0;
    case 'i':
        s->isa = text;
        return 0;
    case 's':
        s->seed = strtoull(text, NULL, 10);
        return 0;
    case 't':
        check_step = strtoll(text, NULL, 10);
        if (check_step < 1) {
            argp_error(state, "--step=%s must be at least 1", text);
        }
        return 0;
    case 'e':
        s->exp2 = true;
        return 0;
    case 'b':
        s->bench = true;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* One table with one type of inputs. */
static int run_table(const settings *s, const attn_ukernel *table, const attn_ukernel *scalar,
                     int32_t dtype, bool first)
{
    static const char *const names[] = {"", "f64", "f32", "f16", "bf16"};
    kernel_kit kit;
    if (!kit_open(&kit, table, scalar, dtype, s->seed)) {
        printf("FAIL no memory\n");
        return 1;
    }
    for (int i = 0; i < checks_count; i++) {
        if (fnmatch(s->kernel, checks[i].name, 0) == 0 && (first || checks[i].every_type)) {
            check_run(&checks[i], &kit);
        }
    }
    printf("%-12s %-4s  %7lld calls  %d failures   worst: qk %.2f pv %.2f of the bound",
           table->name, names[dtype], (long long)kit.calls, kit.failures, kit.worst_qk,
           kit.worst_pv);
    if (first) {
        printf(", exp2 %.3f tanh %.3f ulp", kit.worst_exp2, kit.worst_tanh);
    }
    printf("\n");
    if (s->bench) {
        measure(&kit);
    }
    kit_close(&kit);
    return kit.failures;
}

/* The exp2 of each table of f32, f16 or bf16. */
static int exhaust_isa(const attn_isa *isa)
{
    const attn_ukernel *const tables[] = {isa->f32, isa->bf16x3, isa->f16, isa->bf16};
    int failures = 0;
    for (int i = 0; i < 4; i++) {
        bool done = false;
        for (int j = 0; j < i; j++) {
            done |= tables[j] == tables[i];
        }
        failures += done                       ? 0
                    : tables[i]->p_bytes() > 0 ? exhaust_parts(tables[i])
                                               : exhaust_exp2(tables[i]);
    }
    return failures;
}

/* Tables share kernels: true once for each table of kernels and type. */
static bool is_new(const attn_ukernel *table, int32_t dtype)
{
    static const attn_ukernel *seen[MOST];
    static int32_t types[MOST];
    static int count;
    for (int i = 0; i < count; i++) {
        if (seen[i] == table && types[i] == dtype) {
            return false;
        }
    }
    assert(count < MOST);
    seen[count] = table, types[count++] = dtype;
    return true;
}

static int run_isa(const settings *s, const attn_isa *isa, const attn_isa *scalar)
{
    const struct {
        const attn_ukernel *table, *scalar;
        int32_t dtype;
        bool first; /* the table's first type: checks that no type changes run too */
    } turns[] = {{isa->f32, scalar->f32, ATTN_F32, true},
                 {isa->f64, scalar->f64, ATTN_F64, true},
                 {isa->f16, scalar->f16, ATTN_F16, isa->f16 != isa->f32},
                 {isa->bf16, scalar->bf16, ATTN_BF16, isa->bf16 != isa->f32},
                 {isa->bf16x3, scalar->f32, ATTN_F32, true}};
    int failures = 0, known = 0;
    if (s->exp2) {
        return exhaust_isa(isa);
    }
    for (size_t i = 0; i < sizeof turns / sizeof turns[0]; i++) {
        if (is_new(turns[i].table, turns[i].dtype)) {
            failures +=
                run_table(s, turns[i].table, turns[i].scalar, turns[i].dtype, turns[i].first);
        } else {
            known++;
        }
    }
    printf("%s: %d of its tables are those of an instruction set above, or its own f32's\n",
           isa->name, known);
    return failures;
}

int main(int argc, char **argv)
{
    static const struct argp argp = {
        .options = options, .parser = parse, .doc = "Checks the kernels of libattn."};
    settings s = {.kernel = "*", .isa = "*", .seed = 1};
    int count, failures, run = 0;
    const attn_isa *isas = attn_isas(&count);
    setvbuf(stdout, NULL, _IOLBF, 0);
    argp_parse(&argp, argc, argv, 0, NULL, &s);
    printf("checkattn --seed=%llu\n", (unsigned long long)s.seed);
    failures = s.exp2 ? 0 : selftest(s.seed);
    for (int i = 0; i < count; i++) {
        if (fnmatch(s.isa, isas[i].name, 0) != 0) {
            continue;
        }
        if ((isas[i].needs & ~attn_cpu_features()) != 0) {
            printf("SKIPPED %s: this CPU or emulator lacks it\n", isas[i].name);
            continue;
        }
        failures += run_isa(&s, &isas[i], &isas[0]);
        run++;
    }
    printf("checkattn: %d instruction sets, %d failures\n", run, failures);
    return failures == 0 && run > 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
