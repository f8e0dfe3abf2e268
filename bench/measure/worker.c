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
    double value, waited, amx, read;
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
    bench_peer peer;
    problem_tensors tensors;
    /* the call's tensors, or copies: f32 for standard attention, shared memory for a peer */
    attn_forward_args args;
    attn_backward_args grad;
    int32_t pass;     /* enum problem_pass of a call */
    size_t key_bytes; /* of K without factors, when decoding and without gaps; else 0 */
    attn_context *context;
    attn_plan plan;
    void *workspace;
    double workspace_bytes;
};

__attribute__((format(printf, 3, 4))) static bool
fail(struct reply *reply, enum worker_failure failure, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(reply->why, sizeof reply->why, format, list);
    va_end(list);
    reply->failure = failure;
    return false;
}

static bool fail_status(struct reply *reply, attn_status status)
{
    bool blame = status == ATTN_ERR_INVALID_ARGUMENT || status == ATTN_ERR_UNSUPPORTED ||
                 status == ATTN_ERR_OVERFLOW;
    return fail(reply, blame ? WORKER_BAD_PROBLEM : WORKER_FAILED, "%s: %s",
                attn_status_string(status), attn_last_error());
}

static bool call(struct child *child, struct reply *reply)
{
    if (child->kind == STANDARD) {
        standard_forward(&child->args, child->plan.threads, child->workspace);
        return true;
    }
    attn_status status =
        child->pass != PASS_BACKWARD ? attn_forward(child->context, &child->args) : ATTN_OK;
    if (status == ATTN_OK && child->pass != PASS_FORWARD) {
        status = attn_backward(child->context, &child->grad);
    }
    return status == ATTN_OK || fail_status(reply, status);
}

/* Mean seconds of a call, and of waiting for cores: of one thread its processor time, whatever the
 * load; of several by the clock, after half as many calls, in which they spread over the cores. */
static bool sample(struct child *child, int64_t repeats, struct reply *reply)
{
    const bool one = child->plan.threads == 1;
    double (*clock_of)(void) = one ? stats_used : stats_now;
    double waited = 0, start = 0;
    if (child->kind == PEER) {
        bool ok = peer_sample(&child->peer, repeats, &reply->value, &reply->waited);
        reply->value /= (double)repeats, reply->waited *= one ? 0 : 1 / (double)repeats;
        return ok || fail(reply, WORKER_FAILED, "%s", child->peer.why);
    }
    for (int64_t i = -(repeats / 2); i < repeats; i++) {
        waited = i == 0 ? stats_waited() : waited, start = i == 0 ? clock_of() : start;
        if (!call(child, reply)) {
            return false;
        }
    }
    reply->value = (clock_of() - start) / (double)repeats;
    reply->waited = one ? 0 : (stats_waited() - waited) / (double)repeats;
    return true;
}

/* NULL, or the reason why this kind does not do the problem. */
static const char *refusal(const struct child *child, const problem_tensors *shapes)
{
    attn_forward_args args = shapes->args;
    if (child->kind == STANDARD && child->pass != PASS_FORWARD) {
        return "standard attention has no backward pass here";
    }
    if (child->kind == PEER && child->pass != PASS_FORWARD && shapes->grad.d_lse.data != NULL) {
        return "the others take no gradient through LSE";
    }
    if (child->pass != PASS_FORWARD) {
        args.lse.data = NULL; /* other libraries choose what they keep for their backward pass */
    }
    if (child->kind == PEER) {
        args.bias.data = NULL, args.dropout_p = 0; /* bench/peers/peers.py has both */
    }
    return child->kind == LIBATTN    ? NULL
           : child->kind == STANDARD ? standard_refuses(&args)
                                     : peer_refuses(&args, true);
}

