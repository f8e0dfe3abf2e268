/*
 * overlap.c: see overlap.h.
 */
#include "core/overlap.h"
#include "core/codes.h"
#include "core/error.h"
#include "core/order.h"
#include <string.h>

/* The bytes that a tensor spans, low .. high-1. */
typedef struct span {
    const char *name;
    const attn_tensor *tensor;
    uintptr_t low, high;
} span;

/* False for a tensor that is absent or has no elements. */
static bool find_span(span *s, const char *name, const attn_tensor *tensor)
{
    const int64_t size = (int64_t)attn_dtype_size(tensor->dtype);
    int64_t below = 0, above = 1;
    const int64_t *n = tensor->shape;
    const bool empty = !tensor->data || n[0] == 0 || n[1] == 0 || n[2] == 0 || n[3] == 0;
    for (int a = 0; a < 4 && !empty; a++) {
        const int64_t reach = (n[a] - 1) * tensor->stride[a];
        *(reach < 0 ? &below : &above) += reach;
    }
    const uintptr_t first = (uintptr_t)tensor->data;
    *s = (span){name, tensor, first + (uintptr_t)(below * size), first + (uintptr_t)(above * size)};
    return !empty;
}

/* Elements from one index to the next; 0 along an axis of extent 1, whose stride may be any
 * number. */
static int64_t distance(const attn_tensor *tensor, int axis)
{
    const int64_t stride = tensor->shape[axis] == 1 ? 0 : tensor->stride[axis];
    return stride < 0 ? -stride : stride;
}

/* True if surely every byte of the span belongs to an element. */
static bool has_no_gaps(const attn_tensor *tensor)
{
    int64_t together = 1; /* elements side by side, by the axes that are done */
    int done = 0;
    for (int round = 0; round < 4 && done != 15; round++) {
        for (int a = 0; a < 4; a++) {
            if (!(done >> a & 1) && distance(tensor, a) <= together) {
                together += (tensor->shape[a] - 1) * distance(tensor, a);
                done |= 1 << a;
            }
        }
    }
    return done == 15;
}

static bool holds(const span *s, uintptr_t address)
{
    return address >= s->low && address < s->high;
}

static bool covers_part_of(const span *a, const span *b)
{
    return (holds(a, b->low) || holds(a, b->high - 1) || holds(a, (uintptr_t)b->tensor->data)) &&
           has_no_gaps(a->tensor);
}

static bool overlap(const span *a, const span *b)
{
    return a->low < b->high && b->low < a->high &&
           (a->tensor->data == b->tensor->data || covers_part_of(a, b) || covers_part_of(b, a));
}

bool attn_tensors_overlap(const attn_tensor *a, const attn_tensor *b)
{
    span x, y;
    return find_span(&x, "", a) && find_span(&y, "", b) && overlap(&x, &y);
}

attn_status attn_fail_overlap(const char *output, const char *other)
{
    return attn_fail(ATTN_ERR_INVALID_ARGUMENT,
                     "%s and %s overlap: outputs must not share memory with other tensors", output,
                     other);
}

bool attn_elements_may_meet(const attn_tensor *tensor)
{
    int64_t reach = 0; /* of the axes that are done */
    for (int done = 0; done != 15;) {
        int next = -1;
        for (int a = 0; a < 4; a++) {
            if (!(done >> a & 1) && (next < 0 || distance(tensor, a) < distance(tensor, next))) {
                next = a;
            }
        }
        if (tensor->shape[next] > 1 && distance(tensor, next) <= reach) {
            return true;
        }
        reach += (tensor->shape[next] - 1) * distance(tensor, next);
        done |= 1 << next;
    }
    return false;
}

/* ---- of many tensors ------------------------------------------------------------------------- */

/* Stretches of a tensor: all of it if it has no gaps, else three elements. A whole one meets every
 * stretch that it shares a byte with; of elements, only first ones meet. */
enum { WHOLE, FIRST, LOWEST, HIGHEST, PARTS };

typedef struct many {
    attn_overlap_list *list;
    const void *user;
    int64_t count;
} many;

static const attn_tensor *tensor_of(const many *all, int64_t number, bool *output)
{
    return all->list(all->user, number / PARTS, output);
}

