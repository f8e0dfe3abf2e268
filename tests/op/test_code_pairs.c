/*
 * test_code_pairs.c: codes beside Q of bf16, which have products of their own where there
 * is AVX512_BF16 (table avx512bf16_codes): each code, scales that are not finite, the choice of the
 * table.
 */
#include "codes_kit.h"
#include "cpu/forward/plan.h"
#include "cpu/machine/features.h"
#include "cpu/machine/select.h"
#include "oracle.h"

enum { TYPES = 4 };
static const char *const names[TYPES] = {"i8", "e4m3", "e5m2", "i4x2"};

/* Rows that see one key each, whose byte c is key + c: O is V, exactly, and with Q of
 * ones LSE the sum of K's row. Steps (few rows) and prompts (panels). */
static void test_every_code(void **state)
{
    static const char *const shapes[] = {
        "b=256 nq=1 nk=1", "nq=256 nk=256 q_origin=0 k_origin=0 window_left=0 window_right=0"};
    static const uint8_t last[TYPES] = {127, 126, 123, 127}; /* finite codes, without their sign */
    (void)state;
    for (int n = 0; n < TYPES * 2; n++) {
        const bool whole = n % 2;
        const int type = n / 2;
        op_trial t = trial_open("%s hq=4 hkv=1 d=64 dtype=bf16 o_dtype=f32 scale=1 lse=1 "
                                "kv_dtype=%s kv_scale=h",
                                shapes[whole], names[type]);
        attn_forward_args *a = t.args;
        const int64_t bytes = a->k.shape[3];
        for (int64_t at = 0; at < 256 * bytes; at++) {
            const uint8_t code = (uint8_t)(at / bytes + at % bytes);
            ((uint8_t *)a->k.data)[at] = ((uint8_t *)a->v.data)[at] =
                (code & 127) <= last[type] ? code : 0;
        }
        tensor_fill(&a->q, 1), tensor_fill(&a->k_scale, 0.25), tensor_fill(&a->v_scale, 0.25);
        const attn_tensor v = values_of(&a->v, &a->v_scale, &a->v_shift, ATTN_F32);
        assert_ok(attn_forward(NULL, a));
        for (int64_t row = 0; row < 256 * 4; row++) {
            const int64_t key = row / 4, b = whole ? 0 : key, i = whole ? key : 0, h = row % 4;
            double sum = 0, size = 0;
            for (int64_t c = 0; c < 64; c++) {
                const double x = oracle_element(&v, b, i, 0, c);
                assert_true(oracle_element(&a->o, b, i, h, c) == x);
                sum += x, size += fabs(x);
            }
            assert_true(fabs(oracle_element(&a->lse, b, i, h, 0) - sum) <= 0x1p-17 * size);
        }
        free(v.data);
        trial_close(&t);
    }
}

/* The scale of one key is x: rows that do not see it keep their bits, others have what they have
 * with ATTN_PRECISE, but for the rounding of P. One head of 32 columns: sums that are scaled
 * afterwards could be -inf there, where the values add up to a NaN. */
static void check_special_scale(const char *type, int64_t nq, bool of_v, double x)
{
    enum { KEY = 37, D = 32 };
    op_trial t = trial_open("hq=1 nq=%lld nk=40 d=32 dtype=bf16 o_dtype=f32 q_origin=%lld "
                            "causal=1 kv_dtype=%s kv_scale=bkh lse=1",
                            (long long)nq, (long long)(40 - nq), type);
    attn_forward_args *a = t.args, clean = *a, precise = *a;
    clean.o = fresh(ATTN_F32, a->o.shape), precise.o = fresh(ATTN_F32, a->o.shape);
    clean.lse = precise.lse = (attn_tensor){0}, precise.flags |= ATTN_PRECISE;
    assert_ok(attn_forward(NULL, &clean));
    const attn_tensor one = tensor_slice(of_v ? a->v_scale : a->k_scale, 1, KEY, 1);
    tensor_fill(&one, x);
    assert_ok(attn_forward(NULL, a));
    assert_ok(attn_forward(NULL, &precise));
    for (int64_t at = 0; at < nq * D; at++) {
        const int64_t i = at / D, c = at % D;
        const double got = oracle_element(&a->o, 0, i, 0, c),
                     want = oracle_element(&precise.o, 0, i, 0, c);
        if (i + 40 - nq < KEY) {
            assert_true(got == oracle_element(&clean.o, 0, i, 0, c));
        } else {
            assert_true(isnan(got) == isnan(want) && isinf(got) == isinf(want));
            assert_true(!isfinite(want) || fabs(got - want) <= 0x1p-8 * 4); /* |v| <= 4 */
        }
    }
    free(clean.o.data);
    free(precise.o.data);
    trial_close(&t);
}

