/*
 * problem.h: an attention problem as one line of text, and the tensors that belong to it.
 *
 * The same line serves `attn bench`, `plan`, `check`, the tests, the suites and bug reports. Words
 * are key=value, separated by blanks, named as in attn.h; a missing word has a default. Not here:
 * the answer (oracle.h) and the values of the tensors (inputs.h).
 *
 *   b=1 hq=8 hkv=hq nq=1024 nk=nq d=64 dv=d    n=N sets nq and nk, h=H sets hq and hkv
 *   dtype=f32|f64|f16|bf16   o_dtype=dtype|f32
 *   layout=bshd|bhsd|qkv|gap|strided|loose
 *       qkv: interleaved packed QKV (needs hq=hkv nq=nk dv=d); gap: unused elements between rows
 *       and heads; strided: K and V heads broadcast (stride 0), q reversed along the sequence,
 *       every second element of V and O unused; loose: axes of one element have huge strides
 *   causal=0|1 top_left=0|1  window_left=L window_right=R (negative: unbounded)  scale=X softcap=X
 *   mask=[DTYPE:]AXES  bias=[DTYPE:]AXES   AXES = the letters of b h q k that are not broadcast, 1
 *                                  for none: mask=bk mask=i64:k bias=f16:hqk; DTYPE of a mask:
 *                                  bool u8 i8 i32 i64 b1x8 (b1x8 with k)
 *   alibi=AXES sinks=AXES          of b h: alibi=h
 *   lens_q=a,b,.. lens_k=a,b,..    varlen: cu_seqlens from these lengths (b and totals follow)
 *   outside=N                      varlen: rows and keys before the first sequence, after the last
 *   used_q=a,b,.. used_k=a,b,..    seqused of each sequence
 *   q_origin=a,b,.. k_origin=a,b,..  positions of the first query and key of each sequence, or one
 *                                  for all
 *   page=N                         K and V in pages of N rows, in an order of their own; 0: not
 *   view=0|1                       V is the first dv columns of K, in one memory
 *   prefix=N                       all sequences begin with the pages of the first one's N keys
 *   kv_dtype=i8|i4x2|e4m3|e5m2     quantised K and V; not given: dtype
 *   kv_scale=[DTYPE:]AXES          of b k h: scales with rows of their own (f32, f16, bf16);
 *                                  kv_scale=bkh without saying for i8 and i4x2
 *   kv_group=N kv_shift=0|1        columns that share a scale, 0: all; shifts beside the scales
 *   leftpad_k=a,b,..               rows before the first key of each sequence
 *   precise=0|1 bf16x3=0|1   index=i32|i64   lse=0|1 row_max=0|1
 *   offset=E                       (elements by which every base pointer is shifted)
 *   dropout=P dropout_seed=S dropout_offset=O
 *   pass=forward|backward|training (both)   d_lse=0|1   d_bias=DTYPE d_alibi=0|1 d_sinks=0|1
 *   grad_dtype=dtype|f32           of dq, dk, dv
 *   inputs=normal|outlier|uniform|large|equal|positive|offset|even|rising|wild
 *   sown=N                         one in N elements of Q, K, V and dO is a NaN, and one in four
 *                                  sinks; 0: none
 *   infinite=N                     one in N elements of Q, K, V and dO is an infinity; 0: none
 *   seed=S   threads=T (0: all)   cpu=scalar|avx2|avx512|avx512bf16|neon|neonbf16|amx
 */
#ifndef SUPPORT_PROBLEM_H
#define SUPPORT_PROBLEM_H

#include <attn/attn.h>
#include <stdbool.h>

enum { PROBLEM_MAX_SEQS = 256 };

typedef struct problem_spec {
    int64_t b, hq, hkv, nq, nk, d, dv;
    int32_t dtype, o_dtype, index_dtype, mask_dtype, bias_dtype;
    int32_t layout, inputs;                 /* enum problem_layout, problem_inputs */
    int32_t pass, d_bias_dtype, grad_dtype; /* enum problem_pass; 0 = none; 0 = dtype */
    bool causal, top_left, precise, bf16x3, lse, row_max;
    bool d_lse, d_alibi, d_sinks;
    bool has_window, has_scale;
    int64_t window_left, window_right;
    double scale, softcap, dropout;
    uint64_t dropout_seed, dropout_offset;
    /* axes, "" = absent, "1" = one element */
    char mask[5], bias[5], alibi[3], sinks[3];
    int64_t lens_q[PROBLEM_MAX_SEQS], lens_k[PROBLEM_MAX_SEQS]; /* varlen if has_lens */
    int64_t outside;
    int64_t used_q[PROBLEM_MAX_SEQS], used_k[PROBLEM_MAX_SEQS];
    bool has_lens, has_used_q, has_used_k;
    int64_t q_origin[PROBLEM_MAX_SEQS], k_origin[PROBLEM_MAX_SEQS];
    int32_t q_origins, k_origins;     /* how many: 1, or one for each sequence; 0 = absent */
    int64_t page;                     /* 0: no pages */
    int64_t prefix;                   /* keys whose pages all sequences share */
    bool view;                        /* V is the first columns of K */
    int32_t kv_dtype, kv_scale_dtype; /* 0: dtype */
    char kv_scale[4];                 /* axes, "" = absent */
    int64_t kv_group;                 /* 0: all columns */
    bool kv_shift;
    int64_t leftpad_k[PROBLEM_MAX_SEQS];
    bool has_leftpad;
    int64_t offset, sown, infinite;
    uint64_t seed;
    int32_t threads;
    char cpu[16];
} problem_spec;

