/*
 * json.h: the members of a JSON object one after the other: no tree, so a hostile text of many
 * small values costs little memory. This finds values, and cJSON reads them.
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
    const char *at, *end; /* the rest of the text */
    bool begun, wrong;    /* the text is no object */
} json_members;

/* Begins with the object at the beginning of a text. */
json_members json_members_of(json_text text);

/* Gives the next member: its name with quotes, and its value. False behind the last one, with `at`
 * behind the object, and where the text is no object. */
bool json_members_next(json_members *members, json_text *name, json_text *value);

/* True if depth is nowhere more than `most`: a parser spends stack on depth. */
bool json_is_shallow(json_text text, int most);

/* Parses a text that is one value from end to end; else NULL. */
cJSON *json_parse(json_text text);

/* True if a text is an object of strings. */
bool json_is_strings(json_text text);

/* Reads a non-negative whole number below 2^53, where doubles are exact. */
bool json_get_whole(const cJSON *item, int64_t *value);

#endif
