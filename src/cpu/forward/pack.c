/*
 * pack.c: see pack.h.
 */
#include "cpu/forward/pack.h"
#include "cpu/keys.h"
#include "cpu/prefetch.h"

/* True for keys whose rows of `cols` columns lie side by side. */
static bool is_one_run(const attn_forward_item *item, const attn_tensor *tensor, int64_t cols,
                       attn_interval block)
{
    return attn_kv_run_end(item->problem, &item->seq, block.lo, block.hi) == block.hi &&
           tensor->stride[3] == 1 && tensor->shape[3] == cols &&
           (tensor->stride[1] == cols || tensor->shape[1] == 1);
}

/* True for rows that already are a panel and need no packing. */
static bool is_panel(const attn_forward_item *item, const attn_tensor *tensor, int64_t cols,
                     attn_interval block)
{
    return item->table->rows_are_panels &&
           tensor->dtype == (item->table->real_size == 4 ? ATTN_F32 : ATTN_F64) &&
           is_one_run(item, tensor, cols, block);
}

/* The same for K, whose keys may have to fill whole groups. */
static bool is_k_panel(const attn_forward_item *item, attn_interval block)
{
    const attn_problem *problem = item->problem;
    const int columns = item->table->k_columns, keys = item->table->k_keys;
    return is_panel(item, &problem->k, problem->d, block) ||
           (columns > 0 && problem->d % columns == 0 && item->seq.nk % keys == 0 &&
            problem->k.dtype == problem->q.dtype &&
            is_one_run(item, &problem->k, problem->d, block));
}

/* The rows of a tensor that begin at `key`, with their scales. */
static void rows_at(attn_forward_item *item, const attn_tensor *tensor, const attn_codes *codes,
                    int64_t key, int64_t columns, attn_rows *rows)
{
    attn_key_rows(item->problem, tensor, &item->seq, item->kv_head, key, rows);
    attn_key_codes(item->problem, codes, &item->seq, item->kv_head, key, columns, &rows->codes);
    rows->soon = item->by_tile ? &item->soon : NULL;
}

static void rows_of_k(attn_forward_item *item, int64_t key, attn_rows *rows)
{
    rows_at(item, &item->problem->k, &item->problem->k_codes, key, item->problem->d, rows);
}

static void rows_of_v(attn_forward_item *item, int64_t key, attn_rows *rows)
{
    rows_at(item, &item->problem->v, &item->problem->v_codes, key, item->problem->dv, rows);
}

/* Packs keys of the block that begins at key `block`, run by run, unless K is its own panel. */
static void pack_k(attn_forward_item *item, attn_interval keys, int64_t block)
{
    for (int64_t key = keys.lo, end; key < keys.hi && item->k == item->k_space; key = end) {
        attn_rows rows;
        rows_of_k(item, key, &rows);
        end = attn_kv_run_end(item->problem, &item->seq, key, keys.hi);
        item->table->pack_k(item->k_space, key - block, &rows, end - key, item->problem->d);
    }
}

static void pack_v(attn_forward_item *item, attn_interval keys, int64_t block)
{
    for (int64_t key = keys.lo, end; key < keys.hi && item->v == item->v_space; key = end) {
        attn_rows rows;
        rows_of_v(item, key, &rows);
        end = attn_kv_run_end(item->problem, &item->seq, key, keys.hi);
        item->table->pack_v(item->v_space, key - block, &rows, end - key, item->problem->dv,
                            item->plan->dv_pad);
    }
}

/* ---- rows where they are --------------------------------------------------------------------- */

void attn_list_keys(const attn_forward_item *item, attn_key_list *list, int64_t at,
                    attn_interval keys, int64_t kv_head)
{
    const attn_problem *problem = item->problem;
    const int64_t k_step = attn_axis_step(&problem->k, 1), v_step = attn_axis_step(&problem->v, 1);
    for (int64_t key = keys.lo, end; key < keys.hi; key = end) {
        const char *k = attn_kv_find(problem, &problem->k, &item->seq, kv_head, key, 0),
                   *v = attn_kv_find(problem, &problem->v, &item->seq, kv_head, key, 0);
        end = attn_kv_run_end(problem, &item->seq, key, keys.hi);
        for (int64_t i = key; i < end; i++, at++, k += k_step, v += v_step) {
            list->k[at] = k, list->v[at] = v;
        }
    }
}

