/*
 * libattn: exact attention, softmax(scale * Q K^T + mask) V, computed tile by tile with a running
 * maximum and sum, so that the Nq x Nk matrix never exists (Dao et al., FlashAttention, arXiv
 * 2205.14135, algorithm 1; FlashAttention-2, arXiv 2307.08691, section 3.1; the online softmax is
 * Milakov & Gimelshein, arXiv 1805.02867).
 *
 * This header is the whole API and its manual. In three steps:
 *
 *   1. Simple: fill an attn_forward_args, call attn_forward(NULL, &args). This CPU, all cores.
 *   2. With a context: choose threads, an executor, an allocator, an instruction set
 *      (attn_context_create).
 *   3. With a workspace: ask attn_forward_workspace for its size, hand the memory in; no call
 *      allocates then.
 *
 * ---- Example ------------------------------------------------------------------------------------
 *
 *   float *q, *k, *v, *o;                          // each [batch][seq][heads][dim], contiguous
 *   attn_forward_args a = {
 *       .struct_size = sizeof a,
 *       .q = attn_tensor_bshd(q, ATTN_F32, batch, nq, heads, d),
 *       .k = attn_tensor_bshd(k, ATTN_F32, batch, nk, kv_heads, d),
 *       .v = attn_tensor_bshd(v, ATTN_F32, batch, nk, kv_heads, d_v),
 *       .o = attn_tensor_bshd(o, ATTN_F32, batch, nq, heads, d_v),
 *       .flags = ATTN_CAUSAL,
 *   };
 *   if (attn_forward(NULL, &a) != ATTN_OK) fprintf(stderr, "%s\n", attn_last_error());
 *
 * C++ before C++20: attn_forward_args a = {}; a.struct_size = sizeof a; a.q = ...
 *
 * With a workspace, for calls without an allocation:
 *
 *   uint64_t bytes;
 *   if (attn_forward_workspace(NULL, &a, &bytes) == ATTN_OK) {
 *       a.workspace = malloc(bytes), a.workspace_bytes = bytes;
 *   }
 *
 * ---- Semantics ----------------------------------------------------------------------------------
 *
 * For query row i, key j, query head h, sequence b (lengths Nq, Nk of that sequence):
 *
 *   s      = softmax_scale * sum_c Q[b,i,h,c] K[b,j,hk,c]          hk = h / (Hq / Hk)
 *   s      = softcap * tanh(s / softcap)                           if softcap > 0
 *   s      = s + bias[b,h,i,j] - slope[b,h] * |i + off - j|        if given
 *   visible(i, j): by causality, window, lengths and the boolean mask
 *   LSE[i] = ln( sum_{visible j} exp(s) + exp(sink[h]) )           the sink only if given
 *   O[i]   = sum_{visible j} exp(s - LSE[i]) V[b,j,hk,:]
 *
 *   C1  A row with no visible key gives O = 0 exactly and LSE = -inf. (A sink counts as one more
 *       visible key whose value row is 0: with sinks such a row gives O = 0 and LSE = sink.)
 *       Gradients of such a row are 0.
 *   C2  LSE is the natural logarithm of the sum of exp(s), after scale, softcap, bias, ALiBi and
 *       mask, before dropout.
 *   C3  Causal is aligned bottom-right: key j is visible to query i iff j <= i + off, off = Nk -
 *       Nq, so a block of queries at position start_pos over Nk = start_pos + Nq keys is the
 *       ordinary case. ATTN_TOP_LEFT makes off = 0. With q_origin or k_origin, the positions of the
 *       first query and of the first key in a longer sequence, off = q_origin - k_origin, whatever
 *       Nq and Nk: a block of queries and a block of keys meet as they do in the whole sequence.
 *       The window is inclusive: i + off - window_left <= j <= i + off + window_right; a negative
 *       bound is unbounded on that side.
 *   C4  A masked or padded position has no influence whatever its K and V bits are (NaN, Inf). An
 *       additive bias of -inf masks, and so does any score of -inf. A NaN in a visible position
 *       poisons exactly the rows that see it, and a bias of +inf gives NaN in that row only.
 *   C5  Query head h uses KV head h / (Hq / Hk) (blocked, not interleaved). Hk = 0 with Hq > 0, or
 *       Hq not divisible by Hk, is an error.
 *   C6  Every element of O, LSE and row_max inside the declared shape is written; nothing else is
 *       (gaps, padding). Rows beyond a sequence's length count as rows without a visible key.
 *       Inputs are never written, but for the rows of k and v that k_new and v_new say.
 *   C7  Result bits do not depend on the number of threads, on the other sequences of the batch, on
 *       the layout or alignment of the tensors, or on earlier calls; dense, padded, varlen and
 *       paged forms of a sequence agree. On the CPU all instruction sets give the same bits as
 *       well, but for AMX tiles, bf16 on AVX512_BF16 and on Arm's FEAT_BF16 (see Accuracy), and
 *       WebAssembly. Of a NaN, sign and payload do not count.
 *   C8  Bad arguments give an error code with nothing written; the library never aborts, exits or
 *       prints.
 *   C9  The order of score changes is the one above: scale, softcap, bias and ALiBi, mask. The
 *       default scale 1/sqrt(d) applies unless ATTN_SCALE is set, so an explicit 0 or a negative
 *       scale is legal.
 *   C10 Exact means within the published error bound (docs/numerics.md), not bit for bit equal to
 *       another implementation: the order of summation differs.
 *   C11 Dropout: after the softmax each exp(s - LSE) is multiplied by Z[b,h,i,j] = 0 with
 *       probability dropout_p, to a multiple of 2^-16, else 1 / (1 - dropout_p). LSE knows nothing
 *       of it. Z is a function of (seed, offset, b, h, i, j) alone, with i and j counted from
 *       q_origin and k_origin within sequence b (from 0 without them). It is 0 iff a number of 16
 *       bits is below dropout_p 2^16, rounded: the low half (j even) or the high half (j odd) of
 *       word (i / 8) mod 2 + 2 ((j / 8) mod 2) of Philox4x32-7 (Salmon et al., SC'11) with the key
 *       (low, high half of seed) and the counter (4 (j / 16) + (j mod 8) / 2, 8 (i / 16) + i mod 8,
 *       low, high half of offset + b Hq + h); quotients are rounded down. Forward, backward and
 *       attn_dropout_mask agree. Give each call an offset of its own, B Hq apart; parts of one
 *       sequence share theirs.
 *
 * ---- Accuracy -----------------------------------------------------------------------------------
 *
 * u = 2^-24 (f64: 2^-53). c is the factor of u in the bound of docs/numerics.md; "floor" is the
 * RMSE of rounding the exact result once to its type. Gradients: the same bits of P, and of dS.
 *
 *   inputs  device           products of Q K^T, P V           bits of P   bound
 *   f64     all              f64                              53          c = 4
 *   f32     CPU              f32                              24          c = 4
 *   f32     AMX              six of three bf16 parts          24          c = 4
 *   f32     AMX, BF16X3      three of two bf16 parts          16          3e-5 a product
 *   f32     GPU              six of three bf16 parts          24          c = 4
 *   f16     CPU              f32                              24          1.02 floor
 *   f16     AMX              four of two bf16 parts: exact    16          1.02 floor
 *   bf16    CPU              f32                              24          1.02 floor
 *   bf16    AMX, AVX512_BF16 exact                            8           1.45 floor
 *   bf16    Arm's FEAT_BF16  exact                            8           1.45 floor
 *   f16     GPU              exact                            11          1.45 floor
 *   bf16    GPU              exact                            8           1.45 floor
 *
 *   c = 4     where roundings of a sum go either way. Terms that are alike, as of a constant V,
 *             round one way, which adds at most 65 to c at 64 keys, at N of them at most
 *             98 + 3 log2(N / 2048) (GPUs 66 + N / 64).
 *   Sums      f32 (f64 for f64). Keys are summed in blocks of 64 to 256, each block fresh, then
 *             added once; on CPUs in segments of 2048 keys (dQ 4096 keys, dK and dV 6144 rows; all
 *             twice as long where P has 16 bits or fewer), joined in a binary tree.
 *             There is no epsilon in the row sum.
 *   AMX       the default where the CPU has it, with bits of its own. Elements of f32 below 2^-110
 *             have fewer bits there.
 *   AVX512_BF16  the default for bf16 on CPUs of AMD that have it, and on Cooper Lake, with bits
 *             of its own; f32 and f16 have the bits of all other CPUs there.
 *   FEAT_BF16    the default for bf16 on Arm CPUs that have it, likewise.
 *   PRECISE   ATTN_PRECISE keeps a call off AMX, AVX512_BF16 and FEAT_BF16, with the bits of all
 *             other CPUs, and on a GPU off probabilities of 16 bits. config.cpu = "avx512" (Arm:
 *             "neon") does so for a whole context.
 *   BF16X3    ATTN_BF16X3 without ATTN_PRECISE: a product is within 2^-15 of exact, typically 6e-6.
 *             Off AMX it changes nothing.
 *
 * ---- Conventions --------------------------------------------------------------------------------
 *
 * Threads: every function may be called from any number of threads at once, on the same context
 * too. A call, and a task of an executor, want at most 64 KiB of stack.
 * Callbacks must return: no exception, panic or longjmp may pass through the library.
 * Ownership: the library keeps no pointer of an argument after a call returns, except those in a
 * context's config, and a cache's config and memory. (Work that a call has enqueued on a GPU's
 * stream reads and writes data until it is done.)
 * Aliasing: outputs must not overlap inputs, the workspace or each other; inputs may overlap (K and
 * V may share memory, strides may be 0 or negative). Overlaps that addresses show are refused: an
 * output with more elements than its memory has room for (a d_bias is summed instead), and two
 * tensors that have their first element in common, or of which one has no gaps and holds the first,
 * the lowest or the highest element of the other. Views that interleave (dQ, dK and dV packed in
 * one tensor) are legal; whether two views with gaps meet in an element is for the caller to know.
 * Growing: argument structs start with struct_size = sizeof(the struct); zero in any field means
 * "off" or "default". A program built with an older header works with a newer library (missing
 * fields read as zero), and the reverse as long as the fields unknown to the library are zero (else
 * ATTN_ERR_UNKNOWN_FIELD).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef ATTN_ATTN_H
#define ATTN_ATTN_H

#include <stddef.h>
#include <stdint.h>

#define ATTN_VERSION_MAJOR 0
#define ATTN_VERSION_MINOR 1
#define ATTN_VERSION_PATCH 0

#if defined(ATTN_BUILD_SHARED) && defined(_WIN32)
#define ATTN_API __declspec(dllexport)
#elif defined(__GNUC__)
#define ATTN_API __attribute__((visibility("default")))
#else
#define ATTN_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Status ---------------------------------------------------------------------------------- */

