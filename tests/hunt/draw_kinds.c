/*
 * draw_kinds.c: lines of some kinds of problems, see draw.h.
 */
#include "draw_parts.h"

#include <inttypes.h>
#include <string.h>

void draw_plain_line(dice *d, char *line, size_t size)
{
    struct line l = {.d = d, .text = line, .size = size};
    int64_t nq[MOST_SEQUENCES], nk[MOST_SEQUENCES];
    const char *type = draw_type(d);
    line[0] = '\0';
    put(&l, "dtype=%s lse=1 row_max=1", type);
    put_lengths(&l, false, nq, nk);
    put_heads(&l);
    if (dice_one_in(d, 2)) {
        put(&l, " window_left=%" PRId64, dice_roll(d, l.most_nk + 9));
    }
    put_scores(&l, false);
    put(&l, " causal=%d seed=%" PRId64, dice_one_in(d, 2), dice_roll(d, INT64_C(1) << 40));
}

/* Writes how many rows and keys are in use, at least as many keys as rows, and how many rows are
 * before the first key. */
static void put_step_lengths(struct line *l, bool keys)
{
    dice *d = l->d;
    int64_t rows[MOST_SEQUENCES], used[MOST_SEQUENCES], before[MOST_SEQUENCES];
    const bool fewer = dice_one_in(d, 4);
    for (int64_t i = 0; i < l->sequences; i++) {
        rows[i] = fewer ? dice_roll(d, l->most_nq + 1) : l->most_nq;
        used[i] = keys ? rows[i] + dice_roll(d, l->most_nk - rows[i] + 1) : l->most_nk;
        before[i] = dice_roll(d, used[i] - rows[i] + 1);
    }
    if (fewer) {
        put_list(l, "used_q", rows);
    }
    if (keys) {
        put_list(l, "used_k", used);
    }
    if (dice_one_in(d, 5)) {
        put_list(l, "leftpad_k", before);
    }
}

void draw_step_line(dice *d, char *line, size_t size)
{
    static const char *const layouts[] = {"bshd", "bhsd", "gap", "loose"};
    struct line l = {.d = d, .text = line, .size = size};
    const char *type = draw_type(d);
    const int64_t dim = 2 + 2 * dice_roll(d, 40),
                  odd = dice_one_in(d, 9) ? 1 : 1 + dice_roll(d, 70),
                  dv = dice_one_in(d, 3) ? odd : dim;
    const int64_t rows = dice_one_in(d, 2) ? 1 : 1 + dice_roll(d, 40),
                  keys = rows + draw_length(d, false), kv = 1 + dice_roll(d, 2);
    line[0] = '\0';
    l.sequences = 1 + dice_roll(d, 3), l.most_nq = rows, l.most_nk = keys;
    put(&l, "dtype=%s lse=1 b=%" PRId64 " nq=%" PRId64 " nk=%" PRId64, type, l.sequences, rows,
        keys);
    put(&l, " hkv=%" PRId64 " hq=%" PRId64, kv, kv * (1 + dice_roll(d, 4)));
    put(&l, " d=%" PRId64 " dv=%" PRId64, dim, dv);
    put(&l, " causal=%d layout=%s", !dice_one_in(d, 3), PICK(d, layouts));
    put(&l, " index=%s", dice_one_in(d, 2) ? "i32" : "i64");
    put_scores(&l, false);
    const bool paged = dice_one_in(d, 2);
    put(&l, " page=%" PRId64, paged ? 1 + dice_roll(d, 40) : 0);
    put_step_lengths(&l, paged || dice_one_in(d, 2)); /* pages end where their last one does */
    if (dice_one_in(d, 3) && strcmp(type, "f64") != 0) {
        l.head_dim = dim, l.v_dim = dv;
        put_codes(&l);
    }
    if (dice_one_in(d, 4)) {
        put(&l, " q_origin=%" PRId64, dice_roll(d, 300));
    }
    put(&l, " row_max=%d inputs=%s precise=%d", dice_one_in(d, 2),
        dice_one_in(d, 3) ? "wild" : "normal", dice_one_in(d, 6));
    put(&l, " seed=%" PRId64, dice_roll(d, INT64_C(1) << 40));
}

void draw_shared_line(dice *d, char *line, size_t size)
{
    static const int64_t pages[] = {1, 7, 16, 20, 64, 100, 256, 2048};
    static const char *const layouts[] = {"bshd", "bhsd", "gap", "strided", "loose"};
    struct line l = {.d = d, .text = line, .size = size};
    const int64_t keys = 2048 * (1 + dice_roll(d, 3)) - 30 + dice_roll(d, 400),
                  kv = 1 + dice_roll(d, 2), least = dice_one_in(d, 3) ? 0 : keys - 600;
    int64_t used[MOST_SEQUENCES];
    line[0] = '\0';
    l.sequences = 1 + dice_roll(d, MOST_SEQUENCES);
    l.most_nq = dice_one_in(d, 3) ? 1 : 1 + dice_roll(d, 12), l.most_nk = keys;
    l.head_dim = 1 + dice_roll(d, 12), l.v_dim = 1 + dice_roll(d, 12);
    put(&l, "dtype=%s b=%" PRId64 " nq=%" PRId64 " nk=%" PRId64, draw_type(d), l.sequences,
        l.most_nq, keys);
    put(&l, " hkv=%" PRId64 " hq=%" PRId64, kv, kv * (1 + dice_roll(d, 3)));
    put(&l, " d=%" PRId64 " dv=%" PRId64 " layout=%s", l.head_dim, l.v_dim, PICK(d, layouts));
    put(&l, " page=%" PRId64 " prefix=%" PRId64, PICK(d, pages), dice_roll(d, keys + 1));
    for (int64_t i = 0; i < l.sequences; i++) {
        used[i] = dice_one_in(d, 2) ? keys : least + dice_roll(d, keys - least + 1);
    }
    put_list(&l, "used_k", used);
    put(&l, " causal=%d lse=1 row_max=%d", dice_one_in(d, 4), dice_one_in(d, 2));
    if (dice_one_in(d, 3)) {
        put_scores(&l, false);
    }
    if (dice_one_in(d, 3)) {
        put_codes(&l);
    }
    put(&l, " inputs=%s", dice_one_in(d, 2) ? "wild" : "normal");
    put(&l, " precise=%d seed=%" PRId64, dice_one_in(d, 4), dice_roll(d, INT64_C(1) << 40));
}
