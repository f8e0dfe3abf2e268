/*
 * standard.c: attention as the formula has it: S = scale Q K^T, P = exp(S) / sum, O = P V, with S
 * and P in memory. exp overflows in f32 for scores above 88: infinity / infinity is NaN.
 */
#include "ladder.h"
#include <math.h>

void ladder_standard(const ladder_head *head)
{
    for (int64_t i = 0; i < head->nq; i++) {
        float *s = head->scores + i * head->nk, sum = 0;
        const int64_t visible = ladder_visible(head, i);
        for (int64_t j = 0; j < visible; j++) {
            s[j] = ladder_score(head, i, j);
        }
        ladder_read(head, head->d + visible * head->d);
        ladder_write(head, visible);

        for (int64_t j = 0; j < visible; j++) {
            sum += expf(s[j]);
        }
        for (int64_t j = 0; j < visible; j++) {
            s[j] = expf(s[j]) / sum;
        }
        ladder_read(head, 2 * visible);
        ladder_write(head, visible);
        ladder_weigh(head, i);
    }
}