/* Values are pinned for ever. attn_last_error() has the sentence that names the offending field and
 * its values. */
typedef enum attn_status {
    ATTN_OK = 0,
    ATTN_ERR_INVALID_ARGUMENT = 1, /* a field, or two fields together, make no sense */
    /* struct_size is larger than this library knows and the unknown part is not 0 */
    ATTN_ERR_UNKNOWN_FIELD = 2,
    /* legal, but this build or device cannot do it; the sentence says why */
    ATTN_ERR_UNSUPPORTED = 3,
    ATTN_ERR_OVERFLOW = 4,      /* a size or an offset does not fit in 64 bits */
    ATTN_ERR_OUT_OF_MEMORY = 5, /* the allocator returned NULL */
    ATTN_ERR_WORKSPACE = 6,     /* the workspace handed in is too small */
    ATTN_ERR_DEVICE = 7         /* the GPU driver reported an error */
} attn_status;

/* The status' name in lower-case words ("invalid argument"); "unknown status" for other values.
 * Static string. */
ATTN_API const char *attn_status_string(attn_status status);

/* One sentence about the last call of this thread that did not return ATTN_OK, e.g. "k.shape[2] = 3
 * does not divide q.shape[2] = 8"; "" if none. Valid until this thread's next call into the
 * library. */
ATTN_API const char *attn_last_error(void);

/* ---- Tensors --------------------------------------------------------------------------------- */

