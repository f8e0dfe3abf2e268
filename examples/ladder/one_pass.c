/*
 * one_pass.c: O is a sum as well, so it can follow the maximum like the sum of probabilities does
 * (Rabe and Staats, arXiv 2112.05682). A score is used the moment it is known: the matrix of scores
 * never exists. K and V are still fetched for every row.
 */
#include "ladder.h"
#include <math.h>

void ladder_one_pass(const ladder_head *head)
{
    for (int64_t i = 0; i < head->nq; i++) {
        float *o = head->o + i * head->dv, maximum = -INFINITY, sum = 0;
        const int64_t visible = ladder_visible(head, i);
        for (int64_t c = 0; c < head->dv; c++) {
            o[c] = 0;
        }
        for (int64_t j = 0; j < visible; j++) {
            const float score = ladder_score(head, i, j), higher = fmaxf(maximum, score);
            const float alpha = expf(maximum - higher), p = expf(score - higher);
            for (int64_t c = 0; c < head->dv; c++) {
                o[c] = o[c] * alpha + p * head->v[j * head->dv + c];
            }
            sum = sum * alpha + p, maximum = higher;
        }
        for (int64_t c = 0; c < head->dv && visible > 0; c++) {
            o[c] /= sum;
        }
        ladder_read(head, head->d + visible * (head->d + head->dv));
        ladder_write(head, head->dv);
    }
}
