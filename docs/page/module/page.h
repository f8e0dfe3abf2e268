/*
 * page.h: functions that the page calls in WebAssembly. Each returns a text, mostly JSON, that
 * lives until the next call.
 */
#ifndef PAGE_H
#define PAGE_H

#include <stdio.h>

/* Marks a function that JavaScript sees under its own name. */
#define PAGE_EXPORT(name) __attribute__((export_name(#name))) name

/* Begins a text; page_text ends it. */
FILE *page_open(void);
const char *page_text(void);

/* {"error":"..."} */
const char *page_error(const char *sentence);

#endif
