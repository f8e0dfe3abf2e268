/*
 * worker.c: see worker.h. Parent and child talk in fixed structs over two pipes: one request, one
 * reply.
 */
#include "worker.h"
#include "cli.h"
#include "errors.h"
#include "peak.h"
#include "peer.h"
#include "standard.h"
#include "stats.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum operation { SAMPLE, PEAK, FINISH };

struct request {
    enum operation operation;
    int64_t repeats;
    double seconds;
};

struct reply {
    enum worker_failure failure;
    char why[512];
    double value, waited, amx;
    worker_report report;
};

static bool read_all(int file, void *data, size_t size)
{
    for (char *p = data; size > 0;) {
        ssize_t n = read(file, p, size);
        if (n <= 0 && !(n < 0 && errno == EINTR)) {
            return false;
        }
        p += n > 0 ? n : 0, size -= n > 0 ? (size_t)n : 0;
    }
    return true;
}

static bool write_all(int file, const void *data, size_t size)
{
    for (const char *p = data; size > 0;) {
        ssize_t n = write(file, p, size);
        if (n < 0 && errno != EINTR) {
            return false;
        }
        p += n > 0 ? n : 0, size -= n > 0 ? (size_t)n : 0;
    }
    return true;
}

/* ---- The child ------------------------------------------------------------------------------- */

enum kind { LIBATTN, STANDARD, PEER };

struct child {
    enum kind kind;
    const char *implementation, *python;
    peer peer;
    problem_tensors tensors;
    /* the call's tensors, or copies: f32 for standard attention, shared memory for a peer */
    attn_forward_args args;
    attn_backward_args grad;
    int32_t pass; /* enum problem_pass of a call */
    attn_context *context;
    attn_plan plan;
    void *workspace;
    double workspace_bytes;
};

__attribute__((format(printf, 3, 4))) static bool fail(struct reply *r, enum worker_failure failure,
                                                       const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(r->why, sizeof r->why, format, list);
    va_end(list);
    r->failure = failure;
    return false;
}

static bool fail_status(struct reply *r, attn_status status)
{
    bool blame = status == ATTN_ERR_INVALID_ARGUMENT || status == ATTN_ERR_UNSUPPORTED ||
                 status == ATTN_ERR_OVERFLOW;
    return fail(r, blame ? WORKER_BAD_PROBLEM : WORKER_FAILED, "%s: %s", attn_status_string(status),
                attn_last_error());
}

static bool call(struct child *c, struct reply *r)
{
    if (c->kind == STANDARD) {
        standard_forward(&c->args, c->plan.threads, c->workspace);
        return true;
    }
    attn_status status = c->pass != PASS_BACKWARD ? attn_forward(c->context, &c->args) : ATTN_OK;
    if (status == ATTN_OK && c->pass != PASS_FORWARD) {
        status = attn_backward(c->context, &c->grad);
    }
    return status == ATTN_OK || fail_status(r, status);
}

/* Mean seconds of a call, and of waiting for cores during it. One thread is measured by its
 * processor time, so that the load of others does not count; several threads by the clock. */
static bool sample(struct child *c, int64_t repeats, struct reply *r)
{
    bool one = c->plan.threads == 1;
    double (*clock_of)(void) = one ? stats_used : stats_now;
    double waited = stats_waited(), start = clock_of();
    if (c->kind == PEER) {
        bool ok = peer_sample(&c->peer, repeats, &r->value, &r->waited);
        r->value /= (double)repeats, r->waited *= one ? 0 : 1 / (double)repeats;
        return ok || fail(r, WORKER_FAILED, "%s", c->peer.why);
    }
    for (int64_t i = 0; i < repeats; i++) {
        if (!call(c, r)) {
            return false;
        }
    }
    r->value = (clock_of() - start) / (double)repeats;
    r->waited = one ? 0 : (stats_waited() - waited) / (double)repeats;
    return true;
}

/* NULL, or the reason why this kind does not do the problem. */
static const char *refusal(const struct child *c, const problem_tensors *shapes)
{
    attn_forward_args a = shapes->args;
    if (c->kind == STANDARD && c->pass != PASS_FORWARD) {
        return "standard attention has no backward pass here";
    }
    if (c->kind == PEER && c->pass != PASS_FORWARD && shapes->grad.d_lse.data != NULL) {
        return "the others take no gradient through LSE";
    }
    if (c->pass != PASS_FORWARD) {
        a.lse.data = NULL; /* other libraries keep what they like for their backward pass */
    }
    if (c->kind == PEER) {
        a.bias.data = NULL, a.dropout_p = 0; /* bench/peers/peers.py has both */
    }
    return c->kind == LIBATTN    ? NULL
           : c->kind == STANDARD ? standard_refuses(&a)
                                 : peer_refuses(&a);
}

