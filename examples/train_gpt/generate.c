/*
 * generate.c: see generate.h. Every byte costs a whole forward pass, as positions move with the
 * window; serve.c, whose texts end with the context, keeps a cache of keys.
 */
#include "generate.h"

#include <math.h>
#include <string.h>

#include "random.h"

static int sample(const real *logits, double temperature, uint64_t *random)
{
    double most = (double)logits[0], sum = 0, weight[VOCABULARY];
    for (int v = 1; v < VOCABULARY; v++) {
        most = fmax(most, (double)logits[v]);
    }
    for (int v = 0; v < VOCABULARY; v++) {
        weight[v] = exp(((double)logits[v] - most) / temperature);
        sum += weight[v];
    }
    double at = random_unit(random) * sum;
    for (int v = 0; v < VOCABULARY; v++) {
        at -= weight[v];
        if (at < 0) {
            return v;
        }
    }
    return VOCABULARY - 1;
}

void generate(gpt_model *model, uint8_t *text, int filled, int end, double temperature,
              uint64_t seed)
{
    uint64_t random = seed;
    real logits[VOCABULARY];
    for (; filled < end; filled++) {
        int length = filled < model->context ? filled : model->context;
        model_forward(model, (tokens){1, length, text + filled - length, NULL},
                      (attention_dropout){0});
        model->on->get(logits, model->logits + (int64_t)(length - 1) * VOCABULARY, sizeof logits);
        text[filled] = (uint8_t)sample(logits, temperature, &random);
    }
}

void make_printable(uint8_t *text, int count)
{
    for (int i = 0; i < count; i++) {
        bool shown = (text[i] >= ' ' && text[i] <= '~') || text[i] == '\n' || text[i] == '\t';
        text[i] = shown ? text[i] : '?';
    }
}
