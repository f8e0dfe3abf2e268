/*
 * encode.c: see encode.h. Element by element, in f64: memory and the softmax are elsewhere.
 */
#include "cpu/encode.h"
#include "core/codes.h"
#include <math.h>

/* A range of elements: first .. last-1 of each axis. */
typedef struct box {
    int64_t first[4], last[4];
} box;

/* The range of group `group` of columns at s. */
static box box_of(const attn_quantized *t, const int64_t s[3], int64_t group)
{
    box of = {{0}, {0}};
    for (int a = 0; a < 3; a++) {
        const bool shared = !attn_tensor_present(&t->scale) || t->scale.shape[a] == 1;
        of.first[a] = shared ? 0 : s[a], of.last[a] = shared ? t->x.shape[a] : s[a] + 1;
    }
    const int64_t groups = attn_tensor_present(&t->scale) ? t->scale.shape[3] : 1;
    const int64_t columns = t->x.shape[3] / groups;
    of.first[3] = group * columns, of.last[3] = of.first[3] + columns;
    return of;
}

/* Calls visit for each element. */
static void each(const attn_quantized *t, const box *of, void *user,
                 void (*visit)(void *user, const attn_quantized *t, double x, uint8_t *code,
                               int64_t odd))
{
    const int64_t columns = attn_code_columns(t->codes.dtype);
    for (int64_t i = of->first[0]; i < of->last[0]; i++) {
        for (int64_t j = of->first[1]; j < of->last[1]; j++) {
            for (int64_t h = of->first[2]; h < of->last[2]; h++) {
                for (int64_t c = of->first[3]; c < of->last[3]; c++) {
                    visit(user, t, attn_element_to_f64(attn_at(&t->x, i, j, h, c), t->x.dtype),
                          (uint8_t *)attn_at(&t->codes, i, j, h, c / columns), c % columns);
                }
            }
        }
    }
}

static void widen_range(void *user, const attn_quantized *t, double x, uint8_t *code, int64_t odd)
{
    attn_code_range *range = user;
    (void)t, (void)code, (void)odd;
    *range = attn_code_join(*range, attn_code_range_of(x));
}

typedef struct rounding {
    double scale, shift;
} rounding;

static void write_code(void *user, const attn_quantized *t, double x, uint8_t *code, int64_t odd)
{
    const rounding *by = user;
    const uint8_t bits =
        attn_code_nearest(x, by->scale, by->shift, t->codes.dtype, attn_tensor_present(&t->shift));
    const int kept = odd ? 0x0f : 0xf0;
    *code = t->codes.dtype == ATTN_I4X2 ? (uint8_t)((*code & kept) | bits << 4 * odd) : bits;
}

double attn_factor_at(const attn_tensor *factor, const int64_t s[3], int64_t group, double absent)
{
    return attn_tensor_present(factor)
               ? attn_element_to_f64(attn_at_broadcast(factor, s[0], s[1], s[2], group),
                                     factor->dtype)
               : absent;
}

/* Finds scale and shift of a group and stores them. */
static void find_factors(const attn_quantized *t, const box *of, const int64_t s[3], int64_t group)
{
    attn_code_range range = attn_code_no_range();
    each(t, of, &range, widen_range);
    attn_code_store_factors(&range, t->codes.dtype, t->scale.dtype,
                            attn_at_broadcast(&t->scale, s[0], s[1], s[2], group),
                            attn_tensor_present(&t->shift)
                                ? attn_at_broadcast(&t->shift, s[0], s[1], s[2], group)
                                : NULL);
}

void attn_encode(const attn_quantized *t, const int64_t s[3])
{
    const int64_t groups = attn_tensor_present(&t->scale) ? t->scale.shape[3] : 1;
    for (int64_t group = 0; group < groups; group++) {
        const box of = box_of(t, s, group);
        if (!t->given) {
            find_factors(t, &of, s, group);
        }
        rounding by = {attn_factor_at(&t->scale, s, group, 1),
                       attn_factor_at(&t->shift, s, group, 0)};
        each(t, &of, &by, write_code);
    }
}