/* Checks the problem without touching Q, K, V. */
static bool plan(struct child *c, const problem *p, struct reply *r)
{
    problem_tensors shapes;
    if (!problem_tensors_create(p, PLACE_NOWHERE, &shapes)) {
        return fail(r, WORKER_BAD_PROBLEM, "its tensors do not fit into the address space");
    }
    double bytes = problem_tensors_bytes(&shapes);
    if (bytes > cli_free_memory()) {
        problem_tensors_free(&shapes);
        return fail(r, WORKER_BAD_PROBLEM,
                    "its tensors of %.3g GiB do not fit into this machine's free memory",
                    bytes * 0x1p-30);
    }
    attn_status status = problem_context(p, &c->context);
    c->plan.struct_size = sizeof c->plan;
    if (status == ATTN_OK) {
        status = attn_forward_plan(c->context, &shapes.args, &c->plan);
    }
    uint64_t backward = 0;
    if (status == ATTN_OK && c->pass != PASS_FORWARD) {
        status = attn_backward_workspace(c->context, &shapes.grad, &backward);
    }
    c->workspace_bytes = c->kind == STANDARD ? standard_workspace(&shapes.args)
                         : c->kind == LIBATTN
                             ? fmax((double)c->plan.workspace_bytes, (double)backward)
                             : 0;
    const char *refuses = status != ATTN_OK ? NULL : refusal(c, &shapes);
    problem_tensors_free(&shapes);
    if (status != ATTN_OK) {
        return fail_status(r, status);
    }
    if (refuses == NULL && bytes + c->workspace_bytes > cli_free_memory()) {
        return fail(r, c->kind == STANDARD ? WORKER_REFUSED : WORKER_FAILED,
                    "its workspace of %.3g GiB does not fit into this machine's free memory",
                    c->workspace_bytes * 0x1p-30);
    }
    return refuses == NULL || fail(r, WORKER_REFUSED, "%s", refuses);
}

static bool prepare(struct child *c, const problem *p, struct reply *r)
{
    c->pass = p->pass;
    if (!plan(c, p, r)) {
        return false;
    }
    size_t bytes = ((size_t)c->workspace_bytes + 64) / 64 * 64;
    c->workspace = aligned_alloc(64, bytes);
    if (c->workspace == NULL || !problem_tensors_create(p, PLACE_PLAIN, &c->tensors)) {
        return fail(r, WORKER_FAILED, "out of memory for the tensors");
    }
    c->args = c->tensors.args;
    c->args.workspace = c->workspace;
    c->args.workspace_bytes = bytes;
    c->grad = c->tensors.grad;
    c->grad.workspace = c->workspace;
    c->grad.workspace_bytes = bytes;
    void *copies;
    if (c->kind == STANDARD && !standard_adopt(&c->tensors.args, &c->args, &copies)) {
        return fail(r, WORKER_FAILED, "out of memory for copies of the tensors in f32");
    }
    const peer_task task = {c->implementation, c->plan.threads, c->pass,
                            c->tensors.grad.d_bias.data != NULL};
    if (c->kind == PEER && !peer_start(&c->peer, c->python, &task, &c->tensors.args, &c->args)) {
        return fail(r, WORKER_REFUSED, "%s", c->peer.why);
    }
    /* O and LSE */
    attn_status status = c->kind == LIBATTN ? attn_forward(c->context, &c->args) : ATTN_OK;
    return status == ATTN_OK ? sample(c, 1, r) : fail_status(r, status);
}

static void report_error(const struct child *c, worker_report *report)
{
    errors e;
    if (c->kind == PEER && c->args.dropout_p > 0) {
        report->max_error = report->c = NAN;
        snprintf(report->not_compared, sizeof report->not_compared,
                 "it drops positions of its own choice");
        return;
    }
    errors_measure(&c->args, 0, &e);
    report->max_error = e.relative, report->c = e.c, report->rows = e.rows;
}

