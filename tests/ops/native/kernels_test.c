/* The kernels of one target and dtype against plain loops, as a program: for processors that are emulated, and for
 * sanitizers (make test-kernels). Exits with 1 where a result is wrong. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels.c"

#define NAME_(x) #x
#define NAME(x) NAME_(x)
#define WIDE_TOLERANCE (STEP == 1 ? 3e-6 : STEP == 2 ? 0.02 : 0.06)

static int failures = 0;
static uint32_t seed = 1;

static float draw(void) {
    seed = seed * 1664525u + 1013904223u;
    return (float)(seed >> 8) / (1 << 23) - 1.0f;
}

static float *floats(ptrdiff_t count, int random) {
    float *x = malloc((size_t)(count ? count : 1) * sizeof *x);
    for (ptrdiff_t k = 0; k < count; k++) x[k] = random ? draw() : 0.0f;
    return x;
}

/* Exactly as many values as the kernel may touch, so that a sanitizer sees one too many. */
static TYPE *rows_of(ptrdiff_t rows, ptrdiff_t depth, const float *values) {
    TYPE *numbers = malloc((size_t)(rows * row_size(depth)) * sizeof *numbers);
    TYPED(quantize)(rows, depth, values, numbers);
    return numbers;
}

static TYPE *packed(ptrdiff_t columns, ptrdiff_t depth, ptrdiff_t gates, const float *weight) {
    ptrdiff_t panels = (columns / gates + PANEL / gates - 1) / (PANEL / gates);
    TYPE *numbers = STEP == 4 ? rows_of(columns, depth, weight) : NULL;
    TYPE *result = malloc((size_t)(panels * panel_size(depth)) * sizeof *result);
    TYPED(prepack)(
        columns, depth, gates, 0, panels, STEP == 4 ? (const void *)numbers : weight, STEP == 4 ? row_size(depth) : depth, 1,
        result);
    free(numbers);
    return result;
}

static void check(const char *name, const float *found, const double *expected, ptrdiff_t count, double tolerance) {
    double largest = 1.0, worst = 0.0;
    for (ptrdiff_t k = 0; k < count; k++) largest = fmax(largest, fabs(expected[k]));
    for (ptrdiff_t k = 0; k < count; k++) worst = fmax(worst, isnan(found[k]) ? INFINITY : fabs(found[k] - expected[k]));
    if (worst <= tolerance * largest) return;
    printf("%s %s %s: %g off, of %g\n", NAME(TARGET), NAME(TYPE), name, worst, largest);
    failures++;
}

static double dot(const float *a, const float *b, ptrdiff_t count) {
    double sum = 0.0;
    for (ptrdiff_t k = 0; k < count; k++) sum += (double)a[k] * b[k];
    return sum;
}

static void test_product(ptrdiff_t rows, ptrdiff_t columns, ptrdiff_t depth) {
    float *a = floats(rows * depth, 1), *weight = floats(columns * depth, 1), *bias = floats(columns, 1);
    float *out = floats(rows * columns, 0);
    double *expected = malloc((size_t)(rows * columns) * sizeof *expected);
    ptrdiff_t panels = (columns + PANEL - 1) / PANEL;
    TYPE *numbers = rows_of(rows, depth, a), *panel = packed(columns, depth, 1, weight);
    for (ptrdiff_t k = 0; k < rows * columns; k++)
        expected[k] = dot(a + k / columns * depth, weight + k % columns * depth, depth) + bias[k % columns];
    for (ptrdiff_t first = 0; first < panels; first++)
        TYPED(product)(rows, columns, depth, first, first + 1, numbers, row_size(depth), panel, bias, out, columns, 1);
    check("product", out, expected, rows * columns, WIDE_TOLERANCE);
    free(a), free(weight), free(bias), free(out), free(expected), free(numbers), free(panel);
}

static void test_highway(ptrdiff_t rows, ptrdiff_t units) {
    float *x = floats(rows * units, 1), *weight = floats(2 * units * units, 1), *bias = floats(2 * units, 1);
    float *found = floats(rows * units, 0);
    double *expected = malloc((size_t)(rows * units) * sizeof *expected);
    TYPE *numbers = rows_of(rows, units, x), *panel = packed(2 * units, units, 2, weight);
    VALUE *values = malloc((size_t)(rows * units) * sizeof *values), *out = malloc((size_t)(rows * units) * sizeof *out);
    for (ptrdiff_t k = 0; k < rows * units; k++) {
        const float *row = x + k / units * units, *of_unit = weight + k % units * units;
        double transform = dot(row, of_unit, units) + bias[k % units];
        double carry = 1 / (1 + exp(-dot(row, of_unit + units * units, units) - bias[units + k % units]));
        expected[k] = carry * fmax(transform, 0) + (1 - carry) * x[k];
        store_value(values + k, 1, broadcast(x[k]));
    }
    TYPED(highway)(rows, units, 0, (units + PANEL / 2 - 1) / (PANEL / 2), values, numbers, panel, bias, out);
    for (ptrdiff_t k = 0; k < rows * units; k++) found[k] = load_value(out + k, 1)[0];
    check("highway", found, expected, rows * units, WIDE_TOLERANCE);
    free(x), free(weight), free(bias), free(found), free(expected), free(numbers), free(panel), free(values), free(out);
}

