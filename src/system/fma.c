/*
 * fma.c: attn_fmaf and attn_fma in place of fmaf and fma on x86-64, where the system's are wrong:
 * mingw-w64's round twice, and musl's fma loses the sign of a zero. Bits of the scalar tables
 * depend on them. They are one instruction where the CPU has it. Elsewhere fmaf is exact, and fma
 * is the system's.
 */
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

float attn_fmaf(float x, float y, float z);
double attn_fma(double x, double y, double z);

static bool has_fma(void)
{
    return __builtin_cpu_supports("fma");
}

__attribute__((target("fma"))) static float fused_f32(float x, float y, float z)
{
    return __builtin_fmaf(x, y, z);
}

__attribute__((target("fma"))) static double fused_f64(double x, double y, double z)
{
    return __builtin_fma(x, y, z);
}

float attn_fmaf(float x, float y, float z)
{
    if (has_fma()) {
        return fused_f32(x, y, z);
    }
    /* the product is exact; of an inexact sum the last bit says so, and the second rounding sees
     * it */
    const double product = (double)x * y, sum = product + z, part = sum - product,
                 lost = (product - (sum - part)) + (z - part);
    uint64_t bits;
    memcpy(&bits, &sum, sizeof bits);
    if (lost != 0 && lost - lost == 0 && (bits & 1) == 0) {
        bits += (lost > 0) == (sum > 0) ? 1 : UINT64_MAX;
    }
    double odd;
    memcpy(&odd, &bits, sizeof odd);
    return (float)odd;
}

double attn_fma(double x, double y, double z)
{
    return has_fma() ? fused_f64(x, y, z) : fma(x, y, z);
}
