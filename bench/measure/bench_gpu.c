/*
 * bench_gpu.c: `attn bench --device cuda`: samples of a GPU's implementations in turn. libattn is
 * called from this process. PyTorch's backends, and the product of two matrices that stands for the
 * rate of the tensor cores, run in one Python process on the same GPU (bench/peers/peers_cuda.py).
 * Only one of the two has work on the GPU at a time, and each times itself between two events of
 * its own.
 *
 * Power decides on clocks, and a kernel runs at the clock that the kernels before it left behind:
 * in turns of 20 ms the order of implementations made differences of 20 %. Hence turns of a few
 * calls (docs/notebook/cuda.md, "How turns change a figure").
 *
 * A call is timed in two ways: replayed from a graph of calls, which gives the GPU's own time, and
 * enqueued one by one, which on short problems gives the cost of enqueueing in C or in Python.
 * Errors are those of O, in a backward pass too: gradients are judged by attn check.
 */
#include "bench_gpu.h"
#include "args.h"
#include "bench_result.h"
#include "cli.h"
#include "errors.h"
#include "gpu.h"
#include "gpu_copy.h"
#include "peer.h"

#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* GRAPH_CALLS, TURNS, COLD_BYTES: the values of bench/peers/peers_cuda.py */
enum { GRAPH_CALLS = 20, ERROR_ROWS = 64, TURNS = 128, COLD_BYTES = 192 << 20 };

/* The problem at work, and the implementation that works on it. */
static struct {
    const problem_spec *problem;
    int rounds; /* so far */
    problem_tensors tensors;
    attn_context *context;
    void *stream, *start, *end;

    /* libattn's: tensors and scratch in the GPU's memory */
    attn_forward_args args;
    gpu_copy copies[ARGS_TENSORS];
    attn_backward_args grad; /* its forward is &args */
    gpu_copy grad_copies[ARGS_GRADIENTS];
    attn_plan plan, grad_plan;
    void *scratch, *grad_scratch, *graph;
    int64_t graph_calls;
    bool cold;
    int turns, turn; /* copies of K and V on which calls take turns; the first are those above */
    gpu_copy others[TURNS][2];

    /* the others' */
    bench_peer python;
    bool tried, there; /* Python was started; it has PyTorch and a GPU */
    attn_forward_args shared;
    const problem_spec *shared_problem; /* the problem whose tensors Python has */
} gpu;

__attribute__((format(printf, 3, 4))) static bool
fail(bench_worker *worker, enum worker_failure failure, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(worker->why, sizeof worker->why, format, list);
    va_end(list);
    worker->failure = failure;
    return false;
}

/* ---- The problem ----------------------------------------------------------------------------- */

attn_status bench_gpu_open(void)
{
    attn_status status = cli_gpu_context(&gpu.context);
    if (status != ATTN_OK) {
        return status;
    }
    const char *failure = gpu_open();
    if (failure != NULL) {
        exit(cli_error(CLI_INTERNAL, "%s", failure));
    }
    gpu.stream = gpu_stream(), gpu.start = gpu_event(), gpu.end = gpu_event();
    signal(SIGPIPE, SIG_IGN); /* a Python process that has ended shows as a missing reply */
    return ATTN_OK;
}

void bench_gpu_cool(void)
{
    gpu.cold = true;
}

static void close_problem(void)
{
    for (int i = 0; i < ARGS_TENSORS && gpu.scratch != NULL; i++) {
        gpu_copy_free(&gpu.copies[i]);
    }
    for (int i = 0; i < ARGS_GRADIENTS && gpu.grad_scratch != NULL; i++) {
        gpu_copy_free(&gpu.grad_copies[i]);
    }
    for (int i = 2; i < 2 * gpu.turns; i++) {
        gpu_copy_free(&gpu.others[i / 2][i % 2]);
    }
    gpu.turns = gpu.turn = 0;
    if (gpu.scratch != NULL) {
        gpu_free(gpu.scratch);
    }
    if (gpu.grad_scratch != NULL) {
        gpu_free(gpu.grad_scratch);
    }
    if (gpu.graph != NULL) {
        gpu_graph_free(gpu.graph);
    }
    problem_tensors_free(&gpu.tensors);
    gpu.scratch = gpu.grad_scratch = gpu.graph = NULL, gpu.problem = NULL;
}

