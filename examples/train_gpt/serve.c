/*
 * serve.c: see serve.h. The cache (kv_cache.c) makes a step as long as its new bytes: the common
 * beginning once, then the prompts, padded to the longest, then one byte of each text.
 */
#include "serve.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fail.h"

/* ---- Requests -------------------------------------------------------------------------------- */

requests requests_of(const options *o, const gpt_trainer *trainer)
{
    const int context = trainer->model->context,
              shared = o->prefix == NULL ? context / 2 : (int)strlen(o->prefix);
    const void *prefix = o->prefix == NULL ? (const void *)trainer->text->valid : o->prefix;
    int count = o->prompt_count, longest = 0;
    if (count > trainer->model->batch) {
        fail(EXIT_INPUT, "%d prompts are more than --batch=%d sequences at once", count,
             trainer->model->batch);
    }
    for (int n = 0; n < count; n++) {
        int length = (int)strlen(o->prompts[n]);
        longest = length > longest ? length : longest;
    }
    int wanted = o->sample < 0 ? context - shared - longest : o->sample;
    if (wanted < 1 || shared + longest + wanted > context) {
        fail(EXIT_INPUT,
             "a prefix of %d bytes, a prompt of %d and %d more do not fit --context=%d: a shorter "
             "--prefix, or less --sample",
             shared, longest, wanted < 1 ? 1 : wanted, context);
    }
    uint8_t *texts = allocate((size_t)count, (size_t)context);
    int *length = allocate((size_t)count, sizeof *length);
    for (int n = 0; n < count; n++) {
        memcpy(texts + (size_t)n * (size_t)context, prefix, (size_t)shared);
        memcpy(texts + (size_t)n * (size_t)context + shared, o->prompts[n], strlen(o->prompts[n]));
        length[n] = shared + (int)strlen(o->prompts[n]);
    }
    return (requests){count, context, shared, wanted, length, texts};
}

void requests_free(requests *r)
{
    free(r->length);
    free((void *)r->text);
}

/* ---- Steps ----------------------------------------------------------------------------------- */

/* A way under way. */
typedef struct service {
    gpt_model *model;
    const requests *r;
    uint8_t *text, *input;
    int *length, *rows; /* [count]: bytes of each text, those of them in this step */
} service;

/* The model over the last rows[n] bytes of `count` texts, padded to the longest of them. */
static void step(service *s, int count)
{
    int longest = 0;
    for (int n = 0; n < count; n++) {
        longest = s->rows[n] > longest ? s->rows[n] : longest;
    }
    memset(s->input, 0, (size_t)count * (size_t)longest);
    for (int n = 0; n < count; n++) {
        memcpy(s->input + n * longest, s->text + n * s->r->context + s->length[n] - s->rows[n],
               (size_t)s->rows[n]);
    }
    if (s->model->cache != NULL) {
        kv_cache_step(s->model->cache, s->rows);
    }
    model_forward(s->model, (tokens){count, longest, s->input, NULL}, (attention_dropout){0});
    for (int n = 0; n < count; n++) { /* from rows of a step to logits behind the last byte */
        s->rows[n] += n * longest - 1;
    }
}

static uint8_t likeliest(const real *logits)
{
    int best = 0;
    for (int v = 1; v < VOCABULARY; v++) {
        best = logits[v] > logits[best] ? v : best;
    }
    return (uint8_t)best;
}

/* The next byte of every text, after a step. */
static void append(service *s)
{
    for (int n = 0; n < s->r->count; n++) {
        const real *logits = s->model->logits + (int64_t)s->rows[n] * VOCABULARY;
        s->text[n * s->r->context + s->length[n]++] = likeliest(logits);
    }
}

/* The common beginning, once for all texts. */
static void begin_cache(service *s, int way)
{
    const gpt_model *model = s->model;
    const attention_shape most = {s->r->count, s->r->context, model->heads,
                                  model->width / model->heads};
    kv_cache *cache =
        kv_cache_new(way == CACHE_INT8 ? ATTN_I8 : REAL_DTYPE, model->layers, most, s->r->shared);
    s->model->cache = cache;
    if (s->r->shared > 0) {
        s->length[0] = s->rows[0] = s->r->shared;
        step(s, 1);
        s->length[0] = s->r->length[0];
    }
    kv_cache_fork(cache, s->r->count);
}

static void show_progress(const requests *r, int done)
{
    if (isatty(STDERR_FILENO)) {
        fprintf(stderr, done < r->wanted ? "\r%d of %d bytes " : "\r\033[K", done, r->wanted);
    }
}

/* Rows of the next step: bytes of which neither cache nor logits know. */
static void choose_rows(service *s, int done)
{
    for (int n = 0; n < s->r->count; n++) {
        s->rows[n] = s->model->cache == NULL ? s->length[n]
                     : done == 0             ? s->length[n] - s->r->shared
                                             : 1;
    }
}

served serve(gpt_model *model, const requests *r, int way)
{
    size_t all = (size_t)r->count * (size_t)r->context, count = (size_t)r->count;
    service s = {model,
                 r,
                 allocate(all, 1),
                 allocate(all, 1),
                 allocate(count, sizeof(int)),
                 allocate(count, sizeof(int))};
    served done = {.text = s.text};
    memcpy(s.text, r->text, all);
    memcpy(s.length, r->length, count * sizeof *s.length);
    double start = seconds_now();
    if (way != RECOMPUTED) {
        begin_cache(&s, way);
    }
    for (int i = 0; i < r->wanted; i++) {
        choose_rows(&s, i);
        step(&s, r->count);
        append(&s);
        show_progress(r, i + 1);
    }
    done.seconds = seconds_now() - start;
    if (way != RECOMPUTED) {
        done.cache_bytes = kv_cache_bytes(model->cache);
        kv_cache_delete(model->cache);
        model->cache = NULL;
    }
    free(s.input);
    free(s.length);
    free(s.rows);
    return done;
}

int served_alike(const requests *r, const served *a, const served *b, int n)
{
    const uint8_t *left = a->text + n * r->context + r->length[n],
                  *right = b->text + n * r->context + r->length[n];
    int alike = 0;
    while (alike < r->wanted && left[alike] == right[alike]) {
        alike++;
    }
    return alike;
}
