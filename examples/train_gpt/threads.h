/*
 * threads.h: the threads of this program are OpenMP's; the library runs on the same ones, through
 * an attn_executor. Without OpenMP there is one.
 */
#ifndef TRAIN_GPT_THREADS_H
#define TRAIN_GPT_THREADS_H

#include <attn/attn.h>

/* 0: as many as OpenMP likes. */
void threads_set(int count);
int threads_count(void);

/* The caller's number among them; 0 outside parallel regions. */
int threads_self(void);

/* A context of the library on these threads; ends the program if there is none. */
attn_context *threads_context(void);

#endif
