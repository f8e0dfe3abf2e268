/*
 * plan_io_report.c: see plan_io_report.h.
 */
#include "plan_io_report.h"
#include "cli.h"
#include "style.h"

#include <math.h>
#include <stdio.h>

static double far_bytes(const traffic_bytes *bytes)
{
    return bytes->read + bytes->written;
}

traffic_roof plan_io_roof(const plan_io_story *story, const traffic_bytes *bytes)
{
    return traffic_roof_of(story->flops, far_bytes(bytes), story->peak * 1e9, story->read * 1e9);
}

/* ---- words ----------------------------------------------------------------------------------- */

static void head(const char *text)
{
    printf("\n  %s%s%s\n", cli_colour(CLI_LABEL), text, cli_colour(CLI_PLAIN));
}

static void tell_here(const plan_io_story *story)
{
    const plan_point *here = &story->io.here;
    const traffic_tiles *tiles = &story->io.tiles;
    const double tiled = far_bytes(&here->tiled), standard = far_bytes(&here->standard);
    cli_text near, one, other;
    head("IO analysis: bytes between a near memory of M bytes and the far one (arXiv 2205.14135)");
    cli_fact("  near        ", "M = %s, %s", cli_bytes(near, here->near), story->near_name);
    cli_fact("  tiles       ", "blocks of %lld rows, which meet tiles of %lld keys",
             (long long)tiles->rows, (long long)tiles->keys);
    cli_fact("  traffic     ", "%s tiled; standard attention: %s (%.1f times as much)",
             cli_bytes(one, tiled), cli_bytes(other, standard), tiled > 0 ? standard / tiled : 1);
    cli_fact("  on chip     ", "%s written and read within M tiled; standard: %s",
             cli_bytes(one, here->tiled.on_chip), cli_bytes(other, here->standard.on_chip));
}

static void tell_last(const plan_io_story *story)
{
    cli_text last, one, other;
    cli_fact("  memory      ",
             "%s of it from memory: %s of %s serve %d blocks at once; standard: %s",
             cli_bytes(one, far_bytes(&story->last_tiled)), cli_bytes(last, story->last),
             story->last_name, story->units, cli_bytes(other, far_bytes(&story->last_standard)));
}

static void tell_roof(const char *label, const char *form, const traffic_roof *roof)
{
    cli_text time;
    cli_fact(label, "%-9s %.1f FLOP per byte: bound by %s, at least %s", form, roof->intensity,
             roof->memory_bound ? "memory" : "compute", cli_seconds(time, roof->seconds));
}

static void tell_roofs(const plan_io_story *story)
{
    if (story->source == NULL || story->peak <= 0 || story->read <= 0) {
        return;
    }
    const traffic_roof tiled = plan_io_roof(story, &story->last_tiled),
                       standard = plan_io_roof(story, &story->last_standard);
    const bool large = story->peak >= 1e4;
    cli_fact("  roofline    ",
             "%.4g %cFLOP/s and %.4g GB/s: compute bounds the time above %.1f FLOP "
             "per byte",
             large ? story->peak * 1e-3 : story->peak, large ? 'T' : 'G', story->read, tiled.ridge);
    cli_fact("              ", "(%s)", story->source);
    tell_roof("              ", "tiled", &tiled);
    tell_roof("              ", "standard", &standard);
}

static void tell_points(const plan_io_story *story)
{
    cli_text near, tiled, best, standard;
    head("traffic by M");
    printf("  %10s %12s %12s %22s %12s %8s\n", "M", "these tiles", "best tiles", "rows x keys",
           "standard", "/best");
    for (int i = 0; i < PLAN_POINTS; i++) {
        const plan_point *point = &story->io.points[i];
        printf("  %10s %12s %12s %15lld x %4lld %12s %8.1f\n", cli_bytes(near, point->near),
               cli_bytes(tiled, far_bytes(&point->tiled)),
               cli_bytes(best, far_bytes(&point->best_bytes)), (long long)point->best.rows,
               (long long)point->best.keys, cli_bytes(standard, far_bytes(&point->standard)),
               far_bytes(&point->standard) / fmax(far_bytes(&point->best_bytes), 1));
    }
}

/* Says that each number moves once: K and V stay near, so blocks of any size would do. */
static bool each_once(const plan_io_story *story)
{
    const plan_io *io = &story->io;
    return far_bytes(&io->size_bytes[io->best]) <= 1.01 * far_bytes(&io->once);
}

