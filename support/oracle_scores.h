/*
 * oracle_scores.h: the scores of one row in the type REAL, under the names NAME(...). Included
 * twice by oracle_forward.c and by oracle_gradients.c, hence no guard: with double, in which
 * products of f32 are exact, and with long double, for f64 inputs.
 */

/* The keys and values of one KV head: K transposed, [d][nk], then V, [nk][dv]. */
static void NAME(load)(const struct sequence *sequence, int64_t hk, REAL *panel)
{
    for (int64_t j = 0; j < sequence->nk; j++) {
        for (int64_t c = 0; c < sequence->d; c++) {
            panel[c * sequence->nk + j] = (REAL)key_element(sequence, false, j, hk, c);
        }
        for (int64_t c = 0; c < sequence->dv; c++) {
            panel[sequence->d * sequence->nk + j * sequence->dv + c] =
                (REAL)key_element(sequence, true, j, hk, c);
        }
    }
}

/* First pass: s[j] = the score, or -inf if row i does not see key j; terms[j] = a_j of oracle.h.
 * top: the largest s, |s| and a. */
static void NAME(scores)(const struct sequence *sequence, int64_t i, int64_t h, const REAL *k,
                         REAL *s, REAL *terms, REAL top[3])
{
    const attn_forward_args *args = sequence->args;
    REAL scale = (REAL)sequence->scale, cap = (REAL)args->softcap,
         slope = (REAL)broadcast(&args->alibi_slopes, 0, sequence->index, h, 0, 0);
    memset(s, 0, (size_t)sequence->nk * sizeof *s);
    memset(terms, 0, (size_t)sequence->nk * sizeof *terms);
    for (int64_t c = 0; c < sequence->d; c++) {
        REAL qc = (REAL)oracle_element(&args->q, sequence->tensor, sequence->q_first + i, h, c);
        for (int64_t j = first_key(sequence, i); j < end_key(sequence, i); j++) {
            s[j] += qc * k[c * sequence->nk + j];
            terms[j] += fabs(qc * k[c * sequence->nk + j]);
        }
    }
    top[0] = -INFINITY, top[1] = top[2] = 0;
    for (int64_t j = first_key(sequence, i); j < end_key(sequence, i); j++) {
        REAL bias = (REAL)broadcast(&args->bias, 0, sequence->index, h, i, j),
             alibi = slope * (REAL)llabs(i + sequence->diagonal - j);
        s[j] = (cap > 0 ? cap * tanh(scale * s[j] / cap) : scale * s[j]) + bias - alibi;
        if (broadcast(&args->mask, 1, sequence->index, h, i, j) == 0 || bias == -(REAL)INFINITY) {
            s[j] = -INFINITY;
            continue;
        }
        top[0] = isnan(top[0]) || s[j] <= top[0] ? top[0] : s[j];
        top[1] = fmax(top[1], fabs(s[j]));
        terms[j] = fabs(scale) * terms[j] + fabs(bias) + fabs(alibi);
        top[2] = fmax(top[2], terms[j]);
    }
}
