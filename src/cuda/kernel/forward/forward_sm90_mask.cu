/*
 * forward_sm90_mask.cu: forward_sm90 where a mask tensor is the only score step (masked_sm90.cuh).
 */
#include "cuda/kernel/forward/forward_sm90.cuh"
#include "cuda/kernel/forward/masked_sm90.cuh"

#define BYTES_AND_LANES(loads, name, ...)                               \
    ATTN_FORWARD_SM90_ALONE(loads, ATTN_CUDA_MASKED, name, __VA_ARGS__) \
    ATTN_FORWARD_SM90_ALONE(loads, ATTN_CUDA_MASKED_LANES, name##_lanes, __VA_ARGS__)
#define ATTN_FORWARD_SM90_MASK(name, ...)               \
    BYTES_AND_LANES(ATTN_CUDA_WHOLE, name, __VA_ARGS__) \
    BYTES_AND_LANES(ATTN_CUDA_RAGGED, name##_ragged, __VA_ARGS__)
#include "cuda/kernels.inc"
