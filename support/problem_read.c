/*
 * problem_read.c: reads problem lines by the table of words.c. problem_print.c writes them.
 */
#include "near.h"
#include "words.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* keeps sums and differences of sizes safe */
static const int64_t max_size = (int64_t)1 << 48;

/* ---- Values ---------------------------------------------------------------------------------- */

/* The parsers of values return NULL, or the fault. */

static const char *parse_integer(const char *text, int64_t least, int64_t most, int64_t *value)
{
    char *end;
    errno = 0;
    long long x = strtoll(text, &end, 10);
    if (end == text || *end != '\0') {
        return "is not a whole number";
    }
    if (errno != 0 || x < least || x > most) {
        return "is out of range";
    }
    *value = x;
    return NULL;
}

static const char *parse_seed(const char *text, uint64_t *value)
{
    char *end;
    errno = 0;
    unsigned long long x = strtoull(text, &end, 10);
    if (end == text || *end != '\0' || *text == '-' || errno != 0) {
        return "is not a number from 0 to 2^64 - 1";
    }
    *value = x;
    return NULL;
}

static const char *parse_real(const char *text, double *value)
{
    char *end;
    *value = strtod(text, &end);
    return end == text || *end != '\0' ? "is not a number" : NULL;
}

static const char *parse_name(const char *text, const struct name *names, int32_t *value)
{
    for (; names->name != NULL; names++) {
        if (strcmp(names->name, text) == 0) {
            *value = names->value;
            return NULL;
        }
    }
    return "is not one of the choices";
}

/* Letters in their own order, each at most once; or "1". */
static const char *parse_axes(const char *text, const char *letters, char *axes)
{
    char *out = axes;
    for (const char *l = letters; *l != '\0'; l++) {
        if (strchr(text, *l) != NULL) {
            *out++ = *l;
        }
    }
    *out = '\0';
    if (strcmp(text, "1") == 0) {
        strcpy(axes, "1");
    } else if (strlen(text) == 0 || strlen(axes) != strlen(text)) {
        return "is not a set of axes";
    }
    return NULL;
}

static const char *parse_typed_axes(const char *text, const struct word *word,
                                    problem_spec *problem)
{
    const char *colon = strchr(text, ':'), *wrong = NULL;
    int32_t usual, *type = (int32_t *)(void *)((char *)problem + word_type(word, &usual));
    *type = usual;
    if (colon != NULL) {
        char dtype[8];
        snprintf(dtype, sizeof dtype, "%.*s", (int)(colon - text), text);
        wrong = parse_name(dtype, word->names, type);
        text = colon + 1;
    }
    return wrong != NULL ? wrong : parse_axes(text, word->axes, (char *)problem + word->at);
}

/* values[PROBLEM_MAX_SEQS], their number in *count */
static const char *parse_list(const char *text, int64_t *values, int *count)
{
    char copy[PROBLEM_MAX_LINE], *rest = copy, *item;
    snprintf(copy, sizeof copy, "%s", text);
    for (*count = 0; (item = strsep(&rest, ",")) != NULL; ++*count) {
        if (*count == PROBLEM_MAX_SEQS) {
            return "has too many items";
        }
        const char *wrong = parse_integer(item, 0, max_size, &values[*count]);
        if (wrong != NULL) {
            return wrong;
        }
    }
    return NULL;
}

static const char *parse_cpu(const char *text, char *cpu, size_t size)
{
    if (text[0] == '\0' || strlen(text) >= size ||
        strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789") != strlen(text)) {
        return "is not the name of an instruction set";
    }
    strcpy(cpu, text);
    return NULL;
}

/* ---- Lines ----------------------------------------------------------------------------------- */

/* Number of items of each list word, by offset of the member. */
struct counts {
    int lens_q, lens_k, used_q, used_k, q_origin, k_origin, leftpad_k;
};

/* The count of the list word at offset `at`. */
static int *count_of(size_t at, struct counts *n)
{
    return at == offsetof(problem_spec, lens_q)     ? &n->lens_q
           : at == offsetof(problem_spec, lens_k)   ? &n->lens_k
           : at == offsetof(problem_spec, used_q)   ? &n->used_q
           : at == offsetof(problem_spec, used_k)   ? &n->used_k
           : at == offsetof(problem_spec, q_origin) ? &n->q_origin
           : at == offsetof(problem_spec, k_origin) ? &n->k_origin
                                                    : &n->leftpad_k;
}

