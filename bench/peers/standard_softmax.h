/*
 * standard_softmax.h: s = exp(s - max) / sum of one row, in place, as plain loops for the compiler
 * to vectorise. No include guard: standard.c includes it once per instruction set, with
 *
 *   SOFTMAX               the function's name
 *   SOFTMAX_TARGET        its target attribute
 *   MULTIPLY_ADD(a, b, c) a * b + c
 */

/* n scores; elements from n to stride, a multiple of LANES, are written as 0. Maxima and sums are
 * taken over LANES elements side by side, since a compiler may not reorder one sum. */
SOFTMAX_TARGET static void SOFTMAX(float *s, int64_t n, int64_t stride)
{
    float max[LANES], sum[LANES], m = -INFINITY, total = 0;
    int64_t whole = (n + LANES - 1) / LANES * LANES;
    for (int64_t j = n; j < whole; j++) {
        s[j] = -INFINITY;
    }
    for (int l = 0; l < LANES; l++) {
        max[l] = -INFINITY, sum[l] = 0;
    }
    for (int64_t j = 0; j < whole; j += LANES) {
        for (int l = 0; l < LANES; l++) {
            max[l] = s[j + l] > max[l] ? s[j + l] : max[l];
        }
    }
    for (int l = 0; l < LANES; l++) {
        m = max[l] > m ? max[l] : m;
    }
    /* apart from the next loop, or gcc sees control flow there */
    for (int64_t j = 0; j < whole; j++) {
        float t = (s[j] - m) * 1.44269504f;
        s[j] = t > -127.0f ? t : -127.0f;
    }
    for (int64_t j = 0; j < whole; j++) {
        /* 2^t = 2^i 2^f, i the nearest integer, f in [-1/2, 1/2]; 2^-127 and less becomes 0 */
        const float large = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
        float t = s[j], p = 1.54003e-4f, power;
        float shifted = t + large, f = t - (shifted - large);
        int32_t bits;
        memcpy(&bits, &shifted, sizeof bits);
        bits = (int32_t)((uint32_t)(bits - 0x4B400000 + 127) << 23);
        memcpy(&power, &bits, sizeof power);
        p = MULTIPLY_ADD(p, f, 1.33335581e-3f);
        p = MULTIPLY_ADD(p, f, 9.61812910e-3f);
        p = MULTIPLY_ADD(p, f, 5.55041087e-2f);
        p = MULTIPLY_ADD(p, f, 2.40226507e-1f);
        p = MULTIPLY_ADD(p, f, 6.93147181e-1f);
        p = MULTIPLY_ADD(p, f, 1.0f);
        s[j] = p * power;
    }
    for (int64_t j = 0; j < whole; j += LANES) {
        for (int l = 0; l < LANES; l++) {
            sum[l] += s[j + l];
        }
    }
    for (int l = 0; l < LANES; l++) {
        total += sum[l];
    }
    float inverse = n > 0 ? 1.0f / total : 0.0f;
    for (int64_t j = 0; j < whole; j++) {
        s[j] *= inverse;
    }
    for (int64_t j = whole; j < stride; j++) {
        s[j] = 0;
    }
}

#undef SOFTMAX
#undef SOFTMAX_TARGET
#undef MULTIPLY_ADD
