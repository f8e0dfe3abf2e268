/*
 * layers.c: see layers.h. Compiled with -ffast-math (no infinities here), which lets the compiler
 * vectorise sums and exp.
 */
#include "layers.h"

#include <tgmath.h>

enum {
    COLUMNS = 16, /* of a matrix, that one thread sums over all rows */
    /* elements of an array that one thread maps; a fixed start keeps bits independent of the
     * threads */
    CHUNK = 4096
};

/* ---- Embedding ------------------------------------------------------------------------------- */

void embed_forward(int rows, int length, int width, const uint8_t *tokens, const int64_t *first,
                   const real *token, const real *position, real *out)
{
#pragma omp parallel for
    for (int r = 0; r < rows; r++) {
        int64_t at = (first == NULL ? 0 : first[r / length]) + r % length;
        const real *t = token + tokens[r] * width, *p = position + at * width;
        for (int c = 0; c < width; c++) {
            out[(int64_t)r * width + c] = t[c] + p[c];
        }
    }
}

void embed_backward(int rows, int length, int width, const uint8_t *tokens, const real *d_out,
                    real *d_token, real *d_position)
{
#pragma omp parallel for
    for (int first = 0; first < width; first += COLUMNS) {
        int end = first + COLUMNS < width ? first + COLUMNS : width;
        for (int r = 0; r < rows; r++) {
            real *t = d_token + tokens[r] * width, *p = d_position + r % length * width;
            for (int c = first; c < end; c++) {
                t[c] += d_out[(int64_t)r * width + c];
                p[c] += d_out[(int64_t)r * width + c];
            }
        }
    }
}

/* ---- LayerNorm ------------------------------------------------------------------------------- */

void norm_forward(int rows, int width, const real *x, const real *gain, const real *bias, real *out,
                  real (*stats)[2])
{
#pragma omp parallel for
    for (int r = 0; r < rows; r++) {
        const real *row = x + (int64_t)r * width;
        real sum = 0, squares = 0;
        for (int c = 0; c < width; c++) {
            sum += row[c];
        }
        real mean = sum / (real)width;
        for (int c = 0; c < width; c++) {
            squares += (row[c] - mean) * (row[c] - mean);
        }
        real scale = 1 / sqrt(squares / (real)width + (real)1e-5);
        for (int c = 0; c < width; c++) {
            out[(int64_t)r * width + c] = (row[c] - mean) * scale * gain[c] + bias[c];
        }
        stats[r][0] = mean, stats[r][1] = scale;
    }
}

/* With y = (x - mean) scale and g = d_out gain: d_x = scale (g - mean(g) - y mean(g y)). */
static void norm_backward_row(int width, const real *x, const real *gain, const real *stats,
                              const real *d_out, real *d_x)
{
    real mean = stats[0], scale = stats[1], sum = 0, along = 0;
    for (int c = 0; c < width; c++) {
        real g = d_out[c] * gain[c];
        sum += g;
        along += g * (x[c] - mean) * scale;
    }
    sum /= (real)width, along /= (real)width;
    for (int c = 0; c < width; c++) {
        d_x[c] += scale * (d_out[c] * gain[c] - sum - (x[c] - mean) * scale * along);
    }
}

void norm_backward(int rows, int width, const real *x, const real *gain, const real (*stats)[2],
                   const real *d_out, real *d_x, real *d_gain, real *d_bias)
{
#pragma omp parallel for
    for (int r = 0; r < rows; r++) {
        int64_t at = (int64_t)r * width;
        norm_backward_row(width, x + at, gain, stats[r], d_out + at, d_x + at);
    }
#pragma omp parallel for
    for (int first = 0; first < width; first += COLUMNS) {
        int end = first + COLUMNS < width ? first + COLUMNS : width;
        for (int r = 0; r < rows; r++) {
            for (int c = first; c < end; c++) {
                int64_t at = (int64_t)r * width + c;
                d_gain[c] += d_out[at] * (x[at] - stats[r][0]) * stats[r][1];
                d_bias[c] += d_out[at];
            }
        }
    }
}

/* ---- GELU ------------------------------------------------------------------------------------ */

/* x (1 + tanh(u)) / 2 = x / (1 + exp(-2u)) with u = sqrt(2 / pi) (x + 0.044715 x^3) */
static const real TWICE_ROOT = (real)1.5957691216057308, CUBIC = (real)0.044715;

static real gate(real x)
{
    real exponent = -TWICE_ROOT * (x + CUBIC * x * x * x);
    return 1 / (1 + exp(exponent < 80 ? exponent : 80)); /* no infinity */
}

static int64_t chunk_end(int64_t first, int64_t count)
{
    return first + CHUNK < count ? first + CHUNK : count;
}

void gelu_forward(int64_t count, const real *x, real *out)
{
#pragma omp parallel for
    for (int64_t first = 0; first < count; first += CHUNK) {
        const int64_t end = chunk_end(first, count);
        for (int64_t i = first; i < end; i++) {
            out[i] = x[i] * gate(x[i]);
        }
    }
}

void gelu_backward(int64_t count, const real *x, real *d)
{
#pragma omp parallel for
    for (int64_t first = 0; first < count; first += CHUNK) {
        const int64_t end = chunk_end(first, count);
        for (int64_t i = first; i < end; i++) {
            real g = gate(x[i]);
            d[i] *= g + x[i] * g * (1 - g) * TWICE_ROOT * (1 + 3 * CUBIC * x[i] * x[i]);
        }
    }
}

/* ---- Loss ------------------------------------------------------------------------------------ */

/* Turns a row of logits into probabilities. Returns -ln of the target's. */
static double softmax_loss(real *logits, int target)
{
    real most = logits[0], sum = 0;
    for (int v = 1; v < VOCABULARY; v++) {
        most = logits[v] > most ? logits[v] : most;
    }
    double at_target = (double)(logits[target] - most);
    for (int v = 0; v < VOCABULARY; v++) {
        logits[v] = exp(logits[v] - most);
        sum += logits[v];
    }
    for (int v = 0; v < VOCABULARY; v++) {
        logits[v] /= sum;
    }
    return log((double)sum) - at_target;
}

double cross_entropy(int rows, const uint8_t *targets, real *logits, double *losses)
{
    double total = 0;
#pragma omp parallel for
    for (int r = 0; r < rows; r++) {
        real *row = logits + (int64_t)r * VOCABULARY;
        losses[r] = softmax_loss(row, targets[r]);
        row[targets[r]] -= 1;
        for (int v = 0; v < VOCABULARY; v++) {
            row[v] /= (real)rows;
        }
    }
    for (int r = 0; r < rows; r++) {
        total += losses[r];
    }
    return total / rows;
}