static void test_special_scales(void **state)
{
    static const double special[] = {NAN, INFINITY, -INFINITY};
    (void)state;
    for (int i = 0; i < TYPES * 3 * 2 * 2; i++) {
        check_special_scale(names[i % TYPES], i / TYPES % 2 ? 40 : 1, i / TYPES / 2 % 2,
                            special[i / TYPES / 4]);
    }
}

/* Rows of a prompt, each by itself: O and LSE have the bits of the prompt's. */
static void test_steps(void **state)
{
    static const char *const shapes[] = {"d=128 kv_group=32", "d=128",
                                         "d=96 kv_group=96",  "d=320 kv_group=160",
                                         "d=64 kv_group=32",  "d=288"};
    (void)state;
    for (int n = 0; n < 6 * TYPES; n++) {
        op_trial t = trial_open("hq=4 hkv=1 nq=19 nk=203 dtype=bf16 o_dtype=f32 lse=1 kv_dtype=%s "
                                "kv_scale=bkh %s",
                                names[n % TYPES], shapes[n / TYPES]);
        attn_forward_args *a = t.args, step = *a;
        assert_ok(attn_forward(NULL, a));
        step.o = fresh(ATTN_F32, a->o.shape), step.lse = fresh(a->lse.dtype, a->lse.shape);
        const attn_tensor o = step.o, lse = step.lse;
        for (int64_t i = 0; i < 19; i++) {
            step.q = tensor_slice(a->q, 1, i, 1);
            step.o = tensor_slice(o, 1, i, 1), step.lse = tensor_slice(lse, 1, i, 1);
            assert_ok(attn_forward(NULL, &step));
        }
        for (int64_t at = 0; at < 19 * 4 * a->o.shape[3]; at++) {
            const int64_t row = at / a->o.shape[3], c = at % a->o.shape[3];
            assert_true(oracle_element(&a->o, 0, row / 4, row % 4, c) ==
                        oracle_element(&o, 0, row / 4, row % 4, c));
            assert_true(oracle_element(&a->lse, 0, row / 4, row % 4, 0) ==
                        oracle_element(&lse, 0, row / 4, row % 4, 0));
        }
        free(o.data);
        free(lse.data);
        trial_close(&t);
    }
}

/* A CPU that lacks the lookups takes the f32 table for codes, and keeps bf16's own. */
static void test_choice(void **state)
{
    int count;
    const attn_isa *isas = attn_isas(&count);
    const attn_tensor none = {0}, some = {.data = &count};
    const attn_codes codes = {.scale = &none, .shift = &none};
    attn_problem problem = {
        .q.dtype = ATTN_BF16, .d = 64, .dv = 64, .k_codes = codes, .v_codes = codes};
    (void)state;
    problem.k.dtype = problem.v.dtype = ATTN_I8;
    for (int i = 0; i < count; i++) {
        const attn_ukernel *fast = isas[i].codes ? isas[i].codes : isas[i].precise;
        assert_ptr_equal(attn_cpu_table(&isas[i], UINT32_MAX, &problem), fast);
        assert_ptr_equal(attn_cpu_table(&isas[i], isas[i].needs, &problem), isas[i].precise);
        problem.v.dtype = ATTN_I4X2;
        assert_ptr_equal(attn_cpu_table(&isas[i], UINT32_MAX, &problem), fast);
        problem.v_codes.shift = &some;
        assert_ptr_equal(attn_cpu_table(&isas[i], UINT32_MAX, &problem), isas[i].precise);
        problem.v_codes.shift = &none;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_code),
        cmocka_unit_test(test_special_scales),
        cmocka_unit_test(test_steps),
        cmocka_unit_test(test_choice),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
