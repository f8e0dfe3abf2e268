/*
 * run_files.c: see run_files.h.
 */
#include "run_files.h"
#include "cli.h"
#include "npy.h"
#include "run_options.h"
#include "safetensors.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const int64_t max_empty = 1 << 20; /* extents of an array without elements */

/* ---- Names ----------------------------------------------------------------------------------- */

/* A spec taken apart. */
struct place {
    char path[PATH_MAX];
    const char *name; /* of the tensor, inside the spec; NULL: not named */
    bool safetensors;
};

static bool ends_in(const char *text, size_t length, const char *ending)
{
    size_t n = strlen(ending);
    return length >= n && memcmp(text + length - n, ending, n) == 0;
}

static struct place find_place(const char *spec)
{
    static const char ending[] = ".safetensors";
    struct place p = {.name = NULL};
    size_t length = strlen(spec);
    for (const char *at = strstr(spec, ending); at != NULL; at = strstr(at + 1, ending)) {
        const char *end = at + strlen(ending);
        if (*end == ':' || *end == '\0') {
            p.safetensors = true;
            p.name = *end == ':' ? end + 1 : NULL;
            length = (size_t)(end - spec);
            break;
        }
    }
    if ((!p.safetensors && !ends_in(spec, length, ".npy")) || length >= sizeof p.path) {
        exit(cli_error(CLI_USAGE, "\"%s\" is neither a .npy nor a .safetensors file", spec));
    }
    if (p.name != NULL && *p.name == '\0') {
        exit(cli_error(CLI_USAGE, "\"%s\" ends where a tensor's name should be", spec));
    }
    memcpy(p.path, spec, length);
    p.path[length] = '\0';
    return p;
}

bool run_is_bundle(const char *spec)
{
    struct place p = find_place(spec);
    return p.safetensors && p.name == NULL;
}

void run_open(const char *spec, const char *name, array_file *file)
{
    struct place p = find_place(spec);
    char error[1024];
    if (p.safetensors
            ? !safetensors_open(p.path, p.name != NULL ? p.name : name, file, error, sizeof error)
            : !npy_open(p.path, file, error, sizeof error)) {
        exit(cli_error(CLI_USAGE, "%s", error));
    }
    for (int n = 0; n < file->ndim && file->bytes == 0; n++) {
        /* no data stands behind this number, and loops would run over it */
        if (file->shape[n] > max_empty) {
            exit(cli_error(CLI_USAGE, "\"%s\" has no elements, yet %lld along an axis", spec,
                           (long long)file->shape[n]));
        }
    }
}

/* ---- Axes ------------------------------------------------------------------------------------ */

/* Axis axes[n] of the tensor is axis n of the array; the others have extent 1. */
static attn_tensor view(const array_file *file, const int axes[])
{
    attn_tensor t = {(void *)(uintptr_t)file->data, {1, 1, 1, 1}, {0}, file->dtype, 0};
    for (int n = 0; n < file->ndim; n++) {
        t.shape[axes[n]] = file->shape[n];
        t.stride[axes[n]] = file->stride[n];
    }
    return t;
}

attn_tensor run_sequences(const array_file *file, bool bhsd, const char *name)
{
    static const int orders[2][4] = {{0, 1, 2, 3}, {0, 2, 1, 3}}, pair[2] = {1, 3};
    if (file->ndim < 2 || file->ndim > 4) {
        exit(cli_error(CLI_USAGE, "%s has %d axes; expected %s", name, file->ndim,
                       bhsd ? "(b, h, s, d), (h, s, d) or (s, d)"
                            : "(b, s, h, d), (s, h, d) or (s, d)"));
    }
    return view(file, file->ndim == 2 ? pair : orders[bhsd] + (4 - file->ndim));
}

attn_tensor run_rows(const array_file *file, bool bhsd, const char *name)
{
    static const int orders[2][3] = {{0, 1, 2}, {0, 2, 1}}, one[1] = {1};
    if (file->ndim < 1 || file->ndim > 3) {
        exit(cli_error(CLI_USAGE, "%s has %d axes; expected those of q without the last", name,
                       file->ndim));
    }
    return view(file, file->ndim == 1 ? one : orders[bhsd] + (3 - file->ndim));
}

attn_tensor run_scores(const array_file *file, const attn_tensor *q, const char *name)
{
    static const int order[4] = {0, 1, 2, 3};
    int64_t batch = q->shape[0], heads = q->shape[2];
    if (file->ndim > 4) {
        exit(cli_error(CLI_USAGE, "%s has %d axes; expected at most (b, h, q, k)", name,
                       file->ndim));
    }
    if (file->ndim == 3 && batch > 1 && file->shape[0] == batch && (heads == batch || heads == 1)) {
        exit(cli_error(
            CLI_USAGE,
            "%s has 3 axes, and the first, %lld, could be the batch or the heads; give it 4 axes "
            "(b, h, q, k)",
            name, (long long)batch));
    }
    return view(file, order + (4 - file->ndim));
}

attn_tensor run_heads(const array_file *file, const char *name)
{
    static const int order[2] = {0, 1};
    if (file->ndim != 1 && file->ndim != 2) {
        exit(cli_error(CLI_USAGE, "%s has %d axes; expected (h) or (b, h)", name, file->ndim));
    }
    return view(file, order + (2 - file->ndim));
}

attn_tensor run_list(const array_file *file, const char *name)
{
    static const int order[1] = {0};
    if (file->ndim != 1) {
        exit(cli_error(CLI_USAGE, "%s has %d axes; expected 1", name, file->ndim));
    }
    return view(file, order);
}

