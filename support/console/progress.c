/*
 * progress.c: signs of life on a terminal; silent where stderr is not one.
 */
#include "progress.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

void cli_progress(const char *format, ...)
{
    static bool shown;
    va_list list;
    if (!isatty(STDERR_FILENO) || (format == NULL && !shown)) {
        return;
    }
    fputs("\r\033[K", stderr);
    shown = format != NULL;
    if (shown) {
        va_start(list, format);
        vfprintf(stderr, format, list);
        va_end(list);
    }
    fflush(stderr);
}

/* ---- Long steps ------------------------------------------------------------------------------ */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t stop;
    pthread_t thread;
    const char *what;
    bool running;
} watch = {.lock = PTHREAD_MUTEX_INITIALIZER, .stop = PTHREAD_COND_INITIALIZER};

static void *run_watch(void *unused)
{
    struct timespec next;
    (void)unused;
    clock_gettime(CLOCK_REALTIME, &next);
    pthread_mutex_lock(&watch.lock);
    for (int seconds = 0; watch.running; seconds++) {
        if (seconds >= 2) {
            cli_progress("%s, %d s", watch.what, seconds);
        }
        next.tv_sec++;
        while (watch.running && pthread_cond_timedwait(&watch.stop, &watch.lock, &next) == 0) {
        }
    }
    pthread_mutex_unlock(&watch.lock);
    return NULL;
}

void cli_watch_start(const char *what)
{
    watch.what = what;
    watch.running = isatty(STDERR_FILENO); /* before the thread that reads it */
    if (watch.running && pthread_create(&watch.thread, NULL, run_watch, NULL) != 0) {
        watch.running = false;
    }
}

void cli_watch_stop(void)
{
    pthread_mutex_lock(&watch.lock);
    bool was_running = watch.running;
    watch.running = false;
    pthread_cond_signal(&watch.stop);
    pthread_mutex_unlock(&watch.lock);
    if (was_running) {
        pthread_join(watch.thread, NULL);
    }
    cli_progress(NULL);
}
