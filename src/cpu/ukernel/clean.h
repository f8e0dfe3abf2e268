/*
 * clean.h: clean_v and clean_x of tables whose panels are rows of reals (body.h, scalar.h), with
 * their parameters FN(..) and real, after x_stride.
 */

/* x - x is 0 for finite numbers only. */
static bool FN(all_finite)(const real *x, int64_t n)
{
    bool finite = true;
    for (int64_t c = 0; c < n; c++) {
        finite &= x[c] - x[c] == 0;
    }
    return finite;
}

/* Adds `bit` to the sets of those of n numbers that are NaN or infinite with this sign. */
static void FN(note)(uint64_t *set, const real *x, int64_t n, real sign, uint64_t bit)
{
    for (int64_t c = 0; c < n; c++) {
        set[c] |= x[c] - x[c] != 0 && !(x[c] * sign < 0) ? bit : 0;
    }
}

static bool FN(clean_v)(void *to_, const void *v_, int64_t at, int64_t n, int64_t dv_pad,
                        const attn_specials *found)
{
    real *to = (real *)to_ + at * dv_pad;
    bool any = false;
    memmove(to, (const real *)v_ + at * dv_pad, (size_t)(n * dv_pad) * sizeof(real));
    memset(found->plus, 0, (size_t)dv_pad * sizeof *found->plus);
    memset(found->minus, 0, (size_t)dv_pad * sizeof *found->minus);
    for (int64_t key = at; key < at + n; key++, to += dv_pad) {
        const uint64_t bit = (uint64_t)1 << key;
        if (!FN(all_finite)(to, dv_pad)) {
            FN(note)(found->plus, to, dv_pad, 1, bit);
            FN(note)(found->minus, to, dv_pad, -1, bit);
            for (int64_t c = 0; c < dv_pad; c++) {
                to[c] = to[c] - to[c] != 0 ? 0 : to[c];
            }
            any = true;
        }
    }
    return any;
}

static bool FN(clean_x)(void *x_, int64_t cols, const attn_specials *found)
{
    const int64_t words = attn_special_words(cols);
    bool any = false;
    memset(found->plus, 0, (size_t)(FN(STRIP) * words) * sizeof *found->plus);
    memset(found->minus, 0, (size_t)(FN(STRIP) * words) * sizeof *found->minus);
    for (int64_t row = 0; row < FN(STRIP); row++) {
        real *x = (real *)x_ + row * FN(x_stride)(cols);
        const bool finite = FN(all_finite)(x, cols);
        for (int64_t c = 0; !finite && c < cols; c++) {
            if (x[c] - x[c] != 0) {
                found->plus[row * words + c / 64] |= (uint64_t)!(x[c] < 0) << c % 64;
                found->minus[row * words + c / 64] |= (uint64_t)!(x[c] > 0) << c % 64;
                x[c] = 0;
            }
        }
        any |= !finite;
    }
    return any;
}
