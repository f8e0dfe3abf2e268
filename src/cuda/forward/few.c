/*
 * few.c: which of forward_few's kernels does a problem, and what none of them does. Pure.
 */
#include "core/code_types.h"
#include "cuda/forward/forward.h"
#include "cuda/shape.h"

bool attn_cuda_is_quantised(const attn_problem *problem)
{
    return attn_is_code(problem->k.dtype) || attn_is_code(problem->v.dtype);
}

int attn_cuda_find_few(const attn_cuda *cuda, const attn_problem *problem)
{
    int found = -1;
    for (int i = 0; i < ATTN_CUDA_KERNELS; i++) {
        const attn_cuda_kernel *kernel = &attn_cuda_kernels[i];
        const bool fits = kernel->family == ATTN_CUDA_FEW && kernel->loads == ATTN_CUDA_THREADS &&
                          kernel->codes == problem->k.dtype && kernel->dtype == problem->q.dtype &&
                          problem->d <= kernel->d && problem->dv <= kernel->dv &&
                          kernel->shared_bytes <= cuda->shared_bytes;
        const bool first = found < 0 || attn_cuda_kernels[found].d == kernel->d;
        if (fits && first) {
            found = i;
            if (problem->q.shape[1] <= kernel->rows / problem->group) {
                break;
            }
        }
    }
    return found;
}

const char *attn_cuda_few_lacks(const attn_problem *problem, const attn_cuda *cuda)
{
    if (problem->k.dtype != problem->v.dtype) {
        return "K and V are not of one type";
    }
    if (problem->group == 0) {
        return "there is no head of Q";
    }
    if (attn_cuda_find_few(cuda, problem) < 0) {
        return "codes are for Q of bf16 and head dims up to 128";
    }
    if (attn_cuda_is_quantised(problem) &&
        (problem->k_codes.scale->shape[3] > 1 || problem->v_codes.scale->shape[3] > 1)) {
        return "groups of columns have scales of their own";
    }
    if (problem->varlen || problem->dropout.on || problem->precise) {
        return "there are codes, and cu_seqlens, dropout or ATTN_PRECISE";
    }
    const int64_t columns = 16 / (int64_t)attn_dtype_size(problem->k.dtype) *
                            attn_code_columns(problem->k.dtype); /* of 16 bytes */
    if (!attn_cuda_is_aligned(&problem->k) || !attn_cuda_is_aligned(&problem->v) ||
        !attn_cuda_is_aligned(&problem->q) || problem->d % columns != 0 ||
        problem->dv % columns != 0) {
        return "rows of Q or of codes are not whole pieces of 16 bytes";
    }
    return problem->q.shape[1] > ATTN_CUDA_COUNTED / problem->group ||
                   problem->keys > ATTN_CUDA_COUNTED || problem->k.shape[0] > ATTN_CUDA_COUNTED
               ? "lengths end at 2^30"
               : NULL;
}

attn_cuda_place attn_cuda_place_of(const attn_tensor *tensor)
{
    return (attn_cuda_place){tensor->data, attn_axis_step(tensor, 0), attn_axis_step(tensor, 1),
                             attn_axis_step(tensor, 2)};
}

/* True if rows and keys begin where the tensors do, and lengths are those of keys alone. */
static bool is_plain(const attn_problem *problem)
{
    return !problem->varlen && !attn_tensor_present(&problem->used_q) &&
           !attn_tensor_present(&problem->q_origin) && !attn_tensor_present(&problem->k_origin) &&
           !attn_tensor_present(&problem->pad_k);
}

static bool has_light_steps(const attn_problem *problem)
{
    return attn_cuda_has_steps(problem) && !problem->mask.data && !problem->bias.data &&
           !attn_cuda_steps_lack(problem);
}

/* most: the largest number that is divided. */
static attn_cuda_divisor divisor(int64_t by, int64_t most)
{
    const uint64_t two_32 = UINT64_C(1) << 32;
    const bool exact = by > 1 && (uint64_t)most <= two_32 / (uint64_t)by;
    return (attn_cuda_divisor){(uint32_t)by,
                               exact ? (uint32_t)((two_32 + (uint64_t)by - 1) / (uint64_t)by) : 0};
}

/* The kernel of forward_few_shared for types and head dims of `alone`; NULL: the one that finds
 * families. Or -1. */