static void tell_reason(const plan_io_story *story)
{
    const plan_io *io = &story->io;
    cli_fact("  why         ",
             each_once(story) ? "%lld rows: all numbers move once, as K and V stay in M; large "
                                "blocks copy"
                              : "%lld rows move the fewest bytes: a tile of K and V that has been "
                                "fetched",
             (long long)io->sizes[io->best].rows);
    cli_fact("              ",
             each_once(story) ? "a tile of K and V into place less often"
                              : "serves all of them, and their Q and O still fit in M beside it");
}

int plan_io_fastest(const plan_io_story *story)
{
    int fastest = 0;
    for (int i = 0; i < story->io.size_count; i++) {
        fastest = story->seconds[i] < story->seconds[fastest] ? i : fastest;
    }
    return fastest;
}

static void tell_timed(const plan_io_story *story)
{
    const plan_io *io = &story->io;
    const int fastest = plan_io_fastest(story);
    cli_fact("  measured    ",
             "one thread: %lld rows are the fastest; the best by bytes takes %.1f %% longer",
             (long long)io->sizes[fastest].rows,
             100 * (story->seconds[io->best] / story->seconds[fastest] - 1));
}

static void tell_sizes(const plan_io_story *story)
{
    const plan_io *io = &story->io;
    cli_text bytes, chip, time;
    head("size of a block of rows");
    printf("  %10s %12s %12s%s\n", "rows", "traffic", "on chip",
           story->timed ? "     measured" : "");
    for (int i = 0; i < io->size_count; i++) {
        printf("  %10lld %12s %12s", (long long)io->sizes[i].rows,
               cli_bytes(bytes, far_bytes(&io->size_bytes[i])),
               cli_bytes(chip, io->size_bytes[i].on_chip));
        if (story->timed) {
            printf(" %12s", cli_seconds(time, story->seconds[i]));
        }
        puts(i == io->best ? "   best" : "");
    }
    tell_reason(story);
    if (story->timed) {
        tell_timed(story);
    }
}

static void tell_lengths(const plan_io_story *story)
{
    cli_text moved_tiled, moved_standard, tiled, standard, kept_tiled, kept_standard;
    head("by N: traffic with these tiles, and memory of a forward pass without workspace");
    printf("  %8s %22s %22s %24s\n  %8s %11s %10s %11s %10s %13s %10s\n", "", "traffic", "memory",
           "kept for backward", "N", "tiled", "standard", "tiled", "standard", "P recomputed",
           "P stored");
    for (int i = 0; i < PLAN_LENGTHS; i++) {
        const plan_length *length = &story->io.lengths[i];
        printf("  %8lld %11s %10s %11s %10s %13s %10s\n", (long long)length->n,
               cli_bytes(moved_tiled, length->moved_tiled),
               cli_bytes(moved_standard, length->moved_standard), cli_bytes(tiled, length->tiled),
               cli_bytes(standard, length->standard), cli_bytes(kept_tiled, length->kept_tiled),
               cli_bytes(kept_standard, length->kept_standard));
    }
}

