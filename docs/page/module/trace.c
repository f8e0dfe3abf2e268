/*
 * trace.c: the trace of a problem line with values from the page, and the values of such a line.
 */
#include "inputs.h"
#include "oracle.h"
#include "page.h"
#include "trace_run.h"

static bool read_problem(const char *line, problem_spec *problem, const char **refusal)
{
    static char error[256];
    *refusal = error;
    return problem_parse(line, problem, error, sizeof error);
}

/* Values of the page, row after row. */
struct values {
    const double *q, *k, *v;
};

static void set(const attn_tensor *tensor, const double *x)
{
    const int64_t columns = tensor->shape[3];
    for (int64_t at = 0; at < tensor->shape[1] * columns; at++) {
        inputs_store(tensor, 0, at / columns, 0, at % columns, x[at]);
    }
}

static void fill(const void *source, problem_tensors *tensors)
{
    const struct values *values = source;
    set(&tensors->args.q, values->q);
    set(&tensors->args.k, values->k);
    set(&tensors->args.v, values->v);
}

/* Without values q, k and v are NULL. */
const char *PAGE_EXPORT(page_trace)(const char *line, int rows, int keys, int split,
                                    const double *q, const double *k, const double *v)
{
    const struct values values = {q, k, v};
    const trace_choice choice = {rows, keys, split, 0, q != NULL ? fill : NULL, &values};
    problem_spec problem;
    const char *refusal;
    if (!read_problem(line, &problem, &refusal)) {
        return page_error(refusal);
    }
    refusal = trace_refuses(&choice, &problem);
    if (refusal != NULL) {
        return page_error(refusal);
    }
    if (trace_run(&choice, &problem, &trace_json, page_open()) != ATTN_OK) {
        return page_error(attn_last_error());
    }
    return page_text();
}

static void write_values(FILE *to, const char *name, const attn_tensor *tensor)
{
    fprintf(to, "\"%s\":[", name);
    for (int64_t i = 0; i < tensor->shape[1]; i++) {
        fputs(i > 0 ? ",[" : "[", to);
        for (int64_t c = 0; c < tensor->shape[3]; c++) {
            fprintf(to, "%s%.9g", c > 0 ? "," : "", oracle_element(tensor, 0, i, 0, c));
        }
        fputs("]", to);
    }
    fputs("]", to);
}

/* Q, K and V of head 0. */
const char *PAGE_EXPORT(page_values)(const char *line)
{
    problem_spec problem;
    problem_tensors tensors;
    const char *refusal;
    if (!read_problem(line, &problem, &refusal)) {
        return page_error(refusal);
    }
    if (!problem_tensors_create(&problem, PLACE_PLAIN, &tensors)) {
        return page_error("out of memory");
    }
    FILE *to = page_open();
    fputs("{", to);
    write_values(to, "q", &tensors.args.q);
    fputs(",", to);
    write_values(to, "k", &tensors.args.k);
    fputs(",", to);
    write_values(to, "v", &tensors.args.v);
    fputs("}", to);
    problem_tensors_free(&tensors);
    return page_text();
}
