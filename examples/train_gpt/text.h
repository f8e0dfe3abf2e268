/*
 * text.h: the text to learn: bytes of files, with the last tenth of each file kept for validation.
 */
#ifndef TRAIN_GPT_TEXT_H
#define TRAIN_GPT_TEXT_H

#include <stdint.h>

typedef struct text {
    uint8_t *train, *valid;
    int64_t train_bytes, valid_bytes;
    int files;
    uint64_t hash;  /* of both parts */
    double entropy; /* nats a byte if bytes came independently: -sum p ln p over all bytes */
} text;

/* Reads the files, and the regular files (no links) of directories in the order of their names.
 * Ends the program with a sentence if one cannot be read, or if either part is shorter than `least`
 * bytes. */
text text_read(char *const *paths, int count, int64_t least);
void text_free(text *t);

/* FNV-1a, continued from h; start with HASH_START. */
#define HASH_START 0xCBF29CE484222325u
uint64_t hash_bytes(uint64_t h, const void *data, uint64_t bytes);

#endif
