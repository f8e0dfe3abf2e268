/*
 * test_band.c: a sequence's band of 32 bits (core/mask.h), which GPUs take, beside the intervals of
 * 64 bits that it stands for: short and longest lengths, both alignments and any origins, windows
 * of any size. No cmocka, as in test_problems.c.
 */
#include "core/mask.h"

#include <stdio.h>

enum { MOST = INT32_MAX / 2 }; /* rows and keys of a GPU's sequence */

static const int64_t lengths[] = {0, 1, 5, 64, 100, MOST - 1, MOST};
static const int64_t windows[] = {
    0, 1, 7, 99, MOST - 1, MOST, INT64_C(1) << 31, INT64_C(1) << 62, ATTN_UNBOUNDED};
/* Of origins, beside those that lengths and alignment give. */
static const int64_t diagonals[] = {-MOST, -70, -1, 3, MOST, ATTN_POSITIONS, -ATTN_POSITIONS};
enum { DIAGONALS = sizeof diagonals / sizeof *diagonals + 2 };
enum { LENGTHS = sizeof lengths / sizeof *lengths, WINDOWS = sizeof windows / sizeof *windows };

static int differences(const attn_problem *problem, const attn_sequence *s)
{
    const attn_band band = attn_mask_band(problem, s);
    const int64_t rows[] = {
        0, 1, 6, 63, s->nq_used / 2, s->nq_used - 2, s->nq_used - 1, s->nq_used, s->nq_used + 191};
    int count = 0;
    for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
        int32_t lo, hi;
        if (rows[n] < 0) {
            continue;
        }
        attn_interval see = attn_mask_row(problem, s, rows[n]);
        attn_band_row(&band, (int32_t)rows[n], &lo, &hi);
        if (lo != see.lo || hi != see.hi) {
            printf("row %lld of %lld, %lld keys, window %lld, %lld: %d .. %d, not %lld .. %lld\n",
                   (long long)rows[n], (long long)s->nq_used, (long long)s->nk,
                   (long long)problem->window_left, (long long)problem->window_right, lo, hi,
                   (long long)see.lo, (long long)see.hi);
            count++;
        }
    }
    return count;
}

int main(void)
{
    int count = 0, sequences = 0;
    for (int at = 0; at < LENGTHS * LENGTHS * WINDOWS * WINDOWS * DIAGONALS; at++) {
        int n = at / DIAGONALS, diagonal = at % DIAGONALS;
        attn_problem problem = {.window_left = windows[n % WINDOWS]};
        problem.window_right = windows[n / WINDOWS % WINDOWS], n /= WINDOWS * WINDOWS;
        attn_sequence s = {.nq_used = lengths[n % LENGTHS], .nk = lengths[n / LENGTHS]};
        s.diagonal = diagonal == 0 ? 0 : diagonal == 1 ? s.nk - s.nq_used : diagonals[diagonal - 2];
        count += differences(&problem, &s);
        sequences++;
    }
    printf("%d sequences, %d rows differ\n", sequences, count);
    return count != 0;
}
