/*
 * naive.h: standard attention as it is written down, with every intermediate tensor in the type of
 * the inputs: scores, probabilities and O are rounded to it; sums run from the first term to the
 * last in f32 (f64 for f64). The baseline of `attn check --accuracy`; standard.h is the baseline
 * for speed.
 */
#ifndef BENCH_NAIVE_H
#define BENCH_NAIVE_H

#include <attn/attn.h>
#include <stdbool.h>

/* Computes o of a call without masks, lengths or score changes. False: no memory. */
bool naive_forward(const attn_forward_args *args);

#endif