/* Checks the problem without touching Q, K, V. */
static bool plan(struct child *child, const problem_spec *problem, struct reply *reply)
{
    problem_tensors shapes;
    if (!problem_tensors_create(problem, PLACE_NOWHERE, &shapes)) {
        return fail(reply, WORKER_BAD_PROBLEM, "its tensors do not fit into the address space");
    }
    double bytes = problem_tensors_bytes(&shapes);
    if (bytes > cli_free_memory()) {
        problem_tensors_free(&shapes);
        return fail(reply, WORKER_BAD_PROBLEM,
                    "its tensors of %.3g GiB do not fit into this machine's free memory",
                    bytes * 0x1p-30);
    }
    attn_status status = problem_context(problem, &child->context);
    child->plan.struct_size = sizeof child->plan;
    if (status == ATTN_OK) {
        status = attn_forward_plan(child->context, &shapes.args, &child->plan);
    }
    uint64_t backward = 0;
    if (status == ATTN_OK && child->pass != PASS_FORWARD) {
        status = attn_backward_workspace(child->context, &shapes.grad, &backward);
    }
    child->workspace_bytes = child->kind == STANDARD ? standard_workspace(&shapes.args)
                             : child->kind == LIBATTN
                                 ? fmax((double)child->plan.workspace_bytes, (double)backward)
                                 : 0;
    const char *refuses = status != ATTN_OK ? NULL : refusal(child, &shapes);
    problem_tensors_free(&shapes);
    if (status != ATTN_OK) {
        return fail_status(reply, status);
    }
    if (refuses == NULL && bytes + child->workspace_bytes > cli_free_memory()) {
        return fail(reply, child->kind == STANDARD ? WORKER_REFUSED : WORKER_FAILED,
                    "its workspace of %.3g GiB does not fit into this machine's free memory",
                    child->workspace_bytes * 0x1p-30);
    }
    return refuses == NULL || fail(reply, WORKER_REFUSED, "%s", refuses);
}

static bool prepare(struct child *child, const problem_spec *problem, struct reply *reply)
{
    child->pass = problem->pass;
    if (!plan(child, problem, reply)) {
        return false;
    }
    size_t bytes = ((size_t)child->workspace_bytes + 64) / 64 * 64;
    child->workspace = aligned_alloc(64, bytes);
    if (child->workspace == NULL ||
        !problem_tensors_create(problem, PLACE_PLAIN, &child->tensors)) {
        return fail(reply, WORKER_FAILED, "out of memory for the tensors");
    }
    child->args = child->tensors.args;
    child->args.workspace = child->workspace;
    child->args.workspace_bytes = bytes;
    child->grad = child->tensors.grad;
    child->grad.workspace = child->workspace;
    child->grad.workspace_bytes = bytes;
    void *copies;
    if (child->kind == STANDARD && !standard_adopt(&child->tensors.args, &child->args, &copies)) {
        return fail(reply, WORKER_FAILED, "out of memory for copies of the tensors in f32");
    }
    const peer_task task = {child->implementation, child->plan.threads, child->pass,
                            child->tensors.grad.d_bias.data != NULL};
    if (child->kind == PEER &&
        !peer_start(&child->peer, child->python, &task, &child->tensors.args, &child->args)) {
        return fail(reply, WORKER_REFUSED, "%s", child->peer.why);
    }
    /* O and LSE */
    attn_status status =
        child->kind == LIBATTN ? attn_forward(child->context, &child->args) : ATTN_OK;
    return status == ATTN_OK ? sample(child, 1, reply) : fail_status(reply, status);
}

static void report_error(const struct child *child, worker_report *report)
{
    error_stats errors;
    if (child->kind == PEER && child->args.dropout_p > 0) {
        worker_drops_alone(report);
        return;
    }
    errors_measure(&child->args, 0, &errors);
    report->max_error = errors.relative, report->c = errors.c, report->rows = errors.rows;
    const bool codes = child->args.k.dtype != child->tensors.args.k.dtype;
    strcpy(report->not_compared, codes && child->kind == PEER ? "it has codes of its own" : "");
}

static bool serve(struct child *child, const struct request *q, struct reply *reply)
{
    struct rusage usage;
    switch (q->operation) {
    case SAMPLE:
        return sample(child, q->repeats, reply);
    case PEAK:
        reply->value = peak_vectors(&child->plan, q->seconds);
        reply->amx = peak_amx(child->plan.threads, q->seconds);
        reply->read = peak_read_of(child->tensors.args.k.data, child->tensors.args.v.data,
                                   child->key_bytes, child->plan.threads, q->seconds);
        return true;
    default:
        getrusage(RUSAGE_SELF, &usage);
        report_error(child, &reply->report);
        snprintf(reply->report.kernel, sizeof reply->report.kernel, "%s",
                 child->kind == STANDARD  ? standard_kernel()
                 : child->kind == LIBATTN ? child->plan.kernel
                                          : child->peer.kernel);
        reply->report.threads = child->plan.threads;
        reply->report.tile_products = child->kind == LIBATTN ? child->plan.tile_products : 0;
        reply->report.workspace_bytes = child->workspace_bytes;
        reply->report.peak_rss_bytes =
            child->kind == PEER ? child->peer.rss : (double)usage.ru_maxrss * 1024;
        return true;
    }
}