static bool open_problem(bench_worker *worker, const problem_spec *problem)
{
    if (gpu.problem == problem) {
        return true;
    }
    close_problem();
    if (!problem_tensors_create(problem, PLACE_PLAIN, &gpu.tensors)) {
        return fail(worker, WORKER_BAD_PROBLEM,
                    "its tensors do not fit into this machine's memory");
    }
    gpu.problem = problem, gpu.rounds = 0;
    return true;
}

/* ---- libattn --------------------------------------------------------------------------------- */

static bool call_own(bench_worker *worker)
{
    if (gpu.turns > 1) {
        gpu.args.k = gpu.others[gpu.turn][0].there, gpu.args.v = gpu.others[gpu.turn][1].there;
        gpu.turn = (gpu.turn + 1) % gpu.turns;
    }
    attn_status status =
        gpu.problem->pass != PASS_BACKWARD ? attn_forward(gpu.context, &gpu.args) : ATTN_OK;
    if (status == ATTN_OK && gpu.problem->pass != PASS_FORWARD) {
        status = attn_backward(gpu.context, &gpu.grad);
    }
    return status == ATTN_OK || fail(worker, WORKER_FAILED, "%s", attn_last_error());
}

/* The backward pass's tensors and scratch, and O and LSE, which it reads. */
static attn_status start_gradients(void)
{
    gpu.grad = gpu.tensors.grad;
    gpu.grad.forward = &gpu.args;
    for (int i = 0; i < ARGS_GRADIENTS; i++) {
        gpu.grad_copies[i] = gpu_copy_tensor(args_gradient_at(&gpu.tensors.grad, i));
        *args_gradient_at(&gpu.grad, i) = gpu.grad_copies[i].there;
    }
    gpu.grad.stream = gpu.stream;
    gpu.grad.workspace = gpu.grad_scratch = gpu_alloc(gpu.grad_plan.workspace_bytes);
    gpu.grad.workspace_bytes = gpu.grad_plan.workspace_bytes;
    return attn_forward(gpu.context, &gpu.args);
}

/* Copies K and V so often that they exceed any GPU's L2 cache by far together. */
static void copy_keys(void)
{
    gpu.others[0][0] = gpu.copies[ARGS_K], gpu.others[0][1] = gpu.copies[ARGS_V];
    const size_t turns = 1 + COLD_BYTES / (gpu.copies[ARGS_K].bytes + gpu.copies[ARGS_V].bytes + 1);
    gpu.turns = !gpu.cold ? 1 : turns < TURNS ? (int)turns : TURNS;
    for (int i = 1; i < gpu.turns; i++) {
        gpu.others[i][0] = gpu_copy_tensor(&gpu.tensors.args.k);
        gpu.others[i][1] = gpu_copy_beside(&gpu.tensors.args.v, gpu.others[i]);
    }
}

static bool start_own(bench_worker *worker)
{
    gpu.plan.struct_size = sizeof gpu.plan;
    gpu.grad_plan.struct_size = sizeof gpu.grad_plan;
    attn_status status = attn_forward_plan(gpu.context, &gpu.tensors.args, &gpu.plan);
    if (status == ATTN_OK && gpu.problem->pass != PASS_FORWARD) {
        status = attn_backward_plan(gpu.context, &gpu.tensors.grad, &gpu.grad_plan);
    }
    if (status != ATTN_OK) {
        return fail(worker, status == ATTN_ERR_UNSUPPORTED ? WORKER_REFUSED : WORKER_BAD_PROBLEM,
                    "%s", attn_last_error());
    }
    gpu.args = gpu.tensors.args;
    for (int i = 0; i < ARGS_TENSORS; i++) {
        gpu.copies[i] = i == ARGS_V ? gpu_copy_beside(&gpu.tensors.args.v, &gpu.copies[ARGS_K])
                                    : gpu_copy_tensor(args_at(&gpu.tensors.args, i));
        *args_at(&gpu.args, i) = gpu.copies[i].there;
    }
    copy_keys();
    gpu.args.stream = gpu.stream;
    gpu.args.workspace = gpu.scratch = gpu_alloc(gpu.plan.workspace_bytes);
    gpu.args.workspace_bytes = gpu.plan.workspace_bytes;
    bool ok = gpu.problem->pass == PASS_FORWARD || start_gradients() == ATTN_OK ||
              fail(worker, WORKER_FAILED, "%s", attn_last_error());
    ok = ok && call_own(worker);
    gpu_wait();
    return ok;
}

