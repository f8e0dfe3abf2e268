/*
 * oracle_row.h: one row of attention in the type REAL, under the names NAME(...). oracle.c includes it twice, hence no
 * guard: with double, in which products of f32 are exact, and with long double, for f64 inputs.
 */

/* The keys and values of one KV head: K transposed, [d][nk], then V, [nk][dv]. */
static void NAME(load)(const struct sequence *q, int64_t hk, REAL *panel)
{
    const attn_forward_args *x = q->args;
    for (int64_t j = 0; j < q->nk; j++) {
        for (int64_t c = 0; c < q->d; c++) {
            panel[c * q->nk + j] = (REAL)oracle_element(&x->k, q->tensor, q->k_first + j, hk, c);
        }
        for (int64_t c = 0; c < q->dv; c++) {
            panel[q->d * q->nk + j * q->dv + c] = (REAL)oracle_element(&x->v, q->tensor, q->k_first + j, hk, c);
        }
    }
}

/* First pass: s[j] = the score, or -inf if row i does not see key j; terms[j] = a_j of oracle.h. top: the largest s,
 * |s| and a. */
static void NAME(scores)(const struct sequence *q, int64_t i, int64_t h, const REAL *k, REAL *s, REAL *terms,
                         REAL top[3])
{
    const attn_forward_args *x = q->args;
    REAL scale = (REAL)q->scale, cap = (REAL)x->softcap,
         slope = (REAL)broadcast(&x->alibi_slopes, 0, q->index, h, 0, 0);
    memset(s, 0, (size_t)q->nk * sizeof *s);
    memset(terms, 0, (size_t)q->nk * sizeof *terms);
    for (int64_t c = 0; c < q->d; c++) {
        REAL qc = (REAL)oracle_element(&x->q, q->tensor, q->q_first + i, h, c);
        for (int64_t j = first_key(q, i); j < end_key(q, i); j++) {
            s[j] += qc * k[c * q->nk + j];
            terms[j] += fabs(qc * k[c * q->nk + j]);
        }
    }
    top[0] = -INFINITY, top[1] = top[2] = 0;
    for (int64_t j = first_key(q, i); j < end_key(q, i); j++) {
        REAL bias = (REAL)broadcast(&x->bias, 0, q->index, h, i, j), alibi = slope * (REAL)llabs(i + q->diagonal - j);
        s[j] = (cap > 0 ? cap * tanh(scale * s[j] / cap) : scale * s[j]) + bias - alibi;
        if (broadcast(&x->mask, 1, q->index, h, i, j) == 0 || bias == -(REAL)INFINITY) {
            s[j] = -INFINITY;
            continue;
        }
        top[0] = isnan(top[0]) || s[j] <= top[0] ? top[0] : s[j];
        top[1] = fmax(top[1], fabs(s[j]));
        terms[j] = fabs(scale) * terms[j] + fabs(bias) + fabs(alibi);
        top[2] = fmax(top[2], terms[j]);
    }
}

/* Both passes, and the results of row i of head h, whose flat index is `at`. */
static void NAME(row)(const struct sequence *q, int64_t i, int64_t h, int64_t at, REAL *panel)
{
    const oracle_result *out = q->result;
    REAL *v = panel + q->d * q->nk, *s = v + q->nk * q->dv, *terms = s + q->nk, *o = terms + q->nk, *o_abs = o + q->dv;
    REAL top[3], lse_abs = 0, row_max_abs = 0, slack = q->args->q.dtype == ATTN_F64 ? (REAL)0x1p-51 : (REAL)0x1p-22;
    NAME(scores)(q, i, h, panel, s, terms, top);
    REAL sink = (REAL)broadcast(&q->args->sinks, -(double)INFINITY, q->index, h, 0, 0);
    REAL base = sink > top[0] ? sink : top[0]; /* so that no exponent is positive */
    bool empty = base == -(REAL)INFINITY;
    REAL sum = empty ? 1 : exp(sink - base);
    memset(o, 0, 2 * (size_t)q->dv * sizeof *o);
    for (int64_t j = first_key(q, i); j < end_key(q, i); j++) {
        if (s[j] == -(REAL)INFINITY) {
            continue;
        }
        REAL p = exp(s[j] - base);
        sum += p;
        lse_abs += p * terms[j];
        row_max_abs = fmax(row_max_abs, terms[j] - (top[0] - s[j]) / slack);
        for (int64_t c = 0; c < q->dv; c++) {
            o[c] += p * v[j * q->dv + c];
            o_abs[c] += p * fabs(v[j * q->dv + c]);
        }
    }
    for (int64_t c = 0; c < q->dv; c++) {
        put(out->o, at * q->dv + c, (double)(o[c] / sum));
        put(out->o_abs, at * q->dv + c, (double)(o_abs[c] / sum));
    }
    put(out->lse, at, (double)(base + log(sum)));
    put(out->row_max, at, (double)top[0]);
    put(out->score_max, at, (double)top[1]);
    put(out->score_abs, at, (double)top[2]);
    put(out->lse_abs, at, (double)(lse_abs / sum));
    put(out->row_max_abs, at, (double)row_max_abs);
}
