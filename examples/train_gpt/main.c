/*
 * main.c: train_gpt: a GPT trained on this CPU or its GPU with libattn's attention, forward and
 * backward, and text from it. options.c has its options, docs/training.md its results.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "checkpoint.h"
#include "compare.h"
#include "fail.h"
#include "generate.h"
#include "plot.h"
#include "report.h"
#include "serve.h"
#include "threads.h"

static const double TEMPERATURE = 0.8;

/* --prompt and --sample more bytes, as a string. */
static char *make_sample(const options *o, gpt_model *model)
{
    const char *prompt = o->prompts[0];
    size_t given = strlen(prompt);
    uint8_t *sample = allocate(given + (size_t)o->sample + 1, 1);
    memcpy(sample, prompt, given);
    generate(model, sample, (int)given, (int)given + o->sample, TEMPERATURE,
             (uint64_t)o->config.seed);
    make_printable(sample, (int)given + o->sample);
    return (char *)sample;
}

/* DIR/name, kept to the end of the program. */
static char *path_in(const char *directory, const char *name)
{
    size_t bytes = strlen(directory) + strlen(name) + 2;
    char *path = allocate(bytes, 1);
    snprintf(path, bytes, "%s/%s", directory, name);
    return path;
}

/* Trains to the last step, from the checkpoint on if there is one. */
static gpt_trainer *trained(const options *o, const text *from, FILE *out)
{
    char *checkpoint = path_in(o->out, "checkpoint");
    if (mkdir(o->out, 0777) != 0 && errno != EEXIST) {
        fail(EXIT_INPUT, "--out=%s: cannot make that folder: %s", o->out, strerror(errno));
    }
    gpt_trainer *trainer = trainer_new(o->on, &o->config, from);
    report_start(trainer, out);
    if (!o->fresh && checkpoint_load(checkpoint, trainer)) {
        fprintf(out, "continuing %s after step %lld of %lld (--fresh starts anew)\n", checkpoint,
                (long long)trainer->step, (long long)trainer->config.steps);
    }
    trainer_run(trainer, out, checkpoint, o->save_seconds);
    free(checkpoint);
    return trainer;
}

static void train(const options *o, const text *from, FILE *out)
{
    gpt_trainer *trainer = trained(o, from, out);
    char *picture = path_in(o->out, "loss.png"), *sample = make_sample(o, trainer->model);
    report_end(trainer, sample, out);
    const char *why = plot_losses(trainer, picture);
    fprintf(out, why == NULL ? "loss curve: %s\n" : "no loss curve %s: %s\n", picture, why);
    if (o->json) {
        report_json(trainer, sample);
    }
    trainer_delete(trainer);
    free(sample);
    free(picture);
}

static void train_and_serve(const options *o, const text *from, FILE *out)
{
    gpt_trainer *trainer = trained(o, from, out);
    serve_all(o, trainer, out);
    trainer_delete(trainer);
}

int main(int argc, char **argv)
{
    options o = options_parse(argc, argv);
    threads_set(o.threads);
    text from = text_read(o.texts, o.text_count, o.config.context + 1);
    (o.compare    ? compare
     : o.generate ? train_and_serve
                  : train)(&o, &from, o.json ? stderr : stdout);
    text_free(&from);
    if (fflush(stdout) != 0 || ferror(stdout)) {
        fail(EXIT_INTERNAL, "not everything could be written to standard output");
    }
    return 0;
}
