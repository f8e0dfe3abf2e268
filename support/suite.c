/*
 * suite.c: problem lines with alternatives in braces, {a,b,c} or the integers {1..264}, and files
 * of such lines.
 */
#include "words.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct suite {
    bool (*visit)(void *user, const problem_spec *p);
    void *user;
    char *error;
    size_t size;
};

static bool expand(const struct suite *s, const char *line);

/* Writes the line with one alternative, `length` characters at `item`, in place of its braces. */
static bool expand_one(const struct suite *s, const char *line, const char *item, int length)
{
    const char *open = strchr(line, '{'), *close = strchr(open, '}');
    char *one = malloc(strlen(line) + (size_t)length + 1);
    bool ok = one != NULL;
    if (ok) {
        sprintf(one, "%.*s%.*s%s", (int)(open - line), line, length, item, close + 1);
        ok = expand(s, one);
    }
    free(one);
    return ok;
}

/* Takes the first {a,b,..} of the line, puts in each of its alternatives, and goes on with the rest
 * of the line. */
static bool expand(const struct suite *s, const char *line)
{
    int first, last, end = 0;
    const char *open = strchr(line, '{'), *close = open == NULL ? NULL : strchr(open, '}');
    if (open == NULL) {
        problem_spec problem;
        if (!problem_parse(line, &problem, s->error, s->size)) {
            return false;
        }
        s->error[0] = '\0';
        return s->visit(s->user, &problem);
    }
    if (close == NULL) {
        snprintf(s->error, s->size, "problem \"%s\": a { without a }", line);
        return false;
    }
    bool ok = true;
    if (sscanf(open, "{%d..%d}%n", &first, &last, &end) == 2 && open + end == close + 1) {
        for (int i = first; ok && i <= last; i++) {
            char item[16];
            ok = expand_one(s, line, item, snprintf(item, sizeof item, "%d", i));
        }
        return ok;
    }
    for (const char *item = open + 1; ok && item <= close; item += strcspn(item, ",}") + 1) {
        ok = expand_one(s, line, item, (int)strcspn(item, ",}"));
    }
    return ok;
}

bool problem_line(const char *line, bool (*visit)(void *user, const problem_spec *problem),
                  void *user, char *error, size_t size)
{
    struct suite suite = {visit, user, error, size};
    error[0] = '\0';
    return expand(&suite, line);
}

bool problem_suite(const char *path, bool (*visit)(void *user, const problem_spec *problem),
                   void *user, char *error, size_t size)
{
    char line[PROBLEM_MAX_LINE], reason[PROBLEM_MAX_LINE] = "";
    struct suite suite = {visit, user, reason, sizeof reason};
    FILE *file = fopen(path, "r");
    if (file == NULL) {
        snprintf(error, size, "%s: %s", path, strerror(errno));
        return false;
    }
    bool ok = true;
    int number = 0;
    while (ok && fgets(line, sizeof line, file) != NULL) {
        number++;
        if (strchr(line, '\n') == NULL && !feof(file)) {
            snprintf(reason, sizeof reason, "the line is too long");
            ok = false;
        }
        line[strcspn(line, "#\r\n")] = '\0';
        if (ok && line[strspn(line, " \t")] != '\0') {
            ok = expand(&suite, line);
        }
    }
    if (ferror(file)) {
        snprintf(reason, sizeof reason, "%s", strerror(errno));
        ok = false;
    }
    fclose(file);
    error[0] = '\0'; /* remains if visit asks to stop */
    if (!ok && reason[0] != '\0') {
        snprintf(error, size, "%s:%d: %s", path, number, reason);
    }
    return ok;
}
