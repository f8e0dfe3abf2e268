/*
 * trace_files.c: see trace_files.h.
 */
#include "trace_files.h"
#include "cli.h"
#include "inputs.h"
#include "oracle.h"
#include "run_files.h"

#include <stdlib.h>

bool trace_files_given(const trace_files *files, bool backward)
{
    const bool any = files->q != NULL || files->k != NULL || files->v != NULL || files->d_o != NULL,
               all = files->q != NULL && files->k != NULL && files->v != NULL;
    if (any && (!all || backward != (files->d_o != NULL))) {
        exit(cli_error(CLI_USAGE, "numbers from files need --q, --k and --v, and "
                                  "--d-o with pass=training or backward"));
    }
    return any;
}

/* Opens the array of a file, with axes (batch, row, head, column). The file stays mapped. */
static attn_tensor open_tensor(const char *spec, const char *name)
{
    array_file file;
    run_open(spec, name, &file);
    const attn_tensor tensor = run_sequences(&file, false, name);
    if (tensor.dtype != ATTN_F64 && tensor.dtype != ATTN_F32 && tensor.dtype != ATTN_F16 &&
        tensor.dtype != ATTN_BF16) {
        exit(cli_error(CLI_USAGE, "%s must be f64, f32, f16 or bf16", name));
    }
    if (tensor.shape[0] != 1) {
        exit(cli_error(CLI_USAGE, "%s holds %lld sequences; a trace is of one", name,
                       (long long)tensor.shape[0]));
    }
    return tensor;
}

void trace_files_shape(const trace_files *files, problem_spec *problem)
{
    const attn_tensor q = open_tensor(files->q, "q"), k = open_tensor(files->k, "k"),
                      v = open_tensor(files->v, "v");
    if (q.shape[3] != k.shape[3] || k.shape[1] != v.shape[1] || k.shape[2] != v.shape[2] ||
        k.shape[2] == 0 || q.shape[2] % k.shape[2] != 0) {
        exit(cli_error(CLI_USAGE, "the shapes of q, k and v do not fit together"));
    }
    if (files->d_o != NULL) {
        const attn_tensor d_o = open_tensor(files->d_o, "d_o");
        if (d_o.shape[1] != q.shape[1] || d_o.shape[2] != q.shape[2] ||
            d_o.shape[3] != v.shape[3]) {
            exit(cli_error(CLI_USAGE, "the shape of d_o is not that of O"));
        }
    }
    problem->b = 1, problem->layout = LAYOUT_BSHD;
    problem->nq = q.shape[1], problem->nk = k.shape[1];
    problem->hq = q.shape[2], problem->hkv = k.shape[2];
    problem->d = q.shape[3], problem->dv = v.shape[3];
    problem->dtype = problem->o_dtype = q.dtype == ATTN_F64 ? ATTN_F64 : ATTN_F32;
}

static void fill(const char *spec, const char *name, attn_tensor *to)
{
    const attn_tensor from = open_tensor(spec, name);
    for (int64_t i = 0; i < to->shape[1]; i++) {
        for (int64_t h = 0; h < to->shape[2]; h++) {
            for (int64_t c = 0; c < to->shape[3]; c++) {
                inputs_store(to, 0, i, h, c, oracle_element(&from, 0, i, h, c));
            }
        }
    }
}

void trace_files_fill(const void *source, problem_tensors *tensors)
{
    const trace_files *files = source;
    fill(files->q, "q", &tensors->args.q);
    fill(files->k, "k", &tensors->args.k);
    fill(files->v, "v", &tensors->args.v);
    if (files->d_o != NULL) {
        fill(files->d_o, "d_o", &tensors->grad.d_o);
    }
}
