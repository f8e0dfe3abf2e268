/*
 * array_write.c: files written as a whole or not at all: under a temporary name beside the target,
 * renamed to it at the end. A FIFO or a device is written through.
 */
#include "array_file.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST_LINKS = 40 };

/* ---- Signals while a file is written --------------------------------------------------------- */

/* Signals that end the program remove the temporary file first. A signal that the write itself
 * brings about becomes an error. */
static const struct {
    int number;
    bool ends;
} signals[] = {{SIGHUP, true}, {SIGINT, true}, {SIGTERM, true}, {SIGXFSZ, false}, {SIGPIPE, false}};
enum { SIGNALS = sizeof signals / sizeof signals[0] };

static char temporary[PATH_MAX];

static void remove_and_end(int number)
{
    unlink(temporary);
    raise(number); /* SA_RESETHAND: after the return, by default */
}

/* Signals that the caller handles or ignores stay as they are. */
static void take_signals(struct sigaction before[SIGNALS])
{
    for (int i = 0; i < SIGNALS; i++) {
        struct sigaction ours = {.sa_flags = (int)SA_RESETHAND};
        ours.sa_handler = signals[i].ends ? remove_and_end : SIG_IGN;
        sigaction(signals[i].number, NULL, &before[i]);
        if (before[i].sa_handler == SIG_DFL) {
            sigaction(signals[i].number, &ours, NULL);
        }
    }
}

static void give_signals_back(const struct sigaction before[SIGNALS])
{
    for (int i = 0; i < SIGNALS; i++) {
        sigaction(signals[i].number, &before[i], NULL);
    }
}

/* ---- Writing --------------------------------------------------------------------------------- */

static bool write_all(int file, const char *data, size_t bytes)
{
    while (bytes > 0) {
        ssize_t n = write(file, data, bytes);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            return false;
        }
        data += n;
        bytes -= (size_t)n;
    }
    return true;
}

/* Writes into an open file and closes it. errno tells the failure. */
static bool write_parts(int file, const array_file_part *parts, int count, bool sync)
{
    bool ok = true;
    for (int i = 0; ok && i < count; i++) {
        ok = write_all(file, parts[i].data, parts[i].bytes);
    }
    ok = ok && (!sync || fsync(file) == 0);
    int saved = errno;
    bool closed = close(file) == 0;
    errno = ok ? errno : saved;
    return ok && closed;
}

static bool is_stream(const char *path)
{
    struct stat there;
    return stat(path, &there) == 0 && !S_ISREG(there.st_mode) && !S_ISDIR(there.st_mode);
}

bool array_file_target(const char *path, char target[PATH_MAX])
{
    char link[PATH_MAX];
    bool fits = snprintf(target, PATH_MAX, "%s", path) < PATH_MAX;
    for (int n = 0; n < MOST_LINKS && fits && !is_stream(target); n++) {
        ssize_t length = readlink(target, link, sizeof link - 1);
        if (length < 0) {
            return true; /* no link */
        }
        link[length] = '\0';
        const char *slash = strrchr(target, '/');
        size_t folder = link[0] == '/' || slash == NULL ? 0 : (size_t)(slash + 1 - target);
        fits = folder + (size_t)length < PATH_MAX;
        if (fits) {
            memcpy(target + folder, link, (size_t)length + 1);
        }
    }
    return fits && is_stream(target);
}

bool array_file_can_write(const char *path)
{
    char target[PATH_MAX];
    if (!array_file_target(path, target)) {
        return false;
    }
    if (is_stream(target)) {
        return access(target, W_OK) == 0;
    }
    char *slash = strrchr(target, '/');
    if (slash == NULL) {
        return access(".", W_OK | X_OK) == 0;
    }
    slash[slash == target] = '\0'; /* "/" of "/file" */
    return access(target, W_OK | X_OK) == 0;
}

static bool write_beside(const char *target, const array_file_part *parts, int count)
{
    bool ok = false;
    int file = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file >= 0) {
        ok = write_parts(file, parts, count, true) && rename(temporary, target) == 0;
        int saved = errno;
        ok ? 0 : unlink(temporary);
        errno = saved;
    }
    return ok;
}

static bool write_stream(const char *target, const array_file_part *parts, int count)
{
    int file = open(target, O_WRONLY | O_CLOEXEC);
    return file >= 0 && write_parts(file, parts, count, false);
}

bool array_file_write(const char *path, const array_file_part *parts, int count, char *error,
                      size_t size)
{
    struct sigaction before[SIGNALS];
    char target[PATH_MAX];
    bool fits = array_file_target(path, target);
    int length = snprintf(temporary, sizeof temporary, "%s.%ld.tmp", target, (long)getpid());
    if (!fits || length >= (int)sizeof temporary) {
        temporary[0] = '\0';
        return array_file_fail(error, size, path, "the name is too long, or a link to itself");
    }
    bool stream = is_stream(target);
    temporary[0] = stream ? '\0' : temporary[0];
    take_signals(before);
    bool ok = stream ? write_stream(target, parts, count) : write_beside(target, parts, count);
    int saved = errno;
    give_signals_back(before);
    return ok || array_file_fail(error, size, path, "%s", strerror(saved));
}
