/*
 * serve_report.c: the table and the JSON object of serve.h.
 */
#include <stdlib.h>

#include "generate.h"
#include "report.h"
#include "serve.h"
#include "threads.h"

static const char *const way_name[SERVE_WAYS] = {"recomputed", "cache", "int8 cache"};

/* Bytes in which a way agrees with recomputing, from each continuation's first one on. */
static int alike_sum(const requests *r, const served *way)
{
    int sum = 0;
    for (int n = 0; n < r->count; n++) {
        sum += served_alike(r, &way[0], &way[1], n);
    }
    return sum;
}

static double speed(const requests *r, const served *way)
{
    return r->count * r->wanted / way->seconds;
}

static void print_way(const requests *r, const served *ways, int way, FILE *out)
{
    const served pair[2] = {ways[RECOMPUTED], ways[way]};
    fprintf(out, "%-10s  %9.0f  %8.2f s", way_name[way], speed(r, &ways[way]), ways[way].seconds);
    if (way == RECOMPUTED) {
        fprintf(out, "  %13s\n", "none");
    } else {
        fprintf(out, "  %9.2f MiB   the first %d of %d\n",
                (double)ways[way].cache_bytes / (1 << 20), alike_sum(r, pair),
                r->count * r->wanted);
    }
    fflush(out);
}

static void print_texts(const requests *r, const served *way, FILE *out)
{
    for (int n = 0; n < r->count; n++) {
        uint8_t *shown = way->text + n * r->context + r->shared;
        int bytes = r->length[n] - r->shared + r->wanted;
        make_printable(shown, bytes);
        fprintf(out, "\n%d: %.*s\n", n + 1, bytes, (const char *)shown);
    }
}

static void print_json(const requests *r, const served *ways)
{
    cJSON *all = cJSON_CreateObject();
    cJSON_AddNumberToObject(all, "prompts", r->count);
    cJSON_AddNumberToObject(all, "shared", r->shared);
    cJSON_AddNumberToObject(all, "wanted", r->wanted);
    for (int way = 0; way < SERVE_WAYS; way++) {
        const served pair[2] = {ways[RECOMPUTED], ways[way]};
        cJSON *one = cJSON_AddObjectToObject(all, way_name[way]);
        cJSON_AddNumberToObject(one, "seconds", ways[way].seconds);
        cJSON_AddNumberToObject(one, "cache_bytes", (double)ways[way].cache_bytes);
        cJSON_AddNumberToObject(one, "alike", alike_sum(r, pair));
    }
    report_print_json(all);
}

void serve_all(const options *o, gpt_trainer *trainer, FILE *out)
{
    requests r = requests_of(o, trainer);
    served ways[SERVE_WAYS];
    fprintf(out,
            "%d prompts behind the same %d bytes, %d bytes more of each, greedily; %d threads\n"
            "             tokens/s        time  keys, values   bytes as recomputed\n",
            r.count, r.shared, r.wanted, threads_count());
    for (int way = 0; way < SERVE_WAYS; way++) {
        ways[way] = serve(trainer->model, &r, way);
        print_way(&r, ways, way, out);
    }
    print_texts(&r, &ways[CACHE_INT8], out);
    if (o->json) {
        print_json(&r, ways);
    }
    for (int way = 0; way < SERVE_WAYS; way++) {
        free(ways[way].text);
    }
    requests_free(&r);
}
