/*
 * forward_sm90_bias.cu: forward_sm90 where a bias of the inputs' type is the only score step
 * (biased_sm90.cuh).
 */
#include "cuda/kernel/forward/forward_sm90.cuh"
#include "cuda/kernel/forward/biased_sm90.cuh"

#define ATTN_FORWARD_SM90_BIAS(...) \
    ATTN_FORWARD_SM90_ALONE(ATTN_CUDA_RAGGED, ATTN_CUDA_BIASED, __VA_ARGS__)
#include "cuda/kernels.inc"
