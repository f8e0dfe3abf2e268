/*
 * gradients.c: validation of the backward pass's arguments: those of the forward pass are checked
 * as there (problem.c), the rest here.
 */
#include "core/error.h"
#include "core/overlap.h"

/* A tensor in the shape of another, which must be there unless it is required itself. */
static attn_status check_like(const char *name, const attn_tensor *tensor, int types, bool required,
                              bool output, const char *like_name, const attn_tensor *like)
{
    if (!required && !attn_tensor_present(tensor)) {
        return ATTN_OK;
    }
    TRY(attn_check_tensor(name, tensor, types, output));
    if (!required && !attn_tensor_present(like)) {
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT, "%s is given without %s", name, like_name);
    }
    return attn_check_extents(name, tensor, like_name, like, 4);
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

attn_status attn_gradients_init(attn_gradients *grads, const attn_backward_args *args, int meaning)
{
    const attn_forward_args *const forward = args->forward;
    *grads = (attn_gradients){
        .d_o = args->d_o,
        .d_lse = args->d_lse,
        .dq = args->dq,
        .dk = args->dk,
        .dv = args->dv,
        .d_bias = args->d_bias,
        .d_alibi = args->d_alibi_slopes,
        .d_sinks = args->d_sinks,
    };
    TRY(attn_problem_init(&grads->problem, forward, meaning | ATTN_OF_BACKWARD));
    if (meaning & ATTN_OF_SHAPES) {
        attn_stand_in(&grads->d_o);
    }
    if (attn_tensor_present(&grads->problem.o_f32)) {
        grads->problem.o = grads->problem.o_f32;
    }
    const int same = 1 << grads->problem.q.dtype | 1 << ATTN_F32;
    const struct {
        const char *name;
        attn_tensor *tensor;
        int types;
        bool required, output;
        const char *like_name;
        const attn_tensor *like;
    } checks[] = {
        {"d_o", &grads->d_o, same, true, false, "o", &grads->problem.o},
        {"d_lse", &grads->d_lse, ATTN_WIDE_TYPES, false, false, "lse", &grads->problem.lse},
        {"dq", &grads->dq, same, false, true, "q", &grads->problem.q},
        {"dk", &grads->dk, same, false, true, "k", &grads->problem.k},
        {"dv", &grads->dv, same, false, true, "v", &grads->problem.v},
        {"d_bias", &grads->d_bias, ATTN_FLOAT_TYPES, false, false, "bias", &forward->bias},
        {"d_alibi_slopes", &grads->d_alibi, ATTN_WIDE_TYPES, false, true, "alibi_slopes",
         &forward->alibi_slopes},
        {"d_sinks", &grads->d_sinks, ATTN_WIDE_TYPES, false, true, "sinks", &forward->sinks},
    };
    for (size_t i = 0; i < sizeof checks / sizeof checks[0]; i++) {
        TRY(check_like(checks[i].name, checks[i].tensor, checks[i].types, checks[i].required,
                       checks[i].output, checks[i].like_name, checks[i].like));
        attn_normalise_tensor(checks[i].tensor, checks[i].required);
    }
    return check_shared_memory(&grads->d_bias);
}
