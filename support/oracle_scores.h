/*
 * oracle_scores.h: the scores of one row in the type REAL, under the names NAME(...). Included
 * twice by oracle_forward.c and by oracle_gradients.c, hence no guard: with double, in which
 * products of f32 are exact, and with long double, for f64 inputs.
 */

/* The keys and values of one KV head: K transposed, [d][nk], then V, [nk][dv]. */
static void NAME(load)(const struct sequence *q, int64_t hk, REAL *panel)
{
    const attn_forward_args *x = q->args;
    for (int64_t j = 0; j < q->nk; j++) {
        for (int64_t c = 0; c < q->d; c++) {
            panel[c * q->nk + j] = (REAL)key_element(q, &x->k, j, hk, c);
        }
        for (int64_t c = 0; c < q->dv; c++) {
            panel[q->d * q->nk + j * q->dv + c] = (REAL)key_element(q, &x->v, j, hk, c);
        }
    }
}

/* First pass: s[j] = the score, or -inf if row i does not see key j; terms[j] = a_j of oracle.h.
 * top: the largest s, |s| and a. */
static void NAME(scores)(const struct sequence *q, int64_t i, int64_t h, const REAL *k, REAL *s,
                         REAL *terms, REAL top[3])
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
        REAL bias = (REAL)broadcast(&x->bias, 0, q->index, h, i, j),
             alibi = slope * (REAL)llabs(i + q->diagonal - j);
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
