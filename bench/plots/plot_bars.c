/*
 * plot_bars.c: `attn bench --plot` with peers: each problem is a group of bars, one per
 * implementation. The upper row shows the share of the ceiling measured in the same run, the lower
 * row the factor by which libattn is faster.
 */
#include "plot_bars.h"
#include "plot_page.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* The results as groups of `kinds` that follow each other, one group per problem. */
struct bars {
    const bench_result *results;
    int count, kinds;
};

/* ---- Words ----------------------------------------------------------------------------------- */

enum { WORDS = 6, LENGTH = 48 };

/* Score steps and the like, which set a problem apart from the plain one. */
static void name_options(const problem_spec *problem, char word[LENGTH])
{
    snprintf(word, LENGTH, "%s%s%s%s%s%s%s%s", problem->softcap > 0 ? "softcap " : "",
             problem->alibi[0] != '\0' ? "ALiBi " : "", problem->bias[0] != '\0' ? "bias " : "",
             problem->bias, problem->mask[0] != '\0' ? " mask " : "", problem->mask,
             problem->has_window ? " window" : "", problem->page > 0 ? " pages" : "");
    const size_t blanks = strspn(word, " ");
    memmove(word, word + blanks, strlen(word + blanks) + 1);
    for (size_t end = strlen(word); end > 0 && word[end - 1] == ' '; end--) {
        word[end - 1] = '\0';
    }
}

/* The name of a problem: type, head dim, heads, length, causal, options; "" without such a word. */
static void name_problem(const problem_spec *problem, char word[WORDS][LENGTH])
{
    static const char *const type[] = {
        [ATTN_F64] = "f64", [ATTN_F32] = "f32", [ATTN_F16] = "f16", [ATTN_BF16] = "bf16"};
    snprintf(word[0], LENGTH, "%s", type[problem->dtype]);
    snprintf(word[1], LENGTH, "d=%lld", (long long)problem->d);
    snprintf(word[2], LENGTH, problem->hkv == problem->hq ? "H=%lld" : "H=%lld/%lld",
             (long long)problem->hq, (long long)problem->hkv);
    snprintf(word[3], LENGTH, problem->nk == problem->nq ? "N=%lld" : "N=%lld/%lld",
             (long long)problem->nq, (long long)problem->nk);
    snprintf(word[4], LENGTH, "%s", problem->causal ? "causal" : "");
    name_options(problem, word[5]);
}

/* Words that differ among the problems stand below each group, a line each, the others in the
 * title. */
static void find_varied(const struct bars *bars, bool varied[WORDS])
{
    char first[WORDS][LENGTH], word[WORDS][LENGTH];
    name_problem(bars->results[0].problem, first);
    for (int i = 0; i < bars->count; i++) {
        name_problem(bars->results[i].problem, word);
        for (int w = 0; w < WORDS; w++) {
            varied[w] |= strcmp(word[w], first[w]) != 0;
        }
    }
}

static void print_words(FILE *gnuplot, const problem_spec *problem, const bool varied[WORDS],
                        bool which, const char *separator)
{
    char word[WORDS][LENGTH];
    name_problem(problem, word);
    const char *between = "";
    bool differ = false;
    for (int w = 0; w < WORDS; w++) {
        differ |= varied[w];
        if (varied[w] == which && word[w][0] != '\0') {
            fprintf(gnuplot, "%s%s", between, word[w]);
            between = separator;
        }
    }
    if (which && differ && between != separator) {
        fputs("plain", gnuplot);
    }
}

/* Characters of the longest word below the groups, and the lines that they take. */
static int label_width(const struct bars *bars, const bool varied[WORDS], int *lines)
{
    char word[WORDS][LENGTH];
    size_t longest = 0;
    *lines = 0;
    for (int w = 0; w < WORDS; w++) {
        *lines += varied[w];
    }
    for (int i = 0; i < bars->count; i++) {
        name_problem(bars->results[i].problem, word);
        for (int w = 0; w < WORDS; w++) {
            size_t length = varied[w] ? strlen(word[w]) : 0;
            longest = length > longest ? length : longest;
        }
    }
    return (int)longest;
}

/* ---- Shares ---------------------------------------------------------------------------------- */

/* A type that tiles take as it is, on a processor that has them. */
static bool is_of_tiles(const bench_result *result)
{
    return isfinite(result->amx_share) &&
           (result->problem->dtype == ATTN_BF16 || result->problem->dtype == ATTN_F16);
}

static double share_of(const bench_result *result)
{
    return !result->measured     ? (double)NAN
           : is_of_tiles(result) ? result->amx_share
                                 : result->share;
}

static const char *ceiling_of(const struct bars *bars)
{
    int tiles = 0, all = 0;
    for (int i = 0; i < bars->count; i++) {
        all += bars->results[i].measured;
        tiles += bars->results[i].measured && is_of_tiles(&bars->results[i]);
    }
    return bars->results[0].device == ATTN_DEVICE_CUDA ? "a large product of matrices"
           : tiles == all                              ? "products of AMX tiles"
           : tiles > 0 ? "products of AMX tiles for bf16 and f16, else multiply-adds of vectors"
                       : "multiply-adds of vectors";
}

