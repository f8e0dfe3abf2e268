/*
 * forms.c: see forms.h. The first form runs on the library's threads, the second in a context of
 * its own: an executor that runs tasks in an order and on thread numbers of its own, and a
 * workspace at any address between canaries.
 */
#include "forms.h"
#include "grad_errors.h"
#include "grad_runs.h"
#include "judge.h"
#include "outputs.h"
#include "rewrite.h"
#include "runs.h"
#include "tables.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CANARY = 192, MOST_THREADS = 70 };

/* A context under trial. */
typedef struct host {
    dice *d;
    attn_context *context;
    int32_t threads, order;
    int64_t fails; /* allocations until one fails; below 0: none does */
} host;

/* ---- the host's threads and memory ----------------------------------------------------------- */

static int32_t host_threads(void *user)
{
    return ((const host *)user)->threads;
}

/* Runs the tasks one after the other, forwards or backwards, on any thread or the last. */
static void host_loop(void *user, int64_t n, void (*task)(void *arg, int64_t i, int32_t thread),
                      void *arg)
{
    const host *h = user;
    for (int64_t i = 0; i < n; i++) {
        task(arg, h->order & 1 ? n - 1 - i : i,
             h->order & 2 ? h->threads - 1 : (int32_t)dice_roll(h->d, h->threads));
    }
}

static void *host_alloc(void *user, size_t bytes, size_t alignment)
{
    host *h = user;
    char *block = h->fails-- == 0 ? NULL : malloc(bytes + alignment + sizeof block);
    if (block == NULL) {
        return NULL;
    }
    const uintptr_t least = (uintptr_t)block + sizeof block;
    char *memory = block + (least / alignment + 1) * alignment - (uintptr_t)block;
    memcpy(memory - sizeof block, &block, sizeof block);
    return memory;
}

static void host_free(void *user, void *memory, size_t bytes)
{
    char *block;
    (void)user, (void)bytes;
    memcpy(&block, (char *)memory - sizeof block, sizeof block);
    free(block);
}

static bool host_open(host *h, dice *d, const char *table)
{
    static const int32_t counts[] = {1, 2, 3, 5, 8, 16, MOST_THREADS};
    *h = (host){.d = d, .threads = counts[dice_roll(d, 7)], .fails = -1};
    h->order = (int32_t)dice_roll(d, 4);
    const attn_context_config config = {.struct_size = sizeof config,
                                        .cpu = table,
                                        .allocator = {h, host_alloc, host_free},
                                        .executor = {h, host_threads, host_loop}};
    return attn_context_create(&config, &h->context) == ATTN_OK;
}

/* ---- one pass of the second form ------------------------------------------------------------- */

/* A pass of a problem: forward, or backward if grad is given. */
typedef struct pass {
    host *h;
    attn_forward_args args;
    attn_backward_args grad;
    bool backward;
    const attn_tensor *out[ORACLE_GRADIENTS];
    int outs;
} pass;

static void pass_make(pass *p, host *h, const rewritten *r, bool backward)
{
    *p = (pass){.h = h, .args = *r->args, .grad = *r->grad, .backward = backward, .outs = 4};
    p->grad.forward = &p->args;
    p->out[0] = &p->args.o, p->out[1] = &p->args.o_f32, p->out[2] = &p->args.lse;
    p->out[3] = &p->args.row_max;
    if (backward) {
        grad_errors_tensors(&p->grad, p->out);
        p->outs = ORACLE_GRADIENTS;
    }
}

static attn_status run(pass *p, void *workspace, uint64_t bytes)
{
    if (p->backward) {
        p->grad.workspace = workspace, p->grad.workspace_bytes = bytes;
        return attn_backward(p->h->context, &p->grad);
    }
    p->args.workspace = workspace, p->args.workspace_bytes = bytes;
    return attn_forward(p->h->context, &p->args);
}

/* The workspace's size, which does not depend on data that only the call reads. */
static bool ask(const pass *p, uint64_t *bytes, char *sentence, size_t size)
{
    pass blank = *p;
    uint64_t of_shapes = 0;
    attn_plan plan = {.struct_size = sizeof plan};
    attn_forward_args *a = &blank.args;
    attn_context *context = p->h->context;
    a->q.data = a->k.data = a->v.data = a->o.data = blank.grad.d_o.data = NULL;
    blank.grad.forward = a;
    const bool ok =
        p->backward ? attn_backward_workspace(context, &p->grad, bytes) == ATTN_OK &&
                          attn_backward_workspace(context, &blank.grad, &of_shapes) == ATTN_OK &&
                          attn_backward_plan(context, &p->grad, &plan) == ATTN_OK
                    : attn_forward_workspace(context, &p->args, bytes) == ATTN_OK &&
                          attn_forward_workspace(context, a, &of_shapes) == ATTN_OK &&
                          attn_forward_plan(context, &p->args, &plan) == ATTN_OK;
    if (!ok) {
        snprintf(sentence, size, "workspace or plan: %s", attn_last_error());
    } else if (of_shapes != *bytes || plan.workspace_bytes != *bytes) {
        snprintf(sentence, size, "workspaces of %llu bytes, without data %llu, by the plan %llu",
                 (unsigned long long)*bytes, (unsigned long long)of_shapes,
                 (unsigned long long)plan.workspace_bytes);
    }
    return ok && of_shapes == *bytes && plan.workspace_bytes == *bytes;
}

