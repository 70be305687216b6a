/* The micro-kernel of all products, in the terms of BLIS: MR rows of a times NR columns of a weight are summed in
 * registers over the depth, which is in blocks of KC.
 *
 * A panel has 64 columns, block by block of its depth; in a block micro-panels of NR columns follow one another, and in a
 * micro-panel depth by depth the values of its columns, of each column STEP values together. A tile is MR rows by one
 * panel: in the recurrence the four gates of 16 units, so that the cell is computed on sums that are still in cache. Gates
 * are written to memory only as the trace for training.
 */
#pragma once

#include "dtype.h"

#define MR 6
#define NR (LANES * (REGISTERS == 32 ? 4 : 2))
#define KC 256
#define GATES 4
#define UNITS (PANEL / GATES) /* of the recurrence in a panel */

/* Where in a panel the value of a column lies at one depth. */
INLINE ptrdiff_t place_in_panel(ptrdiff_t depth, ptrdiff_t k, ptrdiff_t column) {
    ptrdiff_t begin = k / KC * KC, of_block = smaller(in_steps(depth) - begin, KC);
    return begin * PANEL + column / NR * NR * of_block + (k - begin - k % STEP) * NR + column % NR * STEP + k % STEP;
}

/* --- Prefetching --------------------------------------------------------------------------------------------------- */

#define LINE 64 /* bytes */
#define LINE_OF(TYPE) ((ptrdiff_t)(LINE / sizeof(TYPE)))
/* at most, in the backward pass: 64 units of the cells before and after, and of each gate and its gradient */
#define LINES_OF_A_ROW (2 * (1 + GATES) * (PANEL / LINE_OF(float)))
_Static_assert(UNITS % LANES == 0, "a register has units of one gate");
_Static_assert(KC % LINE_OF(TYPE) == 0, "a block of the depth is whole lines of a row");

/* A stretch of the next weights, for the larger cache, and lines that lie here and there, for the smaller one. They are
 * prefetched bit by bit while a tile is multiplied: all at once they would keep the tile's own weights waiting. */
typedef struct {
    const char *next, *end;
    ptrdiff_t count;
    const void *lines[MR * LINES_OF_A_ROW];
} prefetch_plan;

static const prefetch_plan no_prefetch;

/* Plan to prefetch that part of the next panel which corresponds to the rows `row` to `end` of all `rows`: each call for
 * some of the rows of this panel fetches its share. There are no lines yet. */
INLINE void plan_panel(
    prefetch_plan *plan, const TYPE *panel, ptrdiff_t size, ptrdiff_t row, ptrdiff_t end, ptrdiff_t rows) {
    ptrdiff_t bytes = size * (ptrdiff_t)sizeof(TYPE);
    plan->next = (const char *)panel + bytes * row / rows / LINE * LINE;
    plan->end = (const char *)panel + bytes * end / rows / LINE * LINE;
    plan->count = 0;
}

INLINE void plan_line(prefetch_plan *plan, const void *line) { plan->lines[plan->count++] = line; }

/* The rest of a plan, and how much of it is prefetched at a time. */
typedef struct {
    const char *next, *end;
    const void *const *line, *const *last;
    ptrdiff_t bytes, lines;
} prefetcher;

INLINE prefetcher start_prefetch(const prefetch_plan *plan, ptrdiff_t times) {
    ptrdiff_t stretch = (plan->end - plan->next) / LINE;
    return (prefetcher){
        .next = plan->next,
        .end = plan->end,
        .line = plan->lines,
        .last = plan->lines + plan->count,
        .bytes = (stretch + times - 1) / times * LINE,
        .lines = (plan->count + times - 1) / times,
    };
}

INLINE void prefetch_some(prefetcher *left) {
    for (const char *stop = left->next + left->bytes; left->next < stop && left->next < left->end; left->next += LINE)
        __builtin_prefetch(left->next, 0, 2);
    for (const void *const *stop = left->line + left->lines; left->line < stop && left->line < left->last; left->line++)
        __builtin_prefetch(*left->line, 0, 3);
}

/* --- A tile: rows times a panel -------------------------------------------------------------------------------------- */

/* A tile's sums when they are complete. They lie in memory (in cache), so that only micro_kernel, which computes them in
 * registers, has to be compiled for each number of rows. */
typedef struct { _Alignas(64) float values[MR][PANEL]; } tile;

