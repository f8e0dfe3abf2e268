/*
 * check_limit.c: see check_limit.h. A thread waits beside the call, since a launch may block, too.
 */
#include "check_limit.h"
#include "cli.h"
#include "progress.h"
#include "style.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static struct {
    pthread_mutex_t lock;
    pthread_cond_t stop;
    pthread_t thread;
    int64_t seconds;
    const char *line;
    bool json, running;
} limit = {.lock = PTHREAD_MUTEX_INITIALIZER, .stop = PTHREAD_COND_INITIALIZER};

/* Ends the process without its destructors, of which the driver's would wait for the GPU. */
static void give_up(void)
{
    char sentence[64];
    snprintf(sentence, sizeof sentence, "a call did not end within %lld s",
             (long long)limit.seconds);
    cli_watch_stop();
    if (limit.json) {
        cJSON *o = cJSON_CreateObject();
        cJSON_AddStringToObject(o, "problem", limit.line);
        cJSON_AddStringToObject(o, "hangs", sentence);
        cJSON_AddBoolToObject(o, "ok", false);
        cli_print_json(o);
    } else {
        printf("  ");
        cli_print_verdict(false);
        printf(": %s, and ended the program: %s\n", sentence, limit.line);
    }
    fflush(stdout);
    _exit(CLI_CHECK_FAILED);
}

/* Counts seconds one by one, so that a clock that is set costs one at most. */
static void *run_limit(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&limit.lock);
    for (int64_t second = 0; limit.running && second < limit.seconds; second++) {
        struct timespec next;
        clock_gettime(CLOCK_REALTIME, &next);
        next.tv_sec++;
        while (limit.running && pthread_cond_timedwait(&limit.stop, &limit.lock, &next) == 0) {
        }
    }
    if (limit.running) {
        give_up();
    }
    pthread_mutex_unlock(&limit.lock);
    return NULL;
}

void check_limit_set(int64_t seconds, bool json, const char *line)
{
    limit.seconds = seconds;
    limit.json = json;
    limit.line = line;
}

void check_limit_start(void)
{
    limit.running = true; /* before the thread that reads it */
    if (pthread_create(&limit.thread, NULL, run_limit, NULL) != 0) {
        exit(cli_error(CLI_INTERNAL, "no thread for the limit of time"));
    }
}

void check_limit_stop(void)
{
    pthread_mutex_lock(&limit.lock);
    limit.running = false;
    pthread_cond_signal(&limit.stop);
    pthread_mutex_unlock(&limit.lock);
    pthread_join(limit.thread, NULL);
}