static enum kind kind_of(const char *implementation)
{
    return strcmp(implementation, "libattn") == 0    ? LIBATTN
           : strcmp(implementation, "standard") == 0 ? STANDARD
                                                     : PEER;
}

static void run_child(const char *implementation, const char *python, const problem_spec *problem,
                      int in, int out)
{
    struct child child = {
        .kind = kind_of(implementation), .implementation = implementation, .python = python};
    const bool whole =
        problem->layout <= LAYOUT_BHSD && problem->d == problem->dv && problem_is_decode(problem);
    child.key_bytes = whole ? (size_t)problem_key_bytes(problem, false) / 2 : 0;
    struct reply reply = {0};
    struct request request;
    bool go_on = prepare(&child, problem, &reply);
    while (write_all(out, &reply, sizeof reply) && go_on &&
           read_all(in, &request, sizeof request)) {
        memset(&reply, 0, sizeof reply);
        go_on = serve(&child, &request, &reply) && request.operation != FINISH;
        /* Lets threads that still spin go to sleep before the next implementation's turn. */
        nanosleep(&(struct timespec){0, 2000000}, NULL);
    }
    _exit(0);
}

/* ---- The parent ------------------------------------------------------------------------------ */

static void close_worker(bench_worker *worker)
{
    close(worker->to);
    close(worker->from);
    worker->pid = 0;
}

void worker_stop(bench_worker *worker)
{
    if (worker->pid != 0) {
        kill(worker->pid, SIGKILL);
        waitpid(worker->pid, NULL, 0);
        close_worker(worker);
    }
}

static bool receive(bench_worker *worker, struct reply *reply)
{
    if (!read_all(worker->from, reply, sizeof *reply)) {
        int status = 0;
        waitpid(worker->pid, &status, 0);
        bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
        snprintf(worker->why, sizeof worker->why, "the process of %s: %s", worker->implementation,
                 killed                ? "was killed, probably for want of memory"
                 : WIFSIGNALED(status) ? strsignal(WTERMSIG(status))
                                       : "ended before its time");
        worker->failure = WORKER_FAILED;
        close_worker(worker);
        return false;
    }
    if (reply->failure != WORKER_FINE) {
        snprintf(worker->why, sizeof worker->why, "%s", reply->why);
        worker->failure = reply->failure;
        worker_stop(worker);
    }
    return reply->failure == WORKER_FINE;
}

static bool ask(bench_worker *worker, struct request request, struct reply *reply)
{
    /* without a reader the reply will be missing too */
    write_all(worker->to, &request, sizeof request);
    return receive(worker, reply);
}

bool worker_start(bench_worker *worker, const char *implementation, const char *python,
                  const problem_spec *problem)
{
    int down[2] = {-1, -1}, up[2] = {-1, -1};
    struct reply reply;
    *worker = (bench_worker){.implementation = implementation};
    signal(SIGPIPE, SIG_IGN);
    fflush(NULL);
    if (pipe(down) != 0 || pipe(up) != 0 || (worker->pid = fork()) < 0) {
        snprintf(worker->why, sizeof worker->why, "cannot start a process: %s", strerror(errno));
        worker->pid = 0;
        worker->failure = WORKER_FAILED;
        return false;
    }
    if (worker->pid == 0) {
        close(down[1]);
        close(up[0]);
        run_child(implementation, python, problem, down[0], up[1]);
    }
    close(down[0]);
    close(up[1]);
    worker->to = down[1], worker->from = up[0];
    return receive(worker, &reply);
}

bool worker_sample(bench_worker *worker, int64_t repeats, worker_times *times)
{
    struct reply reply;
    bool ok = ask(worker, (struct request){.operation = SAMPLE, .repeats = repeats}, &reply);
    *times = (worker_times){.seconds = reply.value, .waited = reply.waited, .one_by_one = NAN};
    return ok;
}

void worker_peak(bench_worker *worker, const char *python, worker_peaks *peaks)
{
    struct reply reply;
    (void)python;
    bool ok = ask(worker, (struct request){.operation = PEAK, .seconds = 0.02}, &reply);
    *peaks = (worker_peaks){ok ? reply.value : NAN, ok && reply.amx > 0 ? reply.amx : NAN,
                            ok && reply.read > 0 ? reply.read : NAN};
}

bool worker_finish(bench_worker *worker, worker_report *report)
{
    struct reply reply;
    bool ok = ask(worker, (struct request){.operation = FINISH}, &reply);
    *report = reply.report;
    worker_stop(worker);
    return ok;
}