/* Makes a graph of as many calls as asked for, GRAPH_CALLS at most, or of all turns. */
static bool capture_own(bench_worker *worker, int64_t calls)
{
    calls = gpu.turns > 1 ? gpu.turns : calls < GRAPH_CALLS ? calls : GRAPH_CALLS;
    if (gpu.graph != NULL && gpu.graph_calls == calls) {
        return true;
    }
    if (gpu.graph != NULL) {
        gpu_graph_free(gpu.graph);
    }
    bool ok = true;
    gpu_capture(gpu.stream);
    for (int64_t i = 0; i < calls && ok; i++) {
        ok = call_own(worker);
    }
    gpu.graph = gpu_captured(gpu.stream);
    gpu.graph_calls = calls;
    return ok;
}

static bool sample_own(bench_worker *worker, int64_t calls, worker_times *times)
{
    bool ok = capture_own(worker, calls) && call_own(worker);
    gpu_record(gpu.start, gpu.stream);
    for (int64_t i = 0; i < calls && ok; i++) {
        ok = call_own(worker);
    }
    gpu_record(gpu.end, gpu.stream);
    times->one_by_one = gpu_seconds(gpu.start, gpu.end) / (double)calls;
    int64_t replays = (calls + gpu.graph_calls - 1) / gpu.graph_calls;
    gpu_launch(gpu.graph, gpu.stream);
    gpu_record(gpu.start, gpu.stream);
    for (int64_t i = 0; i < replays; i++) {
        gpu_launch(gpu.graph, gpu.stream);
    }
    gpu_record(gpu.end, gpu.stream);
    times->seconds = gpu_seconds(gpu.start, gpu.end) / (double)(replays * gpu.graph_calls);
    return ok;
}

/* ---- The others ------------------------------------------------------------------------------ */

static cJSON *question(const char *what, const char *name)
{
    cJSON *q = cJSON_CreateObject();
    cJSON_AddStringToObject(q, "ask", what);
    name != NULL ? cJSON_AddStringToObject(q, "peer", name) : NULL;
    return q;
}

static bool agrees(cJSON *answer)
{
    cJSON_Delete(answer);
    return answer != NULL;
}

/* Starts Python at the first call. False: no Python, for the rest of the run. */
static bool has_python(const char *python)
{
    if (!gpu.tried) {
        gpu.tried = true;
        gpu.there = peer_open(&gpu.python, python, peer_script_cuda) &&
                    agrees(peer_ask(&gpu.python, question("versions", NULL)));
    }
    return gpu.there;
}

static bool start_peer(bench_worker *worker, const char *python)
{
    static const char *const pass[] = {"forward", "backward", "training"};
    attn_forward_args args = gpu.tensors.args;
    args.dropout_p = args.softcap = 0; /* peers_cuda.py knows who takes these, and has no LSE */
    args.lse.data = args.bias.data = args.mask.data = args.alibi_slopes.data = NULL;
    args.flags &= ~(uint64_t)ATTN_WINDOW;
    const char *refuses = peer_refuses(&args, false);
    if (refuses != NULL) {
        return fail(worker, WORKER_REFUSED, "%s", refuses);
    }
    bool ok = has_python(python);
    if (ok && gpu.shared_problem != gpu.problem) {
        cJSON *q = question("problem", NULL);
        cJSON_AddStringToObject(q, "pass", pass[gpu.problem->pass]);
        cJSON_AddBoolToObject(q, "cold", gpu.cold);
        cJSON_AddBoolToObject(q, "d_bias", gpu.tensors.grad.d_bias.data != NULL);
        cJSON_AddBoolToObject(q, "d_alibi", gpu.tensors.grad.d_alibi_slopes.data != NULL);
        ok = peer_share(&gpu.python, &gpu.tensors.args, &gpu.shared, q) &&
             agrees(peer_ask(&gpu.python, q));
        gpu.shared_problem = ok ? gpu.problem : NULL;
    }
    ok = ok && agrees(peer_ask(&gpu.python, question("start", worker->implementation)));
    return ok || fail(worker, WORKER_REFUSED, "%s", gpu.python.why);
}

