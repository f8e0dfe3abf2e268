/*
 * draw.c: see draw.h.
 */
#include "draw_parts.h"
#include "inputs.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { LONG_WORK = 3000000 };

int64_t dice_roll(dice *d, int64_t n)
{
    return (int64_t)(inputs_bits(d->seed, 0, d->thrown++) % (uint64_t)n);
}

bool dice_one_in(dice *d, int64_t n)
{
    return dice_roll(d, n) == 0;
}

void put(struct line *l, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    const int n = vsnprintf(l->text + l->used, l->size - l->used, format, list);
    va_end(list);
    l->used += n > 0 && (size_t)n < l->size - l->used ? (size_t)n : 0;
}

/* ---- sizes ----------------------------------------------------------------------------------- */

int64_t draw_length(dice *d, bool may_be_long)
{
    static const int64_t ends[] = {8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 256};
    if (may_be_long && dice_one_in(d, 24)) {
        return 2048 * (1 + dice_roll(d, 2)) - 3 + dice_roll(d, 7);
    }
    if (may_be_long && dice_one_in(d, 8)) { /* more than a block */
        return 256 + dice_roll(d, 400);
    }
    switch (dice_roll(d, 4)) {
    case 0:
        return dice_roll(d, 6);
    case 1:
        return 1 + dice_roll(d, 40);
    case 2:
        return PICK(d, ends) - 1 + dice_roll(d, 3);
    default:
        return 1 + dice_roll(d, 200);
    }
}

static int64_t draw_head_dim(dice *d)
{
    static const int64_t usual[] = {8, 16, 32, 40, 64, 96, 128};
    if (dice_one_in(d, 40)) {
        return dice_one_in(d, 4) ? 0 : 129 + dice_roll(d, 448);
    }
    return dice_one_in(d, 3) ? PICK(d, usual) : 1 + dice_roll(d, 70);
}

void put_list(struct line *l, const char *name, const int64_t *values)
{
    put(l, " %s=", name);
    for (int64_t i = 0; i < l->sequences; i++) {
        put(l, "%s%" PRId64, i ? "," : "", values[i]);
    }
}