/* Lists keys alone. */
static void list_block(const attn_forward_item *item, attn_key_list *list, attn_interval keys,
                       int64_t kv_head)
{
    list->keys = keys;
    attn_list_keys(item, list, 0, keys, kv_head);
}

/* Rows to fetch: those of `runs` runs in turn, which begin `run` rows apart. */
typedef struct soon_rows {
    const char *const *first;
    int64_t run, rows, runs; /* rows: of each run */
    const char *const *then; /* `more` rows behind all of them */
    int64_t more;
} soon_rows;

/* Begins to fetch rows of a tensor while `elements` elements of K or V are run. */
static void begin_soon(attn_forward_item *item, const soon_rows *rows, const attn_tensor *tensor,
                       int64_t elements)
{
    const int64_t bytes = tensor->shape[3] * attn_element_size(tensor->dtype),
                  lines = (rows->runs * rows->rows + rows->more) * ((bytes + 63) / 64);
    attn_soon *soon = &item->soon; /* set member by member, as in look_ahead of forward.c */
    soon->then = rows->more > 0 ? rows->then : NULL;
    soon->then_end = soon->then ? soon->then + rows->more : NULL;
    soon->end_of_one = rows->first + rows->rows;
    soon->end_of_all = rows->first + rows->runs * rows->run;
    soon->run = rows->run, soon->back = rows->runs * rows->run - 1, soon->bytes = bytes;
    soon->each = lines * ATTN_SOON_LINE / max64(elements, 1) + 1, soon->due = 0;
    soon->at = soon->end = NULL;
    soon->row = rows->rows > 0 ? rows->first : attn_then_soon(soon);
    attn_next_soon(soon);
}

/* n rows in the plan's runs. Up to three rows are left. Rows in pages shorter than that come in
 * their order: a page in turn with others would be done before the processor follows it. */
static soon_rows in_runs(const attn_forward_item *item, const char *const *first, int64_t n)
{
    const attn_problem *problem = item->problem;
    const bool short_pages = problem->paged && problem->k.shape[1] < n / 4;
    const int64_t runs = short_pages ? 1 : item->plan->soon_runs;
    return (soon_rows){first, n / runs, n / runs, runs, NULL, 0};
}

/* Rows a little ahead of those that are read: n rows of a block, and those of the next one. Less is
 * on its way then than is read of K or V, so that it may be fetched in its order. */
static soon_rows just_ahead(const attn_forward_item *item, const attn_tensor *tensor,
                            const char *const *now, int64_t n, const char *const *next,
                            int64_t next_n)
{
    enum { LEAST = 8 }; /* rows: as many as a member reads at a time */
    const int64_t bytes = max64(tensor->shape[3] * attn_element_size(tensor->dtype), 1),
                  ahead = min64(max64(item->plan->soon_bytes / bytes, LEAST), n);
    return (soon_rows){now + ahead, n - ahead, n - ahead, 1, next, min64(ahead, next_n)};
}

/* The number of times that members go over K or V of a block while rows are fetched: packing and
 * products, or products alone. Each pass fetches its share of the rows. Tables other than those of
 * body.h report elements twice where they read rows. */
static int64_t fetching_passes(const attn_forward_item *item, bool rows, bool packed)
{
    return rows && !item->table->rows_are_panels ? 2 : max64(item->few + (packed && !rows), 1);
}

/* Opens the lists of the block at hand and of the next one. V is fetched while K is read; in the
 * first block, whose K nobody has fetched, both behind their first tile. */
