/*
 * region.c: see region.h.
 */
#include "region.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Where plain memory begins, as that of a GPU's allocator does. A copy on a GPU keeps its place
 * within as many bytes (gpu_copy.c), and a row that begins in the middle of a line of 128 bytes
 * costs a request more. */
enum { PLAIN_ALIGNMENT = 256 };

/* Inaccessible pages on both sides; the bytes lie against the one that the placement names. */
static bool map_pages(guarded_region *region, enum placement placement)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), room = (region->bytes + page - 1) / page * page;
    region->map_bytes = room + 2 * page;
    void *map = mmap(NULL, region->map_bytes, PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED) {
        return false;
    }
    region->map = map;
    region->first =
        (unsigned char *)map + page + (placement == PLACE_GUARD_AFTER ? room - region->bytes : 0);
    return placement == PLACE_NOWHERE || room == 0 ||
           mprotect((unsigned char *)map + page, room, PROT_READ | PROT_WRITE) == 0;
}

/* Addresses of 64 bits where nothing lies, each once, beyond those that systems give: they trap,
 * and nothing is reserved. Reserving takes qemu seconds, which notes every page. */
static unsigned char *take_nowhere(size_t bytes)
{
    static _Atomic(uint64_t) next = UINT64_C(1) << 54;
    return (unsigned char *)(uintptr_t)atomic_fetch_add(&next, ((uint64_t)bytes | 0xFFFF) + 1);
}

bool region_create(guarded_region *region, size_t bytes, enum placement placement)
{
    memset(region, 0, sizeof *region);
    region->bytes = bytes;
    if (placement == PLACE_PLAIN) {
        void *memory;
        if (posix_memalign(&memory, PLAIN_ALIGNMENT, bytes > 0 ? bytes : 1) != 0) {
            return false;
        }
        region->first = memory;
    } else if (placement == PLACE_NOWHERE && sizeof(void *) == 8) {
        region->first = take_nowhere(bytes);
        region->nowhere = true;
    } else if (!map_pages(region, placement)) {
        region_free(region);
        return false;
    }
    if (placement != PLACE_NOWHERE) {
        memset(region->first, 0xFF, bytes);
    }
    return true;
}

void region_free(guarded_region *region)
{
    if (region->map != NULL) {
        munmap(region->map, region->map_bytes);
    } else if (!region->nowhere) {
        free(region->first);
    }
    memset(region, 0, sizeof *region);
}

void region_seal(const guarded_region *region)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (region->map != NULL && region->map_bytes > 2 * page) {
        (void)mprotect((unsigned char *)region->map + page, region->map_bytes - 2 * page,
                       PROT_READ);
    }
}

uint64_t region_hash(const guarded_region *region)
{
    const unsigned char *p = region->first;
    size_t n = region->bytes;
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
