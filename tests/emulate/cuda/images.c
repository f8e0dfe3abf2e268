/*
 * images.c: in place of src/cuda/images.c: empty images, for the emulated driver finds kernels by
 * their names.
 */
#include "cuda/gpu.h"

#define ATTN_FAMILY(family, source) const unsigned char attn_image_##source[1];
#include "cuda/families.inc"
