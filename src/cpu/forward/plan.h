/*
 * plan.h: the plan of the forward pass on the CPU: kernels, items, places in the workspace.
 */
#ifndef ATTN_CPU_FORWARD_PLAN_H
#define ATTN_CPU_FORWARD_PLAN_H

#include "core/count.h"
#include "core/schedule.h"
#include "cpu/machine/features.h"
#include "cpu/cells.h"
#include "cpu/scores.h"
#include "cpu/machine/select.h"

enum { ATTN_MAX_STRIPS = 64 }; /* of an item */

/* The machine, as plans see it. */
typedef struct attn_machine {
    const attn_isa *isa;
    attn_caches caches;
    int32_t threads;
    uint32_t features; /* some tables of a set need more of them than the set */
} attn_machine;

/* Offsets in bytes into one thread's scratch; cpu/forward/plan.c draws the map. */
typedef struct attn_scratch_map {
    uint64_t k, v, s, p, bias, seen, specials, lanes, strips; /* regions; p = s if in place */
    /* inside the region `strips`: QT at 0, then OT, then m, l */
    uint64_t strip_bytes, strip_ot, strip_state;
    int64_t strip_count;     /* that there is room for */
    uint64_t nodes;          /* region of attn_node */
    uint64_t sums, ot_bytes; /* region of further OTs, and the bytes of one */
    uint64_t total;
} attn_scratch_map;

/* A sum that waits for its neighbour (nodes.h), without its O. */
typedef struct attn_node {
    int64_t segment; /* the last of its segments that the strip sees */
    double lse[ATTN_MAX_STRIP], rest[ATTN_MAX_STRIP]; /* attn_part */
} attn_node;

/* The sum over a piece's keys (nodes.h). O [dv_pad][strip] lies behind it, at the next multiple of
 * 64 bytes. */
typedef struct attn_piece {
    bool seen; /* false: no row sees a key of the piece */
    attn_node node;
    double row_max[ATTN_MAX_STRIP];
} attn_piece;

/* Pieces of an item's keys for several threads. The number of segments in a piece is a power of
 * two, so the sum of a piece is a node of the item's tree. One piece: the item is whole. */
typedef struct attn_pieces {
    int64_t count;    /* pieces of an item */
    int64_t segments; /* segments of a piece */
    uint64_t offset;  /* of all pieces in the workspace: [items / heads][count][heads] */
    uint64_t bytes;   /* of one piece */
} attn_pieces;

/* Sequences that share the first segments. Their rows, one sequence behind the other, fill strips.
 * Pieces of a family: [kv_head][segment][strip]. Tasks: [kv_head][segment][some strips]. */
typedef struct attn_family {
    int64_t first, count;     /* its sequences: so many from order[first] on (attn_shared) */
    int64_t segments, strips; /* shared segments of keys; strips that its rows of a head fill */
    int64_t piece, task;      /* numbers of its first piece and of its first task */
    int64_t parts, each;      /* tasks of a KV head's segment; strips of such a task */
} attn_family;

/* Room for keys that sequences share (shared.h): offsets into the workspace. */
typedef struct attn_shared_room {
    int64_t rows;             /* rows of a sequence in a KV head */
    int64_t pieces;           /* pieces that there is memory for; 0: nothing is shared */
    int64_t strips;           /* the most strips of a task */
    uint64_t lists, families; /* int64_t [3][sequences], attn_family [sequences / 2] */
    uint64_t at, taken;       /* sums of shared keys: [pieces]; an item's lanes: [threads] */
} attn_shared_room;

enum { ATTN_BRIEF_KEYS = 16 }; /* most of a brief call */

typedef struct attn_cpu_plan {
    const attn_ukernel *table;
    int32_t threads;
    int64_t strips;     /* per item */
    int64_t heads;      /* KV heads that a task takes in turn, a block of keys at a time */
    int64_t dv_pad;     /* d_v, rounded up to the table's granule */
    int64_t soon_runs;  /* runs of which rows are fetched ahead in turn (attn_soon) */
    int64_t soon_bytes; /* how far ahead rows are fetched that come in their order */
    bool far_rows;      /* Q and O are larger than the second-level cache */
    int node_depth;     /* nodes of a strip; 0 if no sequence has a second segment */
    attn_score_plan scores;
    attn_schedule schedule;
    bool by_rows;  /* sums of O are rows (pv_rows), unless a strip is done in another way */
    bool brief;    /* rows of all heads are a few strips (brief.h) */
    bool side;     /* brief, and the keys of all heads fill the lanes as rows do (side_qk) */
    int64_t grain; /* whole items that a task takes one after the other */
    attn_pieces pieces;
    attn_shared_room shared;
    attn_cells cells;      /* of the mask tensor */
    uint64_t rotated;      /* where Q is in the workspace, if it is rotated */
    uint64_t cells_offset; /* where they are in the workspace */
    uint64_t table_bytes;  /* schedule.first_item and cells, at the start of the workspace */
    attn_scratch_map scratch;
    uint64_t workspace_bytes;
} attn_cpu_plan;

/* The table for a problem's type and flags on a machine with these features. */
const attn_ukernel *attn_cpu_table(const attn_isa *isa, uint32_t features,
                                   const attn_problem *problem);

/* Pure. Errors: overflow. */
attn_status attn_cpu_plan_forward(attn_cpu_plan *plan, const attn_problem *problem,
                                  const attn_machine *machine);

/* Tasks of the loop over items or their pieces. */
static inline int64_t attn_cpu_tasks(const attn_cpu_plan *plan)
{
    const int64_t items = plan->schedule.items / plan->heads;
    return plan->pieces.count > 1 ? items * plan->pieces.count
                                  : items / plan->grain + (items % plan->grain != 0);
}

/* Tiles of all strips. */
attn_tile_count attn_cpu_count_tiles(const attn_cpu_plan *plan, const attn_problem *problem);

/* Sets tiles, operations and bytes of *out. */
void attn_cpu_forward_costs(const attn_cpu_plan *plan, const attn_problem *problem, attn_plan *out);

#endif
