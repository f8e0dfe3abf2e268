/*
 * text.c: the text that a call returns, and memory for its inputs.
 */
#include "page.h"

#include <stdlib.h>

static FILE *stream;
static char *text;
static size_t length;

FILE *page_open(void)
{
    free(text);
    text = NULL;
    stream = open_memstream(&text, &length);
    return stream;
}

const char *page_text(void)
{
    fclose(stream);
    return text;
}

const char *page_error(const char *sentence)
{
    FILE *to = page_open();
    fputs("{\"error\":\"", to);
    for (const char *at = sentence; *at != '\0'; at++) {
        if (*at == '"' || *at == '\\') {
            fputc('\\', to);
        }
        fputc(*at, to);
    }
    fputs("\"}", to);
    return page_text();
}

void *PAGE_EXPORT(page_room)(size_t bytes)
{
    return malloc(bytes);
}

void PAGE_EXPORT(page_free)(void *memory)
{
    free(memory);
}
