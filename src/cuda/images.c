/*
 * images.c: the compiled kernels as bytes of the library. ATTN_IMAGES is the folder where the build
 * put them.
 */
#include "core/compiler.h"
#include "cuda/gpu.h"

#define IMAGE(name)                                                       \
    __asm__(".section .rodata\n"                                          \
            ".balign 64\n"                                                \
            ".globl attn_image_" #name "\n"                               \
            ".hidden attn_image_" #name "\n"                              \
            "attn_image_" #name ":\n"                                     \
            ".incbin \"" ATTN_STRING(ATTN_IMAGES) "/" #name ".fatbin\"\n" \
                                                  ".previous\n")

IMAGE(forward_sm90);
IMAGE(forward_sm90_steps);
IMAGE(forward_sm90_dropout);
IMAGE(forward_sm90_dropout_steps);
IMAGE(forward_sm90_wide);
IMAGE(forward_sm90_paged);
IMAGE(forward_sm90_softcap);
IMAGE(forward_sm90_alibi);
IMAGE(forward_sm90_mask);
IMAGE(forward_sm90_bias);
IMAGE(forward_sm80);
IMAGE(forward_sm80_dropout);
IMAGE(forward_generic);
IMAGE(forward_codes);
IMAGE(forward_few);
IMAGE(forward_few_shared);
IMAGE(forward_few_line);
IMAGE(backward_generic);
IMAGE(backward_sm80);
IMAGE(backward_sm80_steps);
IMAGE(backward_sm90);
IMAGE(backward_sm90_light);
IMAGE(backward_sm90_alibi);
IMAGE(backward_sm90_mask);
IMAGE(backward_sm90_bias);
IMAGE(backward_sm90_tables);
IMAGE(backward_sm90_elements);
IMAGE(backward_sm90_steps_tables);
IMAGE(backward_sm90_steps);
IMAGE(backward_sm90_f32);
IMAGE(merge_generic);
IMAGE(append_generic);
IMAGE(mask_generic);
IMAGE(starts_generic);
IMAGE(elements_generic);
