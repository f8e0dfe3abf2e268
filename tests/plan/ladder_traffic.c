/*
 * ladder_traffic.c: ladder_traffic QUERIES KEYS D CAUSAL KIB: the tiled step of examples/ladder,
 * once. Prints the bytes that support/traffic.h predicts for a near memory of so many KiB that
 * fetches a line before it is stored to. Under valgrind's cachegrind the lines of the same run are
 * counted (check-cachegrind).
 */
#include "ladder.h"
#include "traffic.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    if (argc != 6) {
        fprintf(stderr, "usage: ladder_traffic QUERIES KEYS D CAUSAL KIB\n");
        return 2;
    }
    const int64_t nq = atoll(argv[1]), nk = atoll(argv[2]), d = atoll(argv[3]),
                  causal = atoll(argv[4]);
    const traffic_shape shape = {.nq = nq,
                                 .nk = nk,
                                 .d = d,
                                 .dv = d,
                                 .group = 1,
                                 .element = 4,
                                 .real = 4,
                                 .low = -TRAFFIC_FAR,
                                 .high = causal ? nk - nq + 1 : TRAFFIC_FAR};
    const traffic_tiles tiles = {32, 1, 64}; /* the tiles of tiles.c, which goes row by row */
    const traffic_bytes bytes = traffic_tiled(&shape, &tiles, atof(argv[5]) * 1024);
    float *memory = calloc((size_t)(2 * (nq + nk) * d), sizeof *memory);
    ladder_traffic moved = {0, 0};
    if (memory == NULL) {
        return 3;
    }
    const ladder_head head = {.nq = nq,
                              .nk = nk,
                              .d = d,
                              .dv = d,
                              .q = memory,
                              .k = memory + nq * d,
                              .v = memory + (nq + nk) * d,
                              .o = memory + (nq + 2 * nk) * d,
                              .scale = 1 / sqrtf((float)d),
                              .causal = causal != 0,
                              .traffic = &moved};
    ladder_tiles(&head);
    printf("%.0f\n", bytes.read + (double)(nq * d * 4)); /* and O, before it is stored to */
    free(memory);
    return 0;
}
