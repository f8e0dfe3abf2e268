/*
 * test_masks.c: boolean masks, biases and rows without keys: contract, cases B22 .. B28, B40 ..
 * B43, B49. Geometry (causal, windows, lengths) is test_geometry.c, NaN in masked places
 * test_nonfinite.c.
 */
#include "trial.h"

#include <float.h>
#include <stdio.h>

static void assert_row_is_empty(const op_trial *trial, int64_t b, int64_t i, int64_t h)
{
    for (int64_t c = 0; c < trial->problem.dv; c++) {
        assert_true(trial_o(trial, b, i, h, c) == 0 && !signbit(trial_o(trial, b, i, h, c)));
    }
    if (trial->args->lse.data) {
        assert_true(trial_lse(trial, b, i, h) == -(double)INFINITY);
    }
}

/* Rows 4 to 7 of 8 see nothing; the bits of o do not depend on whether LSE is wanted. */
static void b22_rows_that_are_all_false(void **state)
{
    static const char *const dtypes[] = {"f64", "f32", "f16", "bf16"};
    (void)state;
    for (int n = 0; n < 4; n++) {
        op_trial trial = trial_open("n=8 hq=1 d=16 dtype=%s mask=qk lse=1", dtypes[n]);
        for (int64_t i = 0; i < 64; i++) {
            inputs_store(&trial.args->mask, 0, 0, i / 8, i % 8, i / 8 < 4);
        }
        trial_check(&trial);
        for (int64_t i = 4; i < 8; i++) {
            assert_row_is_empty(&trial, 0, i, 0);
        }
        size_t with_bytes, bytes;
        unsigned char *with = trial_bits(&trial, &with_bytes);
        memset(&trial.args->lse, 0, sizeof trial.args->lse);
        trial_run(&trial);
        unsigned char *without = trial_bits(&trial, &bytes);
        assert_true(bytes < with_bytes);
        assert_memory_equal(with, without, bytes);
        free(with);
        free(without);
        trial_close(&trial);
    }
}

/* The first 128 of 441 keys have the least finite bias: their weight is 0, as with -inf. */
static void b23_least_finite_bias(void **state)
{
    (void)state;
    for (int n = 0; n < 2; n++) {
        const char *dtype = n ? "bf16" : "f32";
        op_trial trial =
            trial_open("nq=5 nk=441 hq=2 d=16 dtype=%s bias=%s:k lse=1 row_max=1", dtype, dtype);
        op_trial other =
            trial_open("nq=5 nk=441 hq=2 d=16 dtype=%s bias=%s:k lse=1 row_max=1", dtype, dtype);
        for (int64_t j = 0; j < 441; j++) {
            inputs_store(&trial.args->bias, 0, 0, 0, j,
                         j >= 128 ? 0
                         : n      ? -3.38953138925e38
                                  : -(double)FLT_MAX);
            inputs_store(&other.args->bias, 0, 0, 0, j, j >= 128 ? 0 : -(double)INFINITY);
        }
        trial_run(&trial);
        trial_check(&other);
        assert_same_outputs(&trial, &other);
        trial_close(&trial);
        trial_close(&other);
    }
}

/* All biases of a row are -FLT_MAX: any mean of V is right, if it is a number. */
static void b24_row_of_least_finite_bias(void **state)
{
    op_trial trial = trial_open("nq=3 nk=100 hq=1 d=16 dtype=f32 bias=qk lse=1");
    (void)state;
    tensor_fill(&trial.args->bias, -(double)FLT_MAX);
    trial_run(&trial);
    for (int64_t c = 0; c < 16; c++) {
        double low = (double)INFINITY, high = -(double)INFINITY;
        for (int64_t j = 0; j < 100; j++) {
            double v = inputs_value(INPUTS_NORMAL, trial.problem.seed, INPUTS_V, j * 16 + c);
            low = fmin(low, v), high = fmax(high, v);
        }
        assert_true(trial_o(&trial, 0, 2, 0, c) >= low && trial_o(&trial, 0, 2, 0, c) <= high);
    }
    assert_true(trial_lse(&trial, 0, 2, 0) <= -3.4e38 && !isnan(trial_lse(&trial, 0, 2, 0)));
    trial_close(&trial);
}

