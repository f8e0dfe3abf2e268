/*
 * inputs.c: counter-based random values: SplitMix64's finaliser over (seed, tensor, index), then
 * Box-Muller.
 */
#include "inputs.h"
#include "codes.h"
#include "half.h"
#include "problem.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

/* Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014 */
static uint64_t mix(uint64_t x)
{
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

uint64_t inputs_bits(uint64_t seed, int tensor, int64_t index)
{
    return mix(mix(mix(seed) + (uint64_t)tensor) ^ (uint64_t)index);
}

double inputs_normal(uint64_t bits)
{
    double u = ((double)(bits >> 32) + 0.5) * 0x1p-32, v = (double)(bits & 0xFFFFFFFFu) * 0x1p-32;
    return sqrt(-2.0 * log(u)) * cos(6.283185307179586477 * v);
}

/* inputs_normal of an element's bits, remembered: its logarithm and cosine take longer than most
 * kernels, above all under qemu, and tests ask for the same elements again and again. Threads may
 * write at once: the two words of a place say whether they belong together. */
static double normal(uint64_t bits, int tensor, int64_t index)
{
    enum { ROOM = 1 << 18 };
    static struct {
        _Atomic uint64_t value, check;
    } known[ROOM];
    uint64_t word;
    double value;
    const size_t at = ((uint64_t)index + (uint64_t)tensor * 0x9E3779B1u) % ROOM;
    word = atomic_load_explicit(&known[at].value, memory_order_relaxed);
    if ((word ^ atomic_load_explicit(&known[at].check, memory_order_relaxed)) == bits) {
        memcpy(&value, &word, sizeof value);
        return value;
    }
    value = inputs_normal(bits);
    memcpy(&word, &value, sizeof value);
    atomic_store_explicit(&known[at].value, word, memory_order_relaxed);
    atomic_store_explicit(&known[at].check, word ^ bits, memory_order_relaxed);
    return value;
}

double inputs_value(int kind, uint64_t seed, int tensor, int64_t index)
{
    const uint64_t bits = inputs_bits(seed, tensor, index);
    const bool scored = tensor == INPUTS_Q || tensor == INPUTS_K;
    switch (kind) {
    case INPUTS_UNIFORM:
        return (double)(bits >> 11) * 0x1p-52 - 1.0;
    case INPUTS_POSITIVE:
        return (double)(bits >> 11) * 0x1p-53;
    case INPUTS_OFFSET:
        return scored ? normal(bits, tensor, index) : 1 + 0.1 * normal(bits, tensor, index);
    case INPUTS_EVEN:
        return scored ? 0.5 : 1 + (double)(bits >> 11) * 0x1p-53;
    case INPUTS_LARGE:
        return normal(bits, tensor, index) * (tensor == INPUTS_V ? 1.0 : 20.0);
    case INPUTS_EQUAL:
        return tensor == INPUTS_V ? normal(bits, tensor, index) : 0.5;
    case INPUTS_OUTLIER: {
        uint64_t more = mix(bits);
        bool outlier = (double)(more >> 11) * 0x1p-53 < 0.001;
        return normal(bits, tensor, index) + (outlier ? 10.0 * inputs_normal(mix(more)) : 0.0);
    }
    default:
        return normal(bits, tensor, index);
    }
}

double inputs_wild(int32_t dtype, uint64_t seed, int tensor, int64_t index)
{
    static const double offsets[] = {0, 0, 1, -1, 100}, spreads[] = {1, 1, 0x1p-8, 0};
    const uint64_t bits = inputs_bits(~seed, tensor, -1);
    const bool scored = tensor == INPUTS_Q || tensor == INPUTS_K;
    const int far = dtype == ATTN_F64 ? 150 : dtype == ATTN_F16 ? 5 : scored ? 20 : 25;
    const int reach = bits % 4 == 0 ? far : bits % 4 == 1 ? 4 : 0;
    const int exponent = (int)(bits >> 8 & 0xFFFF) % (2 * reach + 1) - reach;
    const double offset = offsets[(bits >> 24 & 0xFF) % 5];
    const double spread = spreads[(bits >> 32 & 0xFF) % 4];
    const double value = offset + spread * normal(inputs_bits(seed, tensor, index), tensor, index);
    return ldexp(offset == 0 && spread == 0 ? 0.1 : value, exponent);
}

static void store_bit(uint8_t *at, int64_t bit, bool value)
{
    *at = (uint8_t)((*at & ~(1 << bit)) | value << bit);
}

void inputs_store(const attn_tensor *t, int64_t i0, int64_t i1, int64_t i2, int64_t i3,
                  double value)
{
    const int64_t last = t->dtype == ATTN_B1X8 ? i3 / 8 : i3; /* there i3 counts bits */
    const int64_t at =
        i0 * t->stride[0] + i1 * t->stride[1] + i2 * t->stride[2] + last * t->stride[3];
    switch (t->dtype) {
    case ATTN_F64:
        ((double *)t->data)[at] = value;
        break;
    case ATTN_F32:
        ((float *)t->data)[at] = (float)value;
        break;
    case ATTN_F16:
        ((uint16_t *)t->data)[at] = half_f16_from_double(value);
        break;
    case ATTN_BF16:
        ((uint16_t *)t->data)[at] = half_bf16_from_double(value);
        break;
    case ATTN_BOOL:
        ((uint8_t *)t->data)[at] = value != 0;
        break;
    case ATTN_I32:
        ((int32_t *)t->data)[at] = (int32_t)value;
        break;
    case ATTN_I64:
        ((int64_t *)t->data)[at] = (int64_t)value;
        break;
    case ATTN_U8:
        ((uint8_t *)t->data)[at] = (uint8_t)value;
        break;
    case ATTN_I8:
        ((int8_t *)t->data)[at] = isnan(value) ? 0 : (int8_t)value;
        break;
    case ATTN_B1X8:
        store_bit((uint8_t *)t->data + at, i3 % 8, value != 0);
        break;
    case ATTN_E4M3:
    case ATTN_E5M2:
        ((uint8_t *)t->data)[at] = codes_bits(t->dtype, value);
        break;
    default:
        break;
    }
}

/* A visible element of a mask: in wide integers also numbers whose lowest bytes are 0. */
static double visible_value(int32_t dtype, uint64_t bits)
{
    const bool one = dtype == ATTN_BOOL || dtype == ATTN_B1X8;
    const int most = dtype == ATTN_I64 ? 62 : dtype == ATTN_I32 ? 30 : one ? 0 : 6;
    const double value = exp2((double)(bits % (uint64_t)(most + 1)));
    return (dtype == ATTN_I8 || dtype == ATTN_I32 || dtype == ATTN_I64) && bits >> 63 ? -value
                                                                                      : value;
}

static double side_value(const attn_tensor *t, int kind, uint64_t seed, int tensor, int64_t row,
                         int64_t index)
{
    uint64_t bits = inputs_bits(seed, tensor, index);
    switch (tensor) {
    case INPUTS_BIAS:
        return bits % 16 == 0 ? -(double)INFINITY : inputs_normal(mix(bits));
    case INPUTS_MASK:
        return bits % 4 != 0 && !(t->shape[2] > 1 && inputs_bits(~seed, tensor, row) % 16 == 0)
                   ? visible_value(t->dtype, mix(bits))
                   : 0;
    case INPUTS_SLOPES: {
        int64_t h = index % t->shape[1], b = index / t->shape[1];
        return exp2(-8.0 * (double)(h + 1) / (double)t->shape[1]) * (double)(b + 1);
    }
    case INPUTS_K_SCALE:
    case INPUTS_V_SCALE: {
        const bool far = tensor == INPUTS_V_SCALE && bits % 16 == 0;
        const double factor = far ? exp2((double)(bits / 16 % 21) - 10) : 1;
        return factor * (0.5 + (double)(bits >> 11) * 0x1p-53) / codes_spread(kind);
    }
    case INPUTS_K_SHIFT:
    case INPUTS_V_SHIFT:
        return 0.2 * normal(bits, tensor, index);
    default: /* INPUTS_SINKS, INPUTS_GRAD_O, INPUTS_GRAD_LSE */
        return normal(bits, tensor, index);
    }
}

/* Writes an element of K or V in codes: of i4x2 two columns. */
static void store_codes(const attn_tensor *t, const int64_t at[4], int kind, uint64_t seed,
                        int tensor, int64_t index)
{
    const int64_t each = codes_columns(t->dtype);
    uint8_t bits = 0;
    for (int64_t i = 0; i < each; i++) {
        const double value = kind == INPUTS_WILD
                                 ? inputs_wild(ATTN_F16, seed, tensor, index * each + i)
                                 : inputs_value(kind, seed, tensor, index * each + i);
        bits |= (uint8_t)(codes_bits(t->dtype, value * codes_spread(t->dtype)) << 4 * i);
    }
    ((uint8_t *)t->data)[at[0] * t->stride[0] + at[1] * t->stride[1] + at[2] * t->stride[2] +
                         at[3] * t->stride[3]] = bits;
}

/* The factor of row `row` of `rows` of a tensor. */
static double row_factor(int kind, int tensor, int64_t row, int64_t rows)
{
    enum { MOST_RISE = 8 };
    return kind == INPUTS_RISING && tensor == INPUTS_K
               ? (double)MOST_RISE * (double)(row + 1) / (double)rows
               : 1;
}

/* Rows first .. end-1 of the flat order of (i0, i1); extents n. */
struct part {
    const attn_tensor *t;
    const int64_t *n;
    int kind, tensor;
    uint64_t seed;
    int64_t first, end;
};

static void *fill_part(void *arg)
{
    const struct part *p = arg;
    const attn_tensor *t = p->t;
    const bool main_value =
        p->tensor <= INPUTS_V || (p->tensor == INPUTS_GRAD_O && p->kind >= INPUTS_POSITIVE);
    const bool wild = p->kind == INPUTS_WILD;
    const int64_t each = t->dtype == ATTN_B1X8 ? 8 : 1;
    for (int64_t at = p->first; at < p->end; at++) {
        int64_t i0 = at / p->n[1], i1 = at % p->n[1];
        for (int64_t i2 = 0; i2 < p->n[2]; i2++) {
            int64_t row = (i0 * t->shape[1] + i1) * t->shape[2] + i2;
            const double factor = row_factor(p->kind, p->tensor, i2, t->shape[2]);
            for (int64_t i3 = 0; i3 < p->n[3] * each; i3++) {
                int64_t index = row * t->shape[3] * each + i3;
                if ((p->tensor == INPUTS_K || p->tensor == INPUTS_V) && codes_type(t->dtype)) {
                    store_codes(t, (const int64_t[4]){i0, i1, i2, i3}, p->kind, p->seed, p->tensor,
                                index);
                    continue;
                }
                inputs_store(t, i0, i1, i2, i3,
                             !main_value ? side_value(t, p->kind, p->seed, p->tensor, row, index)
                             : wild      ? inputs_wild(t->dtype, p->seed, p->tensor, index)
                                    : factor * inputs_value(p->kind, p->seed, p->tensor, index));
            }
        }
    }
    return NULL;
}

void inputs_sow(const attn_tensor *t, int64_t n, uint64_t seed, int tensor, bool infinite)
{
    const int64_t count = t->shape[0] * t->shape[1] * t->shape[2] * t->shape[3];
    for (int64_t at = 0; at < count; at++) {
        const uint64_t bits = inputs_bits(seed + 1, tensor, at);
        if (bits % (uint64_t)n == 0) {
            const double value = !infinite                ? (double)NAN
                                 : bits / (uint64_t)n % 2 ? (double)INFINITY
                                                          : -(double)INFINITY;
            const int64_t row = at / t->shape[3], head = row / t->shape[2];
            inputs_store(t, head / t->shape[1], head % t->shape[1], row % t->shape[2],
                         at % t->shape[3], value);
        }
    }
}

/* Fills large tensors on all cores: filling those of a GPU's problem would take longer than the
 * problem. */
void inputs_fill(const attn_tensor *t, int kind, uint64_t seed, int tensor)
{
    enum { MOST = 64 };
    struct part parts[MOST];
    pthread_t threads[MOST];
    bool started[MOST] = {false};
    int64_t n[4];
    for (int a = 0; a < 4; a++) {
        n[a] = t->stride[a] == 0 && t->shape[a] > 1 ? 1 : t->shape[a];
    }
    int64_t rows = n[0] * n[1], cores = sysconf(_SC_NPROCESSORS_ONLN);
    int count = rows * n[2] * n[3] < 1 << 20 ? 1 : (int)(cores < MOST ? cores : MOST);
    for (int i = 0; i < count; i++) {
        parts[i] =
            (struct part){t, n, kind, tensor, seed, rows * i / count, rows * (i + 1) / count};
        started[i] = i > 0 && pthread_create(&threads[i], NULL, fill_part, &parts[i]) == 0;
    }
    for (int i = 0; i < count; i++) {
        started[i] ? (void)pthread_join(threads[i], NULL) : (void)fill_part(&parts[i]);
    }
}
