/*
 * json.c: see json.h.
 */
#include "json.h"

bool json_is_shallow(json_text text, int most)
{
    int depth = 0;
    bool string = false;
    for (size_t i = 0; i < text.length; i++) {
        const char c = text.at[i];
        if (string) {
            string = c != '"';
            i += c == '\\'; /* skips the escaped character, which cannot close the string */
        } else if (c == '"') {
            string = true;
        } else if (c == '{' || c == '[') {
            if (++depth > most) {
                return false;
            }
        } else if (c == '}' || c == ']') {
            depth--;
        }
    }
    return true;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static void skip_blanks(json_members *m)
{
    while (m->at < m->end && is_blank(*m->at)) {
        m->at++;
    }
}

/* Skips blanks, and then c if it is next. */
static bool take(json_members *m, char c)
{
    skip_blanks(m);
    const bool there = m->at < m->end && *m->at == c;
    m->at += there;
    return there;
}

/* Returns the place behind the string that begins at `at`; NULL if it does not end. */
static const char *string_end(const char *at, const char *end)
{
    for (at++; at < end && *at != '"'; at++) {
        at += *at == '\\';
    }
    return at < end ? at + 1 : NULL;
}

/* Returns the place behind the value that begins at `at`; NULL if it does not end. */
static const char *value_end(const char *at, const char *end)
{
    int depth = 0;
    while (at < end) {
        if (*at == '"') {
            at = string_end(at, end);
            if (at == NULL || depth == 0) {
                return at;
            }
        } else if (*at == '{' || *at == '[') {
            depth++, at++;
        } else if (*at == '}' || *at == ']') {
            if (depth == 0) {
                return at;
            }
            at++;
            if (--depth == 0) {
                return at;
            }
        } else if (depth == 0 && (*at == ',' || is_blank(*at))) {
            return at;
        } else {
            at++;
        }
    }
    return NULL;
}

json_members json_members_of(json_text text)
{
    json_members m = {.at = text.at, .end = text.at + text.length};
    m.wrong = !take(&m, '{');
    return m;
}

bool json_members_next(json_members *m, json_text *name, json_text *value)
{
    if (m->wrong || take(m, '}')) {
        return false;
    }
    m->wrong = m->begun && !take(m, ',');
    m->begun = true;
    m->wrong = m->wrong || !take(m, '"');
    if (m->wrong) {
        return false;
    }
    name->at = m->at - 1;
    m->at = string_end(name->at, m->end);
    m->wrong = m->at == NULL;
    name->length = m->wrong ? 0 : (size_t)(m->at - name->at);
    m->wrong = m->wrong || !take(m, ':');
    if (m->wrong) {
        return false;
    }
    skip_blanks(m);
    value->at = m->at;
    m->at = value_end(value->at, m->end);
    m->wrong = m->at == NULL || m->at == value->at;
    value->length = m->wrong ? 0 : (size_t)(m->at - value->at);
    return !m->wrong;
}

cJSON *json_parse(json_text text)
{
    const char *end = NULL;
    cJSON *json = cJSON_ParseWithLengthOpts(text.at, text.length, &end, false);
    if (json && end != text.at + text.length) {
        cJSON_Delete(json);
        json = NULL;
    }
    return json;
}

bool json_is_strings(json_text text)
{
    json_members members = json_members_of(text);
    json_text name, value;
    bool strings = true;
    while (strings && json_members_next(&members, &name, &value)) {
        cJSON *json[2] = {json_parse(name), *value.at == '"' ? json_parse(value) : NULL};
        strings = cJSON_IsString(json[0]) && cJSON_IsString(json[1]);
        cJSON_Delete(json[0]);
        cJSON_Delete(json[1]);
    }
    return strings && !members.wrong && members.at == members.end;
}

bool json_get_whole(const cJSON *item, int64_t *value)
{
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0 && item->valuedouble < 0x1p53)) {
        return false;
    }
    *value = (int64_t)item->valuedouble;
    return (double)*value == item->valuedouble;
}
