/*
 * append_generic.cu: new rows of K and V into the cache, and rotation of them and of Q, on any GPU
 * from sm_80 on. A CTA a row of a sequence: one kernel writes rotated rows to the workspace, one
 * new rows to the cache, as codes where it has them. The arithmetic is that of cpu/append.c and
 * cpu/encode.c, in f64 with one rounding of each element. Lengths, tables and origins lie in the
 * GPU's memory: rows for which a sequence has no key are left out, pages and positions are cut to
 * those there are.
 */
#include "cuda/append/params.h"
#include "cuda/kernel/load/encode.cuh"

enum { THREADS = 256, WARPS = THREADS / 32 };

/* A row in use of a sequence. */
struct NewRow {
    attn_sequence sequence;
    int64_t row;
    bool used;
};

/* Finds row `index` of all sequences. */
__device__ __forceinline__ NewRow find_row(const attn_problem &p, int64_t index)
{
    NewRow at;
    int64_t b = p.varlen ? 0 : index / p.q.shape[1];
    for (int64_t end = p.batch;
         p.varlen && end - b > 1;) { /* the last that begins here or before */
        const int64_t middle = (b + end) / 2;
        if (attn_first_row(&p.cu_q, &p.q, middle) <= index) {
            b = middle;
        } else {
            end = middle;
        }
    }
    at.sequence = attn_problem_lengths(&p, b);
    at.row = index - (p.varlen ? at.sequence.q_first : b * p.q.shape[1]);
    at.used = at.row >= 0 && at.row < at.sequence.nq_used;
    return at;
}

__device__ __forceinline__ void copy_element(char *to, const char *from, int32_t dtype)
{
    switch (dtype) {
    case ATTN_F64:
        *(uint64_t *)to = *(const uint64_t *)from;
        break;
    case ATTN_F32:
        *(uint32_t *)to = *(const uint32_t *)from;
        break;
    default:
        *(uint16_t *)to = *(const uint16_t *)from;
        break;
    }
}

/* ---- rotation -------------------------------------------------------------------------------- */

struct Angle {
    double cosine, sine;
};

__device__ __forceinline__ Angle find_angle(const attn_rope &rope, int64_t position, int64_t pair)
{
    if (attn_tensor_present(&rope.cos)) {
        const int64_t of_cos = attn_clamp(position, 0, rope.cos.shape[0] - 1),
                      of_sin = attn_clamp(position, 0, rope.sin.shape[0] - 1);
        return {load_real<double>(attn_at(&rope.cos, of_cos, pair, 0, 0), rope.cos.dtype),
                load_real<double>(attn_at(&rope.sin, of_sin, pair, 0, 0), rope.sin.dtype)};
    }
    const double exponent = -2 * (double)pair / (double)rope.dims;
    const double angle = __dmul_rn((double)position, pow(rope.base, exponent));
    Angle of;
    sincos(angle, &of.sine, &of.cosine);
    return of;
}

/* A row of one head on its way to a tensor of equal shape: of Q, or behind its heads of new
 * keys. */
struct Turned {
    const attn_tensor &from, &to;
    int64_t tensor, index, head;

    __device__ __forceinline__ Turned(const attn_cuda_append_params &a, const NewRow &at,
                                      int64_t head_)
        : from(head_ < a.problem.heads ? a.problem.q : a.problem.k_new),
          to(head_ < a.problem.heads ? a.rotated.q : a.rotated.k), tensor(at.sequence.tensor),
          index(at.sequence.q_first + at.row),
          head(head_ < a.problem.heads ? head_ : head_ - a.problem.heads)
    {
    }
    __device__ __forceinline__ double read(int64_t column) const
    {
        return load_real<double>(attn_at(&from, tensor, index, head, column), from.dtype);
    }
    __device__ __forceinline__ void write(int64_t column, double value) const
    {
        attn_element_from_f64(attn_at(&to, tensor, index, head, column), to.dtype, value);
    }
    __device__ __forceinline__ void copy(int64_t column) const
    {
        copy_element(attn_at(&to, tensor, index, head, column),
                     attn_at(&from, tensor, index, head, column), to.dtype);
    }
};