INLINE vector load_from_tile(const tile *sums, ptrdiff_t row, ptrdiff_t column) {
    return load_float(sums->values[row] + column, LANES);
}
INLINE void store_in_tile(tile *sums, ptrdiff_t row, ptrdiff_t column, vector x) {
    store_float(&sums->values[row][column], LANES, x);
}

/* How many rows the next tile takes, so that tiles are about equally high. */
INLINE ptrdiff_t tile_rows(ptrdiff_t rows_left) {
    ptrdiff_t tiles = (rows_left + MR - 1) / MR;
    return (rows_left + tiles - 1) / tiles;
}

/* `rows` and `vectors`, of columns from `column` on, are known when this is compiled: sums stay in registers. */
INLINE void micro_kernel(
    const int rows, const int vectors, ptrdiff_t column, ptrdiff_t depth, const TYPE *a, ptrdiff_t stride,
    const TYPE *panel, prefetcher *left, tile *result) {
    accumulators sum[MR][PANEL / LANES];
    UNROLL for (int row = 0; row < rows; row++)
        UNROLL for (int v = 0; v < vectors; v++) sum[row][v] = first_sum(panel, depth, column + v * LANES);
    for (ptrdiff_t begin = 0; begin < depth; begin += KC) {
        ptrdiff_t of_block = smaller(in_steps(depth) - begin, KC);
        const TYPE *block = panel + begin * PANEL + column * of_block;
        for (ptrdiff_t line = 0; line < of_block; line += LINE_OF(TYPE)) {
            prefetch_some(left);
            for (ptrdiff_t k = line, end = smaller(line + LINE_OF(TYPE), of_block); k < end; k += STEP)
                UNROLL for (int part = 0; part < PARTS; part++) {
                    int32_vector weights[PANEL / LANES];
                    UNROLL for (int v = 0; v < vectors; v++) {
                        ptrdiff_t place = v * LANES / NR * NR * of_block + k * NR + v * LANES % NR * STEP;
                        memcpy(&weights[v], block + place, sizeof weights[v]);
                        weights[v] = part_of(weights[v], part);
                    }
                    UNROLL for (int row = 0; row < rows; row++) {
                        int32_t bits;
                        memcpy(&bits, a + row * stride + begin + k, sizeof bits);
                        int32_vector value = part_of(broadcast_integer(bits), part);
                        UNROLL for (int v = 0; v < vectors; v++) sum[row][v] = add_products(sum[row][v], value, weights[v]);
                    }
                }
        }
    }
    UNROLL for (int row = 0; row < rows; row++)
        UNROLL for (int v = 0; v < vectors; v++)
            store_in_tile(
                result, row, column + v * LANES,
                scaled(sum[row][v], depth, a + row * stride, panel, column + v * LANES));
}

/* One row alone has only NR sums, too few to hide the latency of an instruction: it takes several micro-panels at once. */
INLINE void multiply_rows(
    const int rows, const int columns, ptrdiff_t depth, const TYPE *a, ptrdiff_t stride, const TYPE *panel,
    const prefetch_plan *plan, tile *result) {
    prefetcher left = start_prefetch(plan, (depth / LINE_OF(TYPE) + 1) * (PANEL / columns));
    for (ptrdiff_t column = 0; column < PANEL; column += columns)
        micro_kernel(rows, columns / LANES, column, depth, a, stride, panel, &left, result);
}

/* result = a (rows, depth) times a panel */
static __attribute__((noinline)) void multiply(
    ptrdiff_t rows, ptrdiff_t depth, const TYPE *a, ptrdiff_t stride, const TYPE *panel, const prefetch_plan *plan,
    tile *result) {
    switch (rows) {
        case 1: multiply_rows(1, NR < 32 ? 4 * NR : PANEL, depth, a, stride, panel, plan, result); break;
        case 2: multiply_rows(2, NR < 64 ? 2 * NR : PANEL, depth, a, stride, panel, plan, result); break;
        case 3: multiply_rows(3, NR, depth, a, stride, panel, plan, result); break;
        case 4: multiply_rows(4, NR, depth, a, stride, panel, plan, result); break;
        case 5: multiply_rows(5, NR, depth, a, stride, panel, plan, result); break;
        default: multiply_rows(6, NR, depth, a, stride, panel, plan, result);
    }
}
