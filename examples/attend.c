/*
 * attend.c: attention over four positions in twenty lines. Build: cc attend.c $(pkg-config --cflags
 * --libs libattn)
 */
#include <attn/attn.h>
#include <stdio.h>

int main(void)
{
    enum { NQ = 4, NK = 4, HEADS = 1, DIM = 2 };
    /* equal scores: each row is the mean of the values it sees */
    const float q[NQ * DIM] = {0}, k[NK * DIM] = {0};
    const float v[NK * DIM] = {1, 10, 2, 20, 3, 30, 4, 40};
    float o[NQ * DIM];
    const attn_forward_args args = {
        .struct_size = sizeof args,
        .q = attn_tensor_bshd(q, ATTN_F32, 1, NQ, HEADS, DIM),
        .k = attn_tensor_bshd(k, ATTN_F32, 1, NK, HEADS, DIM),
        .v = attn_tensor_bshd(v, ATTN_F32, 1, NK, HEADS, DIM),
        .o = attn_tensor_bshd(o, ATTN_F32, 1, NQ, HEADS, DIM),
        .flags = ATTN_CAUSAL,
    };
    if (attn_forward(NULL, &args) != ATTN_OK) {
        fprintf(stderr, "%s\n", attn_last_error());
        return 1;
    }
    for (int i = 0; i < NQ; i++) {
        printf("%g %g\n", (double)o[i * DIM], (double)o[i * DIM + 1]);
    }
    return o[(NQ - 1) * DIM] == 2.5f ? 0 : 1;
}