/* Rotates all heads of a row, some pairs of columns at a time, and copies its other columns. */
__device__ __forceinline__ void rotate_row(const attn_cuda_append_params &a, const NewRow &at)
{
    __shared__ Angle angles[THREADS];
    const attn_problem &p = a.problem;
    const int64_t half = p.rope.dims / 2, rest = p.d - p.rope.dims,
                  heads = p.heads + (attn_tensor_present(&a.rotated.k) ? p.kv_heads : 0),
                  position = attn_first_position(&p, &at.sequence) + at.row;
    for (int64_t first = 0; first < half; first += THREADS) {
        const int64_t pairs = min(half - first, (int64_t)THREADS);
        __syncthreads();
        if (threadIdx.x < pairs) {
            angles[threadIdx.x] = find_angle(p.rope, position, first + threadIdx.x);
        }
        __syncthreads();
        for (int64_t i = threadIdx.x; i < pairs * heads; i += THREADS) {
            const Turned row(a, at, i / pairs);
            const Angle angle = angles[i % pairs];
            const int64_t pair = first + i % pairs, one = p.rope.interleaved ? 2 * pair : pair,
                          other = p.rope.interleaved ? one + 1 : pair + half;
            const double x = row.read(one), y = row.read(other);
            row.write(one, __dsub_rn(__dmul_rn(x, angle.cosine), __dmul_rn(y, angle.sine)));
            row.write(other, __dadd_rn(__dmul_rn(x, angle.sine), __dmul_rn(y, angle.cosine)));
        }
    }
    for (int64_t i = threadIdx.x; i < rest * heads; i += THREADS) {
        Turned(a, at, i / rest).copy(p.rope.dims + i % rest);
    }
}

/* ---- the cache ------------------------------------------------------------------------------- */

/* Writes a new row of all heads to a cache of its type. */
__device__ __forceinline__ void store_plain(const CodedRow &s)
{
    const int64_t columns = s.x.shape[3];
    for (int64_t i = threadIdx.x; i < s.x.shape[2] * columns; i += THREADS) {
        const int64_t head = i / columns, c = i % columns;
        copy_element(attn_at(&s.codes, s.to.tensor, s.to.row, head, c),
                     attn_at(&s.x, s.from.tensor, s.from.row, head, c), s.x.dtype);
    }
}

/* Writes the factors of a group of columns, of one head or of all that share them: a warp. */
__device__ __forceinline__ void write_factors(const CodedRow &s, int64_t first_head, int64_t heads,
                                              int64_t group)
{
    const int64_t columns = s.group_columns();
    attn_code_range range = attn_code_no_range();
    for (int64_t i = threadIdx.x % 32; i < heads * columns; i += 32) {
        const double x = s.element(first_head + i / columns, group * columns + i % columns);
        range = attn_code_join(range, attn_code_range_of(x));
    }
    range = warp_range(range);
    if (threadIdx.x % 32 == 0) {
        s.write_factors(range, first_head, group);
    }
}

/* Writes a row's codes, a byte a thread. */
__device__ __forceinline__ void write_codes(const CodedRow &s)
{
    const int64_t bytes = s.codes.shape[3], columns = s.group_columns();
    for (int64_t i = threadIdx.x; i < s.x.shape[2] * bytes; i += THREADS) {
        s.write_codes(i / bytes, i % bytes, columns);
    }
}

/* Writes the row to the cache; all threads of the CTA come. given: scales are inputs. */
__device__ __forceinline__ void store(const CodedRow &s, bool given)
{
    if (!attn_is_code(s.codes.dtype)) {
        store_plain(s);
        return;
    }
    if (!given) {
        const int64_t own = s.scale.shape[2], groups = s.scale.shape[3],
                      heads = own == 1 ? s.x.shape[2] : 1;
        for (int64_t i = threadIdx.x / 32; i < own * groups; i += WARPS) {
            write_factors(s, i / groups, heads, i % groups);
        }
        __syncthreads();
    }
    write_codes(s);
}

__device__ __forceinline__ void store_row(const attn_cuda_append_params &a, const NewRow &at)
{
    const attn_problem &p = a.problem;
    const int64_t key = at.sequence.nk - at.sequence.nq_used + at.row;
    if (key < 0) {
        return;
    }
    const attn_kv_place from = {at.sequence.tensor, at.sequence.q_first + at.row},
                        to = attn_kv_locate(&p, &at.sequence, key);
    if (attn_tensor_present(&p.k_new)) {
        const attn_tensor &row = attn_tensor_present(&a.rotated.k) ? a.rotated.k : p.k_new;
        store({row, p.k, a.k.scale, a.k.shift, from, to}, a.k.given);
    }
    if (attn_tensor_present(&p.v_new)) {
        store({p.v_new, p.v, a.v.scale, a.v.shift, from, to}, a.v.given);
    }
}

#define ATTN_APPEND(name, kind)                                                \
    extern "C" __global__ __launch_bounds__(THREADS) void attn_append_##name(  \
        const __grid_constant__ attn_cuda_append_params a)                     \
    {                                                                          \
        for (int64_t index = blockIdx.x; index < a.rows; index += gridDim.x) { \
            const NewRow at = find_row(a.problem, index);                      \
            if (at.used) {                                                     \
                name##_row(a, at);                                             \
            }                                                                  \
        }                                                                      \
    }
#include "cuda/kernels.inc"