/* Element types. Values are pinned. */
typedef enum attn_dtype {
    ATTN_F64 = 1,
    ATTN_F32 = 2,
    ATTN_F16 = 3,  /* IEEE binary16 */
    ATTN_BF16 = 4, /* upper half of an f32 */
    ATTN_BOOL = 5, /* one byte, 0 = false, anything else = true */
    ATTN_I32 = 6,
    ATTN_I64 = 7,
    ATTN_U8 = 8,
    ATTN_I8 = 9,
    ATTN_E4M3 = 10, /* 8 bits: sign, 4 of the exponent, 3; NaN, but no infinity (OCP FP8) */
    ATTN_E5M2 = 11, /* 8 bits: the upper half of an f16 */
    /* a byte that holds two signed integers of 4 bits: the one with the lower index in its lower
     * half. An axis of n such bytes counts 2 n columns. */
    ATTN_I4X2 = 12,
    /* a byte that holds eight booleans: the one with the lowest index in its lowest bit. An axis of
     * n such bytes counts 8 n positions. */
    ATTN_B1X8 = 13
} attn_dtype;

/* Bytes per element; 0 for an unknown dtype. */
ATTN_API size_t attn_dtype_size(int32_t dtype);

/*
 * A view of up to four axes. This type is frozen. An optional tensor with data == NULL is absent,
 * whatever else it says; a required one may have no data where an extent is 0. Strides are in
 * elements, may be 0 (broadcast; inputs only) or negative, and data must be aligned to the element
 * size. The axes are always, whatever the memory layout:
 *
 *   q, k, v, o, lse, row_max          (batch, sequence, head, dim); lse and row_max: dim = 1
 *   mask, bias, alibi_slopes, sinks   (batch, head, query, key); an axis of extent 1 broadcasts
 *   gradients                         as the tensors that they belong to
 *   cu_seqlens_*, seqused_*           (count, 1, 1, 1)
 *   q_origin, k_origin                (batch or 1, 1, 1, 1)
 *   block_table                       (batch, page, 1, 1); leftpad_k (batch, 1, 1, 1)
 *   k_new, v_new                      as q: (batch, sequence, head, dim)
 *   rope_cos, rope_sin                (position, pair, 1, 1)
 */
typedef struct attn_tensor {
    void *data;
    int64_t shape[4];
    int64_t stride[4];
    int32_t dtype;    /* attn_dtype */
    int32_t reserved; /* 0 */
} attn_tensor;

/* Casts of C are the only ones that both languages have. */
#if defined(__cplusplus) && defined(__clang__)
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wold-style-cast"
#endif

/* The view of contiguous memory laid out [n0][n1][n2][n3]. */
static inline attn_tensor attn_tensor_bshd(const void *data, attn_dtype dtype, int64_t n0,
                                           int64_t n1, int64_t n2, int64_t n3)
{
    attn_tensor t;
    t.data = (void *)(uintptr_t)data;
    t.shape[0] = n0;
    t.shape[1] = n1;
    t.shape[2] = n2;
    t.shape[3] = n3;
    t.stride[0] = n1 * n2 * n3;
    t.stride[1] = n2 * n3;
    t.stride[2] = n3;
    t.stride[3] = 1;
    t.dtype = (int32_t)dtype;
    t.reserved = 0;
    return t;
}

/* The (batch, sequence, head, dim) view of contiguous memory laid out [batch][head][sequence][dim],
 * the layout of PyTorch's scaled_dot_product_attention. */
static inline attn_tensor attn_tensor_bhsd(const void *data, attn_dtype dtype, int64_t batch,
                                           int64_t heads, int64_t seq, int64_t dim)
{
    attn_tensor t = attn_tensor_bshd(data, dtype, batch, seq, heads, dim);
    t.stride[1] = dim;
    t.stride[2] = seq * dim;
    return t;
}

#if defined(__cplusplus) && defined(__clang__)
#pragma clang diagnostic pop
#endif

/* ---- Context --------------------------------------------------------------------------------- */

/* Memory for contexts and for workspaces that the caller did not hand in. alloc returns NULL on
 * failure; alignment is 64 in all calls, for allocators whose free asks for it; size is a multiple
 * of it. Both are called from the thread that called the library. */
typedef struct attn_allocator {
    void *user;
    void *(*alloc)(void *user, size_t size, size_t alignment);
    void (*free)(void *user, void *ptr, size_t size);
} attn_allocator;

/*
 * Threads to run on. parallel_for is the loop
 *     for (i = 0; i < n; i++) task(arg, i, thread);
 * in any order and on any threads; it returns when all n tasks are done. thread is in [0,
 * num_threads(user)) and no two tasks of a loop run at once with the same thread number. Threads
 * that call the library at once run their loops at once. Results do not depend on the executor.
 * num_threads is asked in every call; a workspace of a size asked for earlier is large enough while
 * num_threads has not grown. Five lines make an executor of OpenMP, TBB, pthreadpool or a game's
 * job system (docs/api.md).
 */
typedef struct attn_executor {
    void *user;
    int32_t (*num_threads)(void *user);
    void (*parallel_for)(void *user, int64_t n, void (*task)(void *arg, int64_t i, int32_t thread),
                         void *arg);
} attn_executor;

typedef enum attn_device { ATTN_DEVICE_CPU = 0, ATTN_DEVICE_CUDA = 1 } attn_device;

typedef struct attn_context_config {
    uint64_t struct_size;
    /* attn_device; pointers in a call belong to this device, those of lengths too */
    int32_t device;
    /* which GPU. Uses the creator's current CUDA context if it is on that GPU (it must outlive this
     * one), else retains the primary one. A call enters it unless its thread's is on that GPU */
    int32_t device_ordinal;
    /* size of the context's own pool; 0 = one per core in the creating thread's affinity, or as
     * many as a quota of processor time allows (cpu.max of control groups, version 2) */
    int32_t threads;
    int32_t reserved; /* 0 */
    /* cap on the instruction set: "scalar", "avx2", "avx512", "avx512bf16", "amx", "neon",
     * "neonbf16" or "wasm128", one of attn_info.cpu_tables; NULL = the environment variable
     * ATTN_CPU, or else the fastest there is */
    const char *cpu;
    attn_allocator allocator; /* all zero = malloc and free */
    attn_executor executor;   /* all zero = the context's own pool */
} attn_context_config;

