/*
 * clean.h: clean_v and clean_x of tables whose panels are rows of reals (body.h, scalar.h), with
 * their parameters FN(..) and real, after x_stride.
 */

/* x - x is 0 for finite numbers only. Sums of as many as compilers make vectors of. */
static bool FN(all_finite)(const real *x, int64_t n)
{
    enum { MANY = 16 };
    real sum[MANY] = {0}, all = 0;
    int64_t c = 0;
    for (; c + MANY <= n; c += MANY) {
        for (int i = 0; i < MANY; i++) {
            sum[i] += x[c + i] - x[c + i];
        }
    }
    for (; c < n; c++) {
        all += x[c] - x[c];
    }
    for (int i = 0; i < MANY; i++) {
        all += sum[i];
    }
    return all == 0;
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
        const bool finite = FN(all_finite)(to, dv_pad);
        for (int64_t c = 0; !finite && c < dv_pad; c++) {
            if (to[c] - to[c] != 0) {
                found->plus[c] |= (uint64_t)!(to[c] < 0) << key;
                found->minus[c] |= (uint64_t)!(to[c] > 0) << key;
                to[c] = 0;
            }
        }
        any |= !finite;
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