static void open_lists(attn_forward_item *item, attn_interval keys)
{
    attn_key_list *now = &item->list[!item->at_hand], *next = &item->list[item->at_hand];
    const bool codes = item->table->qk_codes && attn_is_code(item->problem->k.dtype);
    const int64_t n = keys.hi - keys.lo, tile = item->table->key_tile,
                  passes = fetching_passes(item, item->k_rows, item->k == item->k_space && !codes);
    soon_rows rows = in_runs(item, now->v, n);
    item->at_hand = !item->at_hand;
    if (now->keys.lo != keys.lo || now->keys.hi < keys.hi) {
        list_block(item, now, keys, item->kv_head);
        rows = (soon_rows){now->k + tile, now->v - now->k, max64(n - tile, 0), 2, NULL, 0};
    }
    list_block(item, next, item->next, item->next_head);
    if (item->one_row) {
        rows =
            just_ahead(item, &item->problem->k, now->k, n, next->k, next->keys.hi - next->keys.lo);
    }
    begin_soon(item, &rows, item->one_row ? &item->problem->k : &item->problem->v,
               n * item->problem->d * passes);
}

/* ---- blocks and tiles ------------------------------------------------------------------------ */

bool attn_pack_is_done(const attn_forward_item *item)
{
    const attn_interval all = {0, item->seq.nk};
    return item->seq.nk <= item->table->key_block &&
           is_panel(item, &item->problem->k, item->problem->d, all) &&
           is_panel(item, &item->problem->v, item->plan->dv_pad, all);
}

void attn_pack_open(attn_forward_item *item)
{
    item->list[0].keys = item->list[1].keys = (attn_interval){-1, -1};
}

void attn_pack_block(attn_forward_item *item, attn_interval keys, int64_t block)
{
    const attn_tensor *k = &item->problem->k, *v = &item->problem->v;
    const attn_interval all = {block, keys.hi};
    const bool k_is_panel = is_k_panel(item, all),
               v_is_panel = is_panel(item, v, item->plan->dv_pad, all);
    item->k = k_is_panel ? attn_kv_find(item->problem, k, &item->seq, item->kv_head, block, 0)
                         : item->k_space;
    item->v = v_is_panel ? attn_kv_find(item->problem, v, &item->seq, item->kv_head, block, 0)
                         : item->v_space;
    item->scored = false;
    if (item->by_tile) {
        open_lists(item, keys);
    } else {
        pack_k(item, keys, block);
        pack_v(item, keys, block);
    }
}

void attn_pack_values(attn_forward_item *item, attn_interval keys, int64_t block)
{
    const attn_key_list *now = &item->list[item->at_hand], *next = &item->list[!item->at_hand];
    const int64_t passes = fetching_passes(item, item->v_rows, item->v == item->v_space),
                  n = next->keys.hi - next->keys.lo;
    const attn_tensor *v = &item->problem->v, *k = &item->problem->k;
    const soon_rows rows = item->one_row
                               ? just_ahead(item, v, now->v, keys.hi - keys.lo, next->v, n)
                               : in_runs(item, next->k, n);
    begin_soon(item, &rows, item->one_row ? v : k,
               (keys.hi - keys.lo) * item->problem->dv * passes);
    if (!item->v_rows) {
        pack_v(item, keys, block);
    }
}

attn_keys attn_rows_at(const attn_forward_item *item, attn_interval keys, const void *qt)
{
    const attn_key_list *list = &item->list[item->at_hand];
    return (attn_keys){.k = item->k_space,
                       .qt = qt,
                       .d = item->problem->d,
                       .n = keys.hi - keys.lo,
                       .rows = list->k + (keys.lo - list->keys.lo),
                       .dtype = item->problem->k.dtype};
}

/* Scales or shifts of codes. Steps in elements. */
typedef struct factors {
    const void *first; /* of the first row, or NULL */
    int64_t row, group;
    int32_t dtype;
    float none; /* the factor where there are no factors */
} factors;

/* to[0 .. n-1] = x. The inner loop has a fixed length, since compilers make vectors of such. */
static void fill_floats(float *to, int64_t n, float x)
{
    enum { MANY = 16 };
    for (; n >= MANY; n -= MANY, to += MANY) {
        for (int i = 0; i < MANY; i++) {
            to[i] = x;
        }
    }
    for (int64_t i = 0; i < n; i++) {
        to[i] = x;
    }
}

