/*
 * append.c: see append.h.
 */
#include "append.h"
#include "judge.h"
#include "steps.h"

#include <inttypes.h>
#include <stdio.h>

bool append_judge(dice *d, char *line, size_t line_size, char *sentence, size_t size)
{
    static const double bases[] = {10000, 500000, 100, 1};
    char error[512], why[512] = "";
    problem_spec spec;
    steps s;
    const char *table = judge_draw_table(d);
    const int threads = 1 + (int)dice_roll(d, 3);
    draw_step_line(d, line, line_size);
    if (!problem_parse(line, &spec, error, sizeof error)) {
        return true;
    }
    const bool turned = !dice_one_in(d, 3);
    const rotation r = {2 + 2 * dice_roll(d, spec.d / 2), dice_one_in(d, 2),
                        bases[dice_roll(d, 4)]};
    problem_print(&spec, line, line_size);
    if (!steps_open(&spec, turned ? &r : NULL, &s)) {
        return true;
    }
    const bool ok = steps_agree(&s, table, threads, why, sizeof why);
    snprintf(sentence, size, "new rows, rope_dims %" PRId64 ", interleaved %d, base %g: %s",
             turned ? r.dims : 0, r.interleaved, r.base, why);
    steps_close(&s);
    return ok;
}
