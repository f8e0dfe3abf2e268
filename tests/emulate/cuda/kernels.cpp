/*
 * kernels.cpp: the kernels of one source of src/cuda/kernel for the emulated GPU. The build says
 * which: EMULATED_SOURCE is its path, EMULATED_<name> its name.
 */
// clang-format off: words come first
#include "words.h"
#include EMULATED_SOURCE
#include "entry.h"
// clang-format on

#if defined(EMULATED_forward_generic)
#define ATTN_FORWARD_GENERIC(name, ...) ENTRY(attn_forward_##name)
#elif defined(EMULATED_forward_codes)
#define ATTN_FORWARD_CODES(name, ...) ENTRY(attn_forward_##name)
#elif defined(EMULATED_forward_few_shared)
#define ATTN_FORWARD_FEW_SHARED(name, ...) ENTRY(attn_forward_few_shared_##name)
#define ATTN_FORWARD_FEW_FIND(name) ENTRY(attn_forward_few_shared_##name)
#elif defined(EMULATED_forward_few)
#define ATTN_FORWARD_FEW(name, ...) ENTRY(attn_forward_few_##name)
#define ATTN_FORWARD_FEW_ON(name, ...) ENTRY(attn_forward_few_##name)
#define ATTN_FORWARD_FEW_MERGE(name, ...) ENTRY(attn_forward_few_##name)
#elif defined(EMULATED_forward_few_line)
#define ATTN_FORWARD_FEW_LINE(name, ...) ENTRY(attn_forward_few_##name)
#elif defined(EMULATED_forward_sm80)
#define ATTN_FORWARD_SM80(name, ...) ENTRY(attn_forward_sm80_##name)
#elif defined(EMULATED_forward_sm80_dropout)
#define ATTN_FORWARD_SM80_DROPOUT(name, ...) ENTRY(attn_forward_sm80_dropout_##name)
#elif defined(EMULATED_forward_sm80_precise)
#define ATTN_FORWARD_SM80_PRECISE(name, ...) ENTRY(attn_forward_sm80_precise_##name)
#elif defined(EMULATED_forward_sm80_precise_dropout)
#define ATTN_FORWARD_SM80_PRECISE_DROPOUT(name, ...) ENTRY(attn_forward_sm80_precise_dropout_##name)
#elif defined(EMULATED_forward_sm90)
#define ATTN_FORWARD_SM90(name, ...) ENTRY(attn_forward_sm90_##name)
#define ATTN_FORWARD_SINGLE(name, ...) ENTRY(attn_forward_sm90_##name)
#define ATTN_FORWARD_MERGE(name, ...) ENTRY(attn_forward_sm90_##name)
#elif defined(EMULATED_forward_sm90_steps)
#define ATTN_FORWARD_SM90_STEPS(name, ...) ENTRY(attn_forward_sm90_##name)
#elif defined(EMULATED_forward_sm90_dropout)
#define ATTN_FORWARD_SM90_DROPOUT(name, ...) ENTRY(attn_forward_sm90_##name)
#elif defined(EMULATED_forward_sm90_dropout_steps)
#define ATTN_FORWARD_SM90_DROPOUT_STEPS(name, ...) ENTRY(attn_forward_sm90_##name)
#elif defined(EMULATED_forward_sm90_wide)
#define ATTN_FORWARD_SM90_WIDE(name, ...) ENTRY(attn_forward_sm90_##name)
#define ATTN_FORWARD_WIDE_MERGE(name, ...) ENTRY(attn_forward_sm90_##name)
#elif defined(EMULATED_forward_sm90_paged)
#define ATTN_FORWARD_SM90_PAGED(name, ...) ENTRY(attn_forward_sm90_##name)
#elif defined(EMULATED_forward_sm90_softcap)
#define ATTN_FORWARD_SM90_SOFTCAP(name, ...) \
    ENTRY(attn_forward_sm90_##name)          \
    ENTRY(attn_forward_sm90_##name##_ragged) \
    ENTRY(attn_forward_sm90_##name##_paged)
#elif defined(EMULATED_forward_sm90_alibi)
#define ATTN_FORWARD_SM90_ALIBI(name, ...)   \
    ENTRY(attn_forward_sm90_##name)          \
    ENTRY(attn_forward_sm90_##name##_ragged) \
    ENTRY(attn_forward_sm90_##name##_paged)
#elif defined(EMULATED_forward_sm90_mask)
#define ATTN_FORWARD_SM90_MASK(name, ...)    \
    ENTRY(attn_forward_sm90_##name)          \
    ENTRY(attn_forward_sm90_##name##_lanes)  \
    ENTRY(attn_forward_sm90_##name##_ragged) \
    ENTRY(attn_forward_sm90_##name##_ragged_lanes)
#elif defined(EMULATED_forward_sm90_bias)
#define ATTN_FORWARD_SM90_BIAS(name, ...) ENTRY(attn_forward_sm90_##name)
#elif defined(EMULATED_backward_generic)
#define ATTN_BACKWARD_GENERIC(name, ...) \
    ENTRY(attn_backward_##name##_delta)  \
    ENTRY(attn_backward_##name##_keys)   \
    ENTRY(attn_backward_##name##_rows)   \
    ENTRY(attn_backward_##name##_noted)  \
    ENTRY(attn_backward_##name##_scores) \
    ENTRY(attn_backward_##name##_finish)
#elif defined(EMULATED_backward_sm80)
#define ATTN_BACKWARD_SM80(name, ...)       \
    ENTRY(attn_backward_sm80_##name##_keys) \
    ENTRY(attn_backward_sm80_##name##_rows)
#elif defined(EMULATED_backward_sm80_steps)
#define ATTN_BACKWARD_SM80_STEPS(name, ...)       \
    ENTRY(attn_backward_sm80_steps_##name##_keys) \
    ENTRY(attn_backward_sm80_steps_##name##_rows)
#elif defined(EMULATED_backward_sm90)
#define ATTN_BACKWARD_SM90_DELTA(name, ...) ENTRY(attn_backward_sm90_##name)
#define ATTN_BACKWARD_SM90_AHEAD(name, ...) ENTRY(attn_backward_sm90_##name)
#define ATTN_BACKWARD_SM90_PAIRED_AHEAD(name, ...) PAIRED_ENTRY(attn_backward_sm90_##name)
#define ATTN_BACKWARD_SM90_ORDERED(name, ...)  \
    ENTRY(attn_backward_sm90_##name##_ordered) \
    ENTRY(attn_backward_sm90_##name##_round)
#define ATTN_BACKWARD_SM90_ROUNDED(name, ...) ENTRY(attn_backward_sm90_##name##_rounded)
#define ATTN_BACKWARD_SM90_WIDE(name, ...)            \
    PAIRED_ENTRY(attn_backward_sm90_##name##_ordered) \
    ENTRY(attn_backward_sm90_##name##_round)
#elif defined(EMULATED_backward_sm90_light)
#define ATTN_BACKWARD_SM90_LIGHT(name, ...)          \
    ENTRY(attn_backward_sm90_light_##name##_ordered) \
    ENTRY(attn_backward_sm90_light_##name##_round)
#elif defined(EMULATED_backward_sm90_alibi)
#define ATTN_BACKWARD_SM90_ALIBI(name, ...)          \
    ENTRY(attn_backward_sm90_alibi_##name##_ordered) \
    ENTRY(attn_backward_sm90_alibi_##name##_round)
#elif defined(EMULATED_backward_sm90_mask)
#define ATTN_BACKWARD_SM90_MASK(name, ...)          \
    ENTRY(attn_backward_sm90_mask_##name##_ordered) \
    ENTRY(attn_backward_sm90_mask_##name##_round)
#elif defined(EMULATED_backward_sm90_bias)
#define ATTN_BACKWARD_SM90_BIAS(name, ...)          \
    ENTRY(attn_backward_sm90_bias_##name##_ordered) \
    ENTRY(attn_backward_sm90_bias_##name##_round)
#elif defined(EMULATED_backward_sm90_dropout)
#define ATTN_BACKWARD_SM90_DROPOUT(name, ...)          \
    ENTRY(attn_backward_sm90_dropout_##name##_ordered) \
    ENTRY(attn_backward_sm90_dropout_##name##_round)
#elif defined(EMULATED_backward_sm90_tables)
#define ATTN_BACKWARD_SM90_TABLES(name, ...)          \
    ENTRY(attn_backward_sm90_tables_##name##_ordered) \
    ENTRY(attn_backward_sm90_tables_##name##_round)
#elif defined(EMULATED_backward_sm90_elements)
#define ATTN_BACKWARD_SM90_ELEMENTS(name, ...) ENTRY(attn_backward_sm90_elements_##name)
#elif defined(EMULATED_backward_sm90_steps_tables)
#define ATTN_BACKWARD_SM90_STEPS_TABLES(name, ...)          \
    ENTRY(attn_backward_sm90_steps_tables_##name##_ordered) \
    ENTRY(attn_backward_sm90_steps_tables_##name##_round)
#elif defined(EMULATED_backward_sm90_steps)
#define ATTN_BACKWARD_SM90_STEPS(name, ...)          \
    ENTRY(attn_backward_sm90_steps_##name##_ordered) \
    ENTRY(attn_backward_sm90_steps_##name##_round)   \
    ENTRY(attn_backward_sm90_steps_##name##_sums)
#define ATTN_BACKWARD_SM90_WIDE_STEPS(name, ...)            \
    PAIRED_ENTRY(attn_backward_sm90_steps_##name##_ordered) \
    ENTRY(attn_backward_sm90_steps_##name##_round)          \
    ENTRY(attn_backward_sm90_steps_##name##_sums)
#elif defined(EMULATED_backward_sm90_f32)
#define ATTN_BACKWARD_SM90_PARTS(name, ...)    \
    ENTRY(attn_backward_sm90_##name##_delta)   \
    ENTRY(attn_backward_sm90_##name##_ordered) \
    ENTRY(attn_backward_sm90_##name##_round)   \
    ENTRY(attn_backward_sm90_##name##_single)
#elif defined(EMULATED_append_generic)
#define ATTN_APPEND(name, ...) ENTRY(attn_append_##name)
#elif defined(EMULATED_mask_generic)
#define ATTN_MASK(name, ...) ENTRY(attn_mask_##name)
#elif defined(EMULATED_starts_generic)
#define ATTN_STARTS(name) ENTRY(attn_starts_##name)
#elif defined(EMULATED_elements_generic)
#define ATTN_ELEMENTS(name, ...) ENTRY(attn_elements_##name)
#elif defined(EMULATED_merge_generic)
#define ATTN_MERGE(name, ...) ENTRY(attn_merge_##name) ENTRY(attn_merge_##name##_gradients)
#else
#error "a source without entries"
#endif
#include "cuda/kernels.inc"
