/*
 * text.c: see text.h.
 */
#include "text.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "fail.h"

enum { VALID_SHARE = 10 }; /* every tenth byte, from the end of each file */

uint64_t hash_bytes(uint64_t h, const void *data, uint64_t bytes)
{
    for (const uint8_t *p = data, *end = p + bytes; p < end; p++) {
        h = (h ^ *p) * 0x100000001B3u;
    }
    return h;
}

static void append(uint8_t **to, int64_t *bytes, const uint8_t *from, int64_t count)
{
    *to = realloc(*to, (size_t)(*bytes + count) + 1);
    if (*to == NULL) {
        fail(EXIT_INTERNAL, "no memory for the text");
    }
    memcpy(*to + *bytes, from, (size_t)count);
    *bytes += count;
}

static void add_file(text *t, const char *path)
{
    FILE *file = fopen(path, "rb");
    uint8_t buffer[65536], *all = NULL;
    int64_t bytes = 0;
    if (file == NULL) {
        fail(EXIT_INPUT, "cannot read \"%s\": %s", path, strerror(errno));
    }
    for (size_t got; (got = fread(buffer, 1, sizeof buffer, file)) > 0;) {
        append(&all, &bytes, buffer, (int64_t)got);
    }
    if (ferror(file)) {
        fail(EXIT_INPUT, "cannot read \"%s\": %s", path, strerror(errno));
    }
    fclose(file);
    int64_t valid = bytes / VALID_SHARE;
    append(&t->train, &t->train_bytes, all == NULL ? buffer : all, bytes - valid);
    append(&t->valid, &t->valid_bytes, all == NULL ? buffer : all + bytes - valid, valid);
    t->files++;
    free(all);
}

static void add_directory(text *t, const char *path)
{
    struct dirent **entries;
    int count = scandir(path, &entries, NULL, alphasort);
    if (count < 0) {
        fail(EXIT_INPUT, "cannot read \"%s\": %s", path, strerror(errno));
    }
    for (int i = 0; i < count; i++) {
        char name[4096];
        struct stat info;
        snprintf(name, sizeof name, "%s/%s", path, entries[i]->d_name);
        if (lstat(name, &info) == 0 && S_ISREG(info.st_mode)) {
            add_file(t, name);
        }
        free(entries[i]);
    }
    free(entries);
}

static double entropy_of(const text *t)
{
    double count[256] = {0}, sum = 0, all = (double)(t->train_bytes + t->valid_bytes);
    for (int64_t i = 0; i < t->train_bytes; i++) {
        count[t->train[i]]++;
    }
    for (int64_t i = 0; i < t->valid_bytes; i++) {
        count[t->valid[i]]++;
    }
    for (int b = 0; b < 256; b++) {
        sum -= count[b] > 0 ? count[b] / all * log(count[b] / all) : 0;
    }
    return sum;
}

text text_read(char *const *paths, int count, int64_t least)
{
    text t = {0};
    for (int i = 0; i < count; i++) {
        struct stat info;
        bool directory = stat(paths[i], &info) == 0 && S_ISDIR(info.st_mode);
        (directory ? add_directory : add_file)(&t, paths[i]);
    }
    if (t.valid_bytes < least || t.train_bytes < least) {
        fail(EXIT_INPUT,
             "the text is too short: %lld bytes to train on and %lld to validate, where the "
             "context wants %lld "
             "of each",
             (long long)t.train_bytes, (long long)t.valid_bytes, (long long)least);
    }
    t.hash = hash_bytes(hash_bytes(HASH_START, t.train, (uint64_t)t.train_bytes), t.valid,
                        (uint64_t)t.valid_bytes);
    t.entropy = entropy_of(&t);
    return t;
}

void text_free(text *t)
{
    free(t->train);
    free(t->valid);
}