/* Immutable once created, hence usable from many threads at once: calls that find the pool busy run
 * on their own thread. Pass NULL as context for a default one (this CPU, all cores), which is
 * created on first use and is never freed; a call that cannot create it returns the error of that.
 * After fork() a child may use any context; the pool's threads are started anew. */
typedef struct attn_context attn_context;

/* config == NULL = all defaults. Errors: invalid argument, unknown field, unsupported (no such
 * device, or a cap this machine or build cannot honour), out of memory, device; *context is NULL
 * then. */
ATTN_API attn_status attn_context_create(const attn_context_config *config, attn_context **context);

/* Joins the pool's threads and frees. No call may be in flight; of a GPU's context, what calls have
 * enqueued must be finished, and no graph that holds it may be launched later. NULL is allowed. */
ATTN_API void attn_context_destroy(attn_context *context);

/* ---- Forward --------------------------------------------------------------------------------- */

enum {
    ATTN_CAUSAL = 1 << 0,   /* C3 */
    ATTN_TOP_LEFT = 1 << 1, /* off = 0 in C3 (causal, window, ALiBi); not with origins */
    ATTN_WINDOW = 1 << 2,   /* window_left and window_right count; without it both must be 0 */
    ATTN_SCALE = 1 << 3,    /* softmax_scale counts; without it 1/sqrt(d) does, 1 for d = 0 */
    /* arithmetic of f32 at least, on CPUs the bits of all of them: see Accuracy above */
    ATTN_PRECISE = 1 << 4,
    /* f32: products of 16 bits where they are faster than f32's: see Accuracy above */
    ATTN_BF16X3 = 1 << 5,
    ATTN_ROPE_INTERLEAVED = 1 << 6, /* rotary pairs are columns 2 c and 2 c + 1 */
    /* a hint: several sequences have the same pages, which GPUs then read once, with the same bits;
     * CPUs see it by themselves */
    ATTN_SHARES_PAGES = 1 << 7
};

typedef struct attn_forward_args {
    uint64_t struct_size;

    /* Inputs f64, f32, f16 or bf16, the same type in q, k, v; o may be that type or f32. K and V
     * may be quantised (k_scale). Any strides. q (B, Nq, Hq, d), k (B, Nk, Hk, d), v (B, Nk, Hk,
     * d_v), o (B, Nq, Hq, d_v); d and d_v from 0 up. With cu_seqlens_*: q and o (1, total_q, Hq,
     * .), k and v (1, total_k, Hk, .). */
    attn_tensor q, k, v, o;

    /* Optional output: O once more in f32, beside an o of 16 bits. attn_backward reads it in place
     * of o: gradients of inputs with outliers are several times more exact with it. GPUs write the
     * wider of the two, and round it in a launch of its own. */
    attn_tensor o_f32;

    /* Optional outputs, f32 or f64, (B, Nq, Hq, 1) or (1, total_q, Hq, 1): LSE as in C2, and the
     * largest s of the row (-inf for a row without a visible key; sinks do not count; on CPUs NaN
     * where one s is NaN and none is +inf). */
    attn_tensor lse, row_max;

    uint64_t flags;       /* ATTN_CAUSAL | ... */
    double softmax_scale; /* 0 without ATTN_SCALE */
    double softcap;       /* > 0 and finite; 0 = off */
    int64_t window_left, window_right;

    /* Optional. mask: bool, u8, i8, i32 or i64, not 0 = visible; or b1x8, a bit for each key, 1 =
     * visible (trees of draft tokens), whose last axis has (Nk + 7) / 8 bytes, is never broadcast,
     * and whose bits beyond Nk do not matter. GPU contexts write a mask of i32, i64 or b1x8 to the
     * workspace first, a byte for each element. bias: f64, f32, f16 or bf16; with inputs of other
     * types one of f64 is rounded to f32, beyond whose range it is infinite. Both (B, Hq, Nq, Nk),
     * each axis possibly of extent 1. With sequences of several lengths, rows and keys are counted
     * within the sequence, and extents of at least the longest one are enough. */
    attn_tensor mask, bias;

    /* Both f32 or f64, (B or 1, Hq or 1, 1, 1). Slopes of f64 are rounded to f32 with inputs of
     * other types. A sink of NaN or +inf makes its rows NaN. */
    attn_tensor alibi_slopes, sinks;

    /* Dropout as in C11: dropout_p in [0, 1], 0 = off, and so is less than 2^-17. q_origin + Nq
     * below 2^32, k_origin + Nk below 2^34. */
    double dropout_p;
    uint64_t dropout_seed, dropout_offset;

    /* Optional. Varlen: sequence b is rows cu_seqlens[b] .. cu_seqlens[b+1]-1; both together or
     * none; i32 or i64, (B + 1, 1, 1, 1), a stride other than 0, not decreasing, within [0, total].
     * Rows outside every sequence have no visible key, and a sink if axis 0 of sinks has
     * extent 1. */
    attn_tensor cu_seqlens_q, cu_seqlens_k;

    /* Optional. Rows in use in each sequence (padding masks): i32 or i64, (B, 1, 1, 1), each within
     * [0, the sequence's length]. They take the place of Nq and Nk in C3. */
    attn_tensor seqused_q, seqused_k;

    /* Optional. Positions of the first query and of the first key in a longer sequence, of which
     * this call has a part (a chunk of a prompt, split keys, a ring): off = q_origin - k_origin in
     * C3, for ALiBi too, and dropout counts from them. If one is given, an absent one is 0. i32 or
     * i64, (B, 1, 1, 1), or (1, 1, 1, 1) for all sequences; each at least 0, and positions end at
     * 2^60. Masks and biases have indices of the call's own rows and keys. */
    attn_tensor q_origin, k_origin;

    /* Optional scratch of at least attn_forward_workspace() bytes, any alignment, which no other
     * call uses at the same time; contents do not matter and are not kept. NULL = the context's
     * allocator is called once. GPU contexts: memory of the GPU. NULL costs a little time there;
     * where few rows meet many keys it costs much time and gives other bits; with a rotation, or a
     * mask of i32, i64 or b1x8, it is an error. */
    void *workspace;
    uint64_t workspace_bytes;

    /* GPU contexts: the CUstream (or cudaStream_t) on which the work is enqueued; NULL = the
     * default stream. The call returns at once: no allocation, no copy, no synchronisation, so it
     * can be captured into a CUDA graph. Lengths and origins in the GPU's memory cannot be checked
     * by the call: values outside their ranges are cut to them. cu_seqlens that decrease: O of the
     * forward pass means nothing, the backward pass takes the largest start so far. CPU contexts:
     * NULL. */
    void *stream;

    /* Optional. Paged keys: k and v are pools of pages, (pages, page size, Hk, .), of any page size
     * from 1 on, and key j of sequence b is row j mod page size of page block_table[b][j / page
     * size]. i32 or i64, (B, n, 1, 1), any strides; Nk is n times the page size, or less by
     * seqused_k. Pages may lie in any order and belong to several sequences; on CPUs those with
     * which the tables of several sequences begin are read once for all of them, in whole segments
     * of 2048 or 4096 keys, where a sequence has few rows and scores know no positions. Entries of
     * pages without a key in use are never read, nor are rows of K and V that are not in use; the
     * other entries must be in [0, pages), which attn_forward checks, not its plan. With pages
     * there is no cu_seqlens_k, and cu_seqlens_q may be given alone; a mask or bias has at least as
     * many keys as the longest sequence in use. A table of one column is a list of cache slots:
     * sequence b has its keys in k[block_table[b]]. Forward pass only. GPU contexts: the table is
     * in the GPU's memory and cannot be checked; entries are cut to [0, pages), and other rows of a
     * page in use may be read, without effect. */
    attn_tensor block_table;

    /* Optional. Rows of K and V before the first key of each sequence, never read: i32 or i64, (B,
     * 1, 1, 1), each within [0, the keys in use]. seqused_k and block_table count these rows; Nk
     * of C3 does not, and key 0 of masks, biases and C3 is the first one behind them. Not with
     * cu_seqlens_k. Forward pass only. */
    attn_tensor leftpad_k;

    /* Optional. New rows of the cache, (B, Nq, Hk, d) and (B, Nq, Hk, d_v) or varlen as q, of q's
     * type and any strides: before the attention, row i in use of a sequence is written to its key
     * Nk - Nq + i, so that seqused_k counts it, and k and v are outputs. Nq above Nk is an error,
     * and so is a table that puts two new rows in one row of the pool. Without v_new nothing is
     * written to v, which may then be a view of k; without k_new nothing to k. Forward pass only.
     * GPU contexts cannot check lengths and tables: rows for which a sequence has no key are left
     * out, and nothing is written outside of k and v. */
    attn_tensor k_new, v_new;

    /* Optional. Rotary embedding of q and k_new (k has been rotated already): of the first
     * rope_dims columns, even and at most d, 0 = d, each pair (x, y) becomes (x cos - y sin, x sin
     * + y cos). Pair c is columns c and c + rope_dims / 2, or 2 c and 2 c + 1 with
     * ATTN_ROPE_INTERLEAVED. Its angle at position n is row n of the tables rope_cos and rope_sin,
     * f32 or f64, (positions, rope_dims / 2, 1, 1), both together; or n rope_base^(-2 c /
     * rope_dims) with rope_base > 0 and no tables. Row i of a sequence is at position q_origin + i,
     * or Nk - Nq + i without q_origin. Rotated rows are rounded to their type, as if they had been
     * stored. Forward pass only. GPU contexts want the workspace for it, cut positions to those of
     * the tables, and their pow, sin and cos differ from the CPU's in the last bits of f64. */
    attn_tensor rope_cos, rope_sin;
    double rope_base;
    int64_t rope_dims;

    /* Quantised K and V, each for itself: k.dtype or v.dtype is i8, i4x2, e4m3 or e5m2, and an
     * element is scale code + shift in f32, rounded once; attention is over these values.
     * Scales and shifts are f32, f16 or bf16, (k.shape[0], k.shape[1], Hk, G), each of the first
     * three axes possibly of extent 1: G groups of neighbouring columns have one each, G divides d,
     * or d_v for V. With pages they lie in pages of their own, by the same table. A shift has the
     * type and the shape of its scale. Codes of 8 or 4 bits need a scale; without one it is 1.
     * Where a scale has a row for each key, an append writes scale and shift as attn_quantize
     * does; where keys share it, it is given, and codes are rounded by it. Q is f32, f16 or bf16.
     * Forward pass only. */
    attn_tensor k_scale, k_shift, v_scale, v_shift;
} attn_forward_args;

