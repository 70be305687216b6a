/* GEMMs with prepacked weights, and all that is computed on their sums, for one target and one dtype: with
 * -DTARGET= the name of the target, and -DTYPE=float, bfloat16 or int8. */
#include "microkernel.h"

/* --- Weights to panels, rows to numbers ------------------------------------------------------------------------------- */

/* Rows of floats to rows of TYPE; for int8 with their scales. */
void TYPED(quantize)(ptrdiff_t rows, ptrdiff_t depth, const float *values, TYPE *quantized) {
    for (ptrdiff_t row = 0; row < rows; row++) to_row(depth, values + row * depth, quantized + row * row_size(depth));
}

#if STEP < 4
/* A column's values at one depth, or at two of them: STEP values of LANES columns. */
INLINE void store_in_panel(TYPE *to, vector now, vector next) {
#if STEP == 1
    (void)next;
    store_float(to, LANES, now);
#else
    uint32_vector both = (rounded(now) >> 16) | (rounded(next) & 0xffff0000u);
    memcpy(to, &both, sizeof both);
#endif
}

INLINE void pack_columns(
    ptrdiff_t count, ptrdiff_t depth, const void *values, ptrdiff_t column_stride, ptrdiff_t depth_stride,
    ptrdiff_t place, TYPE *panel) {
    for (ptrdiff_t k = 0; k < depth; k += STEP) {
        const float *from = (const float *)values + k * depth_stride;
        vector now = load_strided(from, column_stride, count), next = now;
        if (STEP == 2) next = load_strided(from + depth_stride, column_stride, count);
        store_in_panel(panel + place_in_panel(depth, k, place), now, next);
    }
}
#else
INLINE void pack_columns(
    ptrdiff_t count, ptrdiff_t depth, const void *values, ptrdiff_t column_stride, ptrdiff_t depth_stride,
    ptrdiff_t place, TYPE *panel) {
    TYPE *begins = panel + PANEL * in_steps(depth), *scales = begins + PANEL * sizeof(int32_t);
    (void)depth_stride; /* one */
    for (ptrdiff_t column = place; column < place + LANES; column++) {
        const TYPE *numbers = (const TYPE *)values + (column - place) * column_stride;
        int32_t sum = 0;
        float scale = 0.0f;
        for (ptrdiff_t k = 0; k < in_steps(depth); k++) {
            TYPE number = column - place < count ? (TYPE)(numbers[k] - OFFSET) : 0;
            sum += (int8_t)number;
            panel[place_in_panel(depth, k, column)] = number;
        }
        if (column - place < count) memcpy(&scale, numbers + in_steps(depth), sizeof scale);
        sum *= -OFFSET;
        memcpy(begins + column * sizeof sum, &sum, sizeof sum);
        memcpy(scales + column * sizeof scale, &scale, sizeof scale);
    }
}
#endif

/* Panels first_panel to end_panel of a weight whose column j has at depth k weight[j * column_stride + k * depth_stride],
 * filled up with zeros; for int8 its columns are rows that quantize wrote. */
void TYPED(prepack)(
    ptrdiff_t columns, ptrdiff_t depth, ptrdiff_t gates, ptrdiff_t first_panel, ptrdiff_t end_panel, const void *weight,
    ptrdiff_t column_stride, ptrdiff_t depth_stride, TYPE *panels) {
    ptrdiff_t of_gate = columns / gates, across = PANEL / gates, of_value = STEP < 4 ? sizeof(float) : sizeof(TYPE);
    for (ptrdiff_t panel = first_panel; panel < end_panel; panel++)
        for (ptrdiff_t place = 0; place < PANEL; place += LANES) {
            ptrdiff_t unit = panel * across + place % across, column = place / across * of_gate + unit;
            pack_columns(
                of_gate - unit, depth, (const char *)weight + column * column_stride * of_value, column_stride, depth_stride,
                place, panels + panel * panel_size(depth));
        }
}

/* --- Products ----------------------------------------------------------------------------------------------------------- */

#define DEPTH_AT_ONCE (STEP < 4 ? 4 * KC : PTRDIFF_MAX) /* so much of all rows stays in cache */

