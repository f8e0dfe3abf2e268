/*
 * peer.h: libraries of attention that are called from Python, by a script that the program carries
 * inside: on the CPU PyTorch, ONNX Runtime and oneDNN (bench/peers/peers.py), on a GPU PyTorch's
 * backends (bench/peers/peers_cuda.py). A Python process shares Q, K, V, O and the bias with this
 * one and measures calls on request.
 */
#ifndef BENCH_PEER_H
#define BENCH_PEER_H

#include <attn/attn.h>
#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

typedef struct bench_peer {
    FILE *to, *from;
    pid_t pid;
    int file; /* of the shared memory, which has no name; Python inherits the descriptor */
    void *shared;
    size_t shared_bytes;
    char kernel[48]; /* "torch 2.13.0" */
    double rss;      /* bytes: the most that the Python process has held */
    char why[512];   /* one sentence, after a function returned false or NULL */
} bench_peer;

/* NULL, or the reason why no peer is asked about such a call: it is not plain attention, or K and V
 * are quantised, which only some take (codes). A script may know further reasons. Static string. */
const char *peer_refuses(const attn_forward_args *args, bool codes);

/* ---- Any script ------------------------------------------------------------------------------ */

extern const char peer_script_cpu[], peer_script_cuda[];

/* Starts the interpreter `python` with a script. */
bool peer_open(bench_peer *peer, const char *python, const char *script);

/* Adds a problem to a question: the call and its tensors, which replace those in the shared memory;
 * *own = args with them. */
bool peer_share(bench_peer *peer, const attn_forward_args *args, attn_forward_args *own,
                cJSON *question);

/* Sends one line, returns the reply, frees the question. NULL: refused, or the process has
 * ended. */
cJSON *peer_ask(bench_peer *peer, cJSON *question);

/* ---- bench/peers/peers.py -------------------------------------------------------------------- */

typedef struct peer_task {
    const char *library;
    int threads;
    int32_t pass; /* enum problem_pass */
    bool d_bias;  /* the bias needs a gradient */
} peer_task;

/* Starts the interpreter with a library and lets it call once. *own = args with the tensors in
 * shared memory. False is a refusal: the library is absent or cannot do the call. Between samples
 * the process is stopped: a library's threads may spin for a while after a call. */
bool peer_start(bench_peer *peer, const char *python, const peer_task *task,
                const attn_forward_args *args, attn_forward_args *own);

/* Seconds of `repeats` calls in a row, and of its threads' waiting for a core meanwhile. own->o
 * then holds O of the last call. */
bool peer_sample(bench_peer *peer, int64_t repeats, double *seconds, double *waited);

#endif