/* Computes o and, if present, lse and row_max. Errors: invalid argument, unknown field,
 * unsupported, overflow, workspace, out of memory, and nothing is written then; device, perhaps
 * after a part of the work. Context may be NULL. Cost: 2 (d + d_v) operations per visible score. */
ATTN_API attn_status attn_forward(attn_context *context, const attn_forward_args *args);

/* *bytes = the workspace that attn_forward wants for these arguments and this context: linear in
 * the head dimension and the number of threads, and beyond 2048 keys in the logarithm of their
 * number; plus 8 bytes per sequence of a varlen call, at most 64 MiB for a mask, a byte per 1024
 * elements, and at most 32 MiB for sums over pages that sequences share. Reads shapes and lengths
 * only: q, k, v and o may have no data yet; optional tensors count if they have. */
ATTN_API attn_status attn_forward_workspace(attn_context *context, const attn_forward_args *args,
                                            uint64_t *bytes);

/* Choices and costs of a call. Operations and bytes are counts of the mathematics: products of
 * visible tiles, as executed. Strings are static or in `why`. */
typedef struct attn_plan {
    uint64_t struct_size; /* in: sizeof(attn_plan) of the caller */
    const char *kernel;   /* the kernel table's name, "avx2_f32" */
    char why[256];        /* why this table and not the better ones, one line */
    int32_t threads;
    int32_t strip;     /* query rows side by side in one tile */
    int32_t key_block; /* keys per tile */
    /* dot products of pairs of bf16 in each product (AVX512_BF16, FEAT_BF16); 0: none */
    int32_t pair_products;
    /* query rows (heads of a group folded in) of one work item; of attn_backward, of one that gives
     * dQ */
    int64_t rows_per_item;
    int64_t items; /* work items */
    /* strip x key_block tiles: all visible, masked in part, skipped. A plan does not read a mask
     * tensor, and counts as if it hid nothing; the call skips what it hides. */
    int64_t tiles_full, tiles_partial, tiles_skipped;
    /* 2 (d + d_v) per visible score, 2 (3 d + 2 d_v) for all of dQ, dK and dV; a mask or bias
     * tensor counts as all visible */
    double flops;
    /* Q, K, V, O, gradients and masks once; K and V again for each further block of rows, on a GPU
     * for each further wave of its CTAs, as far as they exceed its L2; Q and dO again for each
     * further set of keys of attn_backward */
    double bytes_tiled;
    /* bytes of standard attention, which writes and reads matrices of scores too: 4 passes over
     * them, 7 of attn_backward */
    double bytes_standard;
    uint64_t workspace_bytes;
    /* Class of the result's bits (C7): plans of one class give the same bits; 0 = those of the
     * table "scalar" and all that agree with it. */
    int32_t bits;
    int32_t sum_bits;      /* of the type of sums: 32 or 64 */
    int32_t vector_bits;   /* width of the kernel's multiply-adds; 0 on a GPU */
    int32_t tile_products; /* products of 16-bit tiles in each product; 0: none */
    /* Losses of a product of two inputs and of one of probabilities with an input, as a share of
     * |x y|: roundings of the factors (see Accuracy). */
    double input_loss, weight_loss;
} attn_plan;