static void offer_tensors(const many *all, attn_order *order)
{
    for (int64_t i = 0; i < all->count; i++) {
        bool output;
        span s;
        const attn_tensor *tensor = all->list(all->user, i, &output);
        if (!tensor || !find_span(&s, "", tensor)) {
            continue;
        }
        if (has_no_gaps(tensor)) {
            attn_order_offer(order, (attn_stretch){s.low, s.high, i * PARTS + WHOLE});
            continue;
        }
        const uintptr_t at[] = {(uintptr_t)tensor->data, s.low, s.high - 1};
        for (int part = FIRST; part < PARTS; part++) {
            attn_order_offer(
                order, (attn_stretch){at[part - FIRST], at[part - FIRST] + 1, i * PARTS + part});
        }
    }
}

/* The walk goes over stretches by ascending addresses. Of each kind of stretch this is the one met
 * so far that ends last: of inputs at [0], of outputs at [1]. It alone tells whether the stretch at
 * hand meets an earlier one of its kind. */
typedef struct met {
    attn_stretch whole[2], element[2], first[2];
} met;

static bool reaches(const attn_stretch *before, const attn_stretch *at)
{
    return at->low < before->end;
}

static void keep(attn_stretch *last, const attn_stretch *at)
{
    *last = at->end > last->end ? *at : *last;
}

/* Finds an earlier stretch that meets this one. One of the two must belong to an output. */
static const attn_stretch *find_met(const met *m, const attn_stretch *at, bool output)
{
    const int64_t part = at->number % PARTS;
    for (int of = output ? 0 : 1; of < 2; of++) {
        if (reaches(&m->whole[of], at)) {
            return &m->whole[of];
        }
        if (part == WHOLE && reaches(&m->element[of], at)) {
            return &m->element[of];
        }
        if (part == FIRST && reaches(&m->first[of], at)) {
            return &m->first[of];
        }
    }
    return NULL;
}

static void add_met(met *m, const attn_stretch *at, bool output)
{
    const int64_t part = at->number % PARTS;
    keep(part == WHOLE ? &m->whole[output] : &m->element[output], at);
    if (part == FIRST) {
        keep(&m->first[output], at);
    }
}

bool attn_overlap_find(attn_overlap_list *list, const void *user, int64_t count, int64_t *output,
                       int64_t *other)
{
    const many all = {list, user, count};
    met m = {.whole = {{0}}};
    attn_order order;
    attn_order_begin(&order);
    do {
        offer_tensors(&all, &order);
        attn_order_sort(&order);
        for (int i = 0; i < order.count; i++) {
            const attn_stretch *at = &order.held[i];
            bool is_output, output_before;
            (void)tensor_of(&all, at->number, &is_output);
            const attn_stretch *before = find_met(&m, at, is_output);
            if (before) {
                (void)tensor_of(&all, before->number, &output_before);
                *output = (output_before ? before : at)->number / PARTS;
                *other = (output_before ? at : before)->number / PARTS;
                return true;
            }
            add_met(&m, at, is_output);
        }
    } while (attn_order_next(&order));
    return false;
}

typedef struct named_tensor {
    const char *name;
    const attn_tensor *tensor;
} named_tensor;

enum { MOST = 32 };

/* Each of the first `written` tensors against all after it. */
static attn_status check(const named_tensor *tensors, int written, int count)
{
    span spans[MOST];
    int outputs = 0, found = 0;
    for (int i = 0; i < count; i++) {
        found +=
            tensors[i].tensor->data && find_span(&spans[found], tensors[i].name, tensors[i].tensor);
        outputs = i < written ? found : outputs;
    }
    for (int i = 0; i < outputs; i++) {
        for (int n = i + 1; n < found; n++) {
            if (overlap(&spans[i], &spans[n])) {
                return attn_fail_overlap(spans[i].name, spans[n].name);
            }
        }
    }
    return ATTN_OK;
}

static attn_tensor room(void *workspace, uint64_t bytes)
{
    const int64_t most = INT64_MAX, length = bytes < (uint64_t)most ? (int64_t)bytes : most;
    return attn_tensor_bshd(workspace, ATTN_BOOL, 1, 1, 1, length);
}