/* ---- Outputs --------------------------------------------------------------------------------- */

static void check_place(const char *spec)
{
    struct place p = find_place(spec);
    if (!array_file_can_write(p.path)) {
        exit(cli_error(CLI_USAGE, "cannot write \"%s\": no such directory, or not allowed", spec));
    }
}

void run_make_array(run_output *out, int ndim, const int64_t *shape, int32_t dtype)
{
    array_file *a = &out->array;
    uint64_t bytes;
    *a = (array_file){.ndim = ndim, .dtype = dtype};
    memcpy(a->shape, shape, (size_t)ndim * sizeof *shape);
    if (!array_file_size(a->ndim, a->shape, 8 * (int64_t)attn_dtype_size(dtype), &bytes)) {
        exit(cli_error(CLI_USAGE, "the output \"%s\" would not fit in 63 bits", out->name));
    }
    int64_t stride = 1;
    for (int n = a->ndim - 1; n >= 0; n--) {
        a->stride[n] = stride;
        stride *= a->shape[n];
    }
    a->bytes = (size_t)bytes;
    out->memory = calloc(1, a->bytes + 1); /* untouched until the call writes it */
    a->data = out->memory;
    if (out->memory == NULL) {
        exit(cli_error(CLI_USAGE, "no memory for the %llu bytes of the output \"%s\"",
                       (unsigned long long)bytes, out->name));
    }
}

/* The folder of a new file, as the system knows it, and the name in it. */
static const char *find_folder(const char *path, struct stat *folder)
{
    char copy[PATH_MAX];
    const char *slash = strrchr(path, '/'), *name = slash != NULL ? slash + 1 : path;
    snprintf(copy, sizeof copy, "%.*s.", (int)(name - path), path); /* "", "/" or "a/b/", and "." */
    if (stat(copy, folder) != 0) {
        memset(folder, 0, sizeof *folder);
    }
    return name;
}

/* o.npy, ./o.npy, a link to it and so on */
static bool same_file(const char *a, const char *b)
{
    char a_target[PATH_MAX], b_target[PATH_MAX];
    struct stat a_folder, b_folder;
    if (!array_file_target(a, a_target) || !array_file_target(b, b_target)) {
        return false; /* neither can be opened */
    }
    const char *a_name = find_folder(a_target, &a_folder),
               *b_name = find_folder(b_target, &b_folder);
    return strcmp(a_name, b_name) == 0 && a_folder.st_dev == b_folder.st_dev &&
           a_folder.st_ino == b_folder.st_ino;
}

/* True if both go to the same file. *same_name if under the same name there too, or if the file has
 * room for one only. */
static bool share_file(const run_output *a, const run_output *b, bool *same_name)
{
    struct place x = find_place(a->spec), y = find_place(b->spec);
    const char *x_name = x.name != NULL ? x.name : a->name,
               *y_name = y.name != NULL ? y.name : b->name;
    *same_name = !x.safetensors || strcmp(x_name, y_name) == 0;
    return same_file(x.path, y.path);
}

static void check_output(const run_output *outputs, int at, const char *const *inputs, int count)
{
    const char *spec = outputs[at].spec;
    for (int i = 0; i < at; i++) {
        bool same_name;
        if (outputs[i].spec != NULL && share_file(&outputs[at], &outputs[i], &same_name) &&
            same_name) {
            exit(cli_error(CLI_USAGE, "two outputs would overwrite each other in \"%s\"", spec));
        }
    }
    for (int i = 0; i < count; i++) {
        if (inputs[i] != NULL && same_file(find_place(spec).path, find_place(inputs[i]).path)) {
            exit(cli_error(CLI_USAGE, "the output \"%s\" would overwrite the input \"%s\"", spec,
                           inputs[i]));
        }
    }
    check_place(spec);
}

void run_check_outputs(const run_output *outputs, const char *const *inputs, int count)
{
    for (int i = 0; i < count; i++) {
        if (outputs[i].spec != NULL) {
            check_output(outputs, i, inputs, count);
        }
    }
}

/* Writes output `first` and the later ones that share its file. */
static int write_file(const run_output *outputs, int first, int count)
{
    struct place p = find_place(outputs[first].spec);
    const array_file *a = &outputs[first].array;
    const char *names[RUN_TENSORS];
    array_file arrays[RUN_TENSORS];
    char error[1024];
    int together = 0;
    for (int i = first; i < count; i++) {
        bool same_name;
        if (outputs[i].spec != NULL && share_file(&outputs[first], &outputs[i], &same_name)) {
            const char *name = find_place(outputs[i].spec).name;
            names[together] = name != NULL ? name : outputs[i].name;
            arrays[together++] = outputs[i].array;
        }
    }
    bool ok = p.safetensors
                  ? safetensors_write(p.path, together, names, arrays, error, sizeof error)
                  : npy_write(p.path, a->dtype, a->ndim, a->shape, a->data, error, sizeof error);
    return ok ? CLI_OK : cli_error(CLI_INTERNAL, "%s", error);
}

int run_write_outputs(const run_output *outputs, int count)
{
    int status = CLI_OK;
    for (int i = 0; i < count && status == CLI_OK; i++) {
        bool same_name, written = outputs[i].spec == NULL;
        for (int j = 0; j < i && !written; j++) {
            written = outputs[j].spec != NULL && share_file(&outputs[i], &outputs[j], &same_name);
        }
        status = written ? CLI_OK : write_file(outputs, i, count);
    }
    return status;
}
