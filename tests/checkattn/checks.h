/*
 * checks.h: the checks, one function per member or pair of members of attn_ukernel. Each calls
 * kit_member, then the member in many ways; the result is in k->failures.
 */
#ifndef TESTS_CHECKATTN_CHECKS_H
#define TESTS_CHECKATTN_CHECKS_H

#include "kit.h"

typedef struct check_entry {
    const char *name; /* for --kernel */
    void (*run)(kernel_kit *k);
    bool every_type; /* else once per table, whatever the type of the inputs */
} check_entry;

extern const check_entry checks[];
extern const int checks_count;

/* Runs one check; a signal it raises (a read beyond a slot, say) is a failure. */
void check_run(const check_entry *check, kernel_kit *kit);

/* check_pack.c */
void check_pack(kernel_kit *kit);
void check_bias(kernel_kit *kit);
void check_store(kernel_kit *kit);
void check_finite(kernel_kit *kit);

/* check_qk.c, check_pv.c, check_block.c */
void check_qk(kernel_kit *kit);
void check_pv(kernel_kit *kit);
void check_block(kernel_kit *kit);

/* check_clean.c */
void check_clean_v(kernel_kit *kit);
void check_clean_x(kernel_kit *kit);

/* check_qk_softmax.c */
void check_qk_softmax(kernel_kit *kit);

/* check_scores.c */
void check_softmax(kernel_kit *kit);
void check_score(kernel_kit *kit);
void check_mask(kernel_kit *kit);

/* check_nodes.c */
void check_nodes(kernel_kit *kit);

/* check_grad_rows.c */
void check_grad_rows(kernel_kit *kit);

/* check_grad.c */
void check_grad_softmax(kernel_kit *kit);
void check_grad_softcap(kernel_kit *kit);
void check_grad_dots(kernel_kit *kit);
void check_grad_put(kernel_kit *kit);
void check_grad_drop(kernel_kit *kit);

/* check_grad_products.c */
void check_grad_products(kernel_kit *kit);

/* check_quotients.c */
void check_quotients(kernel_kit *kit);

/* check_functions.c: exp2 and tanh through softmax and score, in ulps. */
void check_exp2(kernel_kit *kit);
void check_tanh(kernel_kit *kit);

/* Every how many-th float check_exp2, check_tanh and check_quotients take; 1 = all of them. */
extern int64_t check_step;

#endif
