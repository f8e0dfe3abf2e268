/*
 * outputs.c: see outputs.h.
 */
#include "outputs.h"
#include "args.h"
#include "core/half.h"
#include "errors.h"
#include "region.h"
#include "tables.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Calls visit for the address of each element, in order of its index. */
static void each_element(const attn_tensor *t,
                         void (*visit)(void *user, char *element, int32_t dtype), void *user)
{
    size_t size = attn_dtype_size(t->dtype);
    for (int64_t i0 = 0; i0 < t->shape[0]; i0++) {
        for (int64_t i1 = 0; i1 < t->shape[1]; i1++) {
            for (int64_t i2 = 0; i2 < t->shape[2]; i2++) {
                int64_t at = i0 * t->stride[0] + i1 * t->stride[1] + i2 * t->stride[2];
                for (int64_t i3 = 0; i3 < t->shape[3]; i3++) {
                    visit(user, (char *)t->data + (at + i3 * t->stride[3]) * (int64_t)size,
                          t->dtype);
                }
            }
        }
    }
}

/* Writes the outputs of a forward call into list. Returns their number. */
static int list_outputs(const attn_forward_args *args, const attn_tensor *list[ARGS_TENSORS])
{
    int count = 0;
    for (int i = 0; i < ARGS_TENSORS; i++) {
        if (args_tensors[i].output) {
            list[count++] = args_get(args, i);
        }
    }
    return count;
}

static void poison_element(void *user, char *element, int32_t dtype)
{
    (void)user;
    memset(element, 0xFF, attn_dtype_size(dtype));
}

void outputs_poison_these(const attn_tensor *const *tensors, int count)
{
    for (int i = 0; i < count; i++) {
        if (tensors[i]->data != NULL) {
            each_element(tensors[i], poison_element, NULL);
        }
    }
}

void outputs_poison(const attn_forward_args *args)
{
    const attn_tensor *outputs[ARGS_TENSORS];
    int count = list_outputs(args, outputs);
    outputs_poison_these(outputs, count);
}

/* All NaN count as equal (C7) but the poison, which shows elements that were never written. Codes,
 * of a byte, count as they are. */
static void copy_element(void *user, char *element, int32_t dtype)
{
    static const unsigned char poison[8] = {0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF};
    const size_t size = attn_dtype_size(dtype);
    unsigned char **to = user;
    double value = 0; /* aligned for any type */
    memcpy(&value, element, size);
    if (size > 1 && isnan(attn_element_to_f64(element, dtype)) &&
        memcmp(element, poison, size) != 0) {
        attn_element_from_f64(&value, dtype, (double)NAN);
    }
    memcpy(*to, &value, size);
    *to += size;
}

static size_t bytes_of(const attn_tensor *t)
{
    return (size_t)(t->shape[0] * t->shape[1] * t->shape[2] * t->shape[3]) *
           attn_dtype_size(t->dtype);
}

unsigned char *outputs_copy_these(const attn_tensor *const *tensors, int count, size_t *bytes)
{
    *bytes = 0;
    for (int i = 0; i < count; i++) {
        *bytes += tensors[i]->data ? bytes_of(tensors[i]) : 0;
    }
    unsigned char *copy = malloc(*bytes + 1), *to = copy;
    for (int i = 0; i < count && copy != NULL; i++) {
        if (tensors[i]->data) {
            each_element(tensors[i], copy_element, &to);
        }
    }
    return copy;
}

unsigned char *outputs_copy(const attn_forward_args *args, size_t *bytes)
{
    const attn_tensor *outputs[ARGS_TENSORS];
    int count = list_outputs(args, outputs);
    return outputs_copy_these(outputs, count, bytes);
}

double outputs_judge(const attn_forward_args *args, const char *table, char *sentence, size_t size)
{
    error_stats errors;
    errors_measure(args, INT64_MAX, &errors);
    const errors_limits allowed = tables_allowed(table, args->q.dtype, args->flags);
    snprintf(sentence, size,
             "c = %.3g (at most %.3g), lse %.3g and row_max %.3g u (1 + max|s|) (at most %.3g)",
             errors.c, allowed.c, errors.lse, errors.row_max, allowed.lse);
    return fmax(errors.c / allowed.c, fmax(errors.lse, errors.row_max) / allowed.lse);
}

/* ---- inputs ---------------------------------------------------------------------------------- */

static uint64_t span_hash(const attn_tensor *t)
{
    int64_t size = (int64_t)attn_dtype_size(t->dtype), low = 0, high = 1;
    for (int a = 0; a < 4; a++) {
        int64_t reach = (t->shape[a] - 1) * t->stride[a];
        *(reach < 0 ? &low : &high) += reach;
        if (t->shape[a] == 0) {
            return 0;
        }
    }
    guarded_region region = {.first = (unsigned char *)t->data + low * size,
                             .bytes = (size_t)((high - low) * size)};
    return t->data ? region_hash(&region) : 0;
}

uint64_t outputs_inputs_hash(const attn_forward_args *args)
{
    uint64_t hash = 0;
    for (int i = 0; i < ARGS_TENSORS; i++) {
        hash = args_tensors[i].output ? hash : hash * 31 + span_hash(args_get(args, i));
    }
    return hash;
}
