/*
 * rewrite.h: a problem written in another form with the same meaning: other layouts and types of
 * lists, dense, varlen or in pages, defaults spelled out, axes that are broadcast written out, some
 * of the results, one sequence, some KV heads.
 */
#ifndef TESTS_HUNT_REWRITE_H
#define TESTS_HUNT_REWRITE_H

#include "draw.h"

enum { REWRITE_OWNED = 16 };

/* A problem in two forms. */
typedef struct rewritten {
    problem_spec was, is;
    problem_tensors first, second; /* of was and is */
    attn_forward_args *args;       /* second.args: the members below have changed it */
    attn_backward_args *grad;      /* second.grad */
    bool backward, own_bits;
    int64_t sequence;           /* the only one of the second form, or -1 */
    int64_t kv_head, kv_heads;  /* those of the second form */
    attn_tensor rounded;        /* o in 16 bits beside the second form's o_f32, or absent */
    void *owned[REWRITE_OWNED]; /* memory of tensors written anew */
    int owned_count;
    char name[256]; /* the words of the form */
} rewritten;

/* Draws the second form and makes both. own_bits: for a table with bits of its own. False
 * without memory. */
bool rewrite_open(const problem_spec *spec, dice *d, bool own_bits, rewritten *r);
void rewrite_close(rewritten *r);

/* Compares the results of the second form with those of the first, of `gradients` or of the forward
 * pass. False with the name of a result that differs and its place. */
bool rewrite_same(const rewritten *r, bool gradients, char *sentence, size_t size);

#endif
