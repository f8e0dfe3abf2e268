/*
 * kv_cache.c: see kv_cache.h. A page is [layer][head][row][dim]: to attn_cache, layers are heads,
 * so one table of pages serves all of them, and a page that is copied takes all layers along.
 */
#include "kv_cache.h"

#include <stdlib.h>

#include "fail.h"
#include "threads.h"

enum { PAGE = 16 }; /* keys of a page */

/* ---- Memory ---------------------------------------------------------------------------------- */

static attn_tensor pool_of(attn_dtype type, int64_t pages, int64_t heads, int64_t dim)
{
    size_t count = (size_t)(pages * heads * PAGE * dim);
    return attn_tensor_bhsd(allocate(count, attn_dtype_size((int32_t)type)), type, pages, heads,
                            PAGE, dim);
}

static void open_pages(kv_cache *cache)
{
    uint64_t bytes;
    attention_check(attn_cache_bytes(&cache->pool, &bytes), "attn_cache_bytes");
    cache->pages_memory = allocate(1, bytes);
    attention_check(attn_cache_open(&cache->pool, cache->pages_memory, bytes, &cache->pages),
                    "attn_cache_open");
}

kv_cache *kv_cache_new(attn_dtype type, int layers, attention_shape most, int shared)
{
    kv_cache *cache = allocate(1, sizeof *cache);
    size_t count = (size_t)most.batch;
    int64_t columns = (most.length + PAGE - 1) / PAGE, whole = shared / PAGE,
            pages = whole + 1 + most.batch * (columns - whole),
            heads = (int64_t)layers * most.heads;
    *cache = (kv_cache){.count = 1,
                        .sequence = allocate(count, sizeof *cache->sequence),
                        .rows = allocate(count, sizeof *cache->rows),
                        .first = allocate(count, sizeof *cache->first),
                        .length = allocate(count, sizeof *cache->length),
                        .table = allocate(count * (size_t)columns, sizeof *cache->table),
                        .context = threads_context()};
    cache->pool = (attn_cache_config){.struct_size = sizeof cache->pool,
                                      .k = pool_of(type, pages, heads, most.dim),
                                      .v = pool_of(type, pages, heads, most.dim),
                                      .sequences = most.batch + 1,
                                      .length = most.length};
    if (type == ATTN_I8) { /* a scale for each key and head */
        cache->pool.k_scale = pool_of(ATTN_F16, pages, heads, 1);
        cache->pool.v_scale = pool_of(ATTN_F16, pages, heads, 1);
    }
    open_pages(cache);
    attention_check(attn_cache_alloc(cache->pages, &cache->sequence[0]), "attn_cache_alloc");
    return cache;
}

void kv_cache_delete(kv_cache *cache)
{
    attn_cache_close(cache->pages);
    attn_context_destroy(cache->context);
    void *parts[] = {cache->pool.k.data,
                     cache->pool.v.data,
                     cache->pool.k_scale.data,
                     cache->pool.v_scale.data,
                     cache->pages_memory,
                     cache->sequence,
                     cache->rows,
                     cache->first,
                     cache->length,
                     cache->table,
                     cache->scratch,
                     cache};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        free(parts[i]);
    }
}

static uint64_t page_bytes(const attn_tensor *pool)
{
    return (uint64_t)pool->stride[0] * attn_dtype_size(pool->dtype);
}

uint64_t kv_cache_bytes(const kv_cache *cache)
{
    const attn_cache_config *pool = &cache->pool;
    int64_t unused;
    attention_check(attn_cache_free_pages(cache->pages, &unused), "attn_cache_free_pages");
    return (uint64_t)(pool->k.shape[0] - unused) *
           (page_bytes(&pool->k) + page_bytes(&pool->v) + page_bytes(&pool->k_scale) +
            page_bytes(&pool->v_scale));
}

/* ---- Sequences ------------------------------------------------------------------------------- */

void kv_cache_fork(kv_cache *cache, int count)
{
    int64_t common = cache->sequence[0];
    for (int n = 0; n < count; n++) {
        attention_check(
            attn_cache_fork(cache->pages, common, cache->length[0], &cache->sequence[n]),
            "attn_cache_fork");
        cache->length[n] = cache->length[0];
    }
    attention_check(attn_cache_free(cache->pages, common), "attn_cache_free");
    cache->count = count;
}

void kv_cache_step(kv_cache *cache, const int *rows)
{
    for (int n = 0; n < cache->count; n++) {
        cache->rows[n] = rows[n];
        cache->first[n] = cache->length[n];
        attention_check(attn_cache_extend(cache->pages, cache->sequence[n], rows[n]),
                        "attn_cache_extend");
    }
    cache->args = (attn_forward_args){.struct_size = sizeof cache->args, .flags = ATTN_CAUSAL};
    attention_check(attn_cache_view(cache->pages, cache->sequence, cache->count, cache->table,
                                    cache->length, &cache->args),
                    "attn_cache_view");
    cache->args.seqused_q = attn_tensor_bshd(cache->rows, ATTN_I64, cache->count, 1, 1, 1);
}

/* ---- Attention ------------------------------------------------------------------------------- */

/* The heads of one layer. */
static attn_tensor layer_of(attn_tensor pool, int layer, int heads)
{
    int64_t at = (int64_t)layer * heads * pool.stride[2] * (int64_t)attn_dtype_size(pool.dtype);
    pool.data = pool.data == NULL ? NULL : (char *)pool.data + at;
    pool.shape[2] = heads;
    return pool;
}

void kv_cache_attend(kv_cache *cache, int layer, attention_shape shape, const real *qkv, real *o)
{
    attn_forward_args args = cache->args;
    args.q = attention_part(shape, qkv, 0);
    args.k_new = attention_part(shape, qkv, 1);
    args.v_new = attention_part(shape, qkv, 2);
    args.o = attention_rows(shape, o, shape.dim);
    args.k = layer_of(args.k, layer, shape.heads);
    args.v = layer_of(args.v, layer, shape.heads);
    args.k_scale = layer_of(args.k_scale, layer, shape.heads);
    args.v_scale = layer_of(args.v_scale, layer, shape.heads);
    uint64_t bytes;
    attention_check(attn_forward_workspace(cache->context, &args, &bytes),
                    "attn_forward_workspace");
    reserve(&cache->scratch, &cache->scratch_bytes, bytes);
    args.workspace = cache->scratch, args.workspace_bytes = cache->scratch_bytes;
    attention_check(attn_forward(cache->context, &args), "attn_forward");
}
