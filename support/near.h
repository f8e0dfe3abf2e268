/*
 * near.h: near misses: of a list of known words the one that a misspelt word is closest to. An edit
 * is a letter too many, too few or another one, or two neighbours exchanged.
 */
#ifndef SUPPORT_NEAR_H
#define SUPPORT_NEAR_H

#include <stddef.h>

typedef struct near_search {
    const char *given; /* as typed */
    size_t length;     /* of it: "casual" of "casual=1" */
    const char *found; /* NULL: no word tried so far is near */
    int edits;         /* 0: it is the word itself */
} near_search;

near_search near_start(const char *given, size_t length);

/* Two letters or more are near a word that they begin, as one edit. Else words of less than three
 * letters are near nothing but themselves, those of up to five take one edit, longer ones two. */
void near_try(near_search *search, const char *known);

#endif
