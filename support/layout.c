/*
 * layout.c: see layout.h.
 */
#include "layout.h"
#include "problem.h"

#include <stdlib.h>

/* Sets the strides of the axes from order[3], the innermost, outwards; gap[n] elements stay unused
 * after axis order[n]. */
static void set_strides(attn_tensor *t, const int order[4], const int64_t gap[4])
{
    int64_t stride = 1 + gap[3];
    for (int n = 3; n >= 0; n--) {
        t->stride[order[n]] = stride;
        stride = stride * t->shape[order[n]] + (n > 0 ? gap[n - 1] : 0);
    }
}

void layout_apply(attn_tensor *t, int layout, enum role role)
{
    static const int plain[4] = {0, 1, 2, 3}, heads_outside[4] = {0, 2, 1, 3},
                     keys_outside[4] = {0, 1, 3, 2};
    static const int64_t none[4] = {0, 0, 0, 0}, some[4] = {7, 5, 3, 0}, second[4] = {0, 0, 0, 1};
    bool scores = role == ROLE_SCORES, list = role == ROLE_LIST;
    if (layout == LAYOUT_GAP && !list) {
        set_strides(t, plain, some);
    } else if (layout == LAYOUT_BHSD && !list && !scores) {
        set_strides(t, heads_outside, none);
    } else if (layout == LAYOUT_STRIDED && !list) {
        set_strides(t, scores ? keys_outside : plain,
                    role == ROLE_V || role == ROLE_O ? second : none);
        t->stride[1] *= role == ROLE_Q ? -1 : 1;
        t->stride[2] *= role == ROLE_K || role == ROLE_V ? 0 : 1;
    } else {
        set_strides(t, plain, none);
    }
    if (layout == LAYOUT_LOOSE) {
        layout_loosen(t);
    }
}

void layout_loosen(attn_tensor *t)
{
    for (int a = 0; a < 4; a++) {
        t->stride[a] = t->shape[a] == 1 ? INT64_MAX / 2 : t->stride[a];
    }
}

attn_tensor layout_shaped(int64_t n0, int64_t n1, int64_t n2, int64_t n3, int32_t dtype)
{
    attn_tensor t = {NULL, {n0, n1, n2, n3}, {0}, dtype, 0};
    return t;
}

/* False if sizes in bytes come near 2^63, gaps included. */
bool layout_fits(const attn_tensor *t)
{
    double elements = 2;
    for (int a = 0; a < 4; a++) {
        elements *= (double)t->shape[a] + 8;
    }
    return elements < 0x1p58;
}

/* Number of elements from the lowest address to the highest, and number below index (0, 0, 0,
 * 0). */
int64_t layout_span(const attn_tensor *t, int64_t *below)
{
    int64_t span = 1;
    *below = 0;
    for (int a = 0; a < 4; a++) {
        if (t->shape[a] == 0) {
            return *below = 0;
        }
        int64_t reach = (t->shape[a] - 1) * llabs(t->stride[a]);
        span += reach;
        *below += t->stride[a] < 0 ? reach : 0;
    }
    return span;
}
