/*
 * threads.h: the threads of this program are OpenMP's. The library runs on them too, through an
 * attn_executor. Without OpenMP there is one thread.
 */
#ifndef TRAIN_GPT_THREADS_H
#define TRAIN_GPT_THREADS_H

#include <attn/attn.h>

/* 0: OpenMP's default number. */
void threads_set(int count);
int threads_count(void);

/* The caller's number among them; 0 outside parallel regions. */
int threads_self(void);

/* A context of the library on these threads. Ends the program on failure. */
attn_context *threads_context(void);

#endif
