/*
 * flawed.c: three flaws of published explanations, each in an otherwise right loop over blocks of
 * keys. None shows on the inputs that such articles try.
 */
#include "ladder.h"
#include <math.h>

enum { KEYS = 64 };

enum flaw { BLOCK_MAXIMUM, EPSILON, EMPTY_ROW };

static void run_row(const ladder_head *head, int64_t row, enum flaw flaw)
{
    float *o = head->o + row * head->dv, maximum = -INFINITY, sum = 0;
    const int64_t visible = ladder_visible(head, row);
    for (int64_t c = 0; c < head->dv; c++) {
        o[c] = 0;
    }
    for (int64_t key = 0; key < head->nk; key += KEYS) {
        const int64_t keys = head->nk - key < KEYS ? head->nk - key : KEYS;
        float s[KEYS], highest = -INFINITY, fresh = flaw == EPSILON ? 1e-6f : 0;
        for (int64_t j = 0; j < keys; j++) {
            s[j] = key + j < visible ? ladder_score(head, row, key + j) : -INFINITY;
            highest = fmaxf(highest, s[j]);
        }
        /* right is: the maximum of all blocks so far */
        highest = flaw == BLOCK_MAXIMUM ? highest : fmaxf(highest, maximum);
        if (flaw != EMPTY_ROW && key >= visible) {
            break; /* the flaw of EMPTY_ROW: -inf - (-inf) is NaN */
        }
        const float alpha = expf(maximum - highest);
        for (int64_t j = 0; j < keys; j++) {
            s[j] = expf(s[j] - highest);
            fresh += s[j];
        }
        for (int64_t c = 0; c < head->dv; c++) {
            o[c] *= alpha;
            for (int64_t j = 0; j < keys; j++) {
                o[c] += s[j] * head->v[(key + j) * head->dv + c];
            }
        }
        sum = sum * alpha + fresh, maximum = highest;
    }
    for (int64_t c = 0; c < head->dv && (sum > 0 || flaw == EMPTY_ROW); c++) {
        o[c] /= sum;
    }
}

static void run(const ladder_head *head, enum flaw flaw)
{
    for (int64_t row = 0; row < head->nq; row++) {
        run_row(head, row, flaw);
    }
}

void ladder_block_maximum(const ladder_head *head)
{
    run(head, BLOCK_MAXIMUM);
}

void ladder_epsilon(const ladder_head *head)
{
    run(head, EPSILON);
}

void ladder_empty_row(const ladder_head *head)
{
    run(head, EMPTY_ROW);
}
