/*
 * problem_print.c: writes problem lines, by the table that reads them (words.c).
 */
#include "words.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A line in the making: as with snprintf, the length counts on when the room is used up. */
struct line {
    char *text;
    size_t size;
    int length;
};

__attribute__((format(printf, 2, 3))) static void append(struct line *l, const char *format, ...)
{
    va_list list;
    size_t used = (size_t)l->length < l->size ? (size_t)l->length : l->size;
    va_start(list, format);
    l->length += vsnprintf(used < l->size ? l->text + used : NULL, l->size - used, format, list);
    va_end(list);
}

/* Number of items of a list word. */
static int64_t list_count(const struct word *word, const problem_spec *problem)
{
    return word->at == offsetof(problem_spec, q_origin)   ? problem->q_origins
           : word->at == offsetof(problem_spec, k_origin) ? problem->k_origins
                                                          : problem->b;
}

static size_t value_size(enum word_kind kind)
{
    return kind == BOOLEAN                   ? sizeof(bool)
           : kind == NAME || kind == THREADS ? sizeof(int32_t)
                                             : sizeof(int64_t);
}

/* Prints the words b hq nq d dtype always, the others where they differ from their default. */
static bool is_wanted(const struct word *word, const problem_spec *problem,
                      const problem_spec *standard)
{
    const char *value = (const char *)problem + word->at;
    if (word->at == offsetof(problem_spec, b) || word->at == offsetof(problem_spec, nq) ||
        word->at == offsetof(problem_spec, nk)) {
        return !problem->has_lens &&
               (word->at != offsetof(problem_spec, nk) || problem->nk != problem->nq);
    }
    if (word->has != 0) {
        return *((const bool *)problem + word->has);
    }
    if (word->kind == LIST) {
        return list_count(word, problem) > 0;
    }
    if (word->at == offsetof(problem_spec, kv_scale)) {
        return strcmp(value, standard->kv_scale) != 0 ||
               problem->kv_scale_dtype != standard->kv_scale_dtype;
    }
    if (word->kind == AXES || word->kind == TYPED_AXES || word->kind == CPU) {
        return *value != '\0';
    }
    return word->at == offsetof(problem_spec, hq) || word->at == offsetof(problem_spec, d) ||
           word->at == offsetof(problem_spec, dtype) ||
           memcmp(value, (const char *)standard + word->at, value_size(word->kind)) != 0;
}

static void append_real(struct line *l, double x)
{
    char text[32];
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, x);
        if (strtod(text, NULL) == x) {
            break;
        }
    }
    append(l, "%s", text);
}

static const char *name_of(const struct name *names, int32_t value)
{
    while (names->name != NULL && names->value != value) {
        names++;
    }
    return names->name != NULL ? names->name : "?";
}

static void append_typed_axes(struct line *l, const struct word *word, const problem_spec *problem)
{
    int32_t usual, type;
    memcpy(&type, (const char *)problem + word_type(word, &usual), sizeof type);
    append(l, "%s%s%s", type == usual ? "" : name_of(word->names, type), type == usual ? "" : ":",
           (const char *)problem + word->at);
}

static void append_value(struct line *l, const struct word *word, const problem_spec *problem)
{
    const char *at = (const char *)problem + word->at;
    const int64_t *integers = (const int64_t *)(const void *)at;
    switch (word->kind) {
    case SIZE:
    case INTEGER:
        append(l, "%" PRId64, *integers);
        break;
    case THREADS:
        append(l, "%" PRId32, problem->threads);
        break;
    case SEED:
        append(l, "%" PRIu64, *(const uint64_t *)(const void *)at);
        break;
    case REAL:
        append_real(l, *(const double *)(const void *)at);
        break;
    case BOOLEAN:
        append(l, "%d", *(const bool *)at);
        break;
    case NAME:
        append(l, "%s", name_of(word->names, *(const int32_t *)(const void *)at));
        break;
    case TYPED_AXES:
        append_typed_axes(l, word, problem);
        break;
    case LIST:
        for (int64_t i = 0; i < list_count(word, problem); i++) {
            append(l, "%s%" PRId64, i == 0 ? "" : ",", integers[i]);
        }
        break;
    default: /* AXES, CPU */
        append(l, "%s", at);
    }
}

int problem_print(const problem_spec *problem, char *line, size_t size)
{
    struct line l = {line, size, 0};
    problem_spec standard;
    problem_defaults(&standard);
    standard.hkv = problem->hq, standard.dv = problem->d,
    standard.o_dtype = standard.grad_dtype = problem->dtype;
    if (problem->kv_dtype == ATTN_I8 || problem->kv_dtype == ATTN_I4X2 || problem->kv_group > 0) {
        strcpy(standard.kv_scale, "bkh");
    }
    standard.lse = problem->pass != PASS_FORWARD;
    append(&l, "%s", "");
    for (int i = 0; i < problem_words_count; i++) {
        if (is_wanted(&problem_words[i], problem, &standard)) {
            append(&l, "%s%s=", l.length == 0 ? "" : " ", problem_words[i].name);
            append_value(&l, &problem_words[i], problem);
        }
    }
    return l.length;
}