static int find_shared(const attn_cuda_kernel *alone)
{
    for (int i = 0; i < ATTN_CUDA_KERNELS; i++) {
        const attn_cuda_kernel *kernel = &attn_cuda_kernels[i];
        if (kernel->family == ATTN_CUDA_FEW_SHARED &&
            (alone ? kernel->codes == alone->codes && kernel->d == alone->d &&
                         kernel->rows == alone->rows
                   : kernel->loads == ATTN_CUDA_MERGE)) {
            return i;
        }
    }
    return -1;
}

bool attn_cuda_may_share(const attn_cuda *cuda, const attn_problem *problem)
{
    return problem->shares && problem->paged && problem->batch > 1 && is_plain(problem) &&
           !attn_cuda_has_steps(problem) && cuda->capability == 90 && problem->group > 0 &&
           problem->q.shape[1] <= ATTN_FEW_SHARED_ROWS / 2 / problem->group;
}

attn_cuda_shared_plan attn_cuda_share(const attn_cuda *cuda, const attn_cuda_plan *plan,
                                      attn_cuda_sharing *to)
{
    const attn_problem *problem = &plan->params.problem;
    const attn_cuda_schedule *schedule = &plan->params.schedule;
    const attn_cuda_parts *parts = &plan->params.parts;
    const int64_t rows = problem->q.shape[1] * problem->group, batch = problem->batch;
    const bool may =
        plan->merge >= 0 && schedule->blocks == 1 && attn_cuda_may_share(cuda, problem);
    const int kernel = may ? find_shared(&attn_cuda_kernels[plan->kernel]) : -1;
    if (kernel < 0 || attn_cuda_kernels[kernel].shared_bytes > cuda->shared_bytes) {
        return (attn_cuda_shared_plan){.kernel = -1};
    }
    const int64_t slots = ATTN_FEW_SHARED_ROWS / rows < batch ? ATTN_FEW_SHARED_ROWS / rows : batch;
    *to = (attn_cuda_sharing){
        .slots = divisor(slots, batch),
        .groups = divisor(batch / slots, batch),
        .rows = divisor(rows, ATTN_FEW_SHARED_ROWS),
        .items = divisor(schedule->items / batch, schedule->items),
        .families =
            (uint32_t *)(void *)(parts->sums + schedule->items * parts->rows * parts->columns),
        .page = divisor(problem->k.shape[1], problem->keys),
        .table = problem->table.data,
        .sequence = attn_axis_step(&problem->table, 0),
        .entry = attn_axis_step(&problem->table, 1),
        .batch = (int32_t)batch,
        .wide = problem->table.dtype == ATTN_I64};
    const int64_t warps = batch * schedule->splits,
                  each = attn_cuda_kernels[find_shared(NULL)].rows;
    return (attn_cuda_shared_plan){kernel, find_shared(NULL),
                                   (uint32_t)((warps + each - 1) / each)};
}

/* True for kernels whose CTAs go on to the next split of their rows (FewShape::RUNS). */
bool attn_cuda_few_can_join(const attn_cuda_kernel *kernel)
{
    return kernel->family == ATTN_CUDA_FEW && ATTN_FEW_BITS(kernel->codes) > 4 && kernel->rows == 8;
}

/* FewShape::ADDS. */
bool attn_cuda_few_adds(const attn_cuda_kernel *kernel)
{
    return attn_cuda_few_can_join(kernel) && !attn_is_code(kernel->codes);
}

/* START_TILES, END_TILES, MERGE_TILES: the time of a CTA's start and end, of the end of a split
 * behind the first where eight warps meet, and of a merge, in tiles. Where lengths are not known a
 * CTA of more than UNEVEN_TILES may end long after the others, unless there are UNEVEN_WAVES of
 * CTAs. ROOM: CTAs that a multiprocessor takes at the most. */
enum {
    START_TILES = 2,
    END_TILES = 1,
    MERGE_TILES = 3,
    UNEVEN_TILES = 16,
    UNEVEN_WAVES = 8,
    ROOM = 3
};

/* CTAs that a GPU takes at once. */
static int64_t room_of(const attn_cuda *cuda, const attn_cuda_kernel *kernel)
{
    const int64_t fit = cuda->shared_bytes / kernel->shared_bytes;
    return cuda->multiprocessors * (fit < ROOM ? fit : ROOM);
}