/* Fills *plan, in time that does not grow with lengths. Tiles, operations and bytes of a GPU's plan
 * are 0 if lengths in the GPU's memory decide on them. The same errors as attn_forward, except for
 * the workspace, which is not looked at, and for addresses: q, k, v and o may have no data yet. */
ATTN_API attn_status attn_forward_plan(attn_context *context, const attn_forward_args *args,
                                       attn_plan *plan);

/* ---- Backward -------------------------------------------------------------------------------- */

/*
 * Gradients of a loss L, given d_o = dL/dO (and d_lse = dL/dLSE), by recomputing probabilities from
 * q, k and lse:
 *
 *   p      = exp(s - LSE[i]) where visible       dV[j]  = sum_i p Z dO[i]
 *   dP     = Z dO[i].V[j]                        dQ[i]  = sum_j g K[j]
 *   delta  = dO[i].O[i] - dLSE[i]                dK[j]  = sum_i g Q[i]
 *   dS     = p (dP - delta)                      dBias  = dS
 *   g      = softmax_scale (1 - t^2) dS          dSlope = -sum dS |i + off - j|
 *   t      = tanh(.) of the softcap, or 0        dSink  = -sum_i exp(sink - LSE[i]) delta
 *
 * each summed over whatever it is shared by: the heads of a group (dK, dV), the broadcast axes
 * (dBias, dSlope, dSink). A row without a visible key (LSE = -inf, or only a sink) has dQ = 0 and
 * adds nothing to dK, dV and dBias. Positions that no row sees get 0. C4, C6, C7, C8 hold: the
 * result is deterministic, always.
 *
 * o and lse are results of attn_forward on these arguments, or on a larger set of keys of which
 * these are a part (rings, split keys; q_origin and k_origin say which part). Gradients of these
 * gradients (double backward) are out of scope; their place would be an attn_double_backward_args.
 */
typedef struct attn_backward_args {
    uint64_t struct_size;

    /* The arguments of the forward pass. o (or o_f32, which is read in its place where it is given)
     * and lse are inputs now, may have any strides, 0 and negative ones too, and must be there.
     * row_max, workspace and stream of *forward are not looked at. */
    const attn_forward_args *forward;

    /* Inputs: d_o (B, Nq, Hq, d_v) of q's type or f32; d_lse, optional, (B, Nq, Hq, 1), f32 or
     * f64. Any strides. */
    attn_tensor d_o, d_lse;

    /* Outputs in the shapes of q, k, v, each of q's type or f32. Each is optional, and an absent
     * one is not computed. */
    attn_tensor dq, dk, dv;

    /* Optional outputs in the shapes of bias, alibi_slopes and sinks, which must then be given:
     * d_bias f64, f32, f16 or bf16, the others f32 or f64. Elements of d_bias may share memory, as
     * those of a bias of relative positions do (strides 2N-1, -1, 1 of heads, queries, keys): each
     * place gets the sum over all elements that lie there. */
    attn_tensor d_bias, d_alibi_slopes, d_sinks;

    /* As in attn_forward_args, of this call. */
    void *workspace;
    uint64_t workspace_bytes;
    void *stream;
} attn_backward_args;

/*
 *   attn_forward_args f = a;                       // the example above, with f.lse
 *   attn_forward(NULL, &f);
 *   attn_backward_args b = {.struct_size = sizeof b, .forward = &f, .d_o = d_o, .dq = dq};
 *   attn_backward(NULL, &b);
 *
 * Computes the gradients that have a place. Errors: those of attn_forward. GPU contexts want the
 * workspace: a call without one is an error there; d_bias whose elements share memory is for
 * contexts of the CPU only.
 * Cost: 2 (3 d + 2 d_v) operations per visible score, for dQ, dK and dV together.
 */
ATTN_API attn_status attn_backward(attn_context *context, const attn_backward_args *args);

/* *bytes = the workspace that attn_backward wants: linear in the numbers of query rows and keys,
 * beyond 4096 keys times the logarithm of their number, never Nq x Nk. Reads shapes and lengths
 * only: q, k, v, o, lse and d_o may have no data yet; optional tensors count if they have. */
ATTN_API attn_status attn_backward_workspace(attn_context *context, const attn_backward_args *args,
                                             uint64_t *bytes);

/* Fills *plan as attn_forward_plan does. The same errors as attn_backward, except for the workspace
 * and addresses, as in attn_backward_workspace. */
ATTN_API attn_status attn_backward_plan(attn_context *context, const attn_backward_args *args,
                                        attn_plan *plan);

/* The dropout of C11 on its own: keep[b][h][i][j] = 1 where Z is not 0, else 0. keep: bool, (B, Hq,
 * Nq, Nk). Origins as in attn_forward_args: on a GPU they lie in its memory and are cut to their
 * range. */
typedef struct attn_dropout_mask_args {
    uint64_t struct_size;
    attn_tensor keep;
    attn_tensor q_origin, k_origin;
    double dropout_p;
    uint64_t dropout_seed, dropout_offset;
    void *stream; /* of a GPU's context, as in attn_forward_args */
} attn_dropout_mask_args;

