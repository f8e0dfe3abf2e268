/*
 * special.c: numbers that are not finite, in a project that may be built with -ffast-math: the
 * library gives them their meaning (C1, C4) whatever the project's flags. Bits are looked at, since
 * comparisons here mean little.
 */
#include <attn/attn.h>
#include <stdint.h>
#include <stdio.h>

enum { N = 4, NAN_BITS = 0x7fc00000 };
static const uint32_t one = 0x3f800000, minus_infinity = 0xff800000;

static int is_nan(uint32_t bits)
{
    return (bits & 0x7fffffff) > 0x7f800000;
}

/* Row 0 sees key 0 alone, whose bias is -inf; row 2 and row 3 see V[2], which is NaN. */
int main(void)
{
    uint32_t v[N] = {one, one, NAN_BITS, one}, bias[N] = {minus_infinity, 0, 0, 0}, o[N], lse[N];
    const uint32_t q[N] = {0};
    attn_forward_args args = {.struct_size = sizeof args, .flags = ATTN_CAUSAL};
    args.q = args.k = attn_tensor_bshd(q, ATTN_F32, 1, N, 1, 1);
    args.v = attn_tensor_bshd(v, ATTN_F32, 1, N, 1, 1);
    args.o = attn_tensor_bshd(o, ATTN_F32, 1, N, 1, 1);
    args.lse = attn_tensor_bshd(lse, ATTN_F32, 1, N, 1, 1);
    args.bias = attn_tensor_bshd(bias, ATTN_F32, 1, 1, 1, N);
    if (attn_forward(NULL, &args) != ATTN_OK) {
        fprintf(stderr, "%s\n", attn_last_error());
        return 1;
    }
    const int good = o[0] == 0 && lse[0] == minus_infinity && o[1] == one && lse[1] == 0 &&
                     is_nan(o[2]) && is_nan(o[3]) && !is_nan(lse[3]);
    for (int i = 0; i < N && !good; i++) {
        fprintf(stderr, "row %d: O %08x, LSE %08x\n", i, (unsigned)o[i], (unsigned)lse[i]);
    }
    return good ? 0 : 1;
}
