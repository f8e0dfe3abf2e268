/*
 * checks.h: the checks, one function per member or pair of members of attn_ukernel. Each calls
 * kit_member, then the member in many ways; the result is in k->failures.
 */
#ifndef TESTS_CHECKATTN_CHECKS_H
#define TESTS_CHECKATTN_CHECKS_H

#include "kit.h"

typedef struct check {
    const char *name; /* for --kernel */
    void (*run)(kit *k);
    bool every_type; /* else once per table, whatever the type of the inputs */
} check;

extern const check checks[];
extern const int checks_count;

/* Runs one check; a signal it raises (a read beyond a slot, say) is a failure. */
void check_run(const check *c, kit *k);

/* check_pack.c */
void check_pack(kit *k);
void check_bias(kit *k);
void check_store(kit *k);
void check_finite(kit *k);

/* check_qk.c, check_pv.c, check_block.c */
void check_qk(kit *k);
void check_pv(kit *k);
void check_pv_careful(kit *k);
void check_block(kit *k);

/* check_qk_softmax.c */
void check_qk_softmax(kit *k);

/* check_scores.c */
void check_softmax(kit *k);
void check_score(kit *k);
void check_mask(kit *k);

/* check_nodes.c */
void check_nodes(kit *k);

/* check_grad_rows.c */
void check_grad_rows(kit *k);

/* check_grad.c */
void check_grad_softmax(kit *k);
void check_grad_softcap(kit *k);
void check_grad_dots(kit *k);
void check_grad_put(kit *k);
void check_grad_drop(kit *k);

/* check_grad_products.c */
void check_grad_products(kit *k);

/* check_quotients.c */
void check_quotients(kit *k);

/* check_functions.c: exp2 and tanh through softmax and score, in ulps. */
void check_exp2(kit *k);
void check_tanh(kit *k);

/* Every how many-th float check_exp2, check_tanh and check_quotients take; 1 = all of them. */
extern int64_t check_step;

#endif