INLINE void store_tile(
    const tile *sums, ptrdiff_t rows, ptrdiff_t columns, const float *bias, void *out, ptrdiff_t out_stride, int wide,
    int more) {
    for (ptrdiff_t row = 0; row < rows; row++)
        for (ptrdiff_t column = 0; column < smaller(PANEL, columns); column += LANES) {
            ptrdiff_t place = row * out_stride + column, count = columns - column;
            vector sum = load_from_tile(sums, row, column);
            if (more) sum += load_float((float *)out + place, count);
            else if (bias) sum += load_float(bias + column, count);
            if (wide) store_float((float *)out + place, count, sum);
            else store_result((RESULT *)out + place, count, sum);
        }
}

/* Columns of panels first_panel to end_panel of out (rows, columns) = a (rows, depth) times the weight, plus a bias. If
 * `wide`, out is of float, and long sums are added up in parts of their depth; otherwise in one pass. */
void TYPED(product)(
    ptrdiff_t rows, ptrdiff_t columns, ptrdiff_t depth, ptrdiff_t first_panel, ptrdiff_t end_panel, const TYPE *a,
    ptrdiff_t stride, const TYPE *panels, const float *bias, void *out, ptrdiff_t out_stride, int wide) {
    ptrdiff_t at_once = wide ? DEPTH_AT_ONCE : PTRDIFF_MAX, size = panel_size(depth);
    for (ptrdiff_t begin = 0; begin == 0 || begin < depth; begin += at_once)
        for (ptrdiff_t index = first_panel; index < end_panel; index++)
            for (ptrdiff_t row = 0, height; row < rows; row += height) {
                ptrdiff_t deep = smaller(depth - begin, at_once), column = index * PANEL;
                const TYPE *panel = panels + index * size + begin * PANEL;
                void *to = (char *)out + (row * out_stride + column) * (ptrdiff_t)(wide ? sizeof(float) : sizeof(RESULT));
                prefetch_plan plan;
                tile sums;
                height = tile_rows(rows - row);
                plan_panel(&plan, panel + size, panel_size(deep), row, row + height, rows);
                multiply(height, deep, a + row * stride + begin, stride, panel, &plan, &sums);
                store_tile(&sums, height, columns - column, bias ? bias + column : NULL, to, out_stride, wide, begin > 0);
            }
}

/* carry relu(transform) + (1 - carry) x for x (rows, units): a panel of the weight has both sums of 32 units. `quantized`: x
 * as rows of int8. */
void TYPED(highway)(
    ptrdiff_t rows, ptrdiff_t units, ptrdiff_t first_panel, ptrdiff_t end_panel, const VALUE *x, const TYPE *quantized,
    const TYPE *panels, const float *bias, VALUE *out) {
    const TYPE *a = STEP < 4 ? (const TYPE *)x : quantized;
    for (ptrdiff_t index = first_panel; index < end_panel; index++)
        for (ptrdiff_t row = 0, height; row < rows; row += height) {
            ptrdiff_t first = index * (PANEL / 2), size = panel_size(units);
            const TYPE *panel = panels + index * size;
            prefetch_plan plan;
            tile sums;
            height = tile_rows(rows - row);
            plan_panel(&plan, panel + size, size, row, row + height, rows);
            multiply(height, units, a + row * row_size(units), row_size(units), panel, &plan, &sums);
            for (ptrdiff_t r = 0; r < height; r++)
                for (ptrdiff_t unit = first; unit < smaller(first + PANEL / 2, units); unit += LANES) {
                    ptrdiff_t place = (row + r) * units + unit, count = units - unit;
                    vector transform = load_from_tile(&sums, r, unit - first) + load_float(bias + unit, count);
                    vector carry = load_from_tile(&sums, r, unit - first + PANEL / 2) + load_float(bias + units + unit, count);
                    vector before = load_value(x + place, count), after = maximum(broadcast(0.0f), transform);
                    store_value(out + place, count, sigmoid(carry) * (after - before) + before);
                }
        }
}

#include "lstm_forward.h"
#if STEP < 4
#include "lstm_backward.h"
#include "logsumexp.h"
#endif
