/*
 * kernels.cu: the operations of device.h in plain CUDA C: one kernel each, and sums in an order
 * that depends on the problem alone. layers.h, matmul.h and adamw_update.h say what they compute.
 */
#include "kernels.h"

#define KERNEL(name, threads, args) \
    extern "C" __global__ void __launch_bounds__(threads, 1) gpt_##name(const args a)

/* ---- Sums ------------------------------------------------------------------------------------ */

/* Combines 32 lanes' values; all get the result. */
template <class T, class Join> __device__ T over_warp(T x, Join join)
{
    for (int lanes = 16; lanes > 0; lanes /= 2) {
        x = join(x, __shfl_xor_sync(~0u, x, lanes));
    }
    return x;
}

/* Combines the values of all threads of a block; all get the result. */
template <class T, class Join> __device__ T over_block(T x, Join join)
{
    __shared__ T of_warp[GPT_WARPS];
    x = over_warp(x, join);
    __syncthreads(); /* the call before has read its values */
    if (threadIdx.x % 32 == 0) {
        of_warp[threadIdx.x / 32] = x;
    }
    __syncthreads();
    x = of_warp[0];
    for (int warp = 1; warp < GPT_WARPS; warp++) {
        x = join(x, of_warp[warp]);
    }
    return x;
}

struct Add {
    template <class T> __device__ T operator()(T x, T y) const
    {
        return x + y;
    }
};

struct Larger {
    template <class T> __device__ T operator()(T x, T y) const
    {
        return x > y ? x : y;
    }
};

__device__ int64_t element()
{
    return (int64_t)blockIdx.x * GPT_THREADS + threadIdx.x;
}

/* ---- Embedding ------------------------------------------------------------------------------- */

KERNEL(embed_forward, GPT_THREADS, embed_args)
{
    const int64_t i = element(), row = i / a.width, column = i % a.width;
    if (row < a.rows) {
        a.out[i] = a.token[a.tokens[row] * a.width + column] +
                   a.position[row % a.length * a.width + column];
    }
}

/* A block a token. */
KERNEL(embed_backward_tokens, GPT_THREADS, embed_args)
{
    const int token = blockIdx.x;
    for (int column = threadIdx.x; column < a.width; column += GPT_THREADS) {
        real sum = 0;
        for (int64_t row = 0; row < a.rows; row++) {
            if (a.tokens[row] == token) {
                sum += a.d_out[row * a.width + column];
            }
        }
        a.d_token[(int64_t)token * a.width + column] += sum;
    }
}

KERNEL(embed_backward_positions, GPT_THREADS, embed_args)
{
    const int64_t i = element(), sequence = (int64_t)a.length * a.width;
    if (i < sequence) {
        real sum = 0;
        for (int64_t at = i; at < (int64_t)a.rows * a.width; at += sequence) {
            sum += a.d_out[at];
        }
        a.d_position[i] += sum;
    }
}

/* ---- LayerNorm ------------------------------------------------------------------------------- */

KERNEL(norm_forward, GPT_THREADS, norm_args)
{
    const int64_t row = element() / 32;
    if (row >= a.rows) {
        return;
    }
    const real *x = a.x + row * a.width;
    real sum = 0, squares = 0;
    for (int c = threadIdx.x % 32; c < a.width; c += 32) {
        sum += x[c];
    }
    const real mean = over_warp(sum, Add()) / (real)a.width;
    for (int c = threadIdx.x % 32; c < a.width; c += 32) {
        squares += (x[c] - mean) * (x[c] - mean);
    }
    const real scale = 1 / sqrt(over_warp(squares, Add()) / (real)a.width + (real)1e-5);
    for (int c = threadIdx.x % 32; c < a.width; c += 32) {
        a.out[row * a.width + c] = (x[c] - mean) * scale * a.gain[c] + a.bias[c];
    }
    if (threadIdx.x % 32 == 0) {
        a.stats[row][0] = mean, a.stats[row][1] = scale;
    }
}

KERNEL(norm_backward_rows, GPT_THREADS, norm_args)
{
    const int64_t row = element() / 32, at = row * a.width;
    if (row >= a.rows) {
        return;
    }
    const real mean = a.stats[row][0], scale = a.stats[row][1];
    real sum = 0, along = 0;
    for (int c = threadIdx.x % 32; c < a.width; c += 32) {
        const real g = a.d_out[at + c] * a.gain[c];
        sum += g;
        along += g * (a.x[at + c] - mean) * scale;
    }
    sum = over_warp(sum, Add()) / (real)a.width;
    along = over_warp(along, Add()) / (real)a.width;
    for (int c = threadIdx.x % 32; c < a.width; c += 32) {
        const real y = (a.x[at + c] - mean) * scale;
        a.d_x[at + c] += scale * (a.d_out[at + c] * a.gain[c] - sum - y * along);
    }
}

