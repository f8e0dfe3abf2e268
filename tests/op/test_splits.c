/*
 * test_splits.c: one range of keys in several calls, merged by attn_merge: contract, cases B27,
 * B48, B84, B96 .. B98 and relation R5. (attn_merge by itself: tests/api/test_merge.c.)
 */
#include "core/segment.h"
#include "oracle.h"
#include "tables.h"
#include "trial.h"

/* The merged outputs take the place of t's own. */
static void run_splits(op_trial *trial, int64_t splits, bool sinks_in_first)
{
    const attn_forward_args *whole = trial->args;
    int64_t rows = whole->q.shape[1], heads = whole->q.shape[2], dv = whole->v.shape[3],
            nk = whole->k.shape[1];
    attn_tensor *part_o = calloc((size_t)splits, sizeof *part_o),
                *part_lse = calloc((size_t)splits, sizeof *part_lse);
    attn_merge_args merge = {
        .struct_size = sizeof merge, .parts = splits, .part_o = part_o, .part_lse = part_lse};
    for (int64_t n = 0; n < splits; n++) {
        int64_t first = nk * n / splits, last = nk * (n + 1) / splits;
        attn_forward_args args = *whole;
        args.k = tensor_slice(whole->k, 1, first, last - first);
        args.v = tensor_slice(whole->v, 1, first, last - first);
        args.mask =
            whole->mask.data ? tensor_slice(whole->mask, 3, first, last - first) : whole->mask;
        part_o[n] = args.o =
            attn_tensor_bshd(calloc((size_t)(rows * heads * dv), 4), ATTN_F32, 1, rows, heads, dv);
        part_lse[n] = args.lse =
            attn_tensor_bshd(calloc((size_t)(rows * heads), 4), ATTN_F32, 1, rows, heads, 1);
        if (!(sinks_in_first && n == 0)) {
            memset(&args.sinks, 0, sizeof args.sinks);
        }
        assert_int_equal(attn_forward(NULL, &args), ATTN_OK);
    }
    merge.o = whole->o;
    merge.lse = whole->lse;
    assert_int_equal(attn_merge(NULL, &merge), ATTN_OK);
    for (int64_t n = 0; n < splits; n++) {
        free(part_o[n].data);
        free(part_lse[n].data);
    }
    free(part_o);
    free(part_lse);
}

/* o within one part in 2^20 of sum p|v| (here at most the largest |v|), lse within A3 of the
 * unsplit call. */
static void assert_same_as_whole(const op_trial *split, const op_trial *whole)
{
    for (int64_t i = 0; i < whole->problem.nq; i++) {
        for (int64_t h = 0; h < whole->problem.hq; h++) {
            double lse = trial_lse(whole, 0, i, h);
            assert_near(trial_lse(split, 0, i, h), lse, 2 * lse_bound(fabs(lse)));
            for (int64_t c = 0; c < whole->problem.dv; c++) {
                assert_near(trial_o(split, 0, i, h, c), trial_o(whole, 0, i, h, c), 7 * 0x1p-20);
            }
        }
    }
}

/* All keys masked, in 1 to 8 splits. */
static void b27_all_parts_empty(void **state)
{
    op_trial trial = trial_open("nq=3 nk=512 hq=2 d=8 dtype=f32 mask=k lse=1");
    (void)state;
    tensor_fill(&trial.args->mask, 0);
    for (int64_t splits = 1; splits <= 8; splits++) {
        run_splits(&trial, splits, false);
        for (int64_t n = 0; n < 6; n++) {
            assert_true(trial_lse(&trial, 0, n / 2, n % 2) == -(double)INFINITY);
            assert_true(trial_o(&trial, 0, n / 2, n % 2, 7) == 0);
        }
    }
    trial_close(&trial);
}

/* A sink belongs to one part only. */
static void b48_sink_in_splits(void **state)
{
    op_trial trial = trial_open("nq=2 nk=8 hq=1 d=4 dtype=f32 sinks=1 lse=1");
    (void)state;
    tensor_fill(&trial.args->q, 0);
    tensor_fill(&trial.args->v, 1);
    tensor_fill(&trial.args->sinks, 2);
    for (int64_t splits = 1; splits <= 8; splits++) {
        run_splits(&trial, splits, true);
        assert_near(trial_o(&trial, 0, 1, 0, 3), 0.519850, 5e-7);
        assert_near(trial_lse(&trial, 0, 1, 0), log(8 + exp(2)), 3e-7);
    }
    trial_close(&trial);
}

/* The merged output with gaps: they stay as they are. */
static void b84_gaps_of_a_merged_output(void **state)
{
    (void)state;
    for (int64_t splits = 1; splits <= 3; splits += 2) {
        op_trial trial = trial_open("nq=9 nk=70 hq=3 d=8 dtype=f32 lse=1 layout=gap");
        op_trial whole = trial_open("nq=9 nk=70 hq=3 d=8 dtype=f32 lse=1");
        run_splits(&trial, splits, false);
        trial_run(&whole);
        assert_same_as_whole(&trial, &whole);
        assert_true(problem_tensors_intact(&trial.tensors));
        trial_close(&trial);
        trial_close(&whole);
    }
}