/* The reason why a bar can exceed its ceiling; "" if none does. */
static const char *why_above(const struct bars *bars)
{
    const char *why = "";
    for (int i = 0; i < bars->count; i++) {
        const bench_result *result = &bars->results[i];
        bool f32 = result->problem->dtype == ATTN_F32;
        if (!(share_of(result) > 1)) {
            continue;
        }
        if (f32 && result->device == ATTN_DEVICE_CUDA) {
            return "Over 100 %: tensor cores on f32 split into parts of 16 bits; the ceiling is "
                   "that of f32 units.";
        }
        if (f32 && isfinite(result->amx_share)) {
            return "Over 100 %: AMX tiles on f32 split into parts of 16 bits; the ceiling is that "
                   "of vectors.";
        }
        why = "Over 100 %: the ceiling is measured between the samples, and the clock changes.";
    }
    return why;
}

/* ---- The page -------------------------------------------------------------------------------- */

/* A missing number is a gap. */
static void send_data(FILE *gnuplot, const struct bars *bars, const bool varied[WORDS])
{
    fputs("set datafile missing 'nan'\n$data << EOD\n", gnuplot);
    for (int at = 0; at < bars->count; at += bars->kinds) {
        fputc('"', gnuplot);
        print_words(gnuplot, bars->results[at].problem, varied, true, "\\n");
        fputc('"', gnuplot);
        for (int i = 0; i < bars->kinds; i++) {
            const bench_result *result = &bars->results[at + i];
            fprintf(gnuplot, " %.4g %.4g", 100 * share_of(result),
                    result->measured ? result->ratio : (double)NAN);
        }
        fputc('\n', gnuplot);
    }
    fputs("EOD\n", gnuplot);
}

static bool is_there(const struct bars *bars, int kind)
{
    for (int at = kind; at < bars->count; at += bars->kinds) {
        if (bars->results[at].measured) {
            return true;
        }
    }
    return false;
}

static void send_bars(FILE *gnuplot, const struct bars *bars, bool ratios)
{
    const char *separator = "plot ";
    for (int i = ratios ? 1 : 0; i < bars->kinds; i++) {
        if (is_there(bars, i)) {
            fprintf(gnuplot, "%s$data using %d:xtic(1) lc rgb '%s' title \"%s%s\"", separator,
                    2 + 2 * i + ratios, plot_colour[i % PLOT_COLOURS], ratios ? "against " : "",
                    bars->results[i].implementation);
            separator = ", ";
        }
    }
    fputs(ratios ? ", 1 lc rgb '#475569' dt 2 notitle\n" : "\n", gnuplot);
}

static int more(int a, int b)
{
    return a > b ? a : b;
}

void plot_bars(FILE *gnuplot, const char *path, const bench_result *results, int count,
               const char *title)
{
    struct bars bars = {results, count, 1};
    bool varied[WORDS] = {false};
    int lines;
    while (bars.kinds < count && results[bars.kinds].problem == results[0].problem) {
        bars.kinds++;
    }
    find_varied(&bars, varied);
    int width = more(10 * label_width(&bars, varied, &lines) + 12, 14 * (bars.kinds + 1));
    plot_start(gnuplot, path, title, more(130 + width * (count / bars.kinds), 760),
               680 + 36 * lines);
    send_data(gnuplot, &bars, varied);
    fprintf(gnuplot, "set multiplot layout 2,1 title \"%s\\n", title);
    print_words(gnuplot, results[0].problem, varied, false, " ");
    fprintf(gnuplot,
            "\"\nset style data histograms\nset style histogram clustered gap 1\n"
            "set style fill solid 0.9 noborder\nset grid ytics lt 1 lw 0.7 lc rgb '#c4c4c4'\n"
            "set border 3\nset tics nomirror\nset xtics scale 0\n"
            "set key top left Left reverse horizontal\nset yrange [0:]\n"
            "set offsets 0, 0, graph 0.15, 0\nset lmargin 9\nset rmargin 2\nset bmargin %d\n"
            "set xrange [-0.8:%g]\n",
            lines + 1, count / bars.kinds - 0.2);
    const char *why = why_above(&bars);
    fprintf(gnuplot,
            "set title \"share of the ceiling: %s, in the same run%s%s\"\nset ylabel '%%'\n",
            ceiling_of(&bars), why[0] != '\0' ? "\\n" : "", why);
    send_bars(gnuplot, &bars, false);
    fputs("set title 'how many times as fast libattn is'\nset ylabel 'times'\n", gnuplot);
    send_bars(gnuplot, &bars, true);
    fputs("unset multiplot\nunset output\n", gnuplot);
}
