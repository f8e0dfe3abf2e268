/*
 * call.c: see call.h.
 */
#include "call.h"

#include <stdlib.h>

void call_open(call *c, const char *line)
{
    problem_spec problem;
    char sentence[512];
    attn_context_config config = {.struct_size = sizeof config, .threads = 1};
    attn_context *context;
    attn_info info = {.struct_size = sizeof info};
    if (!problem_parse(line, &problem, sentence, sizeof sentence)) {
        fail_msg("%s", sentence);
    }
    assert_true(problem_tensors_create(&problem, PLACE_GUARD_AFTER, &c->tensors));
    c->args = &c->tensors.args;
    assert_int_equal(attn_context_create(&config, &context), ATTN_OK);
    assert_int_equal(attn_forward(context, c->args), ATTN_OK);
    assert_int_equal(attn_get_info(context, &info), ATTN_OK);
    if (!(outputs_judge(c->args, info.cpu_table, sentence, sizeof sentence) <= 1)) {
        fail_msg("%s", sentence);
    }
    attn_context_destroy(context);
    c->right = outputs_copy(c->args, &c->bytes);
    assert_non_null(c->right);
    outputs_poison(c->args);
}

void call_close(call *c)
{
    free(c->right);
    problem_tensors_free(&c->tensors);
}

bool call_is_right(call *c)
{
    size_t bytes;
    unsigned char *now = outputs_copy(c->args, &bytes);
    bool right =
        now != NULL && memcmp(now, c->right, bytes) == 0 && problem_tensors_intact(&c->tensors);
    free(now);
    outputs_poison(c->args);
    return right;
}

bool call_is_untouched(const call *c)
{
    size_t bytes;
    unsigned char *now = outputs_copy(c->args, &bytes);
    bool untouched = now != NULL && problem_tensors_intact(&c->tensors);
    for (size_t i = 0; untouched && i < bytes; i++) {
        untouched = now[i] == 0xFF;
    }
    free(now);
    return untouched;
}
