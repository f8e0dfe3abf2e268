/*
 * forward_sm90_alibi.cu: forward_sm90 where ALiBi is the only score step (scores_sm90.cuh).
 */
#include "cuda/kernel/forward/forward_sm90.cuh"
#include "cuda/kernel/forward/paged_sm90.cuh"
#include "cuda/kernel/forward/scores_sm90.cuh"

#define ATTN_FORWARD_SM90_ALIBI(...) ATTN_FORWARD_SM90_EACH(ATTN_CUDA_SLOPED, __VA_ARGS__)
#include "cuda/kernels.inc"
