/*
 * oracle_grad_row.h: what one row of attention adds to the gradients, in the type REAL, under the names NAME(...), from
 * the scores of oracle_scores.h. oracle_gradients.c includes it twice, hence no guard.
 */

/* p[j] and the row's LSE from its scores; 0 for what the row does not see. */
static REAL NAME(probabilities)(const struct sequence *q, int64_t i, int64_t h, const REAL *s, REAL top, REAL *p)
{
    REAL sink = (REAL)broadcast(&q->args->sinks, -(double)INFINITY, q->index, h, 0, 0);
    REAL base = sink > top ? sink : top, sum = exp(sink - base);
    for (int64_t j = 0; j < q->nk; j++) {
        bool seen = j >= first_key(q, i) && j < end_key(q, i) && s[j] != -(REAL)INFINITY;
        p[j] = seen ? exp(s[j] - base) : 0;
        sum = base == -(REAL)INFINITY ? 1 : seen ? sum + p[j] : sum;
    }
    for (int64_t j = 0; j < q->nk; j++) {
        p[j] /= sum;
    }
    return base == -(REAL)INFINITY ? base : base + log(sum);
}

/* d/ds of the softcap at the score of key j: 1 / cosh^2 */
static REAL NAME(slope_of_cap)(const struct sequence *q, int64_t i, int64_t h, int64_t j, const REAL *panel)
{
    REAL dot = 0, cap = (REAL)q->args->softcap, x;
    for (int64_t c = 0; c < q->d && cap > 0; c++) {
        dot += (REAL)oracle_element(&q->args->q, q->tensor, q->q_first + i, h, c) * panel[c * q->nk + j];
    }
    x = cap > 0 ? cosh((REAL)q->scale * dot / cap) : 1;
    return isinf(x) ? 0 : 1 / x / x;
}

/* dP and its size for key j. */
static void NAME(grad_of_p)(const struct gradients *g, const struct sequence *q, int64_t i, int64_t h, int64_t j,
                            const REAL *v, REAL dp[2])
{
    REAL z = (REAL)dropout_factor(q, h, i, j);
    dp[0] = dp[1] = 0;
    for (int64_t c = 0; c < q->dv; c++) {
        REAL x = z * (REAL)oracle_element(&g->args->d_o, q->tensor, q->q_first + i, h, c) * v[j * q->dv + c];
        dp[0] += x, dp[1] += fabs(x);
    }
}

/* delta, its size, and what storing O in fewer bits may add to it in units of u. */
static void NAME(delta_of_row)(const struct gradients *g, const struct sequence *q, int64_t i, int64_t h, const REAL *v,
                               const REAL *p, REAL delta[2])
{
    REAL d_lse = g->args->d_lse.data ? (REAL)oracle_element(&g->args->d_lse, q->tensor, q->q_first + i, h, 0) : 0;
    REAL stored = g->args->o.dtype == ATTN_BF16 ? 0x1p15 : g->args->o.dtype == ATTN_F16 ? 0x1p12 : 0;
    stored = g->args->q.dtype == ATTN_F64 && g->args->o.dtype == ATTN_F32 ? 0x1p28 : stored;
    delta[0] = -d_lse, delta[1] = fabs(d_lse);
    for (int64_t c = 0; c < q->dv; c++) {
        REAL o = 0, size = 0, x = (REAL)oracle_element(&g->args->d_o, q->tensor, q->q_first + i, h, c);
        for (int64_t j = 0; j < q->nk; j++) {
            if (p[j] != 0) {
                REAL term = p[j] * (REAL)dropout_factor(q, h, i, j) * v[j * q->dv + c];
                o += term, size += fabs(term);
            }
        }
        delta[0] += x * o;
        delta[1] += fabs(x) * (size + stored * fabs(o));
    }
}

/* Key j of the row: into dV, dQ, dK, dBias and dSlopes. ds[2]: dS and its size; weight: of the sizes. */
static void NAME(add_key)(const struct gradients *g, const struct sequence *q, int64_t i, int64_t h, int64_t j,
                          const REAL *panel, REAL p, const REAL ds[2], REAL weight)
{
    const attn_backward_args *a = g->args;
    REAL cap = NAME(slope_of_cap)(q, i, h, j, panel), scale = (REAL)q->scale * cap, z = p;
    REAL away = (REAL)llabs(i + q->diagonal - j);
    z *= (REAL)dropout_factor(q, h, i, j);
    int64_t hk = h / (a->q.shape[2] / a->k.shape[2]);
    int64_t row = ((q->tensor * a->q.shape[1] + q->q_first + i) * a->q.shape[2] + h) * q->d;
    int64_t key = (q->tensor * a->k.shape[1] + q->k_first + j) * a->k.shape[2] + hk;
    for (int64_t c = 0; c < q->dv; c++) {
        REAL x = (REAL)oracle_element(&a->d_o, q->tensor, q->q_first + i, h, c);
        add(g, ORACLE_DV, key * q->dv + c, z * x, weight * fabs(z * x));
    }
    for (int64_t c = 0; c < q->d; c++) {
        REAL x = (REAL)oracle_element(&a->q, q->tensor, q->q_first + i, h, c), y = panel[c * q->nk + j];
        add(g, ORACLE_DQ, row + c, scale * ds[0] * y, weight * fabs(scale * ds[1] * y));
        add(g, ORACLE_DK, key * q->d + c, scale * ds[0] * x, weight * fabs(scale * ds[1] * x));
    }
    add(g, ORACLE_DBIAS, place(&a->bias, q->index, h, i, j), ds[0], weight * ds[1]);
    add(g, ORACLE_DSLOPES, place(&a->alibi_slopes, q->index, h, 0, 0), -away * ds[0], weight * away * ds[1]);
}

static void NAME(grad_row)(const struct gradients *g, const struct sequence *q, int64_t i, int64_t h, REAL *panel)
{
    REAL *v = panel + q->d * q->nk, *s = v + q->nk * q->dv, *p = s + 2 * q->nk, top[3], delta[2], ds[2];
    NAME(scores)(q, i, h, panel, s, s + q->nk, top);
    REAL lse = NAME(probabilities)(q, i, h, s, top[0], p);
    REAL weight = 1 + top[2] * (g->args->softcap > 0 ? 1 + 2 / (REAL)g->args->softcap : 1);
    weight += isinf(lse) ? 0 : fabs(lse);
    NAME(delta_of_row)(g, q, i, h, v, p, delta);
    for (int64_t j = first_key(q, i); j < end_key(q, i); j++) {
        if (s[j] != -(REAL)INFINITY) {
            NAME(grad_of_p)(g, q, i, h, j, v, ds);
            ds[0] = p[j] * (ds[0] - delta[0]), ds[1] = p[j] * (ds[1] + delta[1]);
            NAME(add_key)(g, q, i, h, j, panel, p[j], ds, weight);
        }
    }
    REAL sink = (REAL)broadcast(&q->args->sinks, -(double)INFINITY, q->index, h, 0, 0);
    REAL share = sink == -(REAL)INFINITY ? 0 : exp(sink - lse);
    add(g, ORACLE_DSINKS, place(&g->args->sinks, q->index, h, 0, 0), -share * delta[0], weight * share * delta[1]);
}
