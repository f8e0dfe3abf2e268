/*
 * near.c: see near.h.
 */
#include "near.h"

#include <stdbool.h>
#include <string.h>

enum { MAX_LETTERS = 31 };

static int least(int a, int b)
{
    return a < b ? a : b;
}

/* Rows of the table of edits from a's first i letters to b's first j. */
static int edits_between(const char *a, size_t a_length, const char *b, size_t b_length)
{
    int rows[3][MAX_LETTERS + 1] = {{0}};
    for (size_t j = 0; j <= b_length; j++) {
        rows[0][j] = (int)j;
    }
    for (size_t i = 1; i <= a_length; i++) {
        int *now = rows[i % 3], *last = rows[(i - 1) % 3], *before = rows[(i + 1) % 3];
        now[0] = (int)i;
        for (size_t j = 1; j <= b_length; j++) {
            int other = a[i - 1] != b[j - 1];
            now[j] = least(least(last[j], now[j - 1]) + 1, last[j - 1] + other);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
                now[j] = least(now[j], before[j - 2] + 1);
            }
        }
    }
    return rows[a_length % 3][b_length];
}

near_search near_start(const char *given, size_t length)
{
    return (near_search){.given = given, .length = length};
}

void near_try(near_search *s, const char *known)
{
    size_t length = strlen(known), shorter = length < s->length ? length : s->length;
    int most = shorter < 3 ? 0 : shorter < 6 ? 1 : 2;
    if (s->length > MAX_LETTERS || length > MAX_LETTERS) {
        return;
    }
    const bool begins =
        s->length >= 2 && s->length < length && memcmp(s->given, known, s->length) == 0;
    int edits = begins ? 1 : edits_between(s->given, s->length, known, length);
    if ((begins || edits <= most) && (s->found == NULL || edits < s->edits)) {
        s->found = known;
        s->edits = edits;
    }
}
