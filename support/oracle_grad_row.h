/*
 * oracle_grad_row.h: the contribution of one row of attention to the gradients, in the type REAL,
 * under the names NAME(...), from the scores of oracle_scores.h. oracle_gradients.c includes it
 * twice, hence no guard.
 */

struct NAME(row) {
    const struct gradients *g;
    const struct sequence *q;
    int64_t i, h;
    const REAL *k, *v; /* [d][nk] and [nk][dv] */
    /* for each key: score, a of oracle.h, probability, factor of dropout */
    REAL *s, *terms, *p, *z;
    REAL *q_row, *do_row; /* Q and dO of the row */
    /* the weight of sizes; rowsum(dO O) - dLSE and its size */
    REAL weight, delta, delta_size;
};

static void NAME(add)(const struct gradients *g, enum oracle_gradient which, int64_t at, REAL x,
                      REAL size)
{
    if (g->of[which] != NULL) {
        ((REAL *)g->of[which])[at] += x;
        ((REAL *)g->size[which])[at] += size;
    }
}

static struct NAME(row) NAME(row_of)(const struct gradients *g, const struct sequence *q, int64_t i,
                                     int64_t h, REAL *panel)
{
    struct NAME(row) r = {.g = g, .q = q, .i = i, .h = h, .k = panel, .v = panel + q->d * q->nk};
    r.s = panel + (q->d + q->dv) * q->nk, r.terms = r.s + q->nk, r.p = r.terms + q->nk,
    r.z = r.p + q->nk;
    r.q_row = r.z + q->nk, r.do_row = r.q_row + q->d;
    for (int64_t c = 0; c < q->d; c++) {
        r.q_row[c] = (REAL)oracle_element(&g->forward->q, q->tensor, q->q_first + i, h, c);
    }
    for (int64_t c = 0; c < q->dv; c++) {
        r.do_row[c] = (REAL)oracle_element(&g->args->d_o, q->tensor, q->q_first + i, h, c);
    }
    return r;
}

/* p[j] (0 where the row does not see key j), z[j], and the row's LSE from its scores. */
static REAL NAME(probabilities)(const struct NAME(row) * r, REAL top)
{
    const struct sequence *q = r->q;
    REAL sink = (REAL)broadcast(&q->args->sinks, -(double)INFINITY, q->index, r->h, 0, 0);
    REAL base = sink > top ? sink : top, sum = exp(sink - base);
    for (int64_t j = 0; j < q->nk; j++) {
        bool seen = j >= first_key(q, r->i) && j < end_key(q, r->i) && r->s[j] != -(REAL)INFINITY;
        r->p[j] = seen ? exp(r->s[j] - base) : 0;
        r->z[j] = seen ? (REAL)dropout_factor(q, r->h, r->i, j) : 0;
        sum = base == -(REAL)INFINITY ? 1 : seen ? sum + r->p[j] : sum;
    }
    for (int64_t j = 0; j < q->nk; j++) {
        r->p[j] /= sum;
    }
    return base == -(REAL)INFINITY ? base : base + log(sum);
}

/* d/ds of the softcap at the score of key j: 1 / cosh^2 */
static REAL NAME(slope_of_cap)(const struct NAME(row) * r, int64_t j)
{
    REAL dot = 0, cap = (REAL)r->q->args->softcap;
    for (int64_t c = 0; c < r->q->d && cap > 0; c++) {
        dot += r->q_row[c] * r->k[c * r->q->nk + j];
    }
    REAL x = cap > 0 ? cosh((REAL)r->q->scale * dot / cap) : 1;
    return isinf(x) ? 0 : 1 / x / x;
}

