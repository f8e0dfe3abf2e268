/*
 * checks.c: the list of checks, and running one of them with its signals caught.
 */
#include "checks.h"

#include <setjmp.h>
#include <signal.h>
#include <string.h>

const check_entry checks[] = {
    {"pack", check_pack, true},
    {"qk", check_qk, true},
    {"pv", check_pv, true},
    {"clean_v", check_clean_v, true},
    {"block", check_block, true},
    {"qk_softmax", check_qk_softmax, true},
    {"softmax", check_softmax, false},
    {"exp2", check_exp2, false},
    {"score", check_score, false},
    {"tanh", check_tanh, false},
    {"mask", check_mask, false},
    {"bias", check_bias, false},
    {"finite", check_finite, false},
    {"store", check_store, false},
    {"quotient", check_quotients, false},
    {"nodes", check_nodes, false},
    {"grad_rows", check_grad_rows, false},
    {"grad_clean_x", check_clean_x, true},
    {"grad_products", check_grad_products, true},
    {"grad_softmax", check_grad_softmax, false},
    {"grad_softcap", check_grad_softcap, false},
    {"grad_dots", check_grad_dots, false},
    {"grad_put", check_grad_put, true},
    {"grad_drop", check_grad_drop, false},
};
const int checks_count = sizeof checks / sizeof checks[0];

static sigjmp_buf before_signal;

static void on_signal(int number)
{
    siglongjmp(before_signal, number);
}

void check_run(const check_entry *check, kernel_kit *kit)
{
    static const int numbers[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE};
    struct sigaction old[4], action = {.sa_handler = on_signal};
    for (int i = 0; i < 4; i++) {
        sigaction(numbers[i], &action, &old[i]);
    }
    int number = sigsetjmp(before_signal, 1);
    if (number == 0) {
        kit_begin(kit->uk);
        check->run(kit);
    } else {
        kit_fail(kit, "%s", strsignal(number));
    }
    kit_end(kit->uk);
    for (int i = 0; i < 4; i++) {
        sigaction(numbers[i], &old[i], NULL);
    }
}
