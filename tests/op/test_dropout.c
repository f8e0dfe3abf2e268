/*
 * test_dropout.c: the mask of C11 (D6, B107): attn_dropout_mask against the published test vectors
 * of Philox4x32-7 and against the oracle, its share of dropped positions, and forward passes that
 * use exactly that mask.
 */
#include "trial.h"
#include "oracle.h"
#include "tables.h"

#include <stdio.h>

static attn_dropout_mask_args mask_of(attn_tensor keep, double p, uint64_t seed, uint64_t offset)
{
    return (attn_dropout_mask_args){
        .struct_size = sizeof(attn_dropout_mask_args),
        .keep = keep,
        .dropout_p = p,
        .dropout_seed = seed,
        .dropout_offset = offset,
    };
}

/* Position (b, h, i, j) is kept iff its number is at least p 2^16, rounded. Random123's known
 * answers of 7 rounds: counter and key 0 give 5f6fb709 0d893f64 4f121f81 4f730a48; counter and key
 * ff..ff give 5207ddc2 45165e59 4d8ee751 8c52f662. */
static void test_known_answers(void **state)
{
    static const uint32_t words[2][4] = {{0x5f6fb709, 0x0d893f64, 0x4f121f81, 0x4f730a48},
                                         {0x5207ddc2, 0x45165e59, 0x4d8ee751, 0x8c52f662}};
    static const double above[] = {0, 0.4, 0.6, 1};
    static unsigned char keep[16 * 16];
    (void)state;
    for (int n = 0; n < 8; n++) {
        const int i = n / 2 % 2 * 8, j = n / 4 * 8 + n % 2;
        const uint32_t number = words[0][n / 2] >> n % 2 * 16 & 0xFFFF,
                       other = words[1][n / 2] >> n % 2 * 16 & 0xFFFF;
        for (int a = 0; a < 4; a++) {
            attn_tensor t = attn_tensor_bshd(keep, ATTN_BOOL, 1, 1, 16, 16);
            attn_dropout_mask_args args = mask_of(t, ldexp((double)number + above[a], -16), 0, 0);
            assert_int_equal(attn_dropout_mask(NULL, &args), ATTN_OK);
            assert_int_equal(keep[16 * i + j], above[a] < 0.5);
            assert_int_equal(keep[16 * i + j], oracle_keeps(args.dropout_p, 0, 0, 0, 1, 0, i, j));
        }
        /* counter and key all ones: the last square of rows up to 2^33 and keys up to 2^34 */
        const int64_t row = (INT64_C(1) << 33) - 9 + i, key = (INT64_C(1) << 34) - 10 + j;
        double p = ldexp((double)other, -16);
        assert_true(oracle_keeps(p, UINT64_MAX, UINT64_MAX, 0, 1, 0, row, key));
        p = ldexp((double)other + 1, -16);
        assert_false(oracle_keeps(p, UINT64_MAX, UINT64_MAX, 0, 1, 0, row, key));
    }
}

/* The smallest p that drops anything is 2^-17, and then it drops the number 0. The largest that
 * keeps anything is below 1 - 2^-17. */
static void test_smallest_p(void **state)
{
    static const double p[] = {0x1p-18, 0x1.8p-18, 0x1p-17, 0x1p-16, 1 - 0x1.8p-17, 1 - 0x1p-17};
    enum { SIDE = 512 };
    static unsigned char keep[SIDE * SIDE];
    (void)state;
    for (int n = 0; n < 6; n++) {
        attn_dropout_mask_args args =
            mask_of(attn_tensor_bshd(keep, ATTN_BOOL, 1, 1, SIDE, SIDE), p[n], 0, 0);
        int kept = 0;
        assert_int_equal(attn_dropout_mask(NULL, &args), ATTN_OK);
        for (int at = 0; at < SIDE * SIDE; at++) {
            kept += keep[at];
            assert_int_equal(keep[at], oracle_keeps(p[n], 0, 0, 0, 1, 0, at / SIDE, at % SIDE));
        }
        assert_int_equal(kept == SIDE * SIDE, n < 2);
        assert_int_equal(kept == 0, n == 5);
    }
}

/* Strided and reversed, with offsets that wrap. */
static void test_mask_is_the_oracles(void **state)
{
    static const double p[] = {0, 0.1, 0.5, 0.9, 1};
    enum { B = 2, H = 3, Q = 17, K = 29 };
    static unsigned char room[B * H * Q * K * 2];
    (void)state;
    for (int n = 0; n < 10; n++) {
        attn_tensor t = attn_tensor_bshd(room, ATTN_BOOL, B, H, Q, 2 * K);
        t.shape[3] = K, t.stride[3] = 2;
        t.data = room + (Q - 1) * 2 * K, t.stride[2] = -2 * K;
        attn_dropout_mask_args args = mask_of(t, p[n % 5], 77, n < 5 ? 3 : UINT64_MAX - 2);
        memset(room, 0xFF, sizeof room);
        assert_int_equal(attn_dropout_mask(tables_context(NULL, 1 + n % 3), &args), ATTN_OK);
        for (int at = 0; at < B * H * Q * K; at++) {
            int b = at / K / Q / H, h = at / K / Q % H, i = at / K % Q, j = at % K;
            bool want =
                p[n % 5] == 0 || oracle_keeps(p[n % 5], 77, args.dropout_offset, b, H, h, i, j);
            assert_int_equal(room[((b * H + h) * Q + Q - 1 - i) * 2 * K + 2 * j], want);
            assert_int_equal(room[((b * H + h) * Q + Q - 1 - i) * 2 * K + 2 * j + 1], 0xFF);
        }
    }
}

