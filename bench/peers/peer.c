/*
 * peer.c: see peer.h. The scripts describe the protocols.
 */
#include "peer.h"
#include "codes.h"
#include "problem.h"
#include "standard.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

/* A script from the files in bench/peers, which is on the build's include path. */
#define TEXT(file) ".incbin \"" file "\"\n"
#define SCRIPT(name, text)                                     \
    __asm__(".section .rodata\n"                               \
            ".globl " #name "\n"                               \
            ".hidden " #name "\n" #name ":\n" text ".byte 0\n" \
            ".previous\n")
SCRIPT(peer_script_cpu, TEXT("peer_onednn.py") TEXT("peer_ggml.py") TEXT("peers.py"));
SCRIPT(peer_script_cuda, TEXT("peers_cuda.py"));

const char *peer_refuses(const attn_forward_args *args, bool codes)
{
    for (int n = 0; n < 4; n++) {
        if (args->q.stride[n] < 0 || args->k.stride[n] < 0 || args->v.stride[n] < 0) {
            return "peers take no negative strides";
        }
    }
    const char *feature = standard_not_plain(args);
    return feature || codes ? feature : standard_no_codes(args);
}

/* ---- Shared memory --------------------------------------------------------------------------- */

static size_t bytes_of(const attn_tensor *t)
{
    int64_t elements = 1;
    for (int n = 0; n < 4; n++) {
        elements += (t->shape[n] - 1) * t->stride[n];
    }
    return (size_t)elements * attn_dtype_size(t->dtype);
}

/* Makes room for the tensors, one after the other. */
static bool make_room(bench_peer *peer, size_t bytes)
{
    if (peer->shared != NULL) {
        munmap(peer->shared, peer->shared_bytes);
        peer->shared = NULL;
    }
    if (ftruncate(peer->file, (off_t)bytes) != 0) {
        return false;
    }
    void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, peer->file, 0);
    peer->shared = map == MAP_FAILED ? NULL : map;
    peer->shared_bytes = bytes;
    return peer->shared != NULL;
}

static const char *const type_names[] = {
    [ATTN_F64] = "f64",   [ATTN_F32] = "f32",   [ATTN_F16] = "f16", [ATTN_BF16] = "bf16",
    [ATTN_BOOL] = "u8",   [ATTN_U8] = "u8",     [ATTN_I8] = "i8",   [ATTN_I4X2] = "i4x2",
    [ATTN_E4M3] = "e4m3", [ATTN_E5M2] = "e5m2",
};

static void add_tensor(cJSON *question, const char *name, const attn_tensor *t, size_t offset)
{
    cJSON *place = cJSON_AddObjectToObject(question, name);
    cJSON *shape = cJSON_AddArrayToObject(place, "shape"),
          *stride = cJSON_AddArrayToObject(place, "stride");
    for (int n = 0; n < 4; n++) {
        cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)t->shape[n]));
        cJSON_AddItemToArray(stride, cJSON_CreateNumber((double)t->stride[n]));
    }
    cJSON_AddNumberToObject(place, "offset", (double)offset);
    cJSON_AddStringToObject(place, "dtype", type_names[t->dtype]);
}

/* A tensor for the values of codes in f32, with heads and rows in their order. */
static attn_tensor values_of(const attn_tensor *codes)
{
    const int64_t *n = codes->shape, columns = n[3] * codes_columns(codes->dtype);
    return codes->stride[1] >= codes->stride[2]
               ? attn_tensor_bshd(codes->data, ATTN_F32, n[0], n[1], n[2], columns)
               : attn_tensor_bhsd(codes->data, ATTN_F32, n[0], n[2], n[1], columns);
}

/* Copies a tensor to shared memory, or the values of its codes. */
static bool copy_in(attn_tensor *shared, void *to, const attn_tensor *from,
                    const attn_tensor *scale, const attn_tensor *shift)
{
    shared->data = to;
    if (shared->dtype == from->dtype) {
        memcpy(to, from->data, bytes_of(from));
        return true;
    }
    const attn_quantize_args args = {
        .struct_size = sizeof args, .x = *shared, .codes = *from, .scale = *scale, .shift = *shift};
    return attn_dequantize(NULL, &args) == ATTN_OK;
}

