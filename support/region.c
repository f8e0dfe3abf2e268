/*
 * region.c: see region.h.
 */
#include "region.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Inaccessible pages on both sides; the bytes lie against the one that the placement names. */
static bool map_pages(region *r, enum placement placement)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), room = (r->bytes + page - 1) / page * page;
    r->map_bytes = room + 2 * page;
    void *map =
        mmap(NULL, r->map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED) {
        return false;
    }
    r->map = map;
    r->first = (unsigned char *)map + page + (placement == PLACE_GUARD_AFTER ? room - r->bytes : 0);
    return placement == PLACE_NOWHERE || room == 0 ||
           mprotect((unsigned char *)map + page, room, PROT_READ | PROT_WRITE) == 0;
}

bool region_create(region *r, size_t bytes, enum placement placement)
{
    memset(r, 0, sizeof *r);
    r->bytes = bytes;
    if (placement == PLACE_PLAIN) {
        void *memory;
        if (posix_memalign(&memory, 64, bytes > 0 ? bytes : 1) != 0) {
            return false;
        }
        r->first = memory;
    } else if (!map_pages(r, placement)) {
        region_free(r);
        return false;
    }
    if (placement != PLACE_NOWHERE) {
        memset(r->first, 0xFF, bytes);
    }
    return true;
}

void region_free(region *r)
{
    if (r->map != NULL) {
        munmap(r->map, r->map_bytes);
    } else {
        free(r->first);
    }
    memset(r, 0, sizeof *r);
}

uint64_t region_hash(const region *r)
{
    const unsigned char *p = r->first;
    size_t n = r->bytes;
    uint64_t hash = n, word;
    for (; n >= sizeof word; p += sizeof word, n -= sizeof word) {
        memcpy(&word, p, sizeof word);
        hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
        hash ^= hash >> 29;
    }
    for (; n > 0; p++, n--) {
        hash = (hash ^ *p) * 0x100000001B3u;
    }
    return hash;
}
