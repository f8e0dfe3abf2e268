/*
 * tensors_memory.c: the tensors of a problem after calls: poison, and the check for writes outside
 * the outputs.
 */
#include "tensors_memory.h"

#include <stdlib.h>
#include <string.h>

double problem_tensors_bytes(const problem_tensors *tensors)
{
    double sum = 0;
    for (int i = 0; i < tensors->memory->count; i++) {
        sum += (double)tensors->memory->piece[i].region.bytes;
    }
    return sum;
}

void problem_tensors_poison(problem_tensors *tensors)
{
    for (int i = 0; i < tensors->memory->count; i++) {
        struct piece *piece = &tensors->memory->piece[i];
        if (piece->output.data != NULL) {
            memset(piece->region.first, 0xFF, piece->region.bytes);
        }
    }
}

/* Sets every element to 0xFF in a copy of the output's memory; all other bytes must be 0xFF
 * already. */
static bool gaps_intact(const struct piece *piece)
{
    const attn_tensor *t = &piece->output;
    size_t size = attn_dtype_size(t->dtype), bytes = piece->region.bytes;
    if ((size_t)(t->shape[0] * t->shape[1] * t->shape[2] * t->shape[3]) * size == bytes) {
        return true; /* no gaps */
    }
    unsigned char *copy = malloc(bytes);
    if (copy == NULL) {
        return false;
    }
    memcpy(copy, piece->region.first, bytes);
    int64_t origin = ((unsigned char *)t->data - piece->region.first) / (int64_t)size;
    for (int64_t i0 = 0; i0 < t->shape[0]; i0++) {
        for (int64_t i1 = 0; i1 < t->shape[1]; i1++) {
            for (int64_t i2 = 0; i2 < t->shape[2]; i2++) {
                for (int64_t i3 = 0; i3 < t->shape[3]; i3++) {
                    int64_t at = i0 * t->stride[0] + i1 * t->stride[1] + i2 * t->stride[2] +
                                 i3 * t->stride[3];
                    memset(copy + (size_t)(origin + at) * size, 0xFF, size);
                }
            }
        }
    }
    bool intact = bytes == 0 || (copy[0] == 0xFF && memcmp(copy, copy + 1, bytes - 1) == 0);
    free(copy);
    return intact;
}

void problem_tensors_seal(const problem_tensors *tensors)
{
    for (int i = 0; i < tensors->memory->count; i++) {
        const struct piece *piece = &tensors->memory->piece[i];
        if (piece->output.data == NULL) {
            region_seal(&piece->region);
        }
    }
}

bool problem_tensors_intact(const problem_tensors *tensors)
{
    for (int i = 0; i < tensors->memory->count; i++) {
        const struct piece *piece = &tensors->memory->piece[i];
        if (piece->output.data != NULL ? !gaps_intact(piece)
                                       : piece->hash != region_hash(&piece->region)) {
            return false;
        }
    }
    return true;
}
