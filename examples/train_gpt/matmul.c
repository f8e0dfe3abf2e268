/*
 * matmul.c: a blocked product that the compiler vectorises. B is packed into panels of COLUMNS
 * columns, A into strips of ROWS rows; the kernel keeps a ROWS x COLUMNS corner of C in registers.
 * Apart from the library's products on purpose: both ways of attention get the same plain
 * arithmetic around them.
 */
#include "matmul.h"

#ifdef _OPENMP
#include <omp.h>
#endif

enum { ROWS = 6, COLUMNS = 16, BLOCK_M = 16 * ROWS, BLOCK_N = 512, BLOCK_K = 256 };

static int least(int a, int b)
{
    return a < b ? a : b;
}

/* panel[p][j] = B[p][j] for `count` columns, 0 beyond. */
static void pack_panel(int k, int count, const real *b, ptrdiff_t row, ptrdiff_t column,
                       real *panel)
{
    for (int p = 0; p < k; p++) {
        for (int j = 0; j < COLUMNS; j++) {
            panel[p * COLUMNS + j] = j < count ? b[p * row + j * column] : 0;
        }
    }
}

static void pack_strip(int k, int count, const real *a, ptrdiff_t row, ptrdiff_t column,
                       real *strip)
{
    for (int p = 0; p < k; p++) {
        for (int i = 0; i < ROWS; i++) {
            strip[p * ROWS + i] = i < count ? a[i * row + p * column] : 0;
        }
    }
}

static void kernel(int k, const real *restrict strip, const real *restrict panel,
                   real *restrict sums)
{
    real s[ROWS][COLUMNS] = {{0}};
    for (int p = 0; p < k; p++) {
#pragma GCC unroll 6 /* ROWS: so few that the sums stay in registers */
        for (int i = 0; i < ROWS; i++) {
#pragma omp simd
            for (int j = 0; j < COLUMNS; j++) {
                s[i][j] += strip[p * ROWS + i] * panel[p * COLUMNS + j];
            }
        }
    }
    for (int i = 0; i < ROWS; i++) {
        for (int j = 0; j < COLUMNS; j++) {
            sums[i * COLUMNS + j] = s[i][j];
        }
    }
}

static void store(int rows, int columns, const real *sums, real *c, ptrdiff_t row, bool add)
{
    for (int i = 0; i < rows; i++) {
        for (int j = 0; j < columns; j++) {
            real *to = &c[i * row + j];
            *to = add ? *to + sums[i * COLUMNS + j] : sums[i * COLUMNS + j];
        }
    }
}

/* m rows of C, times the packed block of B. */
static void multiply_rows(int m, int n, int k, matrix a, const real *panels, matrix c, bool add)
{
    real strips[BLOCK_M * BLOCK_K], sums[ROWS * COLUMNS];
    for (int i = 0; i < m; i += ROWS) {
        pack_strip(k, least(ROWS, m - i), a.data + i * a.row, a.row, a.column, strips + i * k);
    }
    for (int j = 0; j < n; j += COLUMNS) {
        for (int i = 0; i < m; i += ROWS) {
            kernel(k, strips + i * k, panels + j * k, sums);
            store(least(ROWS, m - i), least(COLUMNS, n - j), sums, c.data + i * c.row + j, c.row,
                  add);
        }
    }
}

static int threads_here(void)
{
#ifdef _OPENMP
    return omp_in_parallel() ? 1 : omp_get_max_threads();
#else
    return 1;
#endif
}

void matmul(int m, int n, int k, matrix a, matrix b, matrix c, bool add)
{
    real panels[BLOCK_N * BLOCK_K];
    int share = (m + threads_here() - 1) / threads_here();
    int step = least(BLOCK_M, (share + ROWS - 1) / ROWS * ROWS);
    for (int j0 = 0; j0 < n; j0 += BLOCK_N) {
        int nn = least(BLOCK_N, n - j0);
        for (int p0 = 0; p0 < k; p0 += BLOCK_K) {
            int kk = least(BLOCK_K, k - p0);
#pragma omp parallel
            {
#pragma omp for
                for (int j = 0; j < nn; j += COLUMNS) {
                    pack_panel(kk, least(COLUMNS, nn - j),
                               b.data + p0 * b.row + (j0 + j) * b.column, b.row, b.column,
                               panels + j * kk);
                }
#pragma omp for schedule(dynamic)
                for (int i = 0; i < m; i += step) {
                    matrix rows = {a.data + i * a.row + p0 * a.column, a.row, a.column};
                    matrix to = {c.data + i * c.row + j0, c.row, 1};
                    multiply_rows(least(step, m - i), nn, kk, rows, panels, to, add || p0 > 0);
                }
            }
        }
    }
}
