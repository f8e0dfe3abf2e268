/*
 * online.c: the online softmax (Milakov and Gimelshein, arXiv 1805.02867): one pass finds maximum
 * and sum together. When the maximum rises from m to m', the sum so far is worth exp(m - m') of its
 * old value. A second pass makes the probabilities.
 */
#include "ladder.h"
#include <math.h>

void ladder_online(const ladder_head *head)
{
    for (int64_t i = 0; i < head->nq; i++) {
        float *s = head->scores + i * head->nk, maximum = -INFINITY, sum = 0;
        const int64_t visible = ladder_visible(head, i);
        for (int64_t j = 0; j < visible; j++) {
            s[j] = ladder_score(head, i, j);
            const float higher = fmaxf(maximum, s[j]);
            sum = sum * expf(maximum - higher) + expf(s[j] - higher);
            maximum = higher;
        }
        ladder_read(head, head->d + visible * head->d);
        ladder_write(head, visible);

        for (int64_t j = 0; j < visible; j++) {
            s[j] = expf(s[j] - maximum) / sum;
        }
        ladder_read(head, visible);
        ladder_write(head, visible);
        ladder_weigh(head, i);
    }
}