/* A band of ten keys: whole blocks before it are masked by the bias. */
static void b25_band_by_bias(void **state)
{
    op_trial trial = trial_open("n=640 hq=1 d=8 dtype=f32 bias=qk lse=1 row_max=1");
    (void)state;
    for (int64_t i = 0; i < 640; i++) {
        for (int64_t j = 0; j < 640; j++) {
            inputs_store(&trial.args->bias, 0, 0, i, j,
                         i - j >= 0 && i - j <= 9 ? 0 : -(double)INFINITY);
        }
    }
    trial_check(&trial);
    for (int64_t i = 0; i < 640; i++) {
        assert_true(isfinite(trial_o(&trial, 0, i, 0, 7)) && isfinite(trial_lse(&trial, 0, i, 0)));
    }
    trial_close(&trial);
}

/* One false for everything. */
static void b28_scalar_false(void **state)
{
    static const int rows[] = {1, 8, 32};
    (void)state;
    for (int n = 0; n < 3; n++) {
        op_trial trial = trial_open("b=2 nq=%d nk=300 hq=2 d=128 dtype=f16 mask=1 lse=1", rows[n]);
        tensor_fill(&trial.args->mask, 0);
        trial_run(&trial);
        for (int64_t i = 0; i < rows[n]; i++) {
            assert_row_is_empty(&trial, 1, i, 1);
        }
        trial_close(&trial);
    }
}

/* A mask or bias that is broadcast gives the bits of the same one written out (B = H = 3: no axis
 * can be taken for another). */
static void b40_b41_broadcast(void **state)
{
    static const char *const axes[] = {"1",   "b",   "h",   "q",  "k", "bk",
                                       "hqk", "bhk", "bqk", "bh", "qk"};
    (void)state;
    for (size_t n = 0; n < sizeof axes / sizeof axes[0]; n++) {
        for (int bias = 0; bias < 2; bias++) {
            const char *word = bias ? "bias" : "mask";
            op_trial trial =
                trial_open("b=3 hq=3 nq=3 nk=70 d=8 dtype=f32 lse=1 %s=%s", word, axes[n]);
            op_trial other = trial_open("b=3 hq=3 nq=3 nk=70 d=8 dtype=f32 lse=1 %s=bhqk", word);
            tensor_copy(bias ? &other.args->bias : &other.args->mask,
                        bias ? &trial.args->bias : &trial.args->mask);
            trial_check(&trial);
            trial_run(&other);
            assert_same_outputs(&trial, &other);
            trial_close(&trial);
            trial_close(&other);
        }
    }
}

/* A mask of bits for draft tokens that form a tree, behind `first` keys that all of them see: each
 * sees its ancestors and itself. The same as a mask of bytes. Bits beyond the keys are set. */
static void put_tree(const op_trial *bits, const op_trial *bytes, int64_t first)
{
    const int64_t drafts = bits->problem.nq, keys = bits->problem.nk;
    const attn_tensor *mask = &bits->args->mask;
    tensor_fill(&bytes->args->mask, 0);
    memset(mask->data, 0, (size_t)(mask->shape[0] * mask->stride[0]));
    for (int64_t b = 0; b < bits->problem.b; b++) {
        int64_t parent[64] = {-1};
        for (int64_t i = 0; i < drafts; i++) {
            parent[i] =
                i == 0 ? -1 : (int64_t)(inputs_bits(7, INPUTS_MASK, b * 64 + i) % (uint64_t)i);
            for (int64_t j = 0; j < first; j++) {
                inputs_store(mask, b, 0, i, j, 1);
                inputs_store(&bytes->args->mask, b, 0, i, j, 1);
            }
            for (int64_t at = i; at >= 0; at = parent[at]) {
                inputs_store(mask, b, 0, i, first + at, 1);
                inputs_store(&bytes->args->mask, b, 0, i, first + at, 1);
            }
            for (int64_t j = keys; j < 8 * mask->shape[3]; j++) {
                inputs_store(mask, b, 0, i, j, 1);
            }
        }
    }
}

