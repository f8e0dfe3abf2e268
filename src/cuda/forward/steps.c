/*
 * steps.c: a problem's steps from products to scores, as forward_sm90's kernels take them.
 */
#include "cuda/forward/forward.h"

#include <float.h>
#include <math.h>

bool attn_cuda_has_steps(const attn_problem *p)
{
    return p->mask.data || p->bias.data || p->alibi.data || p->softcap > 0 ||
           !(p->scale * 1.4426950408889634 >= (double)FLT_MIN);
}

bool attn_cuda_is_aligned(const attn_tensor *t)
{
    bool ok = (uintptr_t)t->data % 16 == 0 && (t->stride[3] == 1 || t->shape[3] == 1);
    for (int a = 0; a < 3; a++) {
        ok &= t->shape[a] == 1 || t->stride[a] * (int64_t)attn_dtype_size(t->dtype) % 16 == 0;
    }
    return ok;
}

/* Whether the kernels can copy rows of scores 16 bytes at a time. */
static bool is_copied(const attn_tensor *t)
{
    return attn_cuda_is_aligned(t) && t->shape[3] > 1;
}

/* Bytes from one element to the next along an axis; 0 where it is broadcast. */
static int64_t step_bytes(const attn_tensor *t, int axis)
{
    return t->shape[axis] == 1 ? 0 : t->stride[axis] * (int64_t)attn_dtype_size(t->dtype);
}

static void set_softcap(attn_cuda_steps *s, const attn_problem *p)
{
    /* tanh(z) / z in z^2 for |z| <= 5/8, minimax: relative error 2^-23.1 */
    static const double near[] = {0.999999893132, -0.333319542501, 0.133045259971, -0.0518218666639,
                                  0.0150509451369};
    const double scale = p->scale, cap = p->softcap;
    for (int i = 0; i < 5; i++) {
        s->near[i] = (float)(scale * near[i]);
    }
    s->near_scale = (float)(scale / cap);
    s->near_most = (float)(0.625 * cap / fabs(scale)); /* infinite for a scale of 0 */
    s->far_scale = (float)(fabs(scale) / cap * (2 * 1.4426950408889634));
    s->far_cap = (float)copysign(cap, scale);
}

attn_cuda_steps attn_cuda_steps_of(const attn_problem *p)
{
    attn_cuda_steps s = {.scale = (float)p->scale};
    const attn_tensor *bias = &p->bias, *mask = &p->mask;
    s.softcap = p->softcap > 0, s.alibi = p->alibi.data != NULL, s.mask = mask->data != NULL;
    s.bias_factor = s.softcap ? 1 : s.scale;
    s.alibi_factor = bias->data ? 1 : s.bias_factor;
    s.scaled = !s.softcap && !bias->data && !s.alibi;
    s.masks = s.mask || bias->data;
    if (s.softcap) {
        set_softcap(&s, p);
    }
    if (bias->data) {
        s.bias = !is_copied(bias) || bias->dtype == ATTN_F64 ? ATTN_CUDA_GATHERED
                 : bias->dtype == ATTN_F32                   ? ATTN_CUDA_COPIED_4
                                                             : ATTN_CUDA_COPIED_2;
        s.bias_row = step_bytes(bias, 2), s.bias_step = step_bytes(bias, 3);
    }
    if (s.mask) {
        s.mask_copied = is_copied(mask);
        s.mask_row = step_bytes(mask, 2), s.mask_step = step_bytes(mask, 3);
    }
    return s;
}

const char *attn_cuda_steps_lack(const attn_problem *p)
{
    const double least = 1e-30,
                 most = 1e30; /* far from the ends of f32: scale, softcap, quotient */
    if (p->softcap > 0 && !(p->softcap > least && p->softcap < most && fabs(p->scale) < most &&
                            fabs(p->scale) / p->softcap < most)) {
        return "softcap or scale are beyond 1e-30 to 1e30";
    }
    return p->bias.data && p->q.dtype == ATTN_F32 && (p->d > 64 || p->dv > 64)
               ? "f32 beyond d = 64 leaves no shared memory for a bias"
               : NULL;
}
