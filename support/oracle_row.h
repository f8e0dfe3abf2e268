/*
 * oracle_row.h: one row of attention in the type REAL, under the names NAME(...), from the scores
 * of oracle_scores.h. oracle_forward.c includes it twice, hence no guard.
 */

/* Both passes, and the results of row i of head h, whose flat index is `at`. */
static void NAME(row)(const struct sequence *sequence, int64_t i, int64_t h, int64_t at,
                      REAL *panel)
{
    const oracle_result *out = sequence->result;
    REAL *v = panel + sequence->d * sequence->nk, *s = v + sequence->nk * sequence->dv,
         *terms = s + sequence->nk, *o = terms + sequence->nk, *o_abs = o + sequence->dv,
         *o_tiny = o_abs + sequence->dv;
    const REAL least = sequence->args->q.dtype == ATTN_F64 ? (REAL)0x1p-1019 : (REAL)0x1p-123;
    REAL top[3], lse_abs = 0, row_max_abs = 0, keys = 0, mean = 0, squares = 0,
                 slack = sequence->args->q.dtype == ATTN_F64 ? (REAL)0x1p-51 : (REAL)0x1p-22;
    NAME(scores)(sequence, i, h, panel, s, terms, top);
    REAL sink =
        (REAL)broadcast(&sequence->args->sinks, -(double)INFINITY, sequence->index, h, 0, 0);
    /* no exponent is positive; a sink that is NaN makes all NaN but O without keys */
    REAL base = sink > top[0] || isnan(sink) ? sink : top[0];
    bool empty = base == -(REAL)INFINITY;
    REAL sum = empty ? 1 : exp(sink - base);
    memset(o, 0, 3 * (size_t)sequence->dv * sizeof *o);
    for (int64_t j = first_key(sequence, i); j < end_key(sequence, i); j++) {
        if (s[j] == -(REAL)INFINITY) {
            continue;
        }
        REAL p = exp(s[j] - base);
        sum += p;
        const REAL step = (s[j] - mean) / ++keys; /* Welford's recurrence */
        squares += step * step * keys * (keys - 1);
        mean += step;
        lse_abs += p * terms[j];
        row_max_abs = fmax(row_max_abs, terms[j] - (top[0] - s[j]) / slack);
        const bool tiny = p < least;
        p *= (REAL)dropout_factor(sequence, h, i, j);
        for (int64_t c = 0; c < sequence->dv; c++) {
            o[c] += p * v[j * sequence->dv + c];
            o_abs[c] += p * fabs(v[j * sequence->dv + c]);
            o_tiny[c] += tiny ? p * fabs(v[j * sequence->dv + c]) : 0;
        }
    }
    for (int64_t c = 0; c < sequence->dv; c++) {
        const REAL whole = keys > 0 ? sum : 1;
        put(out->o, at * sequence->dv + c, (double)(o[c] / whole));
        put(out->o_abs, at * sequence->dv + c, (double)(o_abs[c] / whole));
        put(out->o_tiny, at * sequence->dv + c, (double)(o_tiny[c] / whole));
    }
    put(out->lse, at, (double)(base + log(sum)));
    put(out->row_max, at, (double)top[0]);
    put(out->score_max, at, (double)top[1]);
    put(out->score_abs, at, (double)top[2]);
    put(out->lse_abs, at, (double)(lse_abs / sum));
    put(out->row_max_abs, at, (double)row_max_abs);
    put(out->score_spread, at, keys > 0 ? (double)sqrt(squares / keys) : 0);
}
