/*
 * images.c: the compiled kernels as bytes of the library. ATTN_IMAGES is the folder where the build
 * put them.
 */
#include "core/compiler.h"
#include "cuda/gpu.h"

#define ATTN_FAMILY(family, name)                                         \
    __asm__(".section .rodata\n"                                          \
            ".balign 64\n"                                                \
            ".globl attn_image_" #name "\n"                               \
            ".hidden attn_image_" #name "\n"                              \
            "attn_image_" #name ":\n"                                     \
            ".incbin \"" ATTN_STRING(ATTN_IMAGES) "/" #name ".fatbin\"\n" \
                                                  ".previous\n");

#include "cuda/families.inc"
