/*
 * softmax.h: the end of a row's softmax. The kernels hand over the largest score `max` of the row,
 * l = sum exp(s - max) and OT = sum exp(s - max) v. O's divisor and the LSE follow here, with an
 * attention sink (-inf: none) as one more score whose value row is 0. In double, once per row. Not
 * here: the running update, which belongs to the kernels (cpu/ukernel/table.h).
 */
#ifndef ATTN_CORE_SOFTMAX_H
#define ATTN_CORE_SOFTMAX_H

#include "core/compiler.h"
#include <math.h>

typedef struct attn_row_end {
    double divisor; /* O = OT / divisor; 0 for a row without a key, whose O is 0 */
    double far;     /* 0, or O = OT / far / divisor, to be computed in double */
} attn_row_end;

/* exp(a - b), with the rounding error of the difference (Knuth's exact sum), since a - b may be
 * much larger than the scores by which the error of O is bounded. */
ATTN_CORE double attn_exp_difference(double a, double b)
{
    double d = a - b, back = d - a;
    return exp(d) * (1 + ((a - (d - back)) - (b + back)));
}

ATTN_CORE double attn_row_lse(double max, double l, double sink)
{
    if (sink == -INFINITY || l == 0) {
        return l != 0 ? max + log(l) : sink;
    }
    double top = sink > max ? sink : max;
    return top + log(l * exp(max - top) + exp(sink - top));
}

/*
 * A sink far above the scores makes l + exp(sink - max) overflow (f32: from 88 on, f64: from 709),
 * although O = OT / (l + exp(sink - max)) may be a normal number when values are large. With far =
 * exp((sink - max) / 2) the divisor is l / far + far. far > 1 and O = OT / far / divisor, so OT /
 * far underflows only if O does.
 */
ATTN_CORE attn_row_end attn_row_divisor(double max, double l, double sink)
{
    attn_row_end end = {l, 0};
    if (sink != -INFINITY && l != 0) {
        end.far = sink - max > 64 ? attn_exp_difference(sink / 2, max / 2) : 0;
        end.divisor = end.far > 0 ? l / end.far + end.far : l + attn_exp_difference(sink, max);
    }
    return end;
}

#endif
