/*
 * tensors_memory.h: the memory of a problem's tensors. Private to tensors.c, which makes the
 * tensors, and tensors_memory.c, which looks at them after calls.
 */
#ifndef SUPPORT_TENSORS_MEMORY_H
#define SUPPORT_TENSORS_MEMORY_H

#include "problem.h"
#include "region.h"

enum { MAX_TENSORS = 32 };

/* One allocation: of one tensor, or of Q, K and V together if packed. */
struct piece {
    guarded_region region;
    attn_tensor output; /* data == NULL: an input */
    uint64_t hash;      /* hash of an input, once filled */
};

struct tensor_memory {
    struct piece piece[MAX_TENSORS];
    int count;
};

#endif
