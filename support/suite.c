/*
 * suite.c: files of problem lines, with alternatives in braces.
 */
#include "words.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct suite {
    bool (*visit)(void *user, const problem *p);
    void *user;
    char *error;
    size_t size;
};

/* Takes the first {a,b,..} of the line, each of its alternatives in turn, and goes on with the rest of the line. */
static bool expand(const struct suite *s, const char *line)
{
    const char *open = strchr(line, '{'), *close = open == NULL ? NULL : strchr(open, '}');
    if (open == NULL) {
        problem p;
        if (!problem_parse(line, &p, s->error, s->size)) {
            return false;
        }
        s->error[0] = '\0';
        return s->visit(s->user, &p);
    }
    if (close == NULL) {
        snprintf(s->error, s->size, "a { without a }");
        return false;
    }
    char *one = malloc(strlen(line) + 1);
    bool ok = one != NULL;
    for (const char *item = open + 1; ok && item <= close; item += strcspn(item, ",}") + 1) {
        sprintf(one, "%.*s%.*s%s", (int)(open - line), line, (int)strcspn(item, ",}"), item, close + 1);
        ok = expand(s, one);
    }
    free(one);
    return ok;
}

bool problem_suite(const char *path, bool (*visit)(void *user, const problem *p), void *user, char *error, size_t size)
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
    error[0] = '\0'; /* stays so if visit asked to stop */
    if (!ok && reason[0] != '\0') {
        snprintf(error, size, "%s:%d: %s", path, number, reason);
    }
    return ok;
}