/* LSE is a natural logarithm: 1024 scores of 0 give ln 1024. A prefix of 3072 keys and 64 more
 * merge to the single pass. */
static void b96_natural_logarithm(void **state)
{
    op_trial zeros = trial_open("nq=1 nk=1024 hq=1 d=8 dtype=f32 scale=0 lse=1");
    op_trial whole = trial_open("nq=2 nk=3136 hq=1 d=16 dtype=f32 lse=1");
    (void)state;
    trial_check(&zeros);
    assert_near(trial_lse(&zeros, 0, 0, 0), 6.93147181, 5e-7);
    trial_close(&zeros);

    op_trial parts[2] = {trial_open("nq=2 nk=3136 hq=1 d=16 dtype=f32 lse=1"),
                         trial_open("nq=2 nk=3136 hq=1 d=16 dtype=f32 lse=1")};
    op_trial merged = trial_open("nq=2 nk=3136 hq=1 d=16 dtype=f32 lse=1");
    attn_tensor o[2], lse[2];
    for (int n = 0; n < 2; n++) {
        parts[n].args->k = tensor_slice(parts[n].args->k, 1, n ? 3072 : 0, n ? 64 : 3072);
        parts[n].args->v = tensor_slice(parts[n].args->v, 1, n ? 3072 : 0, n ? 64 : 3072);
        trial_run(&parts[n]);
        o[n] = parts[n].args->o, lse[n] = parts[n].args->lse;
    }
    attn_merge_args args = {.struct_size = sizeof args, .parts = 2, .part_o = o, .part_lse = lse};
    args.o = merged.args->o, args.lse = merged.args->lse;
    assert_int_equal(attn_merge(NULL, &args), ATTN_OK);
    trial_check(&whole);
    assert_same_as_whole(&merged, &whole);
    trial_close(&parts[0]);
    trial_close(&parts[1]);
    trial_close(&merged);
    trial_close(&whole);
}

/* Any number of splits, more than there are keys too; R5. */
static void b97_b98_split_counts(void **state)
{
    static const int64_t splits[] = {1, 2, 3, 5, 17, 32, 55, 97, 133};
    static const char *const lines[] = {
        "nq=2 nk=8192 hq=2 hkv=1 d=16 dtype=f32 lse=1", "nq=3 nk=5 hq=2 d=16 dtype=f32 lse=1",
        "nq=2 nk=500 hq=2 d=16 dtype=f32 mask=qk lse=1 inputs=large"};
    (void)state;
    for (int line = 0; line < 3; line++) {
        op_trial whole = trial_open("%s", lines[line]), trial = trial_open("%s", lines[line]);
        trial_check(&whole);
        for (size_t n = 0; n < sizeof splits / sizeof splits[0]; n++) {
            run_splits(&trial, splits[n], false);
            assert_same_as_whole(&trial, &whole);
        }
        trial_close(&trial);
        trial_close(&whole);
    }
}

/* ---- parts that are nodes of the whole sum --------------------------------------------------- */

/* Keys in `parts` equal ranges, each a power of two of segments, O and LSE in the type of the sums:
 * the bits of one call. */