/* delta, its size, and the error that O in fewer bits may add to it, in units of u. */
static void NAME(set_delta)(struct NAME(row) * r)
{
    const struct sequence *q = r->q;
    const attn_forward_args *a = r->g->forward;
    const attn_tensor *d_lse_of = &r->g->args->d_lse, *o = a->o_f32.data ? &a->o_f32 : &a->o;
    REAL d_lse =
        d_lse_of->data ? (REAL)oracle_element(d_lse_of, q->tensor, q->q_first + r->i, r->h, 0) : 0;
    REAL stored = o->dtype == ATTN_BF16 ? 0x1p15 : o->dtype == ATTN_F16 ? 0x1p12 : 0;
    stored = a->q.dtype == ATTN_F64 && o->dtype == ATTN_F32 ? 0x1p28 : stored;
    r->delta = -d_lse, r->delta_size = fabs(d_lse);
    for (int64_t c = 0; c < q->dv; c++) {
        REAL sum = 0, size = 0;
        for (int64_t j = 0; j < q->nk; j++) {
            if (r->p[j] != 0) {
                REAL term = r->p[j] * r->z[j] * r->v[j * q->dv + c];
                sum += term, size += fabs(term);
            }
        }
        r->delta += r->do_row[c] * sum;
        r->delta_size += fabs(r->do_row[c]) * (size + stored * fabs(sum));
    }
}

/* Adds key j of the row to dV, dQ, dK, dBias and dSlopes. */
static void NAME(add_key)(const struct NAME(row) * r, int64_t j)
{
    const struct gradients *g = r->g;
    const struct sequence *q = r->q;
    const attn_forward_args *a = g->forward;
    int64_t hk = r->h / (a->q.shape[2] / a->k.shape[2]);
    int64_t row = ((q->tensor * a->q.shape[1] + q->q_first + r->i) * a->q.shape[2] + r->h) * q->d;
    int64_t key = (q->tensor * a->k.shape[1] + q->k_first + j) * a->k.shape[2] + hk;
    REAL dp = 0, dp_size = 0, weight = r->weight, z = r->z[j] * r->p[j];
    for (int64_t c = 0; c < q->dv; c++) {
        REAL x = r->z[j] * r->do_row[c] * r->v[j * q->dv + c];
        dp += x, dp_size += fabs(x);
        NAME(add)(g, ORACLE_DV, key * q->dv + c, z * r->do_row[c], weight * fabs(z * r->do_row[c]));
    }
    REAL ds = r->p[j] * (dp - r->delta), size = r->p[j] * (dp_size + r->delta_size);
    REAL scale = (REAL)q->scale * NAME(slope_of_cap)(r, j),
         away = (REAL)llabs(r->i + q->diagonal - j);
    for (int64_t c = 0; c < q->d; c++) {
        REAL x = r->q_row[c], y = r->k[c * q->nk + j];
        NAME(add)(g, ORACLE_DQ, row + c, scale * ds * y, weight * fabs(scale * size * y));
        NAME(add)(g, ORACLE_DK, key * q->d + c, scale * ds * x, weight * fabs(scale * size * x));
    }
    NAME(add)(g, ORACLE_DBIAS, place(&a->bias, q->index, r->h, r->i, j), ds, weight * size);
    NAME(add)
    (g, ORACLE_DSLOPES, place(&a->alibi_slopes, q->index, r->h, 0, 0), -away * ds,
     weight * away * size);
}

static void NAME(grad_row)(const struct gradients *g, const struct sequence *q, int64_t i,
                           int64_t h, REAL *panel)
{
    struct NAME(row) r = NAME(row_of)(g, q, i, h, panel);
    REAL top[3];
    NAME(scores)(q, i, h, panel, r.s, r.terms, top);
    REAL lse = NAME(probabilities)(&r, top[0]);
    r.weight = 1 + top[2] * (g->forward->softcap > 0 ? 1 + 2 / (REAL)g->forward->softcap : 1);
    r.weight += isinf(lse) ? 0 : fabs(lse);
    NAME(set_delta)(&r);
    for (int64_t j = first_key(q, i); j < end_key(q, i); j++) {
        if (r.s[j] != -(REAL)INFINITY) {
            NAME(add_key)(&r, j);
        }
    }
    REAL sink = (REAL)broadcast(&q->args->sinks, -(double)INFINITY, q->index, h, 0, 0);
    REAL share = sink == -(REAL)INFINITY ? 0 : exp(sink - lse);
    NAME(add)
    (g, ORACLE_DSINKS, place(&g->forward->sinks, q->index, h, 0, 0), -share * r.delta,
     r.weight * share * r.delta_size);
}

/* The sums of one tensor as they are handed out. */
static void NAME(copy)(const void *sums, long double *out, size_t count)
{
    for (size_t n = 0; n < count; n++) {
        out[n] = ((const REAL *)sums)[n];
    }
}