/* Copies those of n rows, group by group. Returns the end of the copy. */
static float *copy_factors(const attn_ukernel *table, float *to, const factors *from, int64_t n,
                           int64_t groups)
{
    const bool in_order = from->row == groups && (groups == 1 || from->group == 1);
    if (from->first && in_order) {
        table->widen(to, from->first, 1, from->dtype, n * groups);
    } else if (!from->first || (groups == 1 && from->row == 0)) {
        fill_floats(to, n * groups,
                    from->first ? attn_code_factor(from->first, 0, from->dtype) : from->none);
    } else {
        for (int64_t row = 0, i = 0; row < n; row++) {
            for (int64_t group = 0; group < groups; group++, i++) {
                to[i] = attn_code_factor(from->first, row * from->row + group * from->group,
                                         from->dtype);
            }
        }
    }
    return to + n * groups;
}

void attn_list_factors(attn_forward_item *item, bool of_k, attn_interval keys, float *scale,
                       float *shift)
{
    const attn_problem *problem = item->problem;
    const int64_t columns = of_k ? problem->d : problem->dv;
    for (int64_t key = keys.lo, end; key < keys.hi; key = end) {
        attn_row_codes codes;
        attn_key_codes(problem, of_k ? &problem->k_codes : &problem->v_codes, &item->seq,
                       item->kv_head, key, columns, &codes);
        const int64_t groups = columns / codes.group;
        const factors scales = {codes.scale, codes.scale_row, codes.scale_group, codes.dtype, 1},
                      shifts = {codes.shift, codes.shift_row, codes.shift_group, codes.dtype,
                                -0.0F};
        end = attn_kv_run_end(problem, &item->seq, key, keys.hi);
        scale = copy_factors(item->table, scale, &scales, end - key, groups);
        shift = shift ? copy_factors(item->table, shift, &shifts, end - key, groups) : NULL;
    }
}

void attn_values_at(attn_forward_item *item, attn_interval keys, int64_t block, attn_values *values)
{
    const attn_key_list *list = &item->list[item->at_hand];
    values->v = item->v, values->at = keys.lo - block;
    values->rows = list->v + (keys.lo - list->keys.lo);
    values->count = list->keys.hi - keys.lo;
    values->dv = item->problem->dv, values->dv_pad = item->plan->dv_pad;
    values->soon = &item->soon;
    values->dtype = item->v_rows ? item->problem->v.dtype : 0;
    if (item->v_rows && attn_is_code(values->dtype)) {
        const attn_codes *codes = &item->problem->v_codes;
        attn_key_factors *to = item->factors;
        float *shift = attn_tensor_present(codes->shift) ? to->shift : NULL;
        attn_list_factors(item, false, keys, to->scale, shift);
        values->groups = attn_code_groups(codes), values->group = values->dv / values->groups;
        values->scale = to->scale, values->shift = shift;
    }
}

/* Scores of a tile straight from quantised rows; false if the table does not take them. */
static bool score_codes(attn_forward_item *item, attn_interval keys, const void *qt, int lanes)
{
    const attn_problem *problem = item->problem;
    const attn_ukernel *table = item->table;
    bool done = table->qk_codes && attn_is_code(problem->k.dtype);
    for (int64_t key = keys.lo, end; done && key < keys.hi; key = end) {
        attn_rows rows;
        rows_of_k(item, key, &rows);
        end = attn_kv_run_end(problem, &item->seq, key, keys.hi);
        done = table->qk_codes(item->s + (key - keys.lo) * table->strip * table->real_size, &rows,
                               qt, problem->d, end - key, lanes);
    }
    return done;
}

/* Scores of a tile straight from rows of numbers; false if the table has no member for that. */
static bool score_rows(attn_forward_item *item, attn_interval keys, const void *qt, int lanes)
{
    const attn_keys rows = attn_rows_at(item, keys, qt);
    if (!item->table->qk_rows) {
        return false;
    }
    item->table->qk_rows(item->s, &rows, lanes, &item->soon);
    return true;
}

void attn_pack_tile(attn_forward_item *item, int strip_index, attn_interval keys, int64_t block,
                    bool plain)
{
    const void *qt = strip_qt(item, strip_index);
    const int lanes = strip_lanes(item, strip_index);
    item->scored = item->k_rows ? !plain && score_rows(item, keys, qt, lanes)
                                : score_codes(item, keys, qt, lanes);
    if (!item->scored && !(item->k_rows && plain)) {
        pack_k(item, keys, block);
    }
}
