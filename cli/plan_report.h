/*
 * plan_report.h: the facts that `attn plan` tells about a problem, in words or as a JSON object.
 */
#ifndef CLI_PLAN_REPORT_H
#define CLI_PLAN_REPORT_H

#include "plan_io_report.h"

#include <attn/attn.h>
#include <stdbool.h>

typedef struct plan_story {
    char line[4096]; /* the problem */
    attn_plan plan;
    const char *pass; /* "forward", "backward" */
    bool gpu;
    bool counted; /* else lengths in the GPU's memory decide on tiles, operations and bytes */
    /* of the matrix that standard attention stores, all heads' */
    double scores_bytes;
    double heads;
    const char *source; /* of the two ceilings; NULL: they are unknown */
    double peak, read;  /* GFLOP/s and GB/s */
} plan_story;

void plan_tell_text(const plan_story *story);
/* io: the IO analysis, or NULL. */
void plan_tell_json(const plan_story *story, const plan_io_story *io);

#endif
