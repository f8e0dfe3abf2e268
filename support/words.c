/*
 * words.c: the table of the words of a problem line, in the order of printing.
 */
#include "words.h"

#include <stddef.h>

const struct name problem_floats[] = {
    {"f64", ATTN_F64}, {"f32", ATTN_F32}, {"f16", ATTN_F16}, {"bf16", ATTN_BF16}, {NULL, 0}};
static const struct name integers[] = {{"i32", ATTN_I32}, {"i64", ATTN_I64}, {NULL, 0}};
static const struct name masks[] = {
    {"bool", ATTN_BOOL}, {"u8", ATTN_U8},     {"i8", ATTN_I8}, {"i32", ATTN_I32},
    {"i64", ATTN_I64},   {"b1x8", ATTN_B1X8}, {NULL, 0}};
static const struct name codes[] = {
    {"i8", ATTN_I8}, {"i4x2", ATTN_I4X2}, {"e4m3", ATTN_E4M3}, {"e5m2", ATTN_E5M2}, {NULL, 0}};
static const struct name layouts[] = {{"bshd", LAYOUT_BSHD},
                                      {"bhsd", LAYOUT_BHSD},
                                      {"qkv", LAYOUT_QKV},
                                      {"gap", LAYOUT_GAP},
                                      {"strided", LAYOUT_STRIDED},
                                      {"loose", LAYOUT_LOOSE},
                                      {NULL, 0}};
static const struct name generators[] = {{"normal", INPUTS_NORMAL},
                                         {"outlier", INPUTS_OUTLIER},
                                         {"uniform", INPUTS_UNIFORM},
                                         {"large", INPUTS_LARGE},
                                         {"equal", INPUTS_EQUAL},
                                         {"positive", INPUTS_POSITIVE},
                                         {"offset", INPUTS_OFFSET},
                                         {"even", INPUTS_EVEN},
                                         {"rising", INPUTS_RISING},
                                         {"wild", INPUTS_WILD},
                                         {NULL, 0}};

static const struct name passes[] = {
    {"forward", PASS_FORWARD}, {"backward", PASS_BACKWARD}, {"training", PASS_TRAINING}, {NULL, 0}};

#define AT(member) offsetof(problem_spec, member)
const struct word problem_words[] = {
    {"b", SIZE, AT(b), 0, NULL, NULL},
    {"hq", SIZE, AT(hq), 0, NULL, NULL},
    {"hkv", SIZE, AT(hkv), 0, NULL, NULL},
    {"nq", SIZE, AT(nq), 0, NULL, NULL},
    {"nk", SIZE, AT(nk), 0, NULL, NULL},
    {"lens_q", LIST, AT(lens_q), AT(has_lens), NULL, NULL},
    {"lens_k", LIST, AT(lens_k), AT(has_lens), NULL, NULL},
    {"outside", SIZE, AT(outside), 0, NULL, NULL},
    {"d", SIZE, AT(d), 0, NULL, NULL},
    {"dv", SIZE, AT(dv), 0, NULL, NULL},
    {"dtype", NAME, AT(dtype), 0, problem_floats, NULL},
    {"o_dtype", NAME, AT(o_dtype), 0, problem_floats, NULL},
    {"layout", NAME, AT(layout), 0, layouts, NULL},
    {"causal", BOOLEAN, AT(causal), 0, NULL, NULL},
    {"top_left", BOOLEAN, AT(top_left), 0, NULL, NULL},
    {"precise", BOOLEAN, AT(precise), 0, NULL, NULL},
    {"bf16x3", BOOLEAN, AT(bf16x3), 0, NULL, NULL},
    {"window_left", INTEGER, AT(window_left), AT(has_window), NULL, NULL},
    {"window_right", INTEGER, AT(window_right), AT(has_window), NULL, NULL},
    {"scale", REAL, AT(scale), AT(has_scale), NULL, NULL},
    {"softcap", REAL, AT(softcap), 0, NULL, NULL},
    {"mask", TYPED_AXES, AT(mask), 0, masks, "bhqk"},
    {"bias", TYPED_AXES, AT(bias), 0, problem_floats, "bhqk"},
    {"alibi", AXES, AT(alibi), 0, NULL, "bh"},
    {"sinks", AXES, AT(sinks), 0, NULL, "bh"},
    {"used_q", LIST, AT(used_q), AT(has_used_q), NULL, NULL},
    {"used_k", LIST, AT(used_k), AT(has_used_k), NULL, NULL},
    {"q_origin", LIST, AT(q_origin), 0, NULL, NULL},
    {"k_origin", LIST, AT(k_origin), 0, NULL, NULL},
    {"kv_dtype", NAME, AT(kv_dtype), 0, codes, NULL},
    {"kv_scale", TYPED_AXES, AT(kv_scale), 0, problem_floats, "bkh"},
    {"kv_group", SIZE, AT(kv_group), 0, NULL, NULL},
    {"kv_shift", BOOLEAN, AT(kv_shift), 0, NULL, NULL},
    {"page", SIZE, AT(page), 0, NULL, NULL},
    {"prefix", SIZE, AT(prefix), 0, NULL, NULL},
    {"view", BOOLEAN, AT(view), 0, NULL, NULL},
    {"leftpad_k", LIST, AT(leftpad_k), AT(has_leftpad), NULL, NULL},
    {"index", NAME, AT(index_dtype), 0, integers, NULL},
    {"lse", BOOLEAN, AT(lse), 0, NULL, NULL},
    {"row_max", BOOLEAN, AT(row_max), 0, NULL, NULL},
    {"dropout", REAL, AT(dropout), 0, NULL, NULL},
    {"dropout_seed", SEED, AT(dropout_seed), 0, NULL, NULL},
    {"dropout_offset", SEED, AT(dropout_offset), 0, NULL, NULL},
    {"pass", NAME, AT(pass), 0, passes, NULL},
    {"d_lse", BOOLEAN, AT(d_lse), 0, NULL, NULL},
    {"d_bias", NAME, AT(d_bias_dtype), 0, problem_floats, NULL},
    {"d_alibi", BOOLEAN, AT(d_alibi), 0, NULL, NULL},
    {"d_sinks", BOOLEAN, AT(d_sinks), 0, NULL, NULL},
    {"grad_dtype", NAME, AT(grad_dtype), 0, problem_floats, NULL},
    {"offset", SIZE, AT(offset), 0, NULL, NULL},
    {"inputs", NAME, AT(inputs), 0, generators, NULL},
    {"sown", SIZE, AT(sown), 0, NULL, NULL},
    {"infinite", SIZE, AT(infinite), 0, NULL, NULL},
    {"seed", SEED, AT(seed), 0, NULL, NULL},
    {"threads", THREADS, AT(threads), 0, NULL, NULL},
    {"cpu", CPU, AT(cpu), 0, NULL, NULL},
};

size_t word_type(const struct word *word, int32_t *usual)
{
    const bool mask = word->at == offsetof(problem_spec, mask);
    *usual = mask ? ATTN_BOOL : ATTN_F32;
    return mask                                           ? AT(mask_dtype)
           : word->at == offsetof(problem_spec, kv_scale) ? AT(kv_scale_dtype)
                                                          : AT(bias_dtype);
}

const int problem_words_count = sizeof problem_words / sizeof problem_words[0];
