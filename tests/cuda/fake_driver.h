/*
 * fake_driver.h: a CUDA driver without a GPU, which driver.c finds in place of libcuda.so.1. It
 * counts the things that it keeps for its caller (contexts, images of kernels), and fails on
 * request. It refuses launches and maps of tensors beyond a GPU's limits. fake_driver.cmake
 * compiles the host side of GPUs anew beside it, where dlopen, dlsym and dlerror are names of
 * functions here.
 */
#ifndef TESTS_CUDA_FAKE_DRIVER_H
#define TESTS_CUDA_FAKE_DRIVER_H

#include "cuda/append/params.h"
#include "cuda/elements/params.h"
#include "cuda/gpu.h"

enum { FAKE_GPUS = 2, FAKE_DEPTH = 4, FAKE_ERROR = 999 };

/* A context is its GPU's primary one, or one that the test makes. */
struct CUctx_st {
    cu_device device;
};

typedef struct fake_launched {
    const char *kernel;
    cu_device device; /* of the current context */
    unsigned grid, threads, shared_bytes;
    cu_stream stream;
    attn_cuda_forward_params params; /* of a forward pass */
    attn_tensor factors[4];          /* of quantised K and V: scale and shift of K, then of V */
} fake_launched;

typedef struct fake_driver {
    /* The machine. */
    bool library;      /* there is a libcuda.so.1 */
    const char *lacks; /* a symbol that it does not have */
    cu_result init;    /* answer of cuInit */
    int version, gpus, capability, shared_bytes;

    int fail_at; /* the call that fails, counted from 1; 0: none */

    /* Is shown each launch that succeeds, its kernel's line and its argument. NULL: nothing is. */
    void (*see)(const attn_cuda_kernel *kernel, const cu_launch_config *config, const void *params);

    /* What happened. calls: of those that may fail. */
    int calls, retained, loaded, pushes, launches;
    unsigned long long cleared; /* the address of the last memset */
    size_t cleared_words;
    fake_launched last;                 /* of the launches */
    const char *kernels[4];             /* of the first launches */
    attn_cuda_append_params append;     /* of the last launch for new rows or rotation */
    attn_cuda_elements_params elements; /* of the last launch for codes or dropout's mask */
    int maps;                           /* of tensors; the rows of the last five's boxes */
    uint32_t box_rows[5];
    cu_context stack[FAKE_DEPTH];
    int depth;
} fake_driver;

extern fake_driver fake;

/* Two GPUs of sm_90, driver 12.0, no context current, nothing happened. */
void fake_reset(void);

/* A context of a GPU. */
attn_status fake_create(int ordinal, attn_context **context);

/* The line of kernels.inc of the last launch. */
const attn_cuda_kernel *fake_kernel(void);

/* All contexts and images that were asked for have been given back. */
bool fake_keeps_nothing(void);

/* Address n of memory that is not there, aligned and far from the others: nothing on the host looks
 * behind the pointers of a GPU's call. */
void *fake_memory(int n);

/* Two sequences, four heads, d_v = d; q, k, v and o at addresses 0 to 3. */
attn_forward_args fake_args(attn_dtype dtype, int64_t rows, int64_t keys, int64_t d);

/* In fake_calls.c, for tests of cmocka: runs a forward pass. Returns the parameters of its last
 * launch, which is one of attention. */
attn_cuda_forward_params fake_params(attn_context *context, const attn_forward_args *args);

/* Gives a forward pass the workspace that it asks for. Returns its bytes. */
uint64_t fake_workspace(attn_context *context, attn_forward_args *args);

#endif