/* The share of a million positions is within 4 standard deviations of p. */
static void test_share(void **state)
{
    static unsigned char keep[1000000];
    (void)state;
    for (int n = 1; n < 10; n++) {
        attn_dropout_mask_args args =
            mask_of(attn_tensor_bshd(keep, ATTN_BOOL, 2, 5, 100, 1000), n / 10.0, (uint64_t)n, 0);
        double dropped = 0;
        assert_int_equal(attn_dropout_mask(NULL, &args), ATTN_OK);
        for (int i = 0; i < 1000000; i++) {
            dropped += !keep[i];
        }
        assert_near(dropped, 1e5 * n, 4 * sqrt(1e5 * n * (1 - n / 10.0)));
    }
}

/* With V the unit matrix O is P Z: its zeros are the mask's, whatever the table, the threads and
 * the geometry. */
static void b107_forward_uses_the_mask(void **state)
{
    static const char *const dtypes[] = {"f64", "f32", "f16", "bf16"};
    (void)state;
    for (int n = 0; n < 4; n++) {
        op_trial trial = trial_open("b=2 hq=6 hkv=2 nq=30 nk=70 d=8 dv=70 dtype=%s dropout=0.4 "
                                    "dropout_seed=5 dropout_offset=9 "
                                    "window_left=30 lse=1",
                                    dtypes[n]);
        for (int64_t at = 0; at < 2 * 70 * 2 * 70; at++) {
            int64_t c = at % 70, h = at / 70 % 2, j = at / 140 % 70, b = at / 140 / 70;
            inputs_store(&trial.args->v, b, j, h, c, c == j);
        }
        trial_check(&trial);
        for (int64_t at = 0; at < 2 * 30 * 6 * 70; at++) {
            int64_t j = at % 70, h = at / 70 % 6, i = at / 420 % 30, b = at / 420 / 30;
            bool seen = j >= i + 40 - 30, kept = oracle_keeps(0.4, 5, 9, b, 6, h, i, j);
            assert_int_equal(trial_o(&trial, b, i, h, j) != 0, seen && kept);
        }
        trial_close(&trial);
    }
}

/* LSE knows nothing of dropout; p = 1 leaves nothing. */
static void test_ends(void **state)
{
    op_trial trial = trial_open("hq=2 nq=30 nk=70 d=8 dtype=f32 lse=1 dropout=1"),
             other = trial_open("hq=2 nq=30 nk=70 d=8 lse=1");
    (void)state;
    trial_check(&trial);
    trial_check(&other);
    for (int64_t at = 0; at < 30 * 2 * 8; at++) {
        assert_true(trial_o(&trial, 0, at / 16, at / 8 % 2, at % 8) == 0);
        assert_true(trial_lse(&trial, 0, at / 16, at / 8 % 2) ==
                    trial_lse(&other, 0, at / 16, at / 8 % 2));
    }
    trial_close(&trial);
    trial_close(&other);
}

static void test_misuse(void **state)
{
    unsigned char keep[12] = {0};
    attn_tensor t = attn_tensor_bshd(keep, ATTN_BOOL, 1, 1, 4, 3);
    static const struct {
        size_t at, size;
        int64_t value;
        attn_status status;
        const char *says;
    } list[] = {
        {offsetof(attn_dropout_mask_args, struct_size), 8, 4, ATTN_ERR_INVALID_ARGUMENT,
         "struct_size = 4"},
        {offsetof(attn_dropout_mask_args, keep.dtype), 4, ATTN_F32, ATTN_ERR_INVALID_ARGUMENT,
         "keep.dtype = 2"},
        {offsetof(attn_dropout_mask_args, keep.data), 8, 0, ATTN_ERR_INVALID_ARGUMENT,
         "keep.data is NULL"},
        {offsetof(attn_dropout_mask_args, keep.stride[2]), 8, 0, ATTN_ERR_INVALID_ARGUMENT,
         "keep.stride[2] = 0"},
        {offsetof(attn_dropout_mask_args, keep.shape[2]), 8, INT64_C(1) << 33, ATTN_ERR_OVERFLOW,
         "the positions of keep end at row 85899345"},
        {offsetof(attn_dropout_mask_args, dropout_p), 8, -1, ATTN_ERR_INVALID_ARGUMENT,
         "dropout_p = "},
    };
    (void)state;
    memset(keep, 0xFF, sizeof keep);
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        attn_dropout_mask_args args = mask_of(t, 0.5, 1, 1);
        memcpy((char *)&args + list[i].at, &list[i].value, list[i].size);
        assert_int_equal(attn_dropout_mask(NULL, &args), list[i].status);
        assert_non_null(strstr(attn_last_error(), list[i].says));
    }
    assert_int_equal(attn_dropout_mask(NULL, NULL), ATTN_ERR_INVALID_ARGUMENT);
    for (size_t i = 0; i < sizeof keep; i++) {
        assert_int_equal(keep[i], 0xFF);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_answers),
        cmocka_unit_test(test_smallest_p),
        cmocka_unit_test(test_mask_is_the_oracles),
        cmocka_unit_test(test_share),
        cmocka_unit_test(b107_forward_uses_the_mask),
        cmocka_unit_test(test_ends),
        cmocka_unit_test(test_misuse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
