/*
 * plan_io_report.h: the IO analysis of `attn plan`, in words and tables or as members of a JSON
 * object.
 */
#ifndef CLI_PLAN_IO_REPORT_H
#define CLI_PLAN_IO_REPORT_H

#include "plan_io.h"

#include <cjson/cJSON.h>

typedef struct plan_io_story {
    plan_io io;
    const char *near_name; /* "L2 cache of a core" */
    /* The last cache before the memory. `units` multiprocessors or threads walk over equal keys at
     * once, so that one fetch of a key serves all. Traffic is that of all units with the memory. */
    const char *last_name;
    double last;
    int units;
    traffic_bytes last_tiled, last_standard;
    const char *source; /* of the two ceilings; NULL: they are unknown */
    double flops;       /* of the forward pass */
    double peak, read;  /* GFLOP/s, GB/s */
    bool timed;         /* the candidates, all of which the library can run */
    double seconds[PLAN_SIZES];
} plan_io_story;

/* The roofline for some traffic with the memory. Peak and read must be known. */
traffic_roof plan_io_roof(const plan_io_story *story, const traffic_bytes *bytes);

/* The fastest of the candidates that were timed. */
int plan_io_fastest(const plan_io_story *story);

void plan_io_tell_text(const plan_io_story *story);
void plan_io_add_json(const plan_io_story *story, cJSON *object);

#endif