/* Writes a list of numbers of at most limit[i], one for each sequence. */
static void put_parts(struct line *l, const char *name, const int64_t *limit)
{
    int64_t values[MOST_SEQUENCES];
    for (int64_t i = 0; i < l->sequences; i++) {
        values[i] = dice_one_in(l->d, 3) ? limit[i] : dice_roll(l->d, limit[i] + 1);
    }
    put_list(l, name, values);
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

void put_lengths(struct line *l, bool varlen, int64_t *nq, int64_t *nk)
{
    dice *d = l->d;
    const bool self = dice_one_in(d, 4);
    l->varlen = varlen;
    l->sequences = 1 + dice_roll(d, varlen ? MOST_SEQUENCES : 3);
    for (int64_t i = 0; i < l->sequences; i++) {
        nq[i] = varlen || i == 0 ? draw_length(d, false) : nq[0];
        nk[i] = self ? nq[i] : varlen || i == 0 ? draw_length(d, !varlen) : nk[0];
        l->most_nq = larger(l->most_nq, nq[i]), l->most_nk = larger(l->most_nk, nk[i]);
    }
    if (varlen) {
        put_list(l, "lens_q", nq);
        put_list(l, "lens_k", nk);
        put(l, " outside=%" PRId64, dice_one_in(d, 3) ? dice_roll(d, 9) : 0);
    } else {
        put(l, " b=%" PRId64 " nq=%" PRId64 " nk=%" PRId64, l->sequences, nq[0], nk[0]);
    }
}

void put_heads(struct line *l)
{
    dice *d = l->d;
    const int64_t scores = l->sequences * (l->most_nq + 1) * (l->most_nk + 1);
    int64_t kv = 1 + dice_roll(d, 3), heads = kv * (1 + dice_roll(d, 4)), dim = draw_head_dim(d),
            dv = dice_one_in(d, 3) ? draw_head_dim(d) : dim;
    if (scores * heads * (dim + dv) > LONG_WORK) {
        kv = heads = 1;
    }
    if (scores * heads * (dim + dv) > LONG_WORK) {
        dim = 1 + dim % 8, dv = 1 + dv % 8;
    }
    if (dice_one_in(d, 90)) {
        kv = heads = 0;
    }
    l->head_dim = dim, l->v_dim = dv;
    put(l, " hq=%" PRId64 " hkv=%" PRId64 " d=%" PRId64 " dv=%" PRId64, heads, kv, dim, dv);
}

/* ---- options --------------------------------------------------------------------------------- */

static void put_mask(struct line *l)
{
    dice *d = l->d;
    if (dice_one_in(d, 3)) {
        put(l, " causal=1 top_left=%d", dice_one_in(d, 3));
    }
    if (dice_one_in(d, 4)) {
        put(l, " window_left=%" PRId64, dice_roll(d, l->most_nk + 9) - 1);
        put(l, " window_right=%" PRId64, dice_roll(d, 40) - 1);
    }
}

const char *draw_axes(dice *d, const char *letters, char axes[5])
{
    size_t n = 0;
    for (; *letters != '\0'; letters++) {
        axes[n] = *letters;
        n += dice_one_in(d, 2);
    }
    axes[n] = '\0';
    return n > 0 ? axes : "1";
}

void put_scores(struct line *l, bool gradients)
{
    static const char *const masks[] = {"bool", "u8", "i8", "i32", "i64", "b1x8"};
    static const char *const floats[] = {"f64", "f32", "bf16", "f16"};
    static const char *const scales[] = {"0",     "-0.3", "1",      "1e-3", "1e-30",
                                         "4e-39", "3",    "-1e-44", "20",   "0.05"};
    dice *d = l->d;
    char axes[5];
    if (dice_one_in(d, 3)) {
        const char *scale = PICK(d, scales);
        put(l, " scale=%s", scale);
        l->far = strcmp(scale, "3") == 0 || strcmp(scale, "20") == 0;
    }
    if (dice_one_in(d, 6)) {
        put(l, " softcap=%s", dice_one_in(d, 2) ? "5" : "0.7");
    }
    if (dice_one_in(d, 5)) {
        const char *type = PICK(d, masks);
        const bool keys = strchr(draw_axes(d, "bhqk", axes), 'k') != NULL;
        put(l, " mask=%s:%s", keys ? type : "bool", axes[0] != '\0' ? axes : "1");
    }
    if (dice_one_in(d, 4)) {
        put(l, " bias=%s:%s", PICK(d, floats), draw_axes(d, "bhqk", axes));
        put(l, gradients && !dice_one_in(d, 3) ? " d_bias=%s" : "%.0s", floats[dice_roll(d, 3)]);
    }
    if (dice_one_in(d, 6)) {
        put(l, " alibi=%s d_alibi=%d", draw_axes(d, "bh", axes), gradients && dice_one_in(d, 2));
    }
    if (dice_one_in(d, 6)) {
        put(l, " sinks=%s d_sinks=%d", draw_axes(d, "bh", axes), gradients && dice_one_in(d, 2));
    }
}

/* Writes one origin, or one for each sequence. */
static void put_origins(struct line *l, const char *name, int64_t most)
{
    int64_t values[MOST_SEQUENCES];
    for (int64_t i = 0; i < l->sequences; i++) {
        values[i] = dice_roll(l->d, most);
    }
    if (dice_one_in(l->d, 2)) {
        put_list(l, name, values);
    } else {
        put(l, " %s=%" PRId64, name, values[0]);
    }
}

static void put_places(struct line *l, const int64_t *nq, const int64_t *nk)
{
    dice *d = l->d;
    if (dice_one_in(d, 6)) {
        put_parts(l, "used_q", nq);
    }
    if (dice_one_in(d, 5)) {
        put_parts(l, "used_k", nk);
    }
    if (dice_one_in(d, 8)) {
        put_origins(l, "q_origin", 300);
    }
    if (dice_one_in(d, 8)) {
        put_origins(l, "k_origin", 200);
    }
    if (!l->varlen && dice_one_in(d, 12)) {
        put(l, " page=%" PRId64, 1 + dice_roll(d, 40));
        put(l, " prefix=%" PRId64, dice_one_in(d, 3) ? dice_roll(d, l->most_nk + 1) : 0);
    }
    if (!l->varlen && dice_one_in(d, 12)) {
        put_parts(l, "leftpad_k", nk);
    }
    put(l, " view=%d", l->v_dim <= l->head_dim && dice_one_in(d, 20));
    put(l, " index=%s", dice_one_in(d, 2) ? "i32" : "i64");
}

const char *draw_type(dice *d)
{
    static const char *const types[] = {"f32", "f32", "f16", "bf16", "bf16", "f64"};
    return PICK(d, types);
}

/* Writes codes for K and V. False where NaN are sown and the codes are integers, which have
 * none. */
bool put_codes(struct line *l)
{
    static const char *const codes[] = {"i8", "e4m3", "e5m2", "i4x2"};
    static const char *const scales[] = {"f32", "f16", "bf16"};
    dice *d = l->d;
    char axes[5];
    const bool even = l->head_dim % 2 == 0 && l->v_dim % 2 == 0;
    const int64_t code = dice_roll(d, even ? 4 : 3), group = (int64_t)1 << dice_roll(d, 5);
    put(l, " kv_dtype=%s", codes[code]);
    if (dice_one_in(d, 2)) {
        const char *scale = PICK(d, scales);
        put(l, " kv_scale=%s:%s", scale, draw_axes(d, "bkh", axes));
    }
    if (dice_one_in(d, 2) && l->head_dim % group == 0 && l->v_dim % group == 0) {
        put(l, " kv_group=%" PRId64, group);
    }
    put(l, " kv_shift=%d", code % 3 == 0 && dice_one_in(d, 2));
    return code % 3 != 0;
}

/* Writes values and layout. One NaN in a few thousand elements leaves most results numbers. */
static void put_values(struct line *l, const char *type, const char *kind, bool gradients)
{
    static const char *const layouts[] = {"bshd", "bhsd", "gap", "strided", "qkv", "loose"};
    static const char *const inputs[] = {"normal",   "outlier", "uniform", "large", "equal",
                                         "positive", "offset",  "even",    "rising"};
    static const int sown[] = {30, 300, 3000};
    dice *d = l->d;
    put(l, " layout=%s offset=%" PRId64, PICK(d, layouts), dice_roll(d, 3));
    const char *drawn = dice_one_in(d, 2) ? "wild" : PICK(d, inputs);
    kind = kind ? kind : drawn;
    l->far |= strcmp(kind, "wild") == 0 || strcmp(kind, "large") == 0 ||
              strcmp(kind, "outlier") == 0 || strcmp(kind, "rising") == 0;
    put(l, " inputs=%s", kind);
    const bool coded = !gradients && strcmp(type, "f64") != 0 && dice_one_in(d, 6),
               may_be_nan = !coded || put_codes(l);
    if (may_be_nan && dice_one_in(d, 5)) {
        put(l, " %s=%d", dice_one_in(d, 4) ? "infinite" : "sown", PICK(d, sown));
    }
    if (dice_one_in(d, 6)) {
        put(l, " precise=1");
    } else if (dice_one_in(d, 10)) {
        put(l, " bf16x3=1");
    }
    if (dice_one_in(d, 4) && strcmp(type, "f64") != 0) {
        put(l, " o_dtype=f32");
    }
    /* products of large f16 numbers leave f16 */
    if (gradients && (dice_one_in(d, 8) || strcmp(type, "f16") == 0)) {
        put(l, " grad_dtype=f32");
    }
    /* where the one probability that is not tiny is dropped, the rest may be below its least */
    if (dice_one_in(d, 7) && !l->far) {
        put(l, " dropout=0.%" PRId64 " dropout_seed=%" PRId64, 1 + dice_roll(d, 9),
            dice_roll(d, INT64_C(1) << 40));
        put(l, " dropout_offset=%" PRId64, dice_roll(d, INT64_C(1) << dice_roll(d, 41)));
    }
    put(l, " seed=%" PRId64, dice_roll(d, INT64_C(1) << 40));
}

void draw_line(dice *d, const char *inputs, char *line, size_t size)
{
    struct line l = {.d = d, .text = line, .size = size};
    int64_t nq[MOST_SEQUENCES], nk[MOST_SEQUENCES];
    const bool gradients = dice_one_in(d, 2);
    const char *type = draw_type(d);
    line[0] = '\0';
    put(&l, "dtype=%s", type);
    put_lengths(&l, dice_one_in(d, 4), nq, nk);
    put_heads(&l);
    put_mask(&l);
    put_scores(&l, gradients);
    put_places(&l, nq, nk);
    put_values(&l, type, inputs, gradients);
    if (gradients) {
        put(&l, " pass=backward d_lse=%d", dice_one_in(d, 3));
    } else {
        put(&l, " lse=%d row_max=%d", !dice_one_in(d, 4), dice_one_in(d, 2));
    }
}