enum problem_layout {
    LAYOUT_BSHD,
    LAYOUT_BHSD,
    LAYOUT_QKV,
    LAYOUT_GAP,
    LAYOUT_STRIDED,
    LAYOUT_LOOSE
};
enum problem_pass { PASS_FORWARD, PASS_BACKWARD, PASS_TRAINING };
enum problem_inputs {
    INPUTS_NORMAL,
    INPUTS_OUTLIER,
    INPUTS_UNIFORM,
    INPUTS_LARGE,
    INPUTS_EQUAL,
    INPUTS_POSITIVE,
    INPUTS_OFFSET,
    INPUTS_EVEN,
    INPUTS_RISING, /* sizes of K grow along the keys, so maxima rise from block to block */
    INPUTS_WILD
};

/* Reads one line. On error returns false and writes one sentence that names the word into
 * error[size]. */
bool problem_parse(const char *line, problem_spec *problem, char *error, size_t size);

/* The key that the one of "key=value" or "key" is, or is a near miss of (near.h); NULL: none. */
const char *problem_near_word(const char *text);

/* Writes the line that parses back to the same problem: b hq nq d dtype (or hq d dtype after
 * lens_q), and the other words where they differ from their default. Returns its length as snprintf
 * does. */
int problem_print(const problem_spec *problem, char *line, size_t size);

/* Calls visit for each problem of a line: {a,b,c} or {1..9} means one problem for each alternative
 * (the cartesian product if there are several). Stops and returns false on the first error or when
 * visit returns false. */
bool problem_line(const char *line, bool (*visit)(void *user, const problem_spec *problem),
                  void *user, char *error, size_t size);

/* problem_line for each line of a suite file. '#' starts a comment, blank lines are skipped. Errors
 * begin with the place, file:line. */
bool problem_suite(const char *path, bool (*visit)(void *user, const problem_spec *problem),
                   void *user, char *error, size_t size);

/* Place of each tensor's memory: anywhere; right before an inaccessible page; right after one; or
 * nowhere, at addresses that trap, for calls of any size that read shapes and lengths only (lengths
 * are there). */
enum placement { PLACE_PLAIN, PLACE_GUARD_AFTER, PLACE_GUARD_BEFORE, PLACE_NOWHERE };

/* The arguments of attn_forward with their tensors: inputs filled from the seed, outputs and all
 * gaps between elements poisoned with 0xFF bytes, which is a NaN. Slopes and sinks, lse and row_max
 * are f64 if dtype is f64, else f32. With pass=backward or training, the arguments of attn_backward
 * too, with grad.forward = &args; attn_forward has to fill their o and lse first. */
typedef struct problem_tensors {
    attn_forward_args args;
    attn_backward_args grad;
    struct tensor_memory *memory; /* private: the allocations */
} problem_tensors;

/* False if memory does not suffice. Free with problem_tensors_free. Equal problems give equal
 * bits. */
bool problem_tensors_create(const problem_spec *problem, enum placement placement,
                            problem_tensors *tensors);
void problem_tensors_free(problem_tensors *tensors);

/* Bytes of all tensors, gaps included. */
double problem_tensors_bytes(const problem_tensors *tensors);

/* Writes 0xFF into o, lse and row_max, gaps included. */
void problem_tensors_poison(problem_tensors *tensors);

/* Makes inputs read-only, so that a write to one faults where it happens. */
void problem_tensors_seal(const problem_tensors *tensors);

/* True if the gaps between the elements of the outputs still hold the poison and no input byte
 * changed. */
bool problem_tensors_intact(const problem_tensors *tensors);

/* True for a step of decoding: a forward pass of at most 64 rows of a KV head, which reads the keys
 * once. */
bool problem_is_decode(const problem_spec *problem);

/* Bytes of K and V in use, with `factors` also of scales that have rows of their own. */
double problem_key_bytes(const problem_spec *problem, bool factors);

/* Creates the context that the problem asks for (threads, cpu). */
attn_status problem_context(const problem_spec *problem, attn_context **context);

/* Beyond every key and position, with room for sums. */
#define PROBLEM_FAR (INT64_MAX / 4)

/* Queries and keys in use of sequence b. Query i sees keys i + low .. i + high - 1, of those that
 * exist. */
typedef struct problem_band {
    int64_t nq, nk, low, high;
} problem_band;
problem_band problem_band_of(const problem_spec *problem, int64_t b);

/* Sequences differ in their bands. */
bool problem_is_ragged(const problem_spec *problem);

/* 2 (d + d_v) Nq Nk Hq summed over sequences, for the backward pass 2 (3 d + 2 d_v), the sum of
 * both for pass=training. Causal counts half, as the field does; with a window, or causal with
 * origins, the scores inside are counted one by one. */
double problem_flops(const problem_spec *problem);

#endif