bool peer_share(bench_peer *peer, const attn_forward_args *args, attn_forward_args *own,
                cJSON *question)
{
    enum { TENSORS = 7 };
    static const char *const name[TENSORS] = {"q", "k", "v", "o", "bias", "mask", "alibi"};
    static const attn_tensor none = {0};
    attn_tensor *tensor[TENSORS] = {&own->q,    &own->k,    &own->v,           &own->o,
                                    &own->bias, &own->mask, &own->alibi_slopes};
    const attn_tensor *given[TENSORS] = {&args->q,    &args->k,    &args->v,           &args->o,
                                         &args->bias, &args->mask, &args->alibi_slopes},
                      *scale[TENSORS] = {&none, &args->k_scale, &args->v_scale},
                      *shift[TENSORS] = {&none, &args->k_shift, &args->v_shift};
    const bool codes = codes_type(args->k.dtype);
    size_t offset[TENSORS + 1] = {0};
    *own = *args;
    if (codes) {
        own->k = values_of(&args->k), own->v = values_of(&args->v);
        own->k_scale = own->v_scale = own->k_shift = own->v_shift = none;
        cJSON_AddStringToObject(question, "codes", type_names[args->k.dtype]);
    }
    for (int i = 0; i < TENSORS; i++) { /* each from a page of its own on */
        const size_t bytes = tensor[i]->data != NULL ? bytes_of(tensor[i]) : 0;
        offset[i + 1] = (offset[i] + bytes + 4095) / 4096 * 4096;
    }
    if (!make_room(peer, offset[TENSORS])) {
        snprintf(peer->why, sizeof peer->why, "no shared memory for the tensors: %s",
                 strerror(errno));
        return false;
    }
    for (int i = 0; i < TENSORS; i++) {
        attn_tensor *t = tensor[i];
        if (t->data == NULL) {
            continue;
        }
        if (!copy_in(t, (char *)peer->shared + offset[i], given[i], scale[i], shift[i])) {
            snprintf(peer->why, sizeof peer->why, "%s", attn_last_error());
            return false;
        }
        add_tensor(question, name[i], t, offset[i]);
    }
    cJSON_AddBoolToObject(question, "causal", (args->flags & ATTN_CAUSAL) != 0);
    cJSON_AddBoolToObject(question, "top_left", (args->flags & ATTN_TOP_LEFT) != 0);
    args->flags &ATTN_SCALE ? cJSON_AddNumberToObject(question, "scale", args->softmax_scale)
                            : cJSON_AddNullToObject(question, "scale");
    cJSON_AddNumberToObject(question, "dropout", args->dropout_p);
    cJSON_AddNumberToObject(question, "softcap", args->softcap);
    if (args->flags & ATTN_WINDOW) {
        cJSON_AddNumberToObject(question, "window_left", (double)args->window_left);
        cJSON_AddNumberToObject(question, "window_right", (double)args->window_right);
    }
    cJSON_AddNumberToObject(question, "file", peer->file);
    cJSON_AddNumberToObject(question, "bytes", (double)offset[TENSORS]);
    return true;
}

/* ---- Python ---------------------------------------------------------------------------------- */

bool peer_open(bench_peer *peer, const char *python, const char *script)
{
    int down[2] = {-1, -1}, up[2] = {-1, -1};
    *peer = (bench_peer){.file = memfd_create("attn bench", 0)};
    if (peer->file < 0 || pipe(down) != 0 || pipe(up) != 0) {
        snprintf(peer->why, sizeof peer->why, "cannot start %s: %s", python, strerror(errno));
        return false;
    }
    peer->pid = fork();
    if (peer->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(down[0], STDIN_FILENO);
        dup2(up[1], STDOUT_FILENO);
        close(down[1]);
        close(up[0]);
        execlp(python, python, "-c", script, (char *)NULL);
        dprintf(STDOUT_FILENO, "{\"refused\": \"the program of --python does not run: %s\"}\n",
                strerror(errno));
        _exit(127);
    }
    close(down[0]);
    close(up[1]);
    peer->to = fdopen(down[1], "w"), peer->from = fdopen(up[0], "r");
    if (peer->pid < 0 || peer->to == NULL || peer->from == NULL) {
        snprintf(peer->why, sizeof peer->why, "cannot start %s: %s", python, strerror(errno));
        return false;
    }
    return true;
}

cJSON *peer_ask(bench_peer *peer, cJSON *question)
{
    char *text = cJSON_PrintUnformatted(question), answer[2048] = "";
    cJSON_Delete(question);
    if (text != NULL) {
        fprintf(peer->to, "%s\n", text);
        fflush(peer->to);
        free(text);
    }
    cJSON *reply = fgets(answer, sizeof answer, peer->from) == NULL ? NULL : cJSON_Parse(answer);
    const char *refused = cJSON_GetStringValue(cJSON_GetObjectItem(reply, "refused"));
    peer->rss = reply == NULL ? peer->rss : cJSON_GetNumberValue(cJSON_GetObjectItem(reply, "rss"));
    if (reply == NULL || refused != NULL) {
        snprintf(peer->why, sizeof peer->why, "%s",
                 refused != NULL ? refused : "the Python process ended before its time");
        cJSON_Delete(reply);
        return NULL;
    }
    const char *kernel = cJSON_GetStringValue(cJSON_GetObjectItem(reply, "kernel"));
    if (kernel != NULL) {
        snprintf(peer->kernel, sizeof peer->kernel, "%s", kernel);
    }
    return reply;
}

/* ---- bench/peers/peers.py -------------------------------------------------------------------- */

bool peer_start(bench_peer *peer, const char *python, const peer_task *task,
                const attn_forward_args *args, attn_forward_args *own)
{
    cJSON *job = cJSON_CreateObject();
    cJSON_AddStringToObject(job, "peer", task->library);
    cJSON_AddNumberToObject(job, "threads", task->threads);
    cJSON_AddBoolToObject(job, "d_bias", task->d_bias);
    cJSON_AddStringToObject(job, "pass",
                            task->pass == PASS_FORWARD    ? "forward"
                            : task->pass == PASS_BACKWARD ? "backward"
                                                          : "training");
    if (!peer_open(peer, python, peer_script_cpu) || !peer_share(peer, args, own, job)) {
        cJSON_Delete(job);
        return false;
    }
    cJSON *reply = peer_ask(peer, job);
    kill(peer->pid, SIGSTOP);
    cJSON_Delete(reply);
    return reply != NULL;
}

bool peer_sample(bench_peer *peer, int64_t repeats, double *seconds, double *waited)
{
    cJSON *question = cJSON_CreateObject();
    cJSON_AddNumberToObject(question, "repeats", (double)repeats);
    kill(peer->pid, SIGCONT);
    cJSON *reply = peer_ask(peer, question);
    kill(peer->pid, SIGSTOP);
    *seconds = cJSON_GetNumberValue(cJSON_GetObjectItem(reply, "seconds"));
    *waited = cJSON_GetNumberValue(cJSON_GetObjectItem(reply, "waited"));
    cJSON_Delete(reply);
    return reply != NULL;
}
