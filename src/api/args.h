/*
 * args.h: the way of a size-first struct into the library (the rule of Linux' openat2).
 */
#ifndef ATTN_API_ARGS_H
#define ATTN_API_ARGS_H

#include <attn/attn.h>

/* Copies *from into to[size]: fields that the caller does not know are zero; fields that the
 * library does not know must be zero. `what` names the struct in errors. from == NULL is an
 * error. */
attn_status attn_copy_args(void *to, size_t size, const void *from, const char *what);

/* The reverse, for structs that the library fills: copies as much of from[size] as the caller's
 * struct_size holds, and zeroes the caller's fields beyond it. struct_size itself stays. */
attn_status attn_copy_out(void *to, const void *from, size_t size, const char *what);

#endif