static bool sample_peer(bench_worker *worker, int64_t calls, worker_times *times)
{
    cJSON *q = question("sample", worker->implementation);
    cJSON_AddNumberToObject(q, "calls", (double)calls);
    cJSON *answer = peer_ask(&gpu.python, q);
    times->seconds = cJSON_GetNumberValue(cJSON_GetObjectItem(answer, "seconds"));
    times->one_by_one = cJSON_GetNumberValue(cJSON_GetObjectItem(answer, "one_by_one"));
    return agrees(answer) || fail(worker, WORKER_REFUSED, "%s", gpu.python.why);
}

/* ---- As bench.c sees them -------------------------------------------------------------------- */

static bool is_own(const bench_worker *worker)
{
    return strcmp(worker->implementation, "libattn") == 0;
}

static bool start(bench_worker *worker, const char *implementation, const char *python,
                  const problem_spec *problem)
{
    *worker = (bench_worker){.implementation = implementation};
    return open_problem(worker, problem) &&
           (is_own(worker) ? start_own(worker) : start_peer(worker, python));
}

static bool sample(bench_worker *worker, int64_t calls, worker_times *times)
{
    times->waited = 0;
    return is_own(worker) ? sample_own(worker, calls, times) : sample_peer(worker, calls, times);
}

/* Peak: a product of matrices of the problem's type, by PyTorch. In every fifth round only: the
 * heat of so large a product lowers everyone's clock. */
static void measure_peak(bench_worker *worker, const char *python, worker_peaks *peaks)
{
    static const char *const type[] = {"", "f64", "f32", "f16", "bf16"};
    static double last;
    static bool told;
    (void)worker;
    if (gpu.rounds++ % 5 == 0) {
        cJSON *answer = NULL;
        if (has_python(python)) {
            cJSON *q = question("matmul", NULL);
            cJSON_AddStringToObject(q, "dtype", type[gpu.problem->dtype]);
            answer = peer_ask(&gpu.python, q);
        }
        last = answer == NULL ? NAN
                              : cJSON_GetNumberValue(cJSON_GetObjectItem(answer, "flops")) * 1e-9;
        cJSON_Delete(answer);
    }
    if (isnan(last) && !told) {
        told = true;
        (void)cli_error(CLI_OK, "the rate of matrix products is not measured: %s", gpu.python.why);
    }
    *peaks = (worker_peaks){last, NAN, NAN};
}

static bool finish(bench_worker *worker, worker_report *report)
{
    bool own = is_own(worker);
    error_stats errors;
    if (own) {
        gpu_copy_back(&gpu.copies[ARGS_O]);
        gpu_copy_back(&gpu.copies[ARGS_LSE]);
    } else if (!agrees(peer_ask(&gpu.python, question("finish", worker->implementation)))) {
        return fail(worker, WORKER_REFUSED, "%s", gpu.python.why);
    }
    errors_measure(own ? &gpu.tensors.args : &gpu.shared, ERROR_ROWS, &errors);
    const bool forward = gpu.problem->pass == PASS_FORWARD;
    const double bytes =
        forward ? (double)gpu.plan.workspace_bytes
                : fmax((double)gpu.plan.workspace_bytes, (double)gpu.grad_plan.workspace_bytes);
    *report = (worker_report){.workspace_bytes = own ? bytes : 0,
                              .max_error = errors.relative,
                              .c = errors.c,
                              .rows = errors.rows};
    snprintf(report->kernel, sizeof report->kernel, "%s",
             !own      ? gpu.python.kernel
             : forward ? gpu.plan.kernel
                       : gpu.grad_plan.kernel);
    if (!own && gpu.problem->dropout > 0) {
        worker_drops_alone(report);
    }
    return true;
}

static void stop(bench_worker *worker)
{
    (void)worker; /* the tensors stay for the next implementation */
}

const bench_device bench_gpu = {
    .names = {"libattn", "cudnn", "flash", "efficient", "standard", "flex"},
    .by_default = {true, true, true, true, true}, /* flex compiles for a minute */
    .min_time = 2e-4,
    .rounds = BENCH_MAX_SAMPLES,
    .start = start,
    .sample = sample,
    .peak = measure_peak,
    .finish = finish,
    .stop = stop,
};
