/*
 * device.h: a trial's calls on the CPU or on this machine's GPU, for tests that run on both.
 * Includes trial.h.
 */
#ifndef TESTS_OP_DEVICE_H
#define TESTS_OP_DEVICE_H

#include "gpu_copy.h"
#include "trial.h"

enum { DEVICE_PLACES = 64 };

/* A call whose tensors lie where the device reads them. */
typedef struct device_call {
    attn_forward_args forward;
    attn_backward_args backward;
    gpu_copy copies[DEVICE_PLACES];
    int count;
} device_call;

/* Chooses the device for all that follows. False after a line that says why there is no GPU: the
 * test ends with 77, which counts as skipped. */
bool device_open(bool gpu);
void device_close(void);

/* The context; NULL: the CPU's default one. */
attn_context *device_context(void);

/* Copies a tensor of the host to the device, if that is not the host; absent ones stay absent. */
attn_tensor device_place(device_call *call, attn_tensor host);

/* Places all tensors of a trial. */
void device_place_all(device_call *call, const op_trial *trial);

/* Waits, copies all placed tensors back to the host and frees their copies. */
void device_take_back(device_call *call);

/* Both run a call with the workspace that it asks for, and wait for it on a GPU. */
void device_forward(attn_forward_args args);
void device_backward(attn_backward_args args);

#endif
