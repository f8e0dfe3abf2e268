/*
 * checkpoint.c: see checkpoint.h. The file: header; parameters; both moments; losses of the steps
 * done; validation losses; FNV-1a hash of all that. Numbers are as this machine has them in memory,
 * so a checkpoint is for this kind of machine.
 */
#include "checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fail.h"

static const char MAGIC[8] = "attnGPT1";

typedef struct header {
    char magic[8];
    uint64_t real_bytes;
    config config;
    uint64_t text_hash;
    int64_t step;
    uint64_t random;
} header;

/* ---- Pieces ---------------------------------------------------------------------------------- */

enum { PIECES = 5 };

typedef struct piece {
    const device *on; /* whose memory it is */
    void *data;
    size_t bytes;
} piece;

/* The part behind the header, of a run that has done `step` steps. */
static void pieces_of(const gpt_trainer *trainer, int64_t step, piece pieces[PIECES])
{
    size_t reals = (size_t)trainer->model->count * sizeof(real), steps = (size_t)step;
    const device *on = trainer->model->on;
    pieces[0] = (piece){on, trainer->model->parameters, reals};
    pieces[1] = (piece){on, trainer->adamw.mean, reals};
    pieces[2] = (piece){on, trainer->adamw.square, reals};
    pieces[3] = (piece){&device_cpu, trainer->losses, steps * sizeof *trainer->losses};
    pieces[4] = (piece){&device_cpu, trainer->valid, (steps + 1) * sizeof *trainer->valid};
}

/* ---- Writing --------------------------------------------------------------------------------- */

static void write_failed(const char *path)
{
    fail(EXIT_INTERNAL, "cannot write \"%s\": %s", path, strerror(errno));
}

/* Half a checkpoint is of no use, and takes room on a full disk. */
static void write_broke_off(const char *path)
{
    int reason = errno;
    (void)remove(path);
    errno = reason;
    write_failed(path);
}

static void write_all(FILE *file, const gpt_trainer *trainer)
{
    header h;
    piece pieces[PIECES];
    memset(&h, 0, sizeof h); /* padding too */
    memcpy(h.magic, MAGIC, sizeof MAGIC);
    h.real_bytes = sizeof(real);
    h.config = trainer->config;
    h.text_hash = trainer->text->hash;
    h.step = trainer->step;
    h.random = trainer->random;
    uint64_t hash = hash_bytes(HASH_START, &h, sizeof h);
    fwrite(&h, sizeof h, 1, file);
    pieces_of(trainer, trainer->step, pieces);
    for (int i = 0; i < PIECES; i++) {
        void *data = allocate(1, pieces[i].bytes);
        pieces[i].on->get(data, pieces[i].data, pieces[i].bytes);
        hash = hash_bytes(hash, data, pieces[i].bytes);
        fwrite(data, 1, pieces[i].bytes, file);
        free(data);
    }
    fwrite(&hash, sizeof hash, 1, file);
}

/* The new name, too, must survive the end of the machine. */
static void sync_directory(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *directory = slash == NULL ? strdup(".") : strndup(path, (size_t)(slash - path) + 1);
    int fd = directory == NULL ? -1 : open(directory, O_RDONLY | O_DIRECTORY);
    if (fd < 0 || fsync(fd) != 0) {
        write_failed(path);
    }
    close(fd);
    free(directory);
}

void checkpoint_save(const char *path, const gpt_trainer *trainer)
{
    char temporary[4096];
    if ((size_t)snprintf(temporary, sizeof temporary, "%s.new", path) >= sizeof temporary) {
        fail(EXIT_INPUT, "the name of the checkpoint is too long");
    }
    FILE *file = fopen(temporary, "wb");
    if (file == NULL) {
        write_failed(temporary);
    }
    write_all(file, trainer);
    if (fflush(file) != 0 || ferror(file) || fsync(fileno(file)) != 0 || fclose(file) != 0 ||
        rename(temporary, path) != 0) {
        write_broke_off(temporary);
    }
    sync_directory(path);
}

/* ---- Reading --------------------------------------------------------------------------------- */

static uint8_t *read_all(FILE *file, const char *path, size_t *bytes)
{
    struct stat info;
    if (fstat(fileno(file), &info) != 0 || !S_ISREG(info.st_mode)) {
        fail(EXIT_INPUT, "\"%s\" is no file", path);
    }
    *bytes = (size_t)info.st_size;
    uint8_t *all = malloc(*bytes + 1);
    if (all == NULL || fread(all, 1, *bytes, file) != *bytes) {
        fail(EXIT_INPUT, "cannot read \"%s\": %s", path, strerror(errno));
    }
    fclose(file);
    return all;
}

/* Ends the program unless the file is a whole checkpoint of t's run. */
static void check_header(const char *path, const gpt_trainer *trainer, const header *h)
{
    char option[64];
    if (h->real_bytes != sizeof(real)) {
        fail(EXIT_INPUT, "\"%s\" holds numbers of %d bytes, not %zu", path, (int)h->real_bytes,
             sizeof(real));
    }
    if (config_difference(&h->config, &trainer->config, option) != NULL) {
        fail(EXIT_INPUT,
             "\"%s\" is of a run with %s: say that again, or --fresh to start anew, or another "
             "--out",
             path, option);
    }
    if (h->text_hash != trainer->text->hash) {
        fail(EXIT_INPUT, "\"%s\" is of a run on another text: --fresh starts anew", path);
    }
}

static bool is_whole(const uint8_t *all, size_t bytes)
{
    uint64_t hash;
    if (bytes < sizeof(header) + sizeof hash || memcmp(all, MAGIC, sizeof MAGIC) != 0) {
        return false;
    }
    memcpy(&hash, all + bytes - sizeof hash, sizeof hash);
    return hash == hash_bytes(HASH_START, all, bytes - sizeof hash);
}

bool checkpoint_load(const char *path, gpt_trainer *trainer)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL && errno == ENOENT) {
        return false;
    }
    if (file == NULL) {
        fail(EXIT_INPUT, "cannot read \"%s\": %s", path, strerror(errno));
    }
    size_t bytes, at = sizeof(header);
    uint8_t *all = read_all(file, path, &bytes);
    if (!is_whole(all, bytes)) {
        fail(EXIT_INPUT, "\"%s\" is damaged or no checkpoint: --fresh starts anew", path);
    }
    header h;
    memcpy(&h, all, sizeof h);
    check_header(path, trainer, &h);
    piece pieces[PIECES];
    pieces_of(trainer, h.step, pieces);
    for (int i = 0; i < PIECES; i++) {
        pieces[i].on->put(pieces[i].data, all + at, pieces[i].bytes);
        at += pieces[i].bytes;
    }
    trainer->step = h.step;
    trainer->random = h.random;
    free(all);
    return true;
}