void plan_io_tell_text(const plan_io_story *story)
{
    tell_here(story);
    tell_last(story);
    tell_roofs(story);
    tell_points(story);
    tell_sizes(story);
    tell_lengths(story);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void add_bytes(cJSON *object, const char *name, const traffic_bytes *bytes)
{
    cJSON *member = cJSON_AddObjectToObject(object, name);
    cJSON_AddNumberToObject(member, "read_bytes", bytes->read);
    cJSON_AddNumberToObject(member, "written_bytes", bytes->written);
    cJSON_AddNumberToObject(member, "on_chip_bytes", bytes->on_chip);
    cJSON_AddNumberToObject(member, "tiles", bytes->tiles);
}

static void add_tiles(cJSON *object, const char *name, const traffic_tiles *tiles)
{
    cJSON *member = cJSON_AddObjectToObject(object, name);
    cJSON_AddNumberToObject(member, "rows", (double)tiles->rows);
    cJSON_AddNumberToObject(member, "strip", (double)tiles->strip);
    cJSON_AddNumberToObject(member, "keys", (double)tiles->keys);
}

static void add_point(cJSON *object, const plan_point *point)
{
    cJSON_AddNumberToObject(object, "near_bytes", point->near);
    add_bytes(object, "tiled", &point->tiled);
    add_bytes(object, "standard", &point->standard);
    add_tiles(object, "best_tiles", &point->best);
    add_bytes(object, "best", &point->best_bytes);
}

static void add_roof(cJSON *object, const char *name, const traffic_roof *roof)
{
    cJSON *member = cJSON_AddObjectToObject(object, name);
    cJSON_AddNumberToObject(member, "intensity", roof->intensity);
    cJSON_AddNumberToObject(member, "ridge", roof->ridge);
    cJSON_AddNumberToObject(member, "gflops", roof->rate * 1e-9);
    cJSON_AddNumberToObject(member, "seconds", roof->seconds);
    cJSON_AddStringToObject(member, "bound", roof->memory_bound ? "memory" : "compute");
}

static void add_sizes(cJSON *object, const plan_io_story *story)
{
    const plan_io *io = &story->io;
    cJSON *list = cJSON_AddArrayToObject(object, "sizes");
    for (int i = 0; i < io->size_count; i++) {
        cJSON *size = cJSON_CreateObject();
        add_tiles(size, "tiles", &io->sizes[i]);
        add_bytes(size, "traffic", &io->size_bytes[i]);
        cJSON_AddBoolToObject(size, "best", i == io->best);
        if (story->timed) {
            cJSON_AddNumberToObject(size, "seconds", story->seconds[i]);
        }
        cJSON_AddItemToArray(list, size);
    }
}

static void add_lengths(cJSON *object, const plan_io *io)
{
    cJSON *list = cJSON_AddArrayToObject(object, "memory");
    for (int i = 0; i < PLAN_LENGTHS; i++) {
        cJSON *length = cJSON_CreateObject();
        cJSON_AddNumberToObject(length, "n", (double)io->lengths[i].n);
        cJSON_AddNumberToObject(length, "moved_tiled_bytes", io->lengths[i].moved_tiled);
        cJSON_AddNumberToObject(length, "moved_standard_bytes", io->lengths[i].moved_standard);
        cJSON_AddNumberToObject(length, "tiled_bytes", io->lengths[i].tiled);
        cJSON_AddNumberToObject(length, "standard_bytes", io->lengths[i].standard);
        cJSON_AddNumberToObject(length, "kept_recomputed_bytes", io->lengths[i].kept_tiled);
        cJSON_AddNumberToObject(length, "kept_stored_bytes", io->lengths[i].kept_standard);
        cJSON_AddItemToArray(list, length);
    }
}

void plan_io_add_json(const plan_io_story *story, cJSON *object)
{
    cJSON *io = cJSON_AddObjectToObject(object, "io");
    cJSON_AddStringToObject(io, "near", story->near_name);
    cJSON_AddNumberToObject(io, "flops", story->flops);
    add_tiles(io, "tiles", &story->io.tiles);
    add_point(io, &story->io.here);
    cJSON_AddStringToObject(io, "last", story->last_name);
    cJSON_AddNumberToObject(io, "last_bytes", story->last);
    cJSON_AddNumberToObject(io, "units", story->units);
    add_bytes(io, "last_tiled", &story->last_tiled);
    add_bytes(io, "last_standard", &story->last_standard);
    if (story->source != NULL && story->peak > 0 && story->read > 0) {
        const traffic_roof tiled = plan_io_roof(story, &story->last_tiled),
                           standard = plan_io_roof(story, &story->last_standard);
        cJSON_AddStringToObject(io, "source", story->source);
        cJSON_AddNumberToObject(io, "peak_gflops", story->peak);
        cJSON_AddNumberToObject(io, "read_gbytes", story->read);
        add_roof(io, "roof_tiled", &tiled);
        add_roof(io, "roof_standard", &standard);
    }
    cJSON *points = cJSON_AddArrayToObject(io, "points");
    for (int i = 0; i < PLAN_POINTS; i++) {
        cJSON *point = cJSON_CreateObject();
        add_point(point, &story->io.points[i]);
        cJSON_AddItemToArray(points, point);
    }
    add_sizes(io, story);
    if (story->timed) {
        cJSON_AddNumberToObject(io, "fastest_rows",
                                (double)story->io.sizes[plan_io_fastest(story)].rows);
    }
    add_lengths(io, &story->io);
}
