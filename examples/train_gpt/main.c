/*
 * main.c: train_gpt: a GPT trained on this CPU with libattn's attention, forward and backward. What it can be told stands
 * in options.c, what came out in docs/training.md.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "generate.h"
#include "options.h"
#include "threads.h"
#include "train.h"

static const double TEMPERATURE = 0.8;

static void print_sample(const options *o, model *m, FILE *out)
{
    size_t given = strlen(o->prompt);
    int filled = (int)(given < 4096 ? given : 4096), end = filled + o->sample;
    uint8_t *sample = malloc((size_t)end);
    if (sample != NULL) {
        memcpy(sample, o->prompt, (size_t)filled);
        generate(m, sample, filled, end, TEMPERATURE, (uint64_t)o->config.seed);
        make_printable(sample, end);
        fprintf(out, "\n%.*s\n", end, (const char *)sample);
    }
    free(sample);
}

static void print_start(const trainer *t, FILE *out)
{
    const text *x = t->text;
    fprintf(out,
            "%d files: %lld bytes to learn, %lld to validate; entropy of a byte by itself %.3f nats\n"
            "%lld parameters, %s attention, %d threads\n",
            x->files, (long long)x->train_bytes, (long long)x->valid_bytes, x->entropy, (long long)t->model->count,
            attention_kind_name[t->config.attention], threads_count());
}

int main(int argc, char **argv)
{
    options o = options_parse(argc, argv);
    FILE *out = o.json ? stderr : stdout;
    threads_set(o.threads);
    text from = text_read(o.texts, o.text_count, o.config.context + 1);
    trainer *t = trainer_new(&o.config, &from);
    print_start(t, out);
    trainer_run(t, out, NULL, NULL);
    fprintf(out, "validation loss %.3f nats a byte (%.3f bits); of bytes by themselves %.3f nats\n", t->valid[t->step],
            t->valid[t->step] / 0.6931471805599453, from.entropy);
    print_sample(&o, t->model, out);
    trainer_delete(t);
    text_free(&from);
    return 0;
}