/* Writes keep. Errors: invalid argument, unknown field, overflow, device; nothing is written
 * then. */
ATTN_API attn_status attn_dropout_mask(attn_context *context, const attn_dropout_mask_args *args);

/* ---- Cache ----------------------------------------------------------------------------------- */

/*
 * A pool of pages of K and V with the tables of its sequences, for those who want no arithmetic of
 * pages; attn_forward takes any table, whoever made it. The memory is the caller's: the pools k and
 * v, and the bookkeeping, whose size attn_cache_bytes says; nothing is allocated. Pages are shared
 * by forks and copied before they are written to.
 *
 *   attn_cache_config c = {.struct_size = sizeof c, .k = pool_k, .v = pool_v, .sequences = 64,
 *                          .length = 4096};
 *   attn_cache_bytes(&c, &bytes), attn_cache_open(&c, malloc(bytes), bytes, &cache);
 *   attn_cache_alloc(cache, &prompt), attn_cache_extend(cache, prompt, tokens);
 *   attn_cache_view(cache, &prompt, 1, table, lengths, &args);  // k, v, block_table, seqused_k
 *   args.k_new = ..., args.v_new = ..., attn_forward(NULL, &args);
 *
 * Threads: all functions but open and close may be called at once on one cache; by a child of
 * fork() if none was under way. A view stays right until one of its sequences is extended,
 * truncated or freed; writing rows of a sequence (k_new) is safe while no other thread forks it.
 */
typedef struct attn_cache attn_cache;

typedef struct attn_cache_config {
    uint64_t struct_size;
    /* (pages, page size, Hk, d) and (pages, page size, Hk, d_v), as attn_forward takes them with a
     * block_table; below 2^31 pages. v may be a view of k. They must outlive the cache. */
    attn_tensor k, v;
    int64_t sequences; /* the most at once */
    int64_t length;    /* the most keys of one */
    /* Copies the first `rows` rows of a page of K and V to another page; NULL: the pools are in
     * this process's memory and the library copies. Called by the thread that extends; calls of
     * other threads wait until it returns, and it must not call functions of this cache. Returns
     * ATTN_OK, or an error for attn_cache_extend to return. */
    void *user;
    attn_status (*copy)(void *user, int64_t to_page, int64_t from_page, int64_t rows);
    /* Optional, of quantised pools: as in attn_forward_args. Copied with the rows. */
    attn_tensor k_scale, k_shift, v_scale, v_shift;
} attn_cache_config;

/* *bytes = the bookkeeping's memory, at any alignment. */
ATTN_API attn_status attn_cache_bytes(const attn_cache_config *config, uint64_t *bytes);

/* Opens an empty cache in memory of at least attn_cache_bytes. Errors: invalid argument, unknown
 * field, overflow, workspace (too small), out of memory (a mutex); *cache is NULL then. */
ATTN_API attn_status attn_cache_open(const attn_cache_config *config, void *memory, uint64_t bytes,
                                     attn_cache **cache);

/* The memory is the caller's again. NULL is allowed. */
ATTN_API void attn_cache_close(attn_cache *cache);

/* A sequence is a number from 0 to sequences - 1 that alloc or fork gave and free has not taken
 * back; other numbers are an invalid argument. After an error everything is as before. */

/* A new sequence of length 0. Errors: out of memory (as many sequences as there may be). */
ATTN_API attn_status attn_cache_alloc(attn_cache *cache, int64_t *sequence);

/* Gives back its pages, as far as no other sequence has them, and its number. */
ATTN_API attn_status attn_cache_free(attn_cache *cache, int64_t sequence);

/* A new sequence that shares the first `length` keys of another. No row is copied. */
ATTN_API attn_status attn_cache_fork(attn_cache *cache, int64_t sequence, int64_t length,
                                     int64_t *forked);

/* Room for `rows` more keys, at least 0; its length counts them. A last page that others share is
 * copied. Errors: out of memory (pages), invalid argument (beyond the config's length), or what the
 * config's copy returns. */
ATTN_API attn_status attn_cache_extend(attn_cache *cache, int64_t sequence, int64_t rows);

/* Drops the keys from `length` on, with their pages. */
ATTN_API attn_status attn_cache_truncate(attn_cache *cache, int64_t sequence, int64_t length);

/* Sets k, v, their scales and shifts, block_table and seqused_k of *args for some sequences in this
 * order, by way of the caller's table [count][columns], columns = length / page size, rounded up,
 * and lengths [count]. Entries behind a sequence's last page are -1. Other fields stay.
 * Errors: invalid argument (args->struct_size is not set, or too small for these fields). */
ATTN_API attn_status attn_cache_view(attn_cache *cache, const int64_t *sequences, int64_t count,
                                     int32_t *table, int64_t *lengths, attn_forward_args *args);

/* Pages that no sequence has. */
ATTN_API attn_status attn_cache_free_pages(attn_cache *cache, int64_t *pages);

/* ---- Quantised tensors ----------------------------------------------------------------------- */

/*
 * A tensor x of 4 axes as codes: x = scale code + shift in f32, rounded once. The type of codes is
 * i8, i4x2, e4m3 or e5m2; scale and shift are as in attn_forward_args (k_scale), for x in place of
 * k: elements of x that share a scale are a group.
 *
 *   attn_quantize_args a = {.struct_size = sizeof a, .x = k, .codes = codes, .scale = scale};
 *   attn_quantize(NULL, &a);        // a.scale (B, N, H, 1): of each token and head
 *
 * With M = 127, 7, 448, 57344, the largest code of i8, i4x2, e4m3, e5m2, the scale of a group is
 * max |x| / M. With a shift (i8, i4x2) it is (max x - min x) / (2 M + 1), and the shift is min x +
 * (M + 1) scale. Codes are the nearest ones to (x - shift) / scale by the scale and shift as
 * stored, at most M in size (at least -M - 1 with a shift). So the value of a code differs from x
 * by at most
 *
 *   i8, i4x2   scale / 2 + 2^-p (|shift| + (M + 1) scale)      p = 24, 11, 8 of a scale of f32,
 *   e4m3       max(2^-4 |x|, 2^-10 scale)                      f16, bf16; the second term only
 *   e5m2       max(2^-3 |x|, 2^-17 scale)                      with a shift
 *
 * and by the rounding of the value to f32, while scales are normal numbers of their type. A group
 * with a NaN or an infinity gets a scale that is no finite number: all its values are NaN.
 *
 * Attention over quantised K and V is exact for the values of the codes (C10). Beside attention
 * over x, O moves by at most max |V - x_V| + (e^(2 t) - 1) sum p |v|, t = |softmax_scale| max over
 * keys of sum_c |q_c| |K - x_K|.
 */