static bool serve(struct child *c, const struct request *q, struct reply *r)
{
    struct rusage usage;
    switch (q->operation) {
    case SAMPLE:
        return sample(c, q->repeats, r);
    case PEAK:
        r->value = peak_fma(c->plan.vector_bits, c->plan.sum_bits, c->plan.threads, q->seconds);
        r->amx = peak_amx(c->plan.threads, q->seconds);
        return true;
    default:
        getrusage(RUSAGE_SELF, &usage);
        report_error(c, &r->report);
        snprintf(r->report.kernel, sizeof r->report.kernel, "%s",
                 c->kind == STANDARD  ? standard_kernel()
                 : c->kind == LIBATTN ? c->plan.kernel
                                      : c->peer.kernel);
        r->report.threads = c->plan.threads;
        r->report.tile_products = c->kind == LIBATTN ? c->plan.tile_products : 0;
        r->report.workspace_bytes = c->workspace_bytes;
        r->report.peak_rss_bytes = c->kind == PEER ? c->peer.rss : (double)usage.ru_maxrss * 1024;
        return true;
    }
}

static enum kind kind_of(const char *implementation)
{
    return strcmp(implementation, "libattn") == 0    ? LIBATTN
           : strcmp(implementation, "standard") == 0 ? STANDARD
                                                     : PEER;
}

static void run_child(const char *implementation, const char *python, const problem *p, int in,
                      int out)
{
    struct child c = {
        .kind = kind_of(implementation), .implementation = implementation, .python = python};
    struct reply reply = {0};
    struct request request;
    bool go_on = prepare(&c, p, &reply);
    while (write_all(out, &reply, sizeof reply) && go_on &&
           read_all(in, &request, sizeof request)) {
        memset(&reply, 0, sizeof reply);
        go_on = serve(&c, &request, &reply) && request.operation != FINISH;
        /* Lets threads that still spin go to sleep before the next implementation's turn. */
        nanosleep(&(struct timespec){0, 2000000}, NULL);
    }
    _exit(0);
}

/* ---- The parent ------------------------------------------------------------------------------ */

static void close_worker(worker *w)
{
    close(w->to);
    close(w->from);
    w->pid = 0;
}

void worker_stop(worker *w)
{
    if (w->pid != 0) {
        kill(w->pid, SIGKILL);
        waitpid(w->pid, NULL, 0);
        close_worker(w);
    }
}

static bool receive(worker *w, struct reply *r)
{
    if (!read_all(w->from, r, sizeof *r)) {
        int status = 0;
        waitpid(w->pid, &status, 0);
        bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
        snprintf(w->why, sizeof w->why, "the process of %s: %s", w->implementation,
                 killed                ? "was killed, probably for want of memory"
                 : WIFSIGNALED(status) ? strsignal(WTERMSIG(status))
                                       : "ended before its time");
        w->failure = WORKER_FAILED;
        close_worker(w);
        return false;
    }
    if (r->failure != WORKER_FINE) {
        snprintf(w->why, sizeof w->why, "%s", r->why);
        w->failure = r->failure;
        worker_stop(w);
    }
    return r->failure == WORKER_FINE;
}

static bool ask(worker *w, struct request request, struct reply *r)
{
    /* without a reader the reply will be missing too */
    write_all(w->to, &request, sizeof request);
    return receive(w, r);
}

bool worker_start(worker *w, const char *implementation, const char *python, const problem *p)
{
    int down[2] = {-1, -1}, up[2] = {-1, -1};
    struct reply r;
    *w = (worker){.implementation = implementation};
    signal(SIGPIPE, SIG_IGN);
    fflush(NULL);
    if (pipe(down) != 0 || pipe(up) != 0 || (w->pid = fork()) < 0) {
        snprintf(w->why, sizeof w->why, "cannot start a process: %s", strerror(errno));
        w->pid = 0;
        w->failure = WORKER_FAILED;
        return false;
    }
    if (w->pid == 0) {
        close(down[1]);
        close(up[0]);
        run_child(implementation, python, p, down[0], up[1]);
    }
    close(down[0]);
    close(up[1]);
    w->to = down[1], w->from = up[0];
    return receive(w, &r);
}

bool worker_sample(worker *w, int64_t repeats, worker_times *times)
{
    struct reply r;
    bool ok = ask(w, (struct request){.operation = SAMPLE, .repeats = repeats}, &r);
    *times = (worker_times){.seconds = r.value, .waited = r.waited, .one_by_one = NAN};
    return ok;
}

void worker_peak(worker *w, const char *python, worker_peaks *peaks)
{
    struct reply r;
    (void)python;
    bool ok = ask(w, (struct request){.operation = PEAK, .seconds = 0.02}, &r);
    *peaks = (worker_peaks){ok ? r.value : NAN, ok && r.amx > 0 ? r.amx : NAN};
}

bool worker_finish(worker *w, worker_report *report)
{
    struct reply r;
    bool ok = ask(w, (struct request){.operation = FINISH}, &r);
    *report = r.report;
    worker_stop(w);
    return ok;
}
