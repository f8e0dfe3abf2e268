/*
 * test_gpu_starts.c: cu_seqlens that decrease, or lie outside the tensors, in a GPU's memory, where
 * no call has looked at them: a backward pass ends, and has the gradients of starts in order.
 * Skipped where there is no GPU.
 */
#include "gpu.h"
#include "gpu_copy.h"
#include "inputs.h"
#include "trial.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

enum { ROWS = 512, HEADS = 2, D = 64, SIZE = ROWS * HEADS * D, STARTS = 8 };
enum { Q, K, V, O, D_O, DQ, DK, DV, TENSORS };

static attn_context *gpu;

static attn_tensor rows_of(const void *data, attn_dtype dtype, int64_t columns)
{
    return attn_tensor_bshd(data, dtype, 1, ROWS, HEADS, columns);
}

/* Writes dQ, dK and dV, one behind the other, of inputs that depend on nothing. */
static void find_gradients(uint16_t *gradients, const int32_t *starts)
{
    static uint16_t memory[TENSORS][SIZE];
    static float lse[ROWS * HEADS];
    gpu_copy copies[TENSORS];
    memset(memory, 0xFF, sizeof memory);
    for (int t = 0; t < TENSORS; t++) {
        const attn_tensor here = rows_of(memory[t], ATTN_F16, D);
        for (int64_t i = 0; t < DQ && i < ROWS; i++) {
            for (int64_t at = 0; at < HEADS * D; at++) {
                inputs_store(&here, 0, i, at / D, at % D,
                             inputs_normal(inputs_bits(3, t, i * HEADS * D + at)));
            }
        }
        copies[t] = gpu_copy_tensor(&here);
    }
    for (int i = 0; i < ROWS * HEADS; i++)
        lse[i] = 5;
    const attn_tensor cu = attn_tensor_bshd(starts, ATTN_I32, STARTS, 1, 1, 1),
                      sums = rows_of(lse, ATTN_F32, 1);
    gpu_copy there = gpu_copy_tensor(&cu), lse_there = gpu_copy_tensor(&sums);
    attn_forward_args f = {.struct_size = sizeof f,
                           .q = copies[Q].there,
                           .k = copies[K].there,
                           .v = copies[V].there,
                           .o = copies[O].there,
                           .lse = lse_there.there,
                           .flags = ATTN_CAUSAL,
                           .cu_seqlens_q = there.there,
                           .cu_seqlens_k = there.there};
    attn_backward_args args = {.struct_size = sizeof args,
                               .forward = &f,
                               .d_o = copies[D_O].there,
                               .dq = copies[DQ].there,
                               .dk = copies[DK].there,
                               .dv = copies[DV].there};
    assert_int_equal(attn_backward_workspace(gpu, &args, &args.workspace_bytes), ATTN_OK);
    args.workspace = gpu_alloc((size_t)args.workspace_bytes);
    assert_int_equal(attn_backward(gpu, &args), ATTN_OK);
    gpu_wait();
    gpu_free(args.workspace);
    for (int t = 0; t < TENSORS; t++) {
        gpu_copy_back(&copies[t]);
        memcpy(gradients + (size_t)(t > DQ ? t - DQ : 0) * SIZE, copies[t].first, copies[t].bytes);
        gpu_copy_free(&copies[t]);
    }
    gpu_copy_free(&there), gpu_copy_free(&lse_there);
}

static void test_starts(void **state)
{
    static const int32_t given[][STARTS] = {{0, 512, 0, 0, 0, 0, 0, 0},
                                            {0, 512, 512, 0, 512, 512, 512, 512},
                                            {100, 90, 300, 200, 250, 400, 10, 390},
                                            {-7, 64, 1000, 30, 2000000000, -2000000000, 0, 511}},
                         ordered[][STARTS] = {{0, 512, 512, 512, 512, 512, 512, 512},
                                              {0, 512, 512, 512, 512, 512, 512, 512},
                                              {100, 100, 300, 300, 300, 400, 400, 400},
                                              {0, 64, 512, 512, 512, 512, 512, 512}};
    static uint16_t got[3 * SIZE], want[3 * SIZE];
    (void)state;
    for (int n = 0; n < 4; n++) {
        find_gradients(got, given[n]);
        find_gradients(want, ordered[n]);
        assert_memory_equal(got, want, sizeof got);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_starts)};
    gpu = trial_gpu();
    const int failed = gpu == NULL ? 77 : cmocka_run_group_tests(tests, NULL, NULL);
    attn_context_destroy(gpu);
    return failed;
}