static bool poisoned(const pass *p)
{
    size_t bytes;
    unsigned char *copy = outputs_copy_these(p->out, p->outs, &bytes);
    bool all = true;
    for (size_t i = 0; copy && i < bytes; i++) {
        all = all && copy[i] == 0xFF;
    }
    free(copy);
    return all;
}

/* A call that gets a byte too few, or no memory from the context, fails and writes nothing. */
static bool refuses(pass *p, void *workspace, uint64_t bytes, char *sentence, size_t size)
{
    outputs_poison_these(p->out, p->outs);
    if (bytes > 0 && dice_one_in(p->h->d, 2)) {
        const attn_status status = run(p, workspace, bytes - 1);
        snprintf(sentence, size, "a byte too few: status %d, or results written", (int)status);
        if (status != ATTN_ERR_WORKSPACE || !poisoned(p)) {
            return false;
        }
    }
    p->h->fails = 0;
    const attn_status status = bytes > 0 ? run(p, NULL, 0) : ATTN_ERR_OUT_OF_MEMORY;
    p->h->fails = -1;
    snprintf(sentence, size, "no memory: status %d, or results written", (int)status);
    return status == ATTN_ERR_OUT_OF_MEMORY && poisoned(p);
}

static bool all_are(const unsigned char *bytes, size_t n, unsigned char value)
{
    bool all = true;
    for (size_t i = 0; i < n; i++) {
        all = all && bytes[i] == value;
    }
    return all;
}

/* Runs on a workspace of exactly its size at any address, or on the context's memory. */
static bool pass_runs(pass *p, char *sentence, size_t size)
{
    dice *d = p->h->d;
    uint64_t bytes = 0;
    if (!ask(p, &bytes, sentence, size)) {
        return false;
    }
    const size_t before = CANARY + (size_t)dice_roll(d, 64);
    unsigned char *memory = malloc(before + (size_t)bytes + CANARY), *first = memory + before;
    if (memory == NULL) {
        return true;
    }
    memset(memory, 0xA5, before + (size_t)bytes + CANARY);
    bool ok = refuses(p, first, bytes, sentence, size);
    if (ok) {
        outputs_poison_these(p->out, p->outs);
        memset(first, (int)dice_roll(d, 256), bytes);
        const bool own = dice_one_in(d, 4);
        ok = run(p, own ? NULL : first, own ? 0 : bytes) == ATTN_OK;
        snprintf(sentence, size, "%s", attn_last_error());
    }
    if (ok && !(all_are(memory, before, 0xA5) && all_are(first + bytes, CANARY, 0xA5))) {
        snprintf(sentence, size, "memory beside the workspace of %llu bytes was written",
                 (unsigned long long)bytes);
        ok = false;
    }
    free(memory);
    return ok;
}

/* ---- both forms ------------------------------------------------------------------------------ */

static bool first_runs(const rewritten *r, const char *table, int threads, char *sentence,
                       size_t size)
{
    return runs_once(&r->first.args, table, threads, RUNS_NOISE, sentence, size) &&
           (!r->backward ||
            grad_runs_once(&r->first.grad, table, threads, RUNS_NOISE, sentence, size));
}

static bool second_runs(const rewritten *r, host *h, char *sentence, size_t size)
{
    for (int backward = 0; backward <= r->backward; backward++) {
        pass p;
        pass_make(&p, h, r, backward);
        if (!pass_runs(&p, sentence, size) || !rewrite_same(r, backward, sentence, size)) {
            return false;
        }
    }
    return true;
}

/* Another table with the same bits for this problem, if there is one; *own: there is none. */
static const char *draw_partner(const problem_spec *spec, dice *d, const char *table, bool *own)
{
    int count;
    const char *const *names =
        tables_that_agree(spec->dtype, spec->precise ? ATTN_PRECISE : 0, &count);
    const char *partner = names[dice_roll(d, count)];
    *own = true;
    for (int n = 0; n < count; n++) {
        *own = *own && strcmp(names[n], table) != 0;
    }
    return *own ? table : partner;
}

bool forms_judge(const problem_spec *spec, dice *d, char *sentence, size_t size)
{
    rewritten r;
    host h;
    char why[256] = "";
    bool own;
    const char *table = judge_draw_table(d), *partner = draw_partner(spec, d, table, &own);
    const int threads = 1 + (int)dice_roll(d, 7);
    if (!rewrite_open(spec, d, own, &r)) {
        return true;
    }
    bool ok = host_open(&h, d, partner);
    if (ok) {
        ok =
            first_runs(&r, table, threads, why, sizeof why) && second_runs(&r, &h, why, sizeof why);
        char line[1024];
        problem_print(&r.is, line, sizeof line);
        snprintf(sentence, size, "%s with %d threads, %s with %d, form \"%s\" (%s): %s", table,
                 threads, partner, (int)h.threads, r.name, line, why);
        attn_context_destroy(h.context);
    }
    rewrite_close(&r);
    return ok;
}