static const char *parse_value(const struct word *word, const char *text, problem_spec *problem,
                               struct counts *n)
{
    char *at = (char *)problem + word->at;
    int64_t integer = 0;
    const char *wrong = NULL;
    switch (word->kind) {
    case SIZE:
        return parse_integer(text, 0, max_size, (int64_t *)(void *)at);
    case INTEGER:
        return parse_integer(text, INT64_MIN, INT64_MAX, (int64_t *)(void *)at);
    case THREADS:
        wrong = parse_integer(text, 0, 1 << 20, &integer);
        problem->threads = (int32_t)integer;
        return wrong;
    case SEED:
        return parse_seed(text, (uint64_t *)(void *)at);
    case REAL:
        return parse_real(text, (double *)(void *)at);
    case BOOLEAN:
        wrong = parse_integer(text, 0, 1, &integer);
        *(bool *)at = integer != 0;
        return wrong == NULL ? NULL : "is neither 0 nor 1";
    case NAME:
        return parse_name(text, word->names, (int32_t *)(void *)at);
    case AXES:
        return parse_axes(text, word->axes, at);
    case TYPED_AXES:
        return parse_typed_axes(text, word, problem);
    case CPU:
        return parse_cpu(text, problem->cpu, sizeof problem->cpu);
    default: /* LIST */
        return parse_list(text, (int64_t *)(void *)at, count_of(word->at, n));
    }
}

/* *known = the word's line in the table, NULL if it has none. */
static const char *parse_word(char *text, problem_spec *problem, struct counts *n,
                              const struct word **known)
{
    char *value = strchr(text, '=');
    *known = NULL;
    if (value == NULL) {
        return "is not of the form key=value";
    }
    *value = '\0'; /* put back below: the caller names the word in its sentence */
    const char *wrong = "has a key that is unknown", *key = text;
    bool both_n = strcmp(key, "n") == 0, both_h = strcmp(key, "h") == 0;
    for (int i = 0; i < problem_words_count; i++) {
        const struct word *word = &problem_words[i];
        if (strcmp(word->name, both_n ? "nq" : both_h ? "hq" : key) == 0) {
            *known = word;
            wrong = parse_value(word, value + 1, problem, n);
            if (word->has != 0) {
                *((bool *)problem + word->has) = true;
            }
        }
    }
    problem->nk = both_n ? problem->nq : problem->nk;
    problem->hkv = both_h ? problem->hq : problem->hkv;
    *value = '=';
    return wrong;
}

const char *problem_near_word(const char *text)
{
    near_search search = near_start(text, strcspn(text, "="));
    for (int i = 0; i < problem_words_count; i++) {
        near_try(&search, problem_words[i].name);
    }
    return search.found;
}

/* The words that a refused word is near to: the choices of its value, or a key. */
static void add_advice(const char *text, const struct word *known, char *error, size_t size)
{
    size_t used = strlen(error);
    const char *near = problem_near_word(text);
    if (known != NULL && known->kind == NAME) {
        for (const struct name *n = known->names; n->name != NULL && used < size; n++) {
            used += (size_t)snprintf(error + used, size - used, "%s%s",
                                     n == known->names ? ": " : ", ", n->name);
        }
    } else if (known == NULL && near != NULL) {
        snprintf(error + used, size - used, "; did you mean %s=?", near);
    } else if (known == NULL) {
        snprintf(error + used, size - used, " (attn bench --help has them all)");
    }
}

void problem_defaults(problem_spec *problem)
{
    memset(problem, 0, sizeof *problem);
    problem->hq = 8, problem->d = 64;
    problem->b = problem->hkv = problem->nq = problem->nk = problem->dv = -1; /* not given */
    problem->dtype = ATTN_F32, problem->o_dtype = 0, problem->index_dtype = ATTN_I32,
    problem->bias_dtype = ATTN_F32;
    problem->mask_dtype = ATTN_BOOL, problem->kv_scale_dtype = ATTN_F32;
    problem->window_left = problem->window_right = -1;
}

static bool settle(int64_t *member, int64_t value)
{
    bool agrees = *member == -1 || *member == value;
    *member = value;
    return agrees;
}

/* Origins must be numbers that the index type has. */
static bool origins_fit(const problem_spec *problem, const int64_t *origin, int32_t count)
{
    bool fit = true;
    for (int32_t i = 0; i < count; i++) {
        fit = fit && (problem->index_dtype == ATTN_I64 || origin[i] <= INT32_MAX);
    }
    return fit;
}

/* Checks the words of quantised K and V. Returns NULL or the contradiction. */
static const char *fill_in_codes(problem_spec *problem)
{
    const bool halves = problem->kv_dtype == ATTN_I4X2;
    if (problem->kv_dtype == 0) {
        return problem->kv_scale[0] != '\0' || problem->kv_group > 0 || problem->kv_shift
                   ? "kv_scale, kv_group and kv_shift need kv_dtype"
                   : NULL;
    }
    if (problem->kv_scale[0] == '\0' &&
        (halves || problem->kv_dtype == ATTN_I8 || problem->kv_group > 0)) {
        strcpy(problem->kv_scale, "bkh");
    }
    if (problem->layout == LAYOUT_QKV || (halves && (problem->d % 2 || problem->dv % 2))) {
        return "kv_dtype is not for layout=qkv, and i4x2 not for odd d or dv";
    }
    if (problem->kv_group > 0 &&
        (problem->d % problem->kv_group || problem->dv % problem->kv_group)) {
        return "kv_group does not divide d and dv";
    }
    return NULL;
}