int attn_cuda_few_run(const attn_cuda *cuda, const attn_cuda_kernel *kernel,
                      const attn_problem *problem, const attn_cuda_schedule *schedule)
{
    if (schedule->splits == 1 || !attn_cuda_few_can_join(kernel) ||
        attn_cuda_may_share(cuda, problem)) {
        return 1;
    }
    const int64_t splits = schedule->splits, blocks = schedule->items / splits,
                  tiles = (problem->keys + kernel->keys - 1) / kernel->keys,
                  room = room_of(cuda, kernel);
    const int64_t group = splits < ATTN_CUDA_FEW_GROUP ? splits : ATTN_CUDA_FEW_GROUP,
                  runs[] = {1, group, splits};
    const bool adds = attn_cuda_few_adds(kernel);
    int64_t best = 0, run = 1;
    for (int i = 0; i < 3; i++) {
        const int64_t ctas = (splits + runs[i] - 1) / runs[i],
                      waves = (blocks * ctas + room - 1) / room, each = tiles * runs[i] / splits,
                      ends = adds ? 0 : (runs[i] - 1) * END_TILES,
                      merged = ctas > 1 || !adds ? MERGE_TILES : 0,
                      time = waves * (each + START_TILES + ends) + merged;
        const bool even =
            attn_problem_is_whole(problem) || each <= UNEVEN_TILES || waves >= UNEVEN_WAVES;
        if (i == 0 || (time < best && even)) {
            best = time, run = runs[i];
        }
    }
    return (int)run;
}

/* True if the rows of a KV head are one block that sees all keys, as many in all sequences. */
static bool is_even(const attn_problem *problem, const attn_cuda_schedule *schedule)
{
    const int64_t right = problem->window_right;
    return is_plain(problem) && !attn_tensor_present(&problem->used_k) && schedule->blocks == 1 &&
           problem->window_left == ATTN_UNBOUNDED &&
           (right == ATTN_UNBOUNDED || (!problem->top_left && right >= 0));
}

/* The blocks of a split where the host knows them, for kernels that ask (attn_cuda_few.each). */
static int32_t each_of_all(const attn_cuda_plan *plan)
{
    const attn_cuda_kernel *kernel = &attn_cuda_kernels[plan->kernel];
    const attn_problem *problem = &plan->params.problem;
    const attn_cuda_schedule *schedule = &plan->params.schedule;
    if (!attn_cuda_few_can_join(kernel) || !is_even(problem, schedule)) {
        return 0;
    }
    const int32_t keys = (int32_t)problem->keys, count = (keys + kernel->keys - 1) / kernel->keys;
    if (schedule->splits == 1) {
        return count;
    }
    const int32_t least = attn_is_code(kernel->codes)
                              ? schedule->least
                              : attn_cuda_evened_least(schedule, ATTN_CUDA_FEW_TIMES, count);
    return attn_cuda_split_each(schedule, least, keys, count);
}

static int16_t row_bytes(const attn_tensor *tensor, int64_t columns)
{
    return (int16_t)(columns * (int64_t)attn_dtype_size(tensor->dtype) /
                     attn_code_columns(tensor->dtype));
}

/* True if the steps of K or V, and of their scales, are such that few_line.cuh loads them. width:
 * columns of the kernel. */
static bool is_straight(const attn_tensor *tensor, const attn_codes *codes, int64_t columns,
                        int32_t width)
{
    const attn_tensor *scale = codes->scale;
    const int64_t step = attn_axis_step(tensor, 1);
    if (columns != width || step != (int32_t)step) {
        return false;
    }
    const int64_t apart = attn_tensor_present(scale) ? attn_axis_step(scale, 1) : 0;
    return !attn_is_code(tensor->dtype) ||
           (!attn_tensor_present(codes->shift) && apart == (int32_t)apart &&
            (!attn_tensor_present(scale) || scale->dtype == ATTN_F32));
}

static bool are_straight(const attn_cuda_plan *plan)
{
    const attn_problem *problem = &plan->params.problem;
    const attn_cuda_kernel *kernel = &attn_cuda_kernels[plan->kernel];
    return is_straight(&problem->k, &problem->k_codes, problem->d, kernel->d) &&
           is_straight(&problem->v, &problem->v_codes, problem->dv, kernel->dv);
}

/* The items of a plan: CTAs, if each does one. */
static int64_t items_of(const attn_cuda_plan *plan)
{
    const attn_cuda_schedule *schedule = &plan->params.schedule;
    return schedule->items / schedule->splits * ((schedule->splits + plan->run - 1) / plan->run);
}

/* The kernel of another kind that does what the plan's does; or -1. */
static int find_alike(const attn_cuda_plan *plan, attn_cuda_family family, int32_t loads)
{
    const attn_cuda_kernel *alone = &attn_cuda_kernels[plan->kernel];
    for (int i = 0; i < ATTN_CUDA_KERNELS; i++) {
        const attn_cuda_kernel *kernel = &attn_cuda_kernels[i];
        if (kernel->family == family && kernel->loads == loads && kernel->codes == alone->codes &&
            kernel->dtype == alone->dtype && kernel->d == alone->d && kernel->rows == alone->rows) {
            return i;
        }
    }
    return -1;
}