typedef struct attn_quantize_args {
    uint64_t struct_size;
    attn_tensor x;     /* f64, f32, f16 or bf16 */
    attn_tensor codes; /* the same extents; i4x2: the last one halved */
    attn_tensor scale; /* optional for e4m3 and e5m2 */
    attn_tensor shift; /* optional; i8 and i4x2 */
    /* attn_quantize: scale and shift are inputs, found before by other means */
    int32_t scale_given;
    int32_t reserved; /* 0 */
    void *stream;     /* of a GPU's context, as in attn_forward_args */
} attn_quantize_args;

/* Writes codes, scale and shift from x, on a GPU with the CPU's bits. Errors: invalid argument,
 * unknown field, overflow, device; nothing is written then. */
ATTN_API attn_status attn_quantize(attn_context *context, const attn_quantize_args *args);

/* Writes x from codes, scale and shift: the values in f32, rounded to x's type. Errors: those of
 * attn_quantize. */
ATTN_API attn_status attn_dequantize(attn_context *context, const attn_quantize_args *args);

/* ---- Merge ----------------------------------------------------------------------------------- */

/*
 * Combines results over disjoint key ranges of the same queries: LSE = ln sum_p exp(lse_p), O =
 * sum_p exp(lse_p - LSE) o_p (FlashAttention-2, section 3.1; used for shared prefixes, rings, split
 * keys). A part with lse = -inf has no influence whatever its o; if all have, O = 0 and LSE = -inf.
 * Parts are added in order. A sink must be given to one part only.
 *
 *   attn_tensor o[2] = {o_first, o_second}, lse[2] = {lse_first, lse_second};
 *   attn_merge_args m = {.struct_size = sizeof m, .parts = 2, .part_o = o, .part_lse = lse,
 *                        .o = o_first, .lse = lse_first};
 *   attn_merge(NULL, &m);
 *
 * Cost: each part is read once, the result written once. On a GPU the arrays of views are the
 * host's, their data the GPU's, there are at most 64 parts, and the call returns at once.
 */
typedef struct attn_merge_args {
    uint64_t struct_size;
    int64_t parts;               /* at least 1 */
    const attn_tensor *part_o;   /* [parts]: (B, Nq, Hq, d_v), f64, f32, f16 or bf16 */
    const attn_tensor *part_lse; /* [parts]: (B, Nq, Hq, 1), f32 or f64, natural logarithm */
    attn_tensor o;               /* (B, Nq, Hq, d_v); may be the same view as one of part_o */
    /* optional (B, Nq, Hq, 1); may be the same view as one of part_lse */
    attn_tensor lse;
    void *stream; /* of a GPU's context, as in attn_forward_args */
} attn_merge_args;

/* Writes o and, if present, lse. Errors: invalid argument, unknown field, unsupported (more than 64
 * parts on a GPU), overflow, device; nothing is written then. */
ATTN_API attn_status attn_merge(attn_context *context, const attn_merge_args *args);

/*
 * Gradients of a loss through attn_merge, given d_o = dL/dO and d_lse = dL/dLSE of the merged
 * result. With w_p = exp(lse_p - LSE):
 *
 *   d_o_p = w_p dO              d_lse_p = w_p (dO.(o_p - O) + dLSE)
 *
 * O and LSE are computed again from the parts, which must be unchanged: a merge in place has
 * overwritten one. A part with lse = -inf gets 0, whatever its o. attn_backward of a part, with
 * the part's own o and lse, takes d_o_p and d_lse_p from here. Its gradients are those of
 * attn_backward of the part with the merged o, lse and d_o, which needs no parts: this call is for
 * parts that other computations use too.
 */
typedef struct attn_merge_backward_args {
    uint64_t struct_size;
    const attn_merge_args *forward; /* the parts; o, lse and stream of it are not looked at */
    attn_tensor d_o;                /* (B, Nq, Hq, d_v), f64, f32, f16 or bf16 */
    attn_tensor d_lse;              /* optional, (B, Nq, Hq, 1), f32 or f64 */
    /* outputs, [parts] each, in the shapes of part_o and part_lse, of their sets of types; NULL, or
     * an absent tensor in an array: not wanted */
    const attn_tensor *part_d_o, *part_d_lse;
    void *stream; /* of a GPU's context, as in attn_forward_args */
} attn_merge_backward_args;

/* Writes the gradients that have a place. Errors: those of attn_merge. */
ATTN_API attn_status attn_merge_backward(attn_context *context,
                                         const attn_merge_backward_args *args);

/* ---- Information ----------------------------------------------------------------------------- */

/* MAJOR * 10000 + MINOR * 100 + PATCH of the library in use (which may differ from the
 * header's). */
ATTN_API int32_t attn_version(void);

/* The build, and the machine that a context runs on. Strings live as long as the context. */
typedef struct attn_info {
    uint64_t struct_size;
    const char *version;      /* "0.1.0" */
    const char *build;        /* the compiler and its version */
    const char *cpu_features; /* those libattn looks for and found, blank-separated */
    const char *cpu_table;    /* the chosen kernel tables: "avx2" */
    /* all tables that this machine can run, best first; all give the same bits but amx, wasm128
     * and, in bf16, avx512bf16 and neonbf16 */
    const char *cpu_tables;
    int32_t threads;
    int32_t reserved;
    int64_t l1d_bytes, l2_bytes, l3_bytes; /* of one core; 0 = unknown */
} attn_info;

/* Fills *info. Errors: invalid argument (info is NULL, its struct_size is not set, or an executor
 * has less than one thread). */
ATTN_API attn_status attn_get_info(attn_context *context, attn_info *info);

#ifdef __cplusplus
}
#endif
#endif