/* Checks the words of pages and of masks of bits. Returns NULL or the contradiction. */
static const char *check_keys(const problem_spec *problem)
{
    if ((problem->page > 0 || problem->has_leftpad) &&
        (problem->has_lens || problem->layout == LAYOUT_QKV)) {
        return "page and leftpad_k are not for lens_q and layout=qkv";
    }
    if (problem->prefix > 0 && problem->page == 0) {
        return "prefix needs page";
    }
    if (problem->view && (problem->dv > problem->d || problem->kv_dtype != 0 ||
                          problem->layout == LAYOUT_QKV || problem->pass != PASS_FORWARD)) {
        return "view needs dv <= d, and is not for kv_dtype, layout=qkv and gradients";
    }
    return problem->mask_dtype == ATTN_B1X8 && strchr(problem->mask, 'k') == NULL
               ? "mask=b1x8 needs the letter k"
               : NULL;
}

/* Fills in words that were not given from those that were. Returns NULL or the contradiction. */
static const char *fill_in(problem_spec *problem, const struct counts *n)
{
    if (problem->has_lens) {
        if (n->lens_q == 0 || (n->lens_k != 0 && n->lens_k != n->lens_q)) {
            return n->lens_q == 0 ? "lens_k needs lens_q" : "lens_q and lens_k differ in length";
        }
        if (n->lens_k == 0) {
            memcpy(problem->lens_k, problem->lens_q, sizeof problem->lens_k);
        }
        int64_t total_q = 2 * problem->outside, total_k = 2 * problem->outside;
        for (int i = 0; i < n->lens_q; i++) {
            total_q += problem->lens_q[i], total_k += problem->lens_k[i];
        }
        if (!settle(&problem->b, n->lens_q) || !settle(&problem->nq, total_q) ||
            !settle(&problem->nk, total_k)) {
            return "b, nq or nk contradicts lens_q and lens_k";
        }
    }
    if (problem->outside > 0 && !problem->has_lens) {
        return "outside needs lens_q";
    }
    if ((problem->has_used_q && !settle(&problem->b, n->used_q)) ||
        (problem->has_used_k && !settle(&problem->b, n->used_k)) ||
        (problem->has_leftpad && !settle(&problem->b, n->leftpad_k))) {
        return "used_q, used_k or leftpad_k has not as many items as there are sequences";
    }
    problem->q_origins = n->q_origin, problem->k_origins = n->k_origin;
    if ((problem->q_origins > 1 && !settle(&problem->b, problem->q_origins)) ||
        (problem->k_origins > 1 && !settle(&problem->b, problem->k_origins))) {
        return "q_origin or k_origin has neither one item nor as many as there are sequences";
    }
    problem->b = problem->b == -1 ? 1 : problem->b;
    problem->hkv = problem->hkv == -1 ? problem->hq : problem->hkv;
    problem->nq = problem->nq == -1 ? 1024 : problem->nq;
    problem->nk = problem->nk == -1 ? problem->nq : problem->nk;
    problem->dv = problem->dv == -1 ? problem->d : problem->dv;
    problem->o_dtype = problem->o_dtype == 0 ? problem->dtype : problem->o_dtype;
    problem->grad_dtype = problem->grad_dtype == 0 ? problem->dtype : problem->grad_dtype;
    problem->lse |= problem->pass != PASS_FORWARD;
    if (!origins_fit(problem, problem->q_origin, problem->q_origins) ||
        !origins_fit(problem, problem->k_origin, problem->k_origins)) {
        return "an origin beyond 2^31 needs index=i64";
    }
    if (problem->layout == LAYOUT_QKV &&
        (problem->hq != problem->hkv || problem->nq != problem->nk || problem->d != problem->dv)) {
        return "layout=qkv needs hq=hkv, nq=nk and dv=d";
    }
    if ((problem->d_bias_dtype != 0 && problem->bias[0] == '\0') ||
        (problem->d_alibi && problem->alibi[0] == '\0') ||
        (problem->d_sinks && problem->sinks[0] == '\0')) {
        return "d_bias, d_alibi and d_sinks need bias, alibi and sinks";
    }
    const char *wrong = check_keys(problem);
    return wrong != NULL ? wrong : fill_in_codes(problem);
}

bool problem_parse(const char *line, problem_spec *problem, char *error, size_t size)
{
    char copy[PROBLEM_MAX_LINE], *rest = copy, *text;
    struct counts n = {0};
    problem_defaults(problem);
    if (strlen(line) >= sizeof copy) {
        snprintf(error, size, "the problem line is longer than %d characters",
                 PROBLEM_MAX_LINE - 1);
        return false;
    }
    strcpy(copy, line);
    while ((text = strtok_r(rest, " \t\r\n", &rest)) != NULL) {
        const struct word *known;
        const char *wrong = parse_word(text, problem, &n, &known);
        if (wrong != NULL) {
            snprintf(error, size, "problem word \"%s\" %s", text, wrong);
            add_advice(text, known, error, size);
            return false;
        }
    }
    const char *wrong = fill_in(problem, &n);
    if (wrong != NULL) {
        snprintf(error, size, "problem \"%s\": %s", line, wrong);
    }
    return wrong == NULL;
}
