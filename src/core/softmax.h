/*
 * softmax.h: the end of a row's softmax with an attention sink, one more score whose value row is
 * 0. The row's O is divided by the sum of its own exponentials already, and lse is the logarithm of
 * that sum (core/segment.h). In double, once per row. Not here: the running update of the kernels
 * (cpu/ukernel/table.h).
 */
#ifndef ATTN_CORE_SOFTMAX_H
#define ATTN_CORE_SOFTMAX_H

#include "core/compiler.h"
#include <math.h>

typedef struct attn_row_end {
    double divisor; /* O = O / divisor */
    double far;     /* 0, or O = O / far / divisor, to be computed in double */
} attn_row_end;

/* exp(a - b - rest), with the rounding error of the difference (Knuth's exact sum): a - b may be
 * much larger than the scores by which the error of O is bounded. */
ATTN_CORE double attn_exp_difference(double a, double b, double rest)
{
    double d = a - b, back = d - a;
    return exp(d) * (1 + (((a - (d - back)) - (b + back)) - rest));
}

/*
 * A sink far above the scores makes 1 + exp(sink - lse) overflow (f32: from 88 on, f64: from 709),
 * although O / (1 + exp(sink - lse)) may be a normal number when values are large. With far =
 * exp((sink - lse) / 2) the divisor is 1 / far + far. far > 1 and O = O / far / divisor, so O / far
 * underflows only if the result does.
 */
ATTN_CORE attn_row_end attn_sink_divisor(double lse, double rest, double sink)
{
    attn_row_end end = {1, 0};
    if (sink != -INFINITY && lse != -INFINITY) {
        end.far = sink - lse > 64 ? attn_exp_difference(sink / 2, lse / 2, rest / 2) : 0;
        end.divisor =
            end.far > 0 ? 1 / end.far + end.far : 1 + attn_exp_difference(sink, lse, rest);
    }
    return end;
}

#endif
