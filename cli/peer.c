/*
 * peer.c: see peer.h. The protocol is told in bench/peers.py.
 */
#include "peer.h"
#include "problem.h"
#include "standard.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

/* The text of bench/peers.py, which the build's include path has. */
extern const char peer_script[];
__asm__(".section .rodata\n"
        ".globl peer_script\n"
        ".hidden peer_script\n"
        "peer_script:\n"
        ".incbin \"peers.py\"\n"
        ".byte 0\n"
        ".previous\n");

const char *peer_refuses(const attn_forward_args *a)
{
    for (int n = 0; n < 4; n++) {
        if (a->q.stride[n] < 0 || a->k.stride[n] < 0 || a->v.stride[n] < 0) {
            return "peers take no negative strides";
        }
    }
    return standard_not_plain(a);
}

/* ---- Shared memory --------------------------------------------------------------------------------------------- */

static size_t bytes_of(const attn_tensor *t)
{
    int64_t elements = 1;
    for (int n = 0; n < 4; n++) {
        elements += (t->shape[n] - 1) * t->stride[n];
    }
    return (size_t)elements * attn_dtype_size(t->dtype);
}

/* Moves the tensors into a nameless file, whose descriptor Python inherits; adds their places to the job. */
static bool share(const attn_forward_args *args, attn_forward_args *own, cJSON *job)
{
    static const char *const name[] = {"q", "k", "v", "o"}, *const type[] = {"", "f64", "f32", "f16", "bf16"};
    attn_tensor *tensor[] = {&own->q, &own->k, &own->v, &own->o};
    size_t offset[5] = {0};
    *own = *args;
    for (int i = 0; i < 4; i++) {
        offset[i + 1] = (offset[i] + bytes_of(tensor[i]) + 4095) / 4096 * 4096;
    }
    int file = memfd_create("attn bench", 0);
    if (file < 0 || ftruncate(file, (off_t)offset[4]) != 0) {
        return false;
    }
    char *map = mmap(NULL, offset[4], PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (map == MAP_FAILED) {
        return false;
    }
    for (int i = 0; i < 4; i++) {
        attn_tensor *t = tensor[i];
        memcpy(map + offset[i], t->data, bytes_of(t));
        t->data = map + offset[i];
        cJSON *place = cJSON_AddObjectToObject(job, name[i]);
        cJSON *shape = cJSON_AddArrayToObject(place, "shape"), *stride = cJSON_AddArrayToObject(place, "stride");
        for (int n = 0; n < 4; n++) {
            cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)t->shape[n]));
            cJSON_AddItemToArray(stride, cJSON_CreateNumber((double)t->stride[n]));
        }
        cJSON_AddNumberToObject(place, "offset", (double)offset[i]);
        cJSON_AddStringToObject(place, "dtype", type[t->dtype]);
    }
    cJSON_AddNumberToObject(job, "file", file);
    cJSON_AddNumberToObject(job, "bytes", (double)offset[4]);
    return true;
}

/* ---- Python ---------------------------------------------------------------------------------------------------- */

static bool start_python(peer *p, const char *python)
{
    int down[2], up[2];
    if (pipe(down) != 0 || pipe(up) != 0) {
        return false;
    }
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(down[0], STDIN_FILENO);
        dup2(up[1], STDOUT_FILENO);
        close(down[1]);
        close(up[0]);
        execlp(python, python, "-c", peer_script, (char *)NULL);
        _exit(127);
    }
    close(down[0]);
    close(up[1]);
    p->to = fdopen(down[1], "w"), p->from = fdopen(up[0], "r");
    return pid > 0 && p->to != NULL && p->from != NULL;
}

/* One line there, one back; frees the question. NULL: see p->why. */
static cJSON *ask(peer *p, cJSON *question)
{
    char *text = cJSON_PrintUnformatted(question), answer[2048] = "";
    cJSON_Delete(question);
    if (text != NULL) {
        fprintf(p->to, "%s\n", text);
        fflush(p->to);
        free(text);
    }
    cJSON *reply = fgets(answer, sizeof answer, p->from) == NULL ? NULL : cJSON_Parse(answer);
    const char *refused = cJSON_GetStringValue(cJSON_GetObjectItem(reply, "refused"));
    p->rss = reply == NULL ? p->rss : cJSON_GetNumberValue(cJSON_GetObjectItem(reply, "rss"));
    if (reply == NULL || refused != NULL) {
        snprintf(p->why, sizeof p->why, "%s", refused != NULL ? refused : "the Python process ended before its time");
        cJSON_Delete(reply);
        return NULL;
    }
    return reply;
}

bool peer_start(peer *p, const char *python, const char *name, const attn_forward_args *args, attn_forward_args *own,
                int threads, int32_t pass)
{
    cJSON *job = cJSON_CreateObject();
    cJSON_AddStringToObject(job, "peer", name);
    cJSON_AddNumberToObject(job, "threads", threads);
    cJSON_AddStringToObject(job, "pass",
                            pass == PASS_FORWARD    ? "forward"
                            : pass == PASS_BACKWARD ? "backward"
                                                    : "training");
    cJSON_AddBoolToObject(job, "causal", (args->flags & ATTN_CAUSAL) != 0);
    cJSON_AddBoolToObject(job, "top_left", (args->flags & ATTN_TOP_LEFT) != 0);
    args->flags &ATTN_SCALE ? cJSON_AddNumberToObject(job, "scale", args->softmax_scale)
                            : cJSON_AddNullToObject(job, "scale");
    if (!share(args, own, job) || !start_python(p, python)) {
        snprintf(p->why, sizeof p->why, "cannot start %s: %s", python, strerror(errno));
        cJSON_Delete(job);
        return false;
    }
    cJSON *reply = ask(p, job);
    if (reply != NULL) {
        snprintf(p->kernel, sizeof p->kernel, "%s", cJSON_GetStringValue(cJSON_GetObjectItem(reply, "kernel")));
        cJSON_Delete(reply);
    }
    return reply != NULL;
}

bool peer_sample(peer *p, int64_t repeats, double *seconds, double *waited)
{
    cJSON *question = cJSON_CreateObject();
    cJSON_AddNumberToObject(question, "repeats", (double)repeats);
    cJSON *reply = ask(p, question);
    *seconds = cJSON_GetNumberValue(cJSON_GetObjectItem(reply, "seconds"));
    *waited = cJSON_GetNumberValue(cJSON_GetObjectItem(reply, "waited"));
    cJSON_Delete(reply);
    return reply != NULL;
}
