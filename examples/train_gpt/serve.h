/*
 * serve.h: `train_gpt --generate`: several prompts that share a beginning, continued at once.
 */
#ifndef TRAIN_GPT_SERVE_H
#define TRAIN_GPT_SERVE_H

#include <stdio.h>

#include "options.h"
#include "train.h"

/* Ways to continue them: the model over the whole texts for every byte; over the new bytes alone,
 * with keys and values of the others in a cache of the model's numbers; in one of int8. */
enum { RECOMPUTED, CACHE_FULL, CACHE_INT8, SERVE_WAYS };

typedef struct served {
    uint8_t *text;        /* [prompt][context]: beginning, prompt, continuation */
    double seconds;       /* of all, the prompts included */
    uint64_t cache_bytes; /* of pages in use at the end */
} served;

/* What to continue, the same for all ways. */
typedef struct requests {
    int count, context;  /* prompts; bytes of room for each text */
    int shared, wanted;  /* bytes that all texts begin with; bytes to add to each */
    int *length;         /* [count]: of beginning and prompt */
    const uint8_t *text; /* [count][context]: beginning and prompt */
} requests;

/* From --prefix, --prompt and --sample. Ends the program where they do not fit the model. */
requests requests_of(const options *o, const gpt_trainer *trainer);
void requests_free(requests *r);

/* Continues with the likeliest byte each time. */
served serve(gpt_model *model, const requests *r, int way);

/* The bytes at the start of continuation n that two ways agree in. */
int served_alike(const requests *r, const served *a, const served *b, int n);

/* All ways, in a table on out; with o->json one JSON object on stdout. */
void serve_all(const options *o, gpt_trainer *trainer, FILE *out);

#endif