/* Without a trace; the projection and the clips, which are so small that they change values, are there. */
static void test_lstm(ptrdiff_t steps, ptrdiff_t rows, ptrdiff_t units, ptrdiff_t width) {
    ptrdiff_t across = (units + UNITS - 1) / UNITS * PANEL, slots = steps * rows;
    float *recurrent = floats(4 * units * width, 1), *projection = floats(width * units, 1);
    float *inputs = floats(slots * 4 * units, 1), *outputs = floats(slots * width, 0);
    float *h = floats(rows * width, 1), *c = floats(rows * units, 1), *start = floats(units + width, 0);
    double *expected = malloc((size_t)(slots * width) * sizeof *expected), *before = malloc((size_t)width * sizeof *before);
    double *cell = malloc((size_t)units * sizeof *cell), *hidden = malloc((size_t)units * sizeof *hidden);
    RESULT *in_panels = calloc((size_t)(slots * across), sizeof *in_panels);
    TYPE *low_h = malloc((size_t)rows * (size_t)row_size(units > width ? units : width) * sizeof *low_h);
    VALUE *low_hidden = malloc((size_t)(rows * units) * sizeof *low_hidden);
    TYPE *of_recurrent = packed(4 * units, width, 4, recurrent), *of_projection = packed(width, units, 1, projection);
    int64_t *batch_sizes = malloc((size_t)steps * sizeof *batch_sizes);
    for (ptrdiff_t t = 0; t < steps; t++) batch_sizes[t] = rows;
    for (ptrdiff_t row = 0; row < rows; row++) {
        for (ptrdiff_t k = 0; k < units; k++) cell[k] = c[row * units + k];
        for (ptrdiff_t k = 0; k < width; k++) before[k] = h[row * width + k];
        for (ptrdiff_t t = 0; t < steps; t++) {
            ptrdiff_t slot = t * rows + row;
            for (ptrdiff_t unit = 0; unit < units; unit++) {
                double gate[GATES];
                for (ptrdiff_t g = 0; g < GATES; g++) {
                    ptrdiff_t column = g * units + unit;
                    gate[g] = inputs[slot * 4 * units + column];
                    store_result(
                        in_panels + slot * across + unit / UNITS * PANEL + g * UNITS + unit % UNITS, 1,
                        broadcast(inputs[slot * 4 * units + column]));
                    for (ptrdiff_t k = 0; k < width; k++) gate[g] += before[k] * recurrent[column * width + k];
                }
                cell[unit] = tanh(gate[1]) / (1 + exp(-gate[0])) + cell[unit] / (1 + exp(-gate[2]));
                cell[unit] = fmin(0.9, fmax(-0.9, cell[unit]));
                hidden[unit] = tanh(cell[unit]) / (1 + exp(-gate[3]));
            }
            for (ptrdiff_t k = 0; k < width; k++) {
                double sum = 0.0;
                for (ptrdiff_t unit = 0; unit < units; unit++) sum += hidden[unit] * projection[k * units + unit];
                before[k] = expected[slot * width + k] = fmin(0.8, fmax(-0.8, sum));
            }
        }
    }
    TYPED(lstm_forward)(
        &(lstm_steps){
            .steps = steps, .end_row = rows, .hidden = units, .width = width, .batch_sizes = batch_sizes, .cell_clip = 0.9f,
            .projection_clip = 0.8f},
        &(forward_pass){
            .recurrent = of_recurrent, .projection = of_projection, .inputs = in_panels, .row_stride = across,
            .gate_stride = UNITS, .unit_stride = PANEL, .outputs = outputs, .h = h, .c = c, .start_h = start,
            .start_c = start, .low_h = low_h, .low_units = low_hidden});
    check("lstm", outputs, expected, slots * width, 3 * WIDE_TOLERANCE);
    free(recurrent), free(projection), free(inputs), free(outputs), free(h), free(c), free(start), free(expected);
    free(before), free(cell), free(hidden), free(in_panels), free(low_h), free(low_hidden), free(of_recurrent);
    free(of_projection), free(batch_sizes);
}

#if STEP < 4
static void test_logsumexp(ptrdiff_t positions, ptrdiff_t classes, ptrdiff_t depth) {
    float *hidden = floats(positions * depth, 1), *weight = floats(classes * depth, 1), *bias = floats(classes, 1);
    float *max = floats(positions, 0), *total = floats(positions, 0), *found = floats(positions, 0);
    double *expected = malloc((size_t)positions * sizeof *expected);
    TYPE *panels = packed(positions, depth, 1, hidden), *numbers = rows_of(classes, depth, weight);
    for (ptrdiff_t k = 0; k < positions; k++) {
        double sum = 0.0;
        for (ptrdiff_t j = 0; j < classes; j++) sum += exp(dot(hidden + k * depth, weight + j * depth, depth) + bias[j]);
        expected[k] = log(sum);
    }
    TYPED(logsumexp)(positions, classes, depth, panels, numbers, bias, NULL, max, total);
    for (ptrdiff_t k = 0; k < positions; k++) found[k] = (max[k] + log2f(total[k])) * 0.693147180559945f;
    check("logsumexp", found, expected, positions, WIDE_TOLERANCE);
    free(hidden), free(weight), free(bias), free(max), free(total), free(found), free(expected), free(panels), free(numbers);
}
#endif

int main(void) {
    for (ptrdiff_t rows = 1; rows < 15; rows++)
        for (ptrdiff_t columns = 1; columns < 150; columns += 37)
            for (ptrdiff_t depth = 2; depth < 600; depth = depth * 3 + 2) test_product(rows, columns, depth);
    test_product(13, 70, 2050);
    for (ptrdiff_t units = 2; units < 80; units += 14) test_highway(7, units), test_highway(1, units);
    for (ptrdiff_t units = 6; units < 70; units += 18) test_lstm(4, 7, units, 10), test_lstm(3, 1, units, 34);
#if STEP < 4
    test_logsumexp(70, 100, 18), test_logsumexp(3, 13, 2);
#endif
    printf("%s %s: %s\n", NAME(TARGET), NAME(TYPE), failures ? "FAILED" : "as plain loops");
    return failures > 0;
}
