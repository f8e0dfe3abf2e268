/*
 * test_train_serve.c: continuations of several prompts (train_gpt --generate): those with a cache
 * of keys and values are those of the whole model on whole texts, for prompts of several lengths,
 * with and without a common beginning; and the cache is as small as its type and its shared pages
 * say.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "random.h"
#include "serve.h"
#include "train.h"

enum { STEPS = 60, PROMPTS = 3, CONTEXT = 64 };

static uint8_t letters[8192];
static gpt_trainer *trainer;

/* The alphabet again and again: a short training knows each next letter, by far. */
static int train_alphabet(void **state)
{
    (void)state;
    for (int i = 0; i < (int)sizeof letters; i++) {
        letters[i] = (uint8_t)('a' + i % 26);
    }
    static text from = {
        .train = letters, .valid = letters, .train_bytes = sizeof letters, .valid_bytes = 1024};
    const config c = {.layers = 2,
                      .width = 48,
                      .heads = 3,
                      .context = CONTEXT,
                      .batch = PROMPTS,
                      .steps = STEPS,
                      .seed = 7,
                      .rate = 4e-3};
    trainer = trainer_new(&device_cpu, &c, &from);
    for (int i = 0; i < STEPS; i++) {
        trainer_step(trainer);
    }
    return 0;
}

static int free_trainer(void **state)
{
    (void)state;
    trainer_delete(trainer);
    return 0;
}

/* Each byte of a continuation is the letter after the byte before it. */
static void check_alphabet(const requests *r, const served *way)
{
    for (int n = 0; n < r->count; n++) {
        const uint8_t *at = way->text + n * r->context;
        for (int i = r->length[n]; i < r->length[n] + r->wanted; i++) {
            assert_int_equal(at[i], at[i - 1] == 'z' ? 'a' : at[i - 1] + 1);
        }
    }
}

/* Bytes of the pages of PROMPTS texts that share `shared` keys: two layers of three heads of 16
 * columns, K and V; int8 has a scale of 16 bits for each head. */
static uint64_t bytes_expected(const requests *r, int way)
{
    uint64_t pages = (uint64_t)r->shared / 16,
             key = way == CACHE_INT8 ? 2 * 2 * 3 * (16 + 2) : 2 * 2 * 3 * 16 * sizeof(real);
    for (int n = 0; n < r->count; n++) { /* keys of all but the last byte */
        uint64_t keys = (uint64_t)(r->length[n] + r->wanted - 1);
        pages += (keys + 15) / 16 - (uint64_t)r->shared / 16;
    }
    return pages * 16 * key;
}

static void check_ways(const char *prefix)
{
    const options o = {.config = trainer->config,
                       .prefix = prefix,
                       .prompts = {"p", "qrstu", "hij"},
                       .prompt_count = PROMPTS,
                       .sample = -1};
    requests r = requests_of(&o, trainer);
    assert_int_equal(r.wanted, CONTEXT - (int)strlen(prefix) - 5);
    served way[SERVE_WAYS];
    for (int i = 0; i < SERVE_WAYS; i++) {
        way[i] = serve(trainer->model, &r, i);
        check_alphabet(&r, &way[i]);
        for (int n = 0; n < r.count; n++) {
            assert_int_equal(served_alike(&r, &way[RECOMPUTED], &way[i], n), r.wanted);
        }
        assert_int_equal(way[i].cache_bytes, i == RECOMPUTED ? 0 : bytes_expected(&r, i));
    }
    for (int i = 0; i < SERVE_WAYS; i++) {
        free(way[i].text);
    }
    requests_free(&r);
}

/* The beginning ends within a page, which the first new key of each text copies. */
static void test_shared_beginning(void **state)
{
    (void)state;
    check_ways("abcdefghijklmnopqrstuvwxyzabcdefghijklmno");
}

static void test_whole_pages(void **state)
{
    (void)state;
    check_ways("abcdefghijklmnopqrstuvwxyzabcdef");
}