static void check_nodes(const char *line, const char *table, int64_t parts)
{
    op_trial whole = trial_open("%s", line);
    const attn_context_config config = {.struct_size = sizeof config, .cpu = table};
    attn_context *context;
    assert_int_equal(attn_context_create(&config, &context), ATTN_OK);
    const attn_forward_args *all = whole.args;
    const attn_dtype real = all->o.dtype == ATTN_F64 ? ATTN_F64 : ATTN_F32;
    const int64_t rows = all->q.shape[1], heads = all->q.shape[2], dv = all->v.shape[3],
                  nk = all->k.shape[1], size = (int64_t)attn_dtype_size((int32_t)real);
    char *o = calloc((size_t)((parts + 1) * rows * heads), (size_t)(dv * size));
    double *lse = calloc((size_t)((parts + 1) * rows * heads), sizeof *lse);
    attn_tensor part_o[8], part_lse[8], q_origin, k_origin;
    int64_t origins[9] = {nk - rows};
    int64_t span = attn_dtype_size((int32_t)all->q.dtype) == 2 ? ATTN_LONG_SEGMENT : ATTN_SEGMENT;
    while (span * parts < nk) {
        span *= 2;
    }
    for (int64_t n = 0; n < parts; n++) {
        const int64_t first = span * n, last = first + span;
        attn_forward_args args = *all;
        origins[n + 1] = first;
        q_origin = attn_tensor_bshd(&origins[0], ATTN_I64, 1, 1, 1, 1);
        k_origin = attn_tensor_bshd(&origins[n + 1], ATTN_I64, 1, 1, 1, 1);
        args.q_origin = q_origin, args.k_origin = k_origin;
        args.k = tensor_slice(all->k, 1, first, (last < nk ? last : nk) - first);
        args.v = tensor_slice(all->v, 1, first, (last < nk ? last : nk) - first);
        part_o[n] = args.o =
            attn_tensor_bshd(o + n * rows * heads * dv * size, real, 1, rows, heads, dv);
        part_lse[n] = args.lse =
            attn_tensor_bshd(lse + n * rows * heads, ATTN_F64, 1, rows, heads, 1);
        assert_int_equal(attn_forward(context, &args), ATTN_OK);
    }
    attn_forward_args one = *all;
    origins[1] = 0;
    one.q_origin = q_origin, one.k_origin = attn_tensor_bshd(&origins[1], ATTN_I64, 1, 1, 1, 1);
    one.lse = attn_tensor_bshd(lse + parts * rows * heads, ATTN_F64, 1, rows, heads, 1);
    assert_int_equal(attn_forward(context, &one), ATTN_OK);
    size_t bytes = (size_t)(rows * heads * dv) * attn_dtype_size(all->o.dtype);
    void *wanted = malloc(bytes);
    memcpy(wanted, all->o.data, bytes);
    memset(all->o.data, 0xff, bytes);
    double *merged_lse = calloc((size_t)(rows * heads), sizeof *merged_lse);
    attn_merge_args merge = {.struct_size = sizeof merge, .parts = parts};
    merge.part_o = part_o, merge.part_lse = part_lse, merge.o = all->o;
    merge.lse = attn_tensor_bshd(merged_lse, ATTN_F64, 1, rows, heads, 1);
    assert_int_equal(attn_merge(context, &merge), ATTN_OK);
    assert_memory_equal(merged_lse, lse + parts * rows * heads,
                        (size_t)(rows * heads) * sizeof *lse);
    assert_memory_equal(wanted, all->o.data, bytes);
    attn_context_destroy(context);
    free(wanted);
    free(merged_lse);
    free(lse);
    free(o);
    trial_close(&whole);
}

/* D4. Lines differ in type, mask, group and width; each on every table. */
static void parts_at_segments(void **state)
{
    static const char *const lines[] = {
        "nq=70 nk=4096 hq=2 d=16 dtype=f32",
        "nq=70 nk=4000 hq=4 hkv=2 d=24 dv=16 dtype=f32 causal=1",
        "nq=70 nk=4096 hq=2 d=16 dtype=f32 window_left=2070 window_right=3 alibi=h",
        "nq=70 nk=4096 hq=2 d=16 dtype=f32 causal=1 dropout=0.3 dropout_seed=5",
        "nq=40 nk=4096 hq=2 d=16 dtype=f64 causal=1 inputs=positive",
        "nq=70 nk=7000 hq=2 d=32 dtype=bf16 causal=1 inputs=offset",
        "nq=70 nk=8192 hq=2 d=32 dtype=f16 softcap=9",
    };
    static const char *const tables[] = {"scalar", "avx2", "avx512",  "avx512bf16",
                                         "amx",    "neon", "neonbf16"};
    (void)state;
    for (int n = 0; n < 7; n++) {
        const attn_context_config config = {.struct_size = sizeof config, .cpu = tables[n]};
        attn_context *context;
        if (attn_context_create(&config, &context) != ATTN_OK) {
            continue; /* not of this machine or build */
        }
        attn_context_destroy(context);
        for (size_t line = 0; line < sizeof lines / sizeof lines[0]; line++) {
            check_nodes(lines[line], tables[n], 2);
        }
        check_nodes("nq=33 nk=8192 hq=1 d=16 dtype=f32 causal=1", tables[n], 2);
        check_nodes("nq=33 nk=8192 hq=1 d=16 dtype=f32 causal=1", tables[n], 4);
        check_nodes("nq=33 nk=16384 hq=1 d=16 dtype=bf16 window_left=4200", tables[n], 4);
    }
}

/* With one query of one KV head all threads have keys of it. */
static void test_one_head_for_all_threads(void **state)
{
    static const char *const types[] = {"f32", "bf16"};
    (void)state;
    for (int i = 0; i < 2; i++) {
        op_trial t = trial_open("hq=4 hkv=1 nq=1 nk=65536 d=8 dtype=%s", types[i]);
        for (int threads = 1; threads <= 8; threads *= 2) {
            attn_plan plan = {.struct_size = sizeof plan};
            assert_int_equal(attn_forward_plan(tables_context(NULL, threads), t.args, &plan),
                             ATTN_OK);
            assert_int_equal(plan.threads, threads);
            assert_true(threads == 1 ? plan.items == 1 : plan.items >= 2 * threads);
        }
        trial_close(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_head_for_all_threads),
        cmocka_unit_test(b27_all_parts_empty),
        cmocka_unit_test(b48_sink_in_splits),
        cmocka_unit_test(b84_gaps_of_a_merged_output),
        cmocka_unit_test(b96_natural_logarithm),
        cmocka_unit_test(b97_b98_split_counts),
        cmocka_unit_test(parts_at_segments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
