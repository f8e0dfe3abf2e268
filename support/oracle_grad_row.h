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
    /* the weight of sizes; rowsum(dO O) - dLSE, its size, and its error by the rounding of O */
    REAL weight, delta, delta_size, delta_loss;
};

/* One term of a gradient: its size and loss as in oracle_gradients, and the sum of squares of the
 * parts that it is the difference of. */
struct NAME(term) {
    REAL x, size, loss, squares;
};

static struct NAME(term) NAME(times)(struct NAME(term) term, REAL factor)
{
    return (struct NAME(term)){term.x * factor, term.size * fabs(factor), term.loss * fabs(factor),
                               term.squares * factor * factor};
}

static void NAME(add)(const struct gradients *g, enum oracle_gradient which, int64_t at,
                      struct NAME(term) term)
{
    if (g->of[which] != NULL) {
        ((REAL *)g->of[which])[at] += term.x;
        ((REAL *)g->size[which])[at] += term.size;
        ((REAL *)g->loss[which])[at] += term.loss;
        g->squares[which] += (double)term.squares;
    }
}

static struct NAME(row) NAME(row_of)(const struct gradients *g, const struct sequence *sequence,
                                     int64_t i, int64_t h, REAL *panel)
{
    struct NAME(row) terms = {
        .g = g, .q = sequence, .i = i, .h = h, .k = panel, .v = panel + sequence->d * sequence->nk};
    terms.s = panel + (sequence->d + sequence->dv) * sequence->nk,
    terms.terms = terms.s + sequence->nk, terms.p = terms.terms + sequence->nk,
    terms.z = terms.p + sequence->nk;
    terms.q_row = terms.z + sequence->nk, terms.do_row = terms.q_row + sequence->d;
    for (int64_t c = 0; c < sequence->d; c++) {
        terms.q_row[c] =
            (REAL)oracle_element(&g->forward->q, sequence->tensor, sequence->q_first + i, h, c);
    }
    for (int64_t c = 0; c < sequence->dv; c++) {
        terms.do_row[c] =
            (REAL)oracle_element(&g->args->d_o, sequence->tensor, sequence->q_first + i, h, c);
    }
    return terms;
}

static bool NAME(sees)(const struct NAME(row) * terms, int64_t j)
{
    return j >= first_key(terms->q, terms->i) && j < end_key(terms->q, terms->i) &&
           terms->s[j] != -(REAL)INFINITY;
}

/* p[j] (0 where the row does not see key j), z[j], and the row's LSE from its scores. */
static REAL NAME(probabilities)(const struct NAME(row) * terms, REAL top)
{
    const struct sequence *sequence = terms->q;
    REAL sink =
        (REAL)broadcast(&sequence->args->sinks, -(double)INFINITY, sequence->index, terms->h, 0, 0);
    REAL base = sink > top || isnan(sink) ? sink : top, sum = exp(sink - base);
    for (int64_t j = 0; j < sequence->nk; j++) {
        bool seen = NAME(sees)(terms, j);
        terms->p[j] = seen ? exp(terms->s[j] - base) : 0;
        terms->z[j] = seen ? (REAL)dropout_factor(sequence, terms->h, terms->i, j) : 0;
        sum = base == -(REAL)INFINITY ? 1 : seen ? sum + terms->p[j] : sum;
    }
    for (int64_t j = 0; j < sequence->nk; j++) {
        terms->p[j] /= sum;
    }
    return base == -(REAL)INFINITY ? base : base + log(sum);
}

/* d/ds of the softcap at the score of key j: 1 / cosh^2 */
static REAL NAME(slope_of_cap)(const struct NAME(row) * terms, int64_t j)
{
    REAL dot = 0, cap = (REAL)terms->q->args->softcap;
    for (int64_t c = 0; c < terms->q->d && cap > 0; c++) {
        dot += terms->q_row[c] * terms->k[c * terms->q->nk + j];
    }
    REAL x = cap > 0 ? cosh((REAL)terms->q->scale * dot / cap) : 1;
    return isinf(x) ? 0 : 1 / x / x;
}

/* delta, its size, and the error that O in fewer bits may add to it: half an ulp of each O. */
static void NAME(set_delta)(struct NAME(row) * terms)
{
    const struct sequence *sequence = terms->q;
    const attn_forward_args *args = terms->g->forward;
    const attn_tensor *d_lse_of = &terms->g->args->d_lse,
                      *o = args->o_f32.data ? &args->o_f32 : &args->o;
    REAL d_lse = d_lse_of->data ? (REAL)oracle_element(d_lse_of, sequence->tensor,
                                                       sequence->q_first + terms->i, terms->h, 0)
                                : 0;
    REAL stored = o->dtype == ATTN_BF16 ? 0x1p-8 : o->dtype == ATTN_F16 ? 0x1p-11 : 0;
    stored = args->q.dtype == ATTN_F64 && o->dtype == ATTN_F32 ? 0x1p-24 : stored;
    REAL least = o->dtype == ATTN_F16 ? 0x1p-14 : 0; /* below that an ulp is no smaller */
    terms->delta = -d_lse, terms->delta_size = fabs(d_lse), terms->delta_loss = 0;
    for (int64_t c = 0; c < sequence->dv; c++) {
        REAL sum = 0, size = 0;
        for (int64_t j = 0; j < sequence->nk; j++) {
            if (NAME(sees)(terms, j)) { /* p = 0 by underflow times a NaN is one, as in O */
                REAL term = terms->p[j] * terms->z[j] * terms->v[j * sequence->dv + c];
                sum += term, size += fabs(term);
            }
        }
        terms->delta += terms->do_row[c] * sum;
        terms->delta_size += fabs(terms->do_row[c]) * size;
        terms->delta_loss += fabs(terms->do_row[c]) * stored * fmax(fabs(sum), least);
    }
}