KERNEL(norm_backward_columns, 32 * GPT_COLUMN_WARPS, norm_args)
{
    __shared__ real gains[GPT_COLUMN_WARPS][32], biases[GPT_COLUMN_WARPS][32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, c = blockIdx.x * 32 + lane;
    real gain = 0, bias = 0;
    for (int64_t row = warp; row < a.rows && c < a.width; row += GPT_COLUMN_WARPS) {
        const real d = a.d_out[row * a.width + c], x = a.x[row * a.width + c];
        gain += d * (x - a.stats[row][0]) * a.stats[row][1];
        bias += d;
    }
    gains[warp][lane] = gain, biases[warp][lane] = bias;
    __syncthreads();
    if (warp == 0 && c < a.width) {
        for (int w = 1; w < GPT_COLUMN_WARPS; w++) {
            gain += gains[w][lane], bias += biases[w][lane];
        }
        a.d_gain[c] += gain, a.d_bias[c] += bias;
    }
}

/* ---- GELU ------------------------------------------------------------------------------------ */

static constexpr real TWICE_ROOT = (real)1.5957691216057308, CUBIC = (real)0.044715;

__device__ real gate(real x)
{
    const real exponent = -TWICE_ROOT * (x + CUBIC * x * x * x);
    return 1 / (1 + exp(exponent < 80 ? exponent : 80));
}

KERNEL(gelu_forward, GPT_THREADS, gelu_args)
{
    const int64_t i = element();
    if (i < a.count) {
        a.out[i] = a.x[i] * gate(a.x[i]);
    }
}

KERNEL(gelu_backward, GPT_THREADS, gelu_args)
{
    const int64_t i = element();
    if (i < a.count) {
        const real x = a.x[i], g = gate(x);
        a.out[i] *= g + x * g * (1 - g) * TWICE_ROOT * (1 + 3 * CUBIC * x * x);
    }
}

/* ---- Loss and optimiser ---------------------------------------------------------------------- */

KERNEL(cross_entropy, GPT_THREADS, loss_args)
{
    enum { EACH = 256 / 32 }; /* of VOCABULARY numbers a row */
    const int64_t row = element() / 32;
    const int lane = threadIdx.x % 32;
    if (row >= a.rows) {
        return;
    }
    real *logits = a.logits + row * 256, x[EACH], most = logits[lane], at_target = 0, sum = 0;
    const int target = a.targets[row];
    for (int v = 0; v < EACH; v++) {
        x[v] = logits[32 * v + lane];
        most = Larger()(most, x[v]);
        at_target += 32 * v + lane == target ? x[v] : 0;
    }
    most = over_warp(most, Larger());
    at_target = over_warp(at_target, Add());
    for (int v = 0; v < EACH; v++) {
        x[v] = exp(x[v] - most);
        sum += x[v];
    }
    sum = over_warp(sum, Add());
    for (int v = 0; v < EACH; v++) {
        logits[32 * v + lane] = (x[v] / sum - (32 * v + lane == target)) / (real)a.rows;
    }
    if (lane == 0) {
        a.losses[row] = log((double)sum) - (double)(at_target - most);
    }
}

KERNEL(squares, GPT_THREADS, squares_args)
{
    double sum = 0;
    for (int64_t i = element(); i < a.count; i += GPT_SUMS * GPT_THREADS) {
        sum += (double)a.x[i] * (double)a.x[i];
    }
    sum = over_block(sum, Add());
    if (threadIdx.x == 0) {
        a.sums[blockIdx.x] = sum;
    }
}

KERNEL(adamw, GPT_THREADS, adamw_args)
{
    const int64_t i = element();
    if (i < a.count) {
        const adamw_rule &r = a.rule;
        const real g = a.gradient[i] * r.clip;
        const real mean = r.mean_decay * a.mean[i] + (1 - r.mean_decay) * g;
        const real square = r.square_decay * a.square[i] + (1 - r.square_decay) * g * g;
        const real step = mean * r.unbias1 / (sqrt(square * r.unbias2) + r.epsilon);
        a.mean[i] = mean, a.square[i] = square;
        a.parameter[i] = r.keep * a.parameter[i] - r.rate * step;
    }
}

/* ---- Products -------------------------------------------------------------------------------- */

/* A block's tile of 16 EACH x 16 EACH; a thread has EACH x EACH of it, 16 apart. Every element is
 * summed along k in turn, so tiles of all sizes give the same bits. */
template <int EACH> struct Tile {
    enum { SIDE = 16 * EACH, DEPTH = 16 };
    real left[DEPTH][SIDE + 1], right[DEPTH][SIDE + 1];

    /* Takes elements (first + i, k0 + p) of a matrix to tile[p][i], 0 beyond. Neighbouring threads
     * read along the rows of a matrix that is row-major. */
    static __device__ void load(real (&tile)[DEPTH][SIDE + 1], const real *data, int64_t row,
                                int64_t column, int first, int end, int k0, int k)
    {
        for (int e = threadIdx.x; e < SIDE * DEPTH; e += GPT_THREADS) {
            const int p = column == 1 ? e % DEPTH : e / SIDE,
                      i = column == 1 ? e / DEPTH : e % SIDE;
            tile[p][i] =
                first + i < end && k0 + p < k ? data[(first + i) * row + (k0 + p) * column] : 0;
        }
    }

    __device__ void multiply(real (&sums)[EACH][EACH]) const
    {
        const int x = threadIdx.x % 16, y = threadIdx.x / 16;
        for (int p = 0; p < DEPTH; p++) {
            real l[EACH], r[EACH];
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                l[i] = left[p][y + 16 * i], r[i] = right[p][x + 16 * i];
            }
#pragma unroll
            for (int i = 0; i < EACH; i++) {
#pragma unroll
                for (int j = 0; j < EACH; j++) {
                    sums[i][j] += l[i] * r[j];
                }
            }
        }
    }
};