/* TILES: of an item, at least; a kernel's stages. CTAs go on where they then fill the GPU once:
 * FULL in 16 of what it takes at once. */
uint32_t attn_cuda_few_grid(const attn_cuda_plan *plan, const attn_cuda *cuda)
{
    enum { TILES = 3, FULL = 15 };
    const attn_problem *problem = &plan->params.problem;
    const attn_cuda_kernel *kernel = &attn_cuda_kernels[plan->kernel];
    const int64_t items = items_of(plan), room = room_of(cuda, kernel),
                  each = (items + room - 1) / room, ctas = (items + each - 1) / each;
    const bool all = plan->run >= plan->params.schedule.splits, /* splits of their rows */
        may = all && each_of_all(plan) > 0 && problem->keys > (TILES - 1) * kernel->keys &&
              are_straight(plan) && !problem->paged && !attn_cuda_has_steps(problem) &&
              find_alike(plan, ATTN_CUDA_FEW, ATTN_CUDA_WHOLE) >= 0;
    return (uint32_t)(may && 16 * ctas >= FULL * room ? ctas : items);
}

/* KEYS: of a warp in a tile. */
int attn_cuda_few_launched(const attn_cuda_plan *plan, const attn_cuda *cuda)
{
    enum { KEYS = 16 };
    const attn_problem *problem = &plan->params.problem;
    if (plan->grid[0] < items_of(plan)) {
        return find_alike(plan, ATTN_CUDA_FEW, ATTN_CUDA_WHOLE);
    }
    const bool lies = !problem->paged || (is_plain(problem) && problem->k.shape[1] % KEYS == 0);
    const int line =
        cuda->capability == 90 && lies && are_straight(plan) && !attn_cuda_has_steps(problem)
            ? find_alike(plan, ATTN_CUDA_FEW_LINE,
                         problem->paged ? ATTN_CUDA_PAGED : ATTN_CUDA_WHOLE)
            : -1;
    return line < 0 ? plan->kernel : line;
}

attn_cuda_few attn_cuda_few_of(const attn_cuda_plan *plan)
{
    const attn_problem *problem = &plan->params.problem;
    const attn_cuda_kernel *kernel = &attn_cuda_kernels[plan->kernel];
    const attn_cuda_schedule *schedule = &plan->params.schedule;
    const int64_t far = ATTN_CUDA_COUNTED, rows = problem->q.shape[1] * problem->group,
                  right = problem->window_right;
    const int32_t ctas = (schedule->splits + plan->run - 1) / plan->run;
    return (attn_cuda_few){
        .ctas = divisor(ctas, schedule->items),
        .parts = attn_cuda_few_adds(kernel) ? ctas : schedule->splits,
        .items = (uint32_t)items_of(plan),
        .run = (uint8_t)plan->run,
        .each = each_of_all(plan),
        .blocks = divisor(schedule->blocks, schedule->items),
        .kv_heads = divisor(problem->kv_heads, schedule->items),
        .group = divisor(problem->group, rows),
        .nq = (int32_t)problem->q.shape[1],
        .keys = (int32_t)problem->keys,
        .before = (int32_t)(problem->window_left < far ? problem->window_left : far),
        .after = (int32_t)(right < far ? right : far - 1),
        .plain = is_plain(problem),
        .top_left = problem->top_left,
        .light = has_light_steps(problem),
        .entry = (uint8_t)(problem->paged ? attn_dtype_size(problem->table.dtype) : 0),
        .straight = are_straight(plan),
        .used = attn_tensor_present(&problem->used_k),
        .steps = plan->params.steps,
        .k_bytes = row_bytes(&problem->k, problem->d),
        .v_bytes = row_bytes(&problem->v, problem->dv),
        .sums = plan->params.parts.sums,
        .states = plan->params.parts.states,
        .page = plan->params.pages.size,
        .page_inverse = plan->params.pages.inverse,
        .last_page = (int32_t)(problem->k.shape[0] - 1),
        .scale_log2 = plan->params.scale_log2,
        .table = problem->paged ? problem->table.data : NULL,
        .table_sequence = problem->paged ? attn_axis_step(&problem->table, 0) : 0,
        .table_entry = problem->paged ? attn_axis_step(&problem->table, 1) : 0,
        .k = attn_cuda_place_of(&problem->k),
        .v = attn_cuda_place_of(&problem->v),
        .q = attn_cuda_place_of(&problem->q)};
}
