/*
 * test_unload.c: dlclose() on the shared library, the argument, after a call on the default
 * context, whose threads are never joined: their code has to stay. A program of its own, since the
 * other tests have the static library in them. With one core there are no such threads, and nothing
 * can fail.
 */
#include <attn/attn.h>
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { HEADS = 8, ROWS = 64, DIM = 64 };

static int fail(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, dlerror());
    return 1;
}

static int use_and_close(const char *path)
{
    static float q[HEADS * ROWS * DIM], o[HEADS * ROWS * DIM];
    attn_status (*forward)(attn_context *, const attn_forward_args *);
    void *library = dlopen(path, RTLD_NOW),
         *symbol = library == NULL ? NULL : dlsym(library, "attn_forward");
    if (symbol == NULL) {
        return fail("attn_forward");
    }
    memcpy(&forward, &symbol, sizeof forward);
    const attn_tensor t = attn_tensor_bhsd(q, ATTN_F32, 1, HEADS, ROWS, DIM);
    attn_forward_args args = {.struct_size = sizeof args, .q = t, .k = t, .v = t, .o = t};
    args.o.data = o;
    return forward(NULL, &args) != ATTN_OK || dlclose(library) != 0 ? fail("a call and dlclose")
                                                                    : 0;
}

int main(int count, char **arguments)
{
    int bad = count != 2;
    /* meets threads that spin, and threads that fall asleep */
    for (int round = 0; round < 10 && !bad; round++) {
        bad = use_and_close(arguments[1]);
    }
    nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    return bad;
}
