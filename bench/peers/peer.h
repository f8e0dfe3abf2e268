/*
 * peer.h: libraries of attention that are called from Python, by a script that the program carries
 * inside: on the CPU PyTorch, ONNX Runtime and oneDNN (bench/peers/peers.py), on a GPU PyTorch's
 * backends (bench/peers/peers_cuda.py). A Python process shares Q, K, V, O and the bias with this
 * one and measures calls on request. Called by worker.c, from a child that does nothing else, and
 * by bench_gpu.c.
 */
#ifndef CLI_PEER_H
#define CLI_PEER_H

#include <attn/attn.h>
#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

typedef struct peer {
    FILE *to, *from;
    int file; /* of the shared memory, without a name; Python has inherited the descriptor */
    void *shared;
    size_t shared_bytes;
    char kernel[48]; /* "torch 2.13.0" */
    double rss;      /* bytes: the most that the Python process held so far */
    char why[512];   /* one sentence, once something returned false or NULL */
} peer;

/* NULL, or why no peer is asked about such a call: it is not plain attention. What a script knows
 * beyond that is its caller's business. Static string. */
const char *peer_refuses(const attn_forward_args *args);

/* ---- Any script ------------------------------------------------------------------------------ */

extern const char peer_script_cpu[], peer_script_cuda[];

/* Starts the interpreter `python` with a script. */
bool peer_open(peer *p, const char *python, const char *script);

/* Adds a problem to a question: what is to be computed, and its tensors, which move to the shared
 * memory in place of those before; *own = args with them. */
bool peer_share(peer *p, const attn_forward_args *args, attn_forward_args *own, cJSON *question);

/* One line there, one back; frees the question. NULL: refused, or the process is gone. */
cJSON *peer_ask(peer *p, cJSON *question);

/* ---- bench/peers/peers.py -------------------------------------------------------------------- */

typedef struct peer_task {
    const char *library;
    int threads;
    int32_t pass; /* enum problem_pass */
    bool d_bias;  /* the bias needs a gradient */
} peer_task;

/* Starts the interpreter with a library and lets it call once. *own = args with the tensors in
 * shared memory. False is a refusal: the library is not there or cannot do it. */
bool peer_start(peer *p, const char *python, const peer_task *task, const attn_forward_args *args,
                attn_forward_args *own);

/* Seconds of `repeats` calls in a row, and of its threads' waiting for a core meanwhile; O of the
 * last call is in own->o afterwards. */
bool peer_sample(peer *p, int64_t repeats, double *seconds, double *waited);

#endif
