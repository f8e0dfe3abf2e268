/*
 * forward_sm90_softcap.cu: forward_sm90 where softcap is the only score step (scores_sm90.cuh).
 */
#include "cuda/kernel/forward/forward_sm90.cuh"
#include "cuda/kernel/forward/paged_sm90.cuh"
#include "cuda/kernel/forward/scores_sm90.cuh"

#define ATTN_FORWARD_SM90_SOFTCAP(...) ATTN_FORWARD_SM90_EACH(ATTN_CUDA_CAPPED, __VA_ARGS__)
#include "cuda/kernels.inc"
