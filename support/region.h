/*
 * region.h: a piece of memory that ends or starts at an inaccessible page, poisoned with 0xFF.
 */
#ifndef SUPPORT_REGION_H
#define SUPPORT_REGION_H

#include "problem.h"

typedef struct guarded_region {
    void *map; /* NULL: from malloc, or nowhere */
    bool nowhere;
    size_t map_bytes;
    unsigned char *first; /* never NULL; inaccessible if bytes is 0 and there are guard pages */
    size_t bytes;
} guarded_region;

/* Places bytes of 0xFF; false without memory. Plain memory comes from malloc, so that ASan watches
 * its exact end. */
bool region_create(guarded_region *region, size_t bytes, enum placement placement);
void region_free(guarded_region *region);

/* Lets nobody write the bytes from now on. Plain memory stays as it is. */
void region_seal(const guarded_region *region);

/* A hash of the bytes. */
uint64_t region_hash(const guarded_region *region);

#endif