/* Lists the tensors that both passes only read, besides Q, K and V. Returns their number. */
static int list_read(named_tensor *to, const attn_problem *problem)
{
    const named_tensor read[] = {
        {"mask", &problem->mask},          {"bias", &problem->bias},
        {"alibi_slopes", &problem->alibi}, {"sinks", &problem->sinks},
        {"cu_seqlens_q", &problem->cu_q},  {"cu_seqlens_k", &problem->cu_k},
        {"seqused_q", &problem->used_q},   {"seqused_k", &problem->used_k},
        {"q_origin", &problem->q_origin},  {"k_origin", &problem->k_origin},
        {"block_table", &problem->table},  {"leftpad_k", &problem->pad_k},
        {"k_new", &problem->k_new},        {"v_new", &problem->v_new},
        {"rope_cos", &problem->rope.cos},  {"rope_sin", &problem->rope.sin},
    };
    memcpy(to, read, sizeof read);
    return sizeof read / sizeof read[0];
}

/* Lists scales and shifts: with `written` those that an append writes, else those that are only
 * read. Returns their number. */
static int list_codes(named_tensor *to, const attn_problem *problem, bool written)
{
    const bool k = attn_tensor_present(&problem->k_new) &&
                   attn_codes_own_scales(problem->k_codes.scale, &problem->k),
               v = attn_tensor_present(&problem->v_new) &&
                   attn_codes_own_scales(problem->v_codes.scale, &problem->v);
    int count = 0;
    if (k == written) {
        to[count++] = (named_tensor){"k_scale", problem->k_codes.scale};
        to[count++] = (named_tensor){"k_shift", problem->k_codes.shift};
    }
    if (v == written) {
        to[count++] = (named_tensor){"v_scale", problem->v_codes.scale};
        to[count++] = (named_tensor){"v_shift", problem->v_codes.shift};
    }
    return count;
}

/* Checks a cache that is appended to. V may be a view of K: then the append writes one through the
 * other. */
static attn_status check_append(const attn_problem *problem)
{
    named_tensor tensors[MOST];
    int written = 0;
    if (!attn_tensor_present(&problem->k_new) && !attn_tensor_present(&problem->v_new)) {
        return ATTN_OK;
    }
    if (attn_tensor_present(&problem->k_new)) {
        tensors[written++] = (named_tensor){"k", &problem->k};
    }
    if (attn_tensor_present(&problem->v_new)) {
        tensors[written++] = (named_tensor){"v", &problem->v};
    }
    written += list_codes(tensors + written, problem, true);
    int count = written;
    tensors[count++] = (named_tensor){"q", &problem->q};
    count += list_codes(tensors + count, problem, false);
    return check(tensors, written, count + list_read(tensors + count, problem));
}

attn_status attn_problem_overlaps(const attn_problem *problem, void *workspace, uint64_t bytes)
{
    const attn_tensor scratch = room(workspace, bytes);
    named_tensor tensors[MOST] = {
        {"workspace", &scratch},
        {"o", &problem->o},
        {"o_f32", &problem->o_f32},
        {"lse", &problem->lse},
        {"row_max", &problem->row_max},
        {"q", &problem->q},
        {"k", &problem->k},
        {"v", &problem->v},
    };
    int own = 8;
    own += list_codes(tensors + own, problem, false);
    own += list_codes(tensors + own, problem, true);
    const attn_status status = check(tensors, 5, own + list_read(tensors + own, problem));
    return status == ATTN_OK ? check_append(problem) : status;
}

attn_status attn_gradients_overlaps(const attn_gradients *grads, void *workspace, uint64_t bytes)
{
    const attn_problem *problem = &grads->problem;
    const attn_tensor scratch = room(workspace, bytes);
    named_tensor tensors[MOST] = {
        {"workspace", &scratch},      {"dq", &grads->dq},
        {"dk", &grads->dk},           {"dv", &grads->dv},
        {"d_bias", &grads->d_bias},   {"d_alibi_slopes", &grads->d_alibi},
        {"d_sinks", &grads->d_sinks}, {"q", &problem->q},
        {"k", &problem->k},           {"v", &problem->v},
        {"o", &problem->o},           {"lse", &problem->lse},
        {"d_o", &grads->d_o},         {"d_lse", &grads->d_lse},
    };
    const int own = 14;
    return check(tensors, 7, own + list_read(tensors + own, problem));
}