/* Bits give the bits of a mask of bytes, whatever stands beyond the keys; a changed bit shows. */
static void test_tree_of_bits(void **state)
{
    static const char *const lines[] = {
        "b=2 hq=4 hkv=2 nq=13 nk=%d d=32 dtype=f32 lse=1 row_max=1",
        "b=2 hq=4 hkv=1 nq=13 nk=%d d=64 dtype=bf16 lse=1 layout=bhsd",
        "b=2 hq=4 hkv=2 nq=13 nk=%d d=32 dtype=f32 lse=1 kv_dtype=i8",
        "b=2 hq=2 nq=13 nk=%d d=16 dtype=f32 window_left=99 lse=1",
    };
    (void)state;
    for (int n = 0; n < 8; n++) {
        char line[160];
        const int first = n % 2 ? 5003 : 61;
        snprintf(line, sizeof line, lines[n / 2], first + 13);
        op_trial bits = trial_open("%s mask=b1x8:bqk", line),
                 bytes = trial_open("%s mask=bqk", line);
        put_tree(&bits, &bytes, first);
        trial_check(&bits);
        trial_run(&bytes);
        assert_same_outputs(&bits, &bytes);
        const int64_t last = first + 12; /* draft 12 no longer sees itself */
        inputs_store(&bits.args->mask, 1, 0, 12, last, 0);
        trial_check(&bits);
        size_t size, same;
        unsigned char *changed = trial_bits(&bits, &size), *before = trial_bits(&bytes, &same);
        assert_true(size == same && memcmp(changed, before, size) != 0);
        free(changed);
        free(before);
        trial_close(&bits);
        trial_close(&bytes);
    }
}

/* Narrow biases: -inf has no influence, -65504 next to none, and an overflow to +inf gives NaN in
 * its row only. */
static void b42_bias_types(void **state)
{
    static const char *const dtypes[] = {"f32", "f16", "bf16", "f64"};
    (void)state;
    for (int n = 0; n < 4; n++) {
        op_trial trial = trial_open("nq=4 nk=70 hq=1 d=8 dtype=f32 lse=1 bias=%s:qk", dtypes[n]);
        tensor_fill(&trial.args->bias, 0);
        for (int64_t j = 0; j < 70; j += 3) {
            inputs_store(&trial.args->bias, 0, 0, 0, j, -(double)INFINITY);
            inputs_store(&trial.args->bias, 0, 0, 2, j, -65504);
        }
        /* f64: a finite 1e39 */
        inputs_store(&trial.args->bias, 0, 0, 1, 66, n == 0 ? (double)INFINITY : 1e39);
        trial_run(&trial);
        for (int64_t i = 0; i < 4; i++) {
            assert_true(isnan(trial_o(&trial, 0, i, 0, 5)) == (i == 1));
        }
        inputs_store(&trial.args->bias, 0, 0, 1, 66, 0);
        trial_check(&trial);
        trial_close(&trial);
    }
}

/* 600 tokens in segments 0-127, 128-255, 256-383, 543-599; the hole 384-542 sees nothing. Segments
 * that start at a key block have the bits of separate calls, the last is within the bound. */
static void b43_block_diagonal(void **state)
{
    static const int64_t start[] = {0, 128, 256, 543}, end[] = {128, 256, 384, 600};
    op_trial trial = trial_open("n=600 hq=1 d=16 dtype=f32 mask=qk lse=1 row_max=1");
    (void)state;
    tensor_fill(&trial.args->mask, 0);
    for (int s = 0; s < 4; s++) {
        attn_tensor rows = tensor_slice(trial.args->mask, 2, start[s], end[s] - start[s]);
        rows = tensor_slice(rows, 3, start[s], end[s] - start[s]);
        tensor_fill(&rows, 1);
    }
    trial_check(&trial);
    for (int64_t i = 384; i < 543; i++) {
        assert_row_is_empty(&trial, 0, i, 0);
    }
    for (int s = 0; s < 3; s++) {
        op_trial other = trial_open("n=128 hq=1 d=16 dtype=f32 lse=1 row_max=1");
        other.args->q = tensor_slice(trial.args->q, 1, start[s], 128);
        other.args->k = tensor_slice(trial.args->k, 1, start[s], 128);
        other.args->v = tensor_slice(trial.args->v, 1, start[s], 128);
        trial_run(&other);
        op_trial part = trial;
        attn_forward_args slices = *trial.args;
        slices.o = tensor_slice(trial.args->o, 1, start[s], 128);
        slices.lse = tensor_slice(trial.args->lse, 1, start[s], 128);
        slices.row_max = tensor_slice(trial.args->row_max, 1, start[s], 128);
        part.args = &slices;
        assert_same_outputs(&part, &other);
        trial_close(&other);
    }
    trial_close(&trial);
}

