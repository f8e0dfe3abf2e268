/*
 * shared.c: see shared.h.
 */
#include "cpu/forward/shared.h"
#include "core/arena.h"
#include "core/kv.h"
#include "cpu/forward/nodes.h"
#include <math.h>
#include <string.h>

/* ---- what is shared -------------------------------------------------------------------------- */

/* The first keys of a sequence that all of its rows see. */
static int64_t keys_seen(const attn_problem *problem, int64_t b)
{
    const attn_sequence sequence = attn_problem_sequence(problem, b);
    return attn_mask_row(problem, &sequence, 0).hi;
}

/* The first keys, at most `most`, of the pages with which two sequences' tables begin alike. */
static int64_t keys_alike(const attn_problem *problem, int64_t a, int64_t b, int64_t most)
{
    const int64_t size = problem->k.shape[1];
    int64_t keys = 0;
    for (int64_t page = 0; keys < most; page++, keys += size) {
        if (attn_kv_entry(&problem->table, a, page) != attn_kv_entry(&problem->table, b, page)) {
            return keys;
        }
    }
    return most;
}

/* Adds the sequences behind `leader` that share as much with it as the first of them. */
static void add_members(attn_shared *shared, attn_family *family, int64_t leader)
{
    const attn_problem *problem = shared->problem;
    const int64_t size = shared->plan->table->segment, seen = keys_seen(problem, leader);
    for (int64_t b = leader + 1; b < problem->batch && seen >= size; b++) {
        if (shared->of[b] >= 0 ||
            attn_kv_entry(&problem->table, leader, 0) != attn_kv_entry(&problem->table, b, 0)) {
            continue;
        }
        const int64_t most = min64(seen, keys_seen(problem, b)),
                      segments = keys_alike(problem, leader, b, most) / size;
        if (segments > 0 && segments >= family->segments) {
            family->segments = family->count == 1 ? segments : family->segments;
            shared->order[family->first + family->count++] = b;
        }
    }
}

/* Cuts the strips of a family into tasks. Strips of one task share packed K and V. */
static void cut_strips(const attn_shared *shared, attn_family *family)
{
    const int64_t all = shared->problem->kv_heads * family->segments * family->strips,
                  share = all / shared->plan->threads / 2,
                  most = max64(min64(share, shared->plan->shared.strips), 1);
    family->parts = (family->strips + most - 1) / most;
    family->each = (family->strips + family->parts - 1) / family->parts;
    family->parts = (family->strips + family->each - 1) / family->each;
}

/* Gives the family its pieces, of fewer segments where there is no room. False: it has none. */
static bool take_room(attn_shared *shared, attn_family *family)
{
    const attn_problem *problem = shared->problem;
    const int64_t rows = family->count * shared->plan->shared.rows,
                  strip = shared->plan->table->strip;
    family->strips = (rows + strip - 1) / strip;
    family->piece = shared->used, family->task = shared->tasks;
    const int64_t each = family->strips * problem->kv_heads,
                  left = (shared->plan->shared.pieces - shared->used) / each;
    family->segments = family->count > 1 ? min64(family->segments, left) : 0;
    cut_strips(shared, family);
    shared->used += each * family->segments;
    shared->tasks += family->parts * problem->kv_heads * family->segments;
    return family->segments > 0;
}

void attn_shared_find(attn_shared *shared, const attn_cpu_plan *plan, const attn_problem *problem,
                      void *workspace)
{
    const attn_shared_room *room = &plan->shared;
    int64_t *lists = (int64_t *)(void *)((char *)workspace + room->lists), used = 0;
    *shared = (attn_shared){.plan = plan,
                            .problem = problem,
                            .family = (attn_family *)(void *)((char *)workspace + room->families),
                            .order = lists,
                            .of = lists + problem->batch,
                            .at = lists + 2 * problem->batch,
                            .pieces = (char *)workspace + room->at,
                            .taken = (char *)workspace + room->taken};
    if (room->pieces == 0) {
        return;
    }
    for (int64_t b = 0; b < problem->batch; b++) {
        shared->of[b] = -1;
    }
    for (int64_t b = 0; b < problem->batch; b++) {
        attn_family family = {.first = used, .count = 1};
        if (shared->of[b] >= 0) {
            continue;
        }
        shared->order[used] = b;
        add_members(shared, &family, b);
        if (take_room(shared, &family)) {
            for (int64_t i = 0; i < family.count; i++) {
                shared->of[shared->order[used + i]] = shared->families;
                shared->at[shared->order[used + i]] = i;
            }
            used += family.count;
            shared->family[shared->families++] = family;
        }
    }
}

