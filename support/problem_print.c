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
static int64_t list_count(const struct word *w, const problem *p)
{
    return w->at == offsetof(problem, q_origin)   ? p->q_origins
           : w->at == offsetof(problem, k_origin) ? p->k_origins
                                                  : p->b;
}

static size_t value_size(enum word_kind kind)
{
    return kind == BOOLEAN                   ? sizeof(bool)
           : kind == NAME || kind == THREADS ? sizeof(int32_t)
                                             : sizeof(int64_t);
}

/* Prints the words b hq nq d dtype always, the others where they differ from their default. */
static bool is_wanted(const struct word *w, const problem *p, const problem *standard)
{
    const char *value = (const char *)p + w->at;
    if (w->at == offsetof(problem, b) || w->at == offsetof(problem, nq) ||
        w->at == offsetof(problem, nk)) {
        return !p->has_lens && (w->at != offsetof(problem, nk) || p->nk != p->nq);
    }
    if (w->has != 0) {
        return *((const bool *)p + w->has);
    }
    if (w->kind == LIST) {
        return list_count(w, p) > 0;
    }
    if (w->kind == AXES || w->kind == TYPED_AXES || w->kind == CPU) {
        return *value != '\0';
    }
    return w->at == offsetof(problem, hq) || w->at == offsetof(problem, d) ||
           w->at == offsetof(problem, dtype) ||
           memcmp(value, (const char *)standard + w->at, value_size(w->kind)) != 0;
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

static void append_typed_axes(struct line *l, const struct word *w, const problem *p)
{
    int32_t usual, type;
    memcpy(&type, (const char *)p + word_type(w, &usual), sizeof type);
    append(l, "%s%s%s", type == usual ? "" : name_of(w->names, type), type == usual ? "" : ":",
           (const char *)p + w->at);
}

static void append_value(struct line *l, const struct word *w, const problem *p)
{
    const char *at = (const char *)p + w->at;
    const int64_t *integers = (const int64_t *)(const void *)at;
    switch (w->kind) {
    case SIZE:
    case INTEGER:
        append(l, "%" PRId64, *integers);
        break;
    case THREADS:
        append(l, "%" PRId32, p->threads);
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
        append(l, "%s", name_of(w->names, *(const int32_t *)(const void *)at));
        break;
    case TYPED_AXES:
        append_typed_axes(l, w, p);
        break;
    case LIST:
        for (int64_t i = 0; i < list_count(w, p); i++) {
            append(l, "%s%" PRId64, i == 0 ? "" : ",", integers[i]);
        }
        break;
    default: /* AXES, CPU */
        append(l, "%s", at);
    }
}

int problem_print(const problem *p, char *line, size_t size)
{
    struct line l = {line, size, 0};
    problem standard;
    problem_defaults(&standard);
    standard.hkv = p->hq, standard.dv = p->d, standard.o_dtype = standard.grad_dtype = p->dtype;
    standard.lse = p->pass != PASS_FORWARD;
    append(&l, "%s", "");
    for (int i = 0; i < problem_words_count; i++) {
        if (is_wanted(&problem_words[i], p, &standard)) {
            append(&l, "%s%s=", l.length == 0 ? "" : " ", problem_words[i].name);
            append_value(&l, &problem_words[i], p);
        }
    }
    return l.length;
}
