/*
 * kv_cache.h: the keys and values of all layers for several sequences, so that a step computes new
 * positions only: pages of libattn's attn_cache, in the model's numbers or in int8. Sequences that
 * begin alike share those pages.
 */
#ifndef TRAIN_GPT_KV_CACHE_H
#define TRAIN_GPT_KV_CACHE_H

#include "attention.h"

typedef struct kv_cache {
    int count;         /* of sequences */
    int64_t *sequence; /* [count]: their numbers in `pages` */
    attn_cache *pages;
    attn_cache_config pool;
    void *pages_memory;
    /* of the step under way, [count]: its rows, the position of the first one, and the keys with
     * them; the table of pages */
    int64_t *rows, *first, *length;
    int32_t *table;
    attn_forward_args args;
    attn_context *context; /* on the threads of this program */
    void *scratch;
    uint64_t scratch_bytes;
} kv_cache;

/* A cache for most.batch sequences of at most most.length keys, of which the first `shared` are
 * common. type: REAL_DTYPE or ATTN_I8. Ends the program without memory. */
kv_cache *kv_cache_new(attn_dtype type, int layers, attention_shape most, int shared);
void kv_cache_delete(kv_cache *cache);

/* Bytes of the pages in use. */
uint64_t kv_cache_bytes(const kv_cache *cache);

/* From one sequence, which a new cache has, to `count` that begin with its keys. */
void kv_cache_fork(kv_cache *cache, int count);

/* Begins a step: makes room for rows[n] more keys of sequence n and sets cache->first. */
void kv_cache_step(kv_cache *cache, const int *rows);

/* One layer of the step, after kv_cache_step: appends K and V of qkv to the layer's keys and
 * attends to all of them. shape.batch = cache->count; of shape.length rows the first rows[n] of
 * sequence n count, and the others have o = 0. */
void kv_cache_attend(kv_cache *cache, int layer, attention_shape shape, const real *qkv, real *o);

#endif