/* Masks that show whole tiles, parts of them and nothing: blocks on the diagonal, other ones for
 * each head and sequence; stripes of keys that all rows see; some rows see nothing. One hidden key
 * is not finite; elsewhere a visible one is alone in its cell of the summary. */
static void test_masks_of_blocks(void **state)
{
    static const char *const lines[] = {
        "n=700 hq=4 hkv=2 d=8 dtype=f32 mask=hqk lse=1 row_max=1",
        "b=2 nq=90 nk=700 hq=6 hkv=2 d=8 dtype=f32 mask=bqk causal=1 bias=hk dropout=0.2 lse=1",
        "nq=90 nk=1100 hq=2 d=8 dtype=f64 mask=i32:k window_left=900 alibi=h sinks=h lse=1",
        "lens_q=50,40 lens_k=700,600 hq=2 d=16 dtype=bf16 mask=bqk softcap=3 lse=1",
        "nq=70 nk=641 hq=2 d=8 dtype=f32 mask=hqk layout=strided lse=1",
        "nq=90 nk=9000 hq=2 d=8 dtype=f32 mask=hqk lse=1 row_max=1",
    };
    (void)state;
    for (size_t line = 0; line < sizeof lines / sizeof lines[0]; line++) {
        op_trial trial = trial_open("%s", lines[line]);
        const int64_t *n = trial.args->mask.shape;
        const bool hides_last = trial.problem.layout == LAYOUT_BSHD && !trial.problem.has_lens;
        for (int64_t at = 0; at < n[0] * n[1] * n[2] * n[3]; at++) {
            const int64_t j = at % n[3], i = at / n[3] % n[2], h = at / n[3] / n[2] % n[1],
                          b = at / n[3] / n[2] / n[1];
            const bool block = (i * n[3] / n[2] + 70 * h + 210 * b) / 150 == j / 150,
                       stripe = j / 40 % 9 == 4 && j < 1500;
            const bool visible = (block || stripe) && i % 48 < 40 && !(hides_last && j == n[3] - 1);
            inputs_store(&trial.args->mask, b, h, i, j, visible);
        }
        if (hides_last) { /* from all rows */
            attn_tensor k = tensor_slice(trial.args->k, 1, n[3] - 1, 1),
                        v = tensor_slice(trial.args->v, 1, n[3] - 1, 1);
            tensor_fill(&k, (double)NAN);
            tensor_fill(&v, (double)INFINITY);
        } else {
            trial_check_own_bits(&trial);
        }
        trial_check(&trial);
        trial_close(&trial);
    }
}

/* A mask of one call has no influence on the next. */
static void b49_a_mask_is_forgotten(void **state)
{
    op_trial fresh = trial_open("b=2 nq=20 nk=90 hq=2 d=8 dtype=f32 lse=1 seed=3");
    op_trial masked = trial_open(
        "b=2 nq=20 nk=90 hq=2 d=8 dtype=f32 lse=1 seed=3 mask=bhqk bias=qk alibi=h sinks=h");
    (void)state;
    trial_run(&masked);
    memset(&masked.args->mask, 0, sizeof masked.args->mask);
    memset(&masked.args->bias, 0, sizeof masked.args->bias);
    memset(&masked.args->alibi_slopes, 0, sizeof masked.args->alibi_slopes);
    memset(&masked.args->sinks, 0, sizeof masked.args->sinks);
    trial_run(&masked);
    trial_check(&fresh);
    assert_same_outputs(&masked, &fresh);
    trial_close(&masked);
    trial_close(&fresh);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(b22_rows_that_are_all_false),
        cmocka_unit_test(b23_least_finite_bias),
        cmocka_unit_test(b24_row_of_least_finite_bias),
        cmocka_unit_test(b25_band_by_bias),
        cmocka_unit_test(b28_scalar_false),
        cmocka_unit_test(b40_b41_broadcast),
        cmocka_unit_test(b42_bias_types),
        cmocka_unit_test(b43_block_diagonal),
        cmocka_unit_test(test_tree_of_bits),
        cmocka_unit_test(test_masks_of_blocks),
        cmocka_unit_test(b49_a_mask_is_forgotten),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