static void test_no_beginning(void **state)
{
    (void)state;
    check_ways("");
}

/* ---- Logits ---------------------------------------------------------------------------------- */

/* Root of the mean square of a - b over the logits; b = NULL: of a. */
static double deviation(const real *a, const real *b)
{
    double sum = 0;
    for (int v = 0; v < VOCABULARY; v++) {
        double x = (double)a[v] - (b == NULL ? 0 : (double)b[v]);
        sum += x * x;
    }
    return sqrt(sum / VOCABULARY);
}

/* Logits at `end` bytes of PROMPTS texts, a row each, after steps of these many bytes. */
static void logits_of(const uint8_t (*texts)[CONTEXT], attn_dtype type, const int *steps, int count,
                      int end, real (*out)[VOCABULARY])
{
    gpt_model *model = trainer->model;
    model->cache =
        kv_cache_new(type, model->layers, (attention_shape){PROMPTS, CONTEXT, model->heads, 16}, 0);
    kv_cache_fork(model->cache, PROMPTS);
    for (int i = 0, at = 0; i < count; at += steps[i++]) {
        uint8_t input[PROMPTS * CONTEXT];
        int rows[PROMPTS];
        for (int n = 0; n < PROMPTS; n++) {
            memcpy(input + n * steps[i], texts[n] + at, (size_t)steps[i]);
            rows[n] = steps[i];
        }
        kv_cache_step(model->cache, rows);
        model_forward(model, (tokens){PROMPTS, steps[i], input, NULL}, (attention_dropout){0});
        for (int n = 0; n < PROMPTS && at + steps[i] == end; n++) {
            memcpy(out[n], model->logits + ((n + 1) * steps[i] - 1) * VOCABULARY, sizeof out[n]);
        }
    }
    kv_cache_delete(model->cache);
    model->cache = NULL;
}

/* Attention matters in these logits: they are of random bytes and weights. A cache of the model's
 * numbers gives the bits of a whole text, whatever the steps; int8 is near. */
static void test_logits(void **state)
{
    (void)state;
    static const int steps[] = {17, 1, 1, 30, 2}, end = 51;
    uint8_t texts[PROMPTS][CONTEXT];
    static real whole[PROMPTS][VOCABULARY], cached[PROMPTS][VOCABULARY];
    gpt_model *model = trainer->model;
    uint64_t random = 5;
    for (int i = 0; i < PROMPTS * CONTEXT; i++) {
        texts[i / CONTEXT][i % CONTEXT] = (uint8_t)random_word(&random);
    }
    for (const tensor *t = model->tensor; t < model->tensor + model->tensors; t++) {
        for (int64_t i = t->at; t->decays && i < t->at + t->count; i++) { /* matrices */
            model->parameters[i] = (real)(0.25 * random_normal(&random));
        }
    }
    for (int n = 0; n < PROMPTS; n++) {
        model_forward(model, (tokens){1, end, texts[n], NULL}, (attention_dropout){0});
        memcpy(whole[n], model->logits + (end - 1) * VOCABULARY, sizeof whole[n]);
    }
    logits_of(texts, REAL_DTYPE, steps, 5, end, cached);
    assert_memory_equal(whole, cached, sizeof whole);
    logits_of(texts, ATTN_I8, steps, 5, end, cached);
    for (int n = 0; n < PROMPTS; n++) {
        double moved = deviation(cached[n], whole[n]), size = deviation(whole[n], NULL);
        print_message("int8 moves logits of deviation %.2f by %.3f\n", size, moved);
        assert_true(moved > 0 && moved < size / 8);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shared_beginning), cmocka_unit_test(test_whole_pages),
        cmocka_unit_test(test_no_beginning),
        cmocka_unit_test(test_logits), /* draws weights: the last one */
    };
    return cmocka_run_group_tests(tests, train_alphabet, free_trainer);
}
