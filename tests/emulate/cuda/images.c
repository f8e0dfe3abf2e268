/*
 * images.c: in place of src/cuda/images.c: empty images, for the emulated driver finds kernels by
 * their names.
 */
#include "cuda/gpu.h"

const unsigned char attn_image_forward_sm90[1], attn_image_forward_sm90_steps[1],
    attn_image_forward_sm90_wide[1], attn_image_forward_sm90_paged[1],
    attn_image_forward_sm90_softcap[1], attn_image_forward_sm90_alibi[1],
    attn_image_forward_sm90_mask[1], attn_image_forward_sm90_bias[1], attn_image_forward_sm80[1],
    attn_image_forward_sm80_dropout[1], attn_image_forward_sm90_dropout[1],
    attn_image_forward_sm90_dropout_steps[1], attn_image_forward_generic[1],
    attn_image_forward_codes[1], attn_image_forward_few[1], attn_image_forward_few_shared[1],
    attn_image_forward_few_line[1], attn_image_backward_generic[1], attn_image_backward_sm80[1],
    attn_image_backward_sm80_steps[1], attn_image_backward_sm90[1],
    attn_image_backward_sm90_light[1], attn_image_backward_sm90_alibi[1],
    attn_image_backward_sm90_mask[1], attn_image_backward_sm90_bias[1],
    attn_image_backward_sm90_tables[1], attn_image_backward_sm90_elements[1],
    attn_image_backward_sm90_steps_tables[1], attn_image_backward_sm90_steps[1],
    attn_image_backward_sm90_f32[1], attn_image_merge_generic[1], attn_image_append_generic[1],
    attn_image_mask_generic[1], attn_image_starts_generic[1], attn_image_elements_generic[1];
