/*
 * json.h: the members of a JSON object one after the other, so that a hostile text of many small
 * values costs no tree of all of them. Values are found; cJSON reads them.
 */
#ifndef SUPPORT_JSON_H
#define SUPPORT_JSON_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct json_text {
    const char *at;
    size_t length;
} json_text;

typedef struct json_members {
    const char *at, *end; /* what is left */
    bool begun, wrong;    /* wrong: not an object */
} json_members;

/* The members of the object at the beginning of a text. */
json_members json_members_of(json_text text);

/* The next member: its name with quotes, and its value. False behind the last one, `at` then behind
 * the object, or if the text is not one. */
bool json_members_next(json_members *members, json_text *name, json_text *value);

/* True if depth is at most `most` everywhere: a parser spends stack on it. */
bool json_is_shallow(json_text text, int most);

/* A text as one value, which it has to be from end to end; NULL if it is not. */
cJSON *json_parse(json_text text);

/* True if a text is an object of strings. */
bool json_is_strings(json_text text);

/* A non-negative whole number below 2^53, where doubles are exact. */
bool json_get_whole(const cJSON *item, int64_t *value);

#endif
