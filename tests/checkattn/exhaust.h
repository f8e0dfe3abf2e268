/*
 * exhaust.h: exp2 of a kernel table on all 2^32 floats (checkattn --exp2).
 */
#ifndef TESTS_CHECKATTN_EXHAUST_H
#define TESTS_CHECKATTN_EXHAUST_H

#include "cpu/ukernel/table.h"

/* Prints, in a minute or so: the largest error in ulps of the results that are normal numbers, and
 * where; from where on results are 0; how often and how far the function steps back instead of
 * being monotone; a hash of all results, which must be that of the table asked about first. Returns
 * the number of failures. */
int exhaust_exp2(const attn_ukernel *table);

/* The same for a table whose P is the sum of bf16 parts, over all x from -130 to -2^-27 and a
 * sample of the rest: the largest relative error of the terms of l and of the parts that products
 * see, and their bias, the mean over equally spaced x in (-1, 0]. */
int exhaust_parts(const attn_ukernel *table);

#endif