/* ---- tasks ----------------------------------------------------------------------------------- */

static const attn_family *family_of(const attn_shared *shared, int64_t task)
{
    const attn_family *family = shared->family;
    while (family + 1 < shared->family + shared->families && family[1].task <= task) {
        family++;
    }
    return family;
}

/* What a task sums: a segment's keys, for some strips of a family. */
typedef struct shared_task {
    const attn_family *family;
    int64_t kv_head, segment, strip;
} shared_task;

static shared_task task_of(const attn_shared *shared, int64_t task)
{
    const attn_family *family = family_of(shared, task);
    const int64_t within = task - family->task, line = within / family->parts;
    return (shared_task){family, line / family->segments, line % family->segments,
                         within % family->parts * family->each};
}

static attn_piece *piece_at(const attn_shared *shared, int64_t number)
{
    return (attn_piece *)(void *)(shared->pieces + (uint64_t)number * shared->plan->pieces.bytes);
}

/* The piece of a family's first strip. */
static int64_t first_piece(const attn_family *family, int64_t kv_head, int64_t segment)
{
    return family->piece + (kv_head * family->segments + segment) * family->strips;
}

const int64_t *attn_shared_rows(const attn_shared *shared, int64_t task, attn_item *item,
                                attn_sequence *sequence)
{
    const shared_task at = task_of(shared, task);
    const int64_t *members = shared->order + at.family->first;
    const int64_t strip = shared->plan->table->strip;
    item->kv_head = at.kv_head;
    item->sequence = members[0];
    item->first_row = at.strip * strip;
    item->last_row = item->first_row + at.family->each * strip;
    *sequence = attn_problem_sequence(shared->problem, members[0]);
    sequence->nq = sequence->nq_used = at.family->count * shared->problem->q.shape[1];
    sequence->nk = at.family->segments * shared->plan->table->segment;
    sequence->diagonal = sequence->nk; /* every row sees all keys */
    return members;
}

int64_t attn_shared_segment(const attn_shared *shared, int64_t task)
{
    return task_of(shared, task).segment;
}

attn_piece *attn_shared_piece(const attn_shared *shared, int64_t task)
{
    const shared_task at = task_of(shared, task);
    return piece_at(shared, first_piece(at.family, at.kv_head, at.segment) + at.strip);
}

int64_t attn_shared_segments(const attn_shared *shared, int64_t b)
{
    return shared->of[b] < 0 ? 0 : shared->family[shared->of[b]].segments;
}

/* Copies `lanes` lanes of a piece. */
static void copy_lanes(const attn_forward_item *item, attn_piece *to, int to_lane, attn_piece *from,
                       int from_lane, int lanes)
{
    const int64_t size = item->table->real_size, line = item->table->strip * size;
    const size_t bytes = (size_t)lanes * sizeof(double);
    memcpy(to->node.lse + to_lane, from->node.lse + from_lane, bytes);
    memcpy(to->node.rest + to_lane, from->node.rest + from_lane, bytes);
    memcpy(to->row_max + to_lane, from->row_max + from_lane, bytes);
    for (int64_t c = 0; c < item->plan->dv_pad; c++) {
        memcpy(attn_piece_o(to) + c * line + to_lane * size,
               attn_piece_o(from) + c * line + from_lane * size, (size_t)(lanes * size));
    }
}

attn_piece *attn_shared_take(const attn_shared *shared, const attn_forward_item *item,
                             int64_t segment)
{
    const int64_t b = item->seq.index, fold = item->problem->group, strip = item->table->strip;
    const attn_family *family = &shared->family[shared->of[b]];
    attn_piece *piece =
        (attn_piece *)(void *)(shared->taken + (uint64_t)item->place * shared->plan->pieces.bytes);
    const int lanes = (int)(item->seq.nq_used * fold); /* other lanes see no key */
    const int64_t first = shared->at[b] * shared->plan->shared.rows,
                  line = first_piece(family, item->kv_head, segment);
    memset(piece, 0, (size_t)shared->plan->pieces.bytes);
    piece->seen = true, piece->node.segment = segment;
    for (int lane = 0; lane < strip; lane++) {
        piece->node.lse[lane] = piece->row_max[lane] = -INFINITY;
    }
    for (int lane = 0, run; lane < lanes; lane += run) {
        const int64_t row = first + lane, from = row % strip;
        run = (int)min64(lanes - lane, strip - from);
        copy_lanes(item, piece, lane, piece_at(shared, line + row / strip), (int)from, run);
    }
    return piece;
}
