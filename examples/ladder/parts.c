/*
 * parts.c: functions that the steps share.
 */
#include "ladder.h"

int64_t ladder_visible(const ladder_head *head, int64_t row)
{
    const int64_t end = row + head->nk - head->nq + 1;
    return !head->causal || end > head->nk ? head->nk : end > 0 ? end : 0;
}

float ladder_score(const ladder_head *head, int64_t row, int64_t key)
{
    float sum = 0;
    for (int64_t c = 0; c < head->d; c++) {
        sum += head->q[row * head->d + c] * head->k[key * head->d + c];
    }
    return head->scale * sum;
}

void ladder_read(const ladder_head *head, int64_t numbers)
{
    head->traffic->read += (double)numbers * sizeof(float);
}

void ladder_write(const ladder_head *head, int64_t numbers)
{
    head->traffic->written += (double)numbers * sizeof(float);
}

void ladder_weigh(const ladder_head *head, int64_t row)
{
    const float *p = head->scores + row * head->nk;
    const int64_t visible = ladder_visible(head, row);
    for (int64_t c = 0; c < head->dv; c++) {
        float sum = 0;
        for (int64_t j = 0; j < visible; j++) {
            sum += p[j] * head->v[j * head->dv + c];
        }
        head->o[row * head->dv + c] = sum;
    }
    ladder_read(head, visible + visible * head->dv);
    ladder_write(head, head->dv);
}