/* Adds key j of the row to dV, dQ, dK, dBias and dSlopes. */
static void NAME(add_key)(const struct NAME(row) * terms, int64_t j)
{
    const struct gradients *g = terms->g;
    const struct sequence *sequence = terms->q;
    const attn_forward_args *args = g->forward;
    int64_t hk = terms->h / (args->q.shape[2] / args->k.shape[2]);
    int64_t row =
        ((sequence->tensor * args->q.shape[1] + sequence->q_first + terms->i) * args->q.shape[2] +
         terms->h) *
        sequence->d;
    int64_t key =
        (sequence->tensor * args->k.shape[1] + sequence->k_first + j) * args->k.shape[2] + hk;
    REAL dp = 0, dp_size = 0, weight = terms->weight, p = terms->p[j];
    for (int64_t c = 0; c < sequence->dv; c++) {
        REAL x = terms->z[j] * terms->do_row[c] * terms->v[j * sequence->dv + c],
             dv = terms->z[j] * p * terms->do_row[c];
        dp += x, dp_size += fabs(x);
        NAME(add)
        (g, ORACLE_DV, key * sequence->dv + c,
         (struct NAME(term)){dv, weight * fabs(dv), 0, dv * dv});
    }
    const struct NAME(term)
        ds = {p * (dp - terms->delta), weight * p * (dp_size + terms->delta_size),
              p * terms->delta_loss, p * p * (dp * dp + terms->delta * terms->delta)};
    REAL scale = (REAL)sequence->scale * NAME(slope_of_cap)(terms, j),
         away = (REAL)llabs(terms->i + sequence->diagonal - j);
    for (int64_t c = 0; c < sequence->d; c++) {
        REAL x = terms->q_row[c], y = terms->k[c * sequence->nk + j];
        NAME(add)(g, ORACLE_DQ, row + c, NAME(times)(ds, scale * y));
        NAME(add)(g, ORACLE_DK, key * sequence->d + c, NAME(times)(ds, scale * x));
    }
    NAME(add)(g, ORACLE_DBIAS, place(&args->bias, sequence->index, terms->h, terms->i, j), ds);
    NAME(add)
    (g, ORACLE_DSLOPES, place(&args->alibi_slopes, sequence->index, terms->h, 0, 0),
     NAME(times)(ds, -away));
}

static void NAME(grad_row)(const struct gradients *g, const struct sequence *sequence, int64_t i,
                           int64_t h, REAL *panel)
{
    struct NAME(row) terms = NAME(row_of)(g, sequence, i, h, panel);
    REAL top[3];
    NAME(scores)(sequence, i, h, panel, terms.s, terms.terms, top);
    REAL lse = NAME(probabilities)(&terms, top[0]);
    terms.weight = 1 + top[2] * (g->forward->softcap > 0 ? 1 + 2 / (REAL)g->forward->softcap : 1);
    terms.weight += isinf(lse) ? 0 : fabs(lse);
    /* P = exp(s - LSE) is off by exp(4 u weight) - 1, which is 4 u weight where that is small */
    const REAL unit = g->forward->q.dtype == ATTN_F64 ? 0x1p-51 : 0x1p-22;
    terms.weight = expm1(unit * terms.weight) / unit;
    NAME(set_delta)(&terms);
    for (int64_t j = first_key(sequence, i); j < end_key(sequence, i); j++) {
        if (terms.s[j] != -(REAL)INFINITY) {
            NAME(add_key)(&terms, j);
        }
    }
    REAL sink =
        (REAL)broadcast(&sequence->args->sinks, -(double)INFINITY, sequence->index, h, 0, 0);
    REAL share = sink == -(REAL)INFINITY ? 0 : exp(sink - lse);
    const struct NAME(term) d_sink = {terms.delta, terms.weight * terms.delta_size,
                                      terms.delta_loss, terms.delta * terms.delta};
    NAME(add)
    (g, ORACLE_DSINKS, place(&g->forward->sinks, sequence->index, h, 0, 0),
     NAME(times)(d_sink, -share));
}

/* Copies the sums of one tensor for the caller. */
static void NAME(copy)(const void *sums, long double *out, size_t count)
{
    for (size_t n = 0; n < count; n++) {
        out[n] = ((const REAL *)sums)[n];
    }
}
