/*
 * safe.c: the softmax that frameworks compute: subtracting the row's maximum first changes nothing
 * but makes every exponent at most 0. It takes three passes over a row of scores: maximum, sum,
 * probabilities.
 */
#include "ladder.h"
#include <math.h>

void ladder_safe(const ladder_head *head)
{
    for (int64_t i = 0; i < head->nq; i++) {
        float *s = head->scores + i * head->nk, maximum = -INFINITY, sum = 0;
        const int64_t visible = ladder_visible(head, i);
        for (int64_t j = 0; j < visible; j++) {
            s[j] = ladder_score(head, i, j);
        }
        ladder_read(head, head->d + visible * head->d);
        ladder_write(head, visible);

        for (int64_t j = 0; j < visible; j++) {
            maximum = fmaxf(maximum, s[j]);
        }
        for (int64_t j = 0; j < visible; j++) {
            sum += expf(s[j] - maximum);
        }
        for (int64_t j = 0; j < visible; j++) {
            s[j] = expf(s[j] - maximum) / sum;
        }
        ladder_read(head, 3 * visible);
        ladder_write(head, visible);
        ladder_weigh(head, i);
    }
}
