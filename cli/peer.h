/*
 * peer.h: a library of attention that is called from Python (bench/peers.py, which the program carries inside):
 * PyTorch, ONNX Runtime. A Python process shares Q, K, V and O with this one and measures calls on request. Called by
 * worker.c, so it is a child of a process that does nothing else.
 */
#ifndef CLI_PEER_H
#define CLI_PEER_H

#include <attn/attn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

typedef struct peer {
    FILE *to, *from;
    char kernel[48]; /* "torch 2.13.0" */
    double rss;      /* bytes: the most that the Python process held so far */
    char why[512];   /* one sentence, once something returned false */
} peer;

/* NULL, or why no peer is asked about such a call. Static string. */
const char *peer_refuses(const attn_forward_args *args);

/* Starts the interpreter `python` with the library `name` and lets it call once. *own = args with the tensors in shared
 * memory; pass: of enum problem_pass. False is a refusal: the library is not there or cannot do it. */
bool peer_start(peer *p, const char *python, const char *name, const attn_forward_args *args, attn_forward_args *own,
                int threads, int32_t pass);

/* Seconds of `repeats` calls in a row, and of its threads' waiting for a core meanwhile; O of the last call is in
 * own->o afterwards. */
bool peer_sample(peer *p, int64_t repeats, double *seconds, double *waited);

#endif