__device__ real *head_of(const gpu_matrix &m, int heads)
{
    return m.data + blockIdx.z / heads * m.sequence + blockIdx.z % heads * m.head;
}

template <int EACH> __device__ void matmul(const matmul_args &a)
{
    typedef Tile<EACH> tile;
    __shared__ tile t;
    const int column0 = blockIdx.x * tile::SIDE, row0 = blockIdx.y * tile::SIDE;
    const bool whole = a.parts == 1;
    const int length = (a.k + a.parts - 1) / a.parts, k0 = whole ? 0 : blockIdx.z * length,
              end = min(a.k, k0 + length);
    const real *left = whole ? head_of(a.a, a.heads) : a.a.data,
               *right = whole ? head_of(a.b, a.heads) : a.b.data;
    real sums[EACH][EACH] = {};
    for (int k = k0; k < end; k += tile::DEPTH) {
        tile::load(t.left, left, a.a.row, a.a.column, row0, a.m, k, end);
        tile::load(t.right, right, a.b.column, a.b.row, column0, a.n, k, end);
        __syncthreads();
        t.multiply(sums);
        __syncthreads();
    }
    real *c = whole ? head_of(a.c, a.heads) : a.partial + (int64_t)blockIdx.z * a.m * a.n;
    const int64_t stride = whole ? a.c.row : a.n;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            const int row = row0 + threadIdx.x / 16 + 16 * i,
                      column = column0 + threadIdx.x % 16 + 16 * j;
            if (row < a.m && column < a.n) {
                real *to = c + row * stride + column;
                *to = whole && a.add ? *to + sums[i][j] : sums[i][j];
            }
        }
    }
}

KERNEL(matmul_32, GPT_THREADS, matmul_args)
{
    matmul<2>(a);
}

KERNEL(matmul_64, GPT_THREADS, matmul_args)
{
    matmul<4>(a);
}

KERNEL(matmul_128, GPT_THREADS, matmul_args)
{
    matmul<8>(a);
}

KERNEL(matmul_parts, GPT_THREADS, parts_args)
{
    const int64_t i = element(), all = (int64_t)a.m * a.n;
    if (i < all) {
        real *to = a.c + i / a.n * a.row + i % a.n, sum = 0;
        for (int part = 0; part < a.parts; part++) {
            sum += a.partial[part * all + i];
        }
        *to = a.add ? *to + sum : sum;
    }
}

/* ---- Materialised attention ------------------------------------------------------------------ */

KERNEL(softmax_forward, GPT_THREADS, softmax_args)
{
    real *row = a.p + (int64_t)blockIdx.x * a.length;
    const int visible = blockIdx.x % a.length + 1;
    real most = row[0], sum = 0;
    for (int j = threadIdx.x; j < visible; j += GPT_THREADS) {
        most = Larger()(most, row[j]);
    }
    most = over_block(most, Larger());
    for (int j = threadIdx.x; j < visible; j += GPT_THREADS) {
        row[j] = exp((row[j] - most) * a.scale);
        sum += row[j];
    }
    sum = over_block(sum, Add());
    for (int j = threadIdx.x; j < a.length; j += GPT_THREADS) {
        row[j] = j < visible ? row[j] / sum : 0;
    }
}

KERNEL(softmax_backward, GPT_THREADS, softmax_args)
{
    const real *p = a.p + (int64_t)blockIdx.x * a.length;
    real *ds = a.ds + (int64_t)blockIdx.x * a.length, along = 0;
    for (int j = threadIdx.x; j < a.length; j += GPT_THREADS) {
        along += p[j] * ds[j];
    }
    along = over_block(along, Add());
    for (int j = threadIdx.x; j < a.length; j += GPT_THREADS) {
        ds[j] = p[j] * (ds[j] - along) * a.scale;
    }
}
