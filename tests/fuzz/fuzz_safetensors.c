/*
 * fuzz_safetensors.c: any bytes as a .safetensors file; every tensor it lists is opened.
 */
#include "safetensors.h"
#include "accepted.h"
#include "memory_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct visit_state {
    const char *path;
    int count;
} visit_state;

static void visit(void *user, const char *name)
{
    visit_state *s = user;
    char error[256] = "";
    array_file f;
    if (s->count++ < 8) {
        if (safetensors_open(s->path, name, &f, error, sizeof error)) {
            check_accepted(&f);
            array_file_close(&f);
        } else {
            check_refused(&f, error); /* a type that is not ours */
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char error[256] = "";
    visit_state s = {memory_file(data, size), 0};
    if (!safetensors_names(s.path, visit, &s, error, sizeof error)) {
        check_refused(&(array_file){0}, error);
    }
    return 0;
}
