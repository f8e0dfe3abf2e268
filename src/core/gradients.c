/*
 * gradients.c: validation of the backward pass's arguments: those of the forward pass are checked
 * as there (problem.c), the rest here.
 */
#include "core/error.h"
#include "core/overlap.h"

/* A tensor in the shape of another, which must be there unless it is required itself. */
static attn_status check_like(const char *name, const attn_tensor *t, int types, bool required,
                              bool output, const char *like_name, const attn_tensor *like)
{
    if (!required && !attn_tensor_present(t)) {
        return ATTN_OK;
    }
    TRY(attn_check_tensor(name, t, types, output));
    if (!required && !attn_tensor_present(like)) {
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT, "%s is given without %s", name, like_name);
    }
    for (int a = 0; a < 4; a++) {
        if (t->shape[a] != like->shape[a]) {
            return attn_fail(ATTN_ERR_INVALID_ARGUMENT,
                             "%s.shape[%d] = %lld but %s.shape[%d] = %lld", name, a,
                             (long long)t->shape[a], like_name, a, (long long)like->shape[a]);
        }
    }
    return ATTN_OK;
}

/* Elements of d_bias may share memory and are summed there: along an axis of stride 0, which is
 * the same as one of extent 1, and by strides like those of relative positions. */
static attn_status check_shared_memory(attn_tensor *d_bias)
{
    if (!attn_tensor_present(d_bias)) {
        return ATTN_OK;
    }
    for (int a = 0; a < 4; a++) {
        if (d_bias->stride[a] == 0) {
            d_bias->shape[a] = 1;
        }
    }
    if (d_bias->shape[2] == 1 && attn_elements_may_meet(d_bias)) {
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT,
                         "d_bias has strides by which its elements share memory, and no axis of "
                         "queries: such sums are not computed");
    }
    return ATTN_OK;
}

attn_status attn_gradients_init(attn_gradients *g, const attn_backward_args *a, int meaning)
{
    const attn_forward_args *const f = a->forward;
    *g = (attn_gradients){
        .d_o = a->d_o,
        .d_lse = a->d_lse,
        .dq = a->dq,
        .dk = a->dk,
        .dv = a->dv,
        .d_bias = a->d_bias,
        .d_alibi = a->d_alibi_slopes,
        .d_sinks = a->d_sinks,
    };
    TRY(attn_problem_init(&g->p, f, meaning | ATTN_OF_BACKWARD));
    if (meaning & ATTN_OF_SHAPES) {
        attn_stand_in(&g->d_o);
    }
    if (attn_tensor_present(&g->p.o_f32)) {
        g->p.o = g->p.o_f32;
    }
    const int same = 1 << g->p.q.dtype | 1 << ATTN_F32;
    const struct {
        const char *name;
        attn_tensor *tensor;
        int types;
        bool required, output;
        const char *like_name;
        const attn_tensor *like;
    } checks[] = {
        {"d_o", &g->d_o, same, true, false, "o", &g->p.o},
        {"d_lse", &g->d_lse, ATTN_WIDE_TYPES, false, false, "lse", &g->p.lse},
        {"dq", &g->dq, same, false, true, "q", &g->p.q},
        {"dk", &g->dk, same, false, true, "k", &g->p.k},
        {"dv", &g->dv, same, false, true, "v", &g->p.v},
        {"d_bias", &g->d_bias, ATTN_FLOAT_TYPES, false, false, "bias", &f->bias},
        {"d_alibi_slopes", &g->d_alibi, ATTN_WIDE_TYPES, false, true, "alibi_slopes",
         &f->alibi_slopes},
        {"d_sinks", &g->d_sinks, ATTN_WIDE_TYPES, false, true, "sinks", &f->sinks},
    };
    for (size_t i = 0; i < sizeof checks / sizeof checks[0]; i++) {
        TRY(check_like(checks[i].name, checks[i].tensor, checks[i].types, checks[i].required,
                       checks[i].output, checks[i].like_name, checks[i].like));
        attn_normalise_tensor(checks[i].tensor, checks[i].required);
    }
    return check_shared_memory(&g->d_bias);
}
