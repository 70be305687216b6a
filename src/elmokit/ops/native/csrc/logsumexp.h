/* Included by kernels.c for float and bfloat16: log(sum(exp(hidden @ weight.T + bias))) and its gradient.
 *
 * The rows of a tile are classes, its lanes positions, so that a position's sum grows in a lane of its own; logits are
 * used in cache, and never reach memory. `panels` hold hidden (positions, depth), a position a column; `across` hidden.T,
 * a column for each value, over the positions (up to an even number of them). Logits and their maxima are in units of
 * log 2. The class `excluded` of a position is left out; -1 for none, NULL for none in any position.
 */

#define CLASS_BYTES (1 << 18) /* weights that stay in cache while all positions pass */
#define VECTORS (PANEL / LANES)
_Static_assert(POSITIONS % KC == 0, "a tile of positions begins with a block of their depth");
_Static_assert(MR % 2 == 0, "a tile's classes are multiplied in pairs");

INLINE int32_vector excluded_at(const int32_t *excluded, ptrdiff_t position, ptrdiff_t count) {
    int32_vector classes = broadcast_integer(-1);
    if (excluded && count > 0) memcpy(&classes, excluded + position, (size_t)smaller(count, LANES) * sizeof *excluded);
    return classes;
}

/* Writes the logits of `rows` classes, from class `first` on. */
INLINE void logits_tile(
    ptrdiff_t rows, ptrdiff_t first, ptrdiff_t depth, const TYPE *weight, const float *bias, const TYPE *panel,
    const int32_vector excluded[VECTORS], tile *logits) {
    multiply(rows, depth, weight + first * depth, depth, panel, &no_prefetch, logits);
    for (ptrdiff_t row = 0; row < rows; row++)
        for (int v = 0; v < VECTORS; v++) {
            vector logit = load_from_tile(logits, row, v * LANES) * LOG2_E + bias[first + row] * LOG2_E;
            int32_vector out = excluded[v] == (int32_t)(first + row);
            store_in_tile(logits, row, v * LANES, where(~out, logit) + where(out, broadcast(-FLT_MAX)));
        }
}

/* For each position the `max` of its logits, and the `total` of 2^(logit - max), both in units of log 2; NaN if a logit
 * overflows in these units, and -FLT_MAX of them if all are -infinity. There is at least one class. Terms are summed up for
 * each tile, then for each block of classes, then over blocks: one by one, tens of thousands of small ones would be lost in
 * rounding after a large one. */
void TYPED(logsumexp)(
    ptrdiff_t positions, ptrdiff_t classes, ptrdiff_t depth, const TYPE *panels, const TYPE *weight, const float *bias,
    const int32_t *excluded, float *max, float *total) {
    ptrdiff_t at_once = CLASS_BYTES / (depth * (ptrdiff_t)sizeof(TYPE)) / MR * MR + MR;
    for (ptrdiff_t begin = 0; begin < classes; begin += at_once)
        for (ptrdiff_t position = 0; position < positions; position += PANEL) {
            vector high[VECTORS], sum[VECTORS];
            int32_vector left_out[VECTORS];
            for (int v = 0; v < VECTORS; v++) {
                ptrdiff_t at = position + v * LANES, count = positions - at;
                left_out[v] = excluded_at(excluded, at, count);
                high[v] = begin ? load_float(max + at, count) : broadcast(-FLT_MAX);
                sum[v] = broadcast(0.0f);
            }
            for (ptrdiff_t first = begin, end = smaller(begin + at_once, classes), rows; first < end; first += rows) {
                tile logits;
                rows = tile_rows(end - first);
                logits_tile(rows, first, depth, weight, bias, panels + position * depth, left_out, &logits);
                for (int v = 0; v < VECTORS; v++) {
                    vector before = high[v];
                    for (ptrdiff_t row = 0; row < rows; row++) /* in this order of max a NaN is left to the sum */
                        high[v] = maximum(load_from_tile(&logits, row, v * LANES), high[v]);
                    vector of_rows = broadcast(0.0f);
                    for (ptrdiff_t row = 0; row < rows; row++)
                        of_rows += exp2_of(load_from_tile(&logits, row, v * LANES) - high[v]);
                    sum[v] = sum[v] * exp2_of(before - high[v]) + of_rows;
                }
            }
            for (int v = 0; v < VECTORS; v++) {
                ptrdiff_t at = position + v * LANES, count = positions - at;
                if (begin)
                    sum[v] += load_float(total + at, count) * exp2_of(load_float(max + at, count) - high[v]);
                store_float(max + at, count, high[v]);
                store_float(total + at, count, sum[v]);
            }
        }
}

/* --- Gradient ----------------------------------------------------------------------------------------------------- */

typedef struct {
    ptrdiff_t positions, classes, depth;
    const TYPE *panels, *across, *weight;
    const float *bias;
    const int32_t *excluded;
    const float *result, *grad;
    float *grad_hidden, *grad_weight, *grad_bias; /* (depth, positions), (classes, depth), (classes), which are added to */
    TYPE *scratch;                                /* 2 * CLASSES * POSITIONS + depth * CLASSES values */
} softmax_gradient;

/* The gradient of the logits of `classes` from `first` on at the 64 positions from `position` on: as rows of classes,
 * `by_class`, and as a panel of positions over the classes, `by_position`. Adds it up in `class_sums`, LANES of a class. */
INLINE void grad_logits(
    const softmax_gradient *pass, ptrdiff_t first, ptrdiff_t classes, ptrdiff_t position, TYPE *by_class,
    TYPE *by_position, float *class_sums) {
    const TYPE *panel = pass->panels + position * pass->depth;
    int32_vector left_out[VECTORS];
    vector result[VECTORS], grad[VECTORS];
    for (int v = 0; v < VECTORS; v++) {
        ptrdiff_t at = position + v * LANES, count = pass->positions - at;
        left_out[v] = excluded_at(pass->excluded, at, count);
        result[v] = load_float(pass->result + at, count) * LOG2_E;
        grad[v] = load_float(pass->grad + at, count); /* 0 beyond the last position */
    }
    for (ptrdiff_t begin = 0; begin < classes; begin += MR) { /* an even number: classes go in pairs */
        tile logits;
        ptrdiff_t rows = smaller(classes - begin, MR);
        logits_tile(rows, first + begin, pass->depth, pass->weight, pass->bias, panel, left_out, &logits);
        for (ptrdiff_t row = 0; row < rows; row++) {
            vector sum = load_float(class_sums + (begin + row) * LANES, LANES);
            for (int v = 0; v < VECTORS; v++) {
                int32_vector in = left_out[v] != (int32_t)(first + begin + row);
                vector part = where(in, exp2_of(load_from_tile(&logits, row, v * LANES) - result[v]) * grad[v]);
                sum += part;
                store_in_tile(&logits, row, v * LANES, part);
                store_value(by_class + (begin + row) * POSITIONS + v * LANES, LANES, part);
            }
            store_float(class_sums + (begin + row) * LANES, LANES, sum);
        }
        for (ptrdiff_t row = 0; row < rows; row += STEP)
            for (ptrdiff_t column = 0; column < PANEL; column += LANES) {
                vector next = row + 1 < rows ? load_from_tile(&logits, row + 1, column) : broadcast(0.0f);
                store_in_panel(
                    by_position + place_in_panel(classes, begin + row, column), load_from_tile(&logits, row, column), next);
            }
    }
}

/* out (rows, columns) += a (rows, depth) times panels `panel_stride` values from one to the next */
INLINE void add_product(
    ptrdiff_t rows, ptrdiff_t columns, ptrdiff_t depth, const TYPE *a, ptrdiff_t stride, const TYPE *panels,
    ptrdiff_t panel_stride, float *out, ptrdiff_t out_stride) {
    for (ptrdiff_t column = 0; column < columns; column += PANEL, panels += panel_stride)
        for (ptrdiff_t row = 0, height; row < rows; row += height) {
            tile sums;
            height = tile_rows(rows - row);
            multiply(height, depth, a + row * stride, stride, panels, &no_prefetch, &sums);
            store_tile(&sums, height, columns - column, NULL, out + row * out_stride + column, out_stride, 1, 1);
        }
}

void TYPED(logsumexp_backward)(const softmax_gradient *arguments) {
    const softmax_gradient pass = *arguments;
    ptrdiff_t depth = pass.depth, over_positions = (pass.positions + 1) / 2 * 2;
    TYPE *by_class = pass.scratch, *by_position = by_class + CLASSES * POSITIONS;
    TYPE *transposed = by_position + CLASSES * POSITIONS; /* weights (depth, CLASSES) */
    for (ptrdiff_t first = 0; first < pass.classes; first += CLASSES) {
        ptrdiff_t count = smaller(pass.classes - first, CLASSES), over_classes = in_steps(count);
        float class_sums[CLASSES * LANES];
        memset(class_sums, 0, sizeof class_sums);
        for (ptrdiff_t from = 0; from < over_classes; from += LINE_OF(float)) /* a block of lines that stay in cache */
            for (ptrdiff_t k = 0; k < depth; k++)
                for (ptrdiff_t class = from; class < from + LINE_OF(float); class++)
                    transposed[k * CLASSES + class] = class < count ? pass.weight[(first + class) * depth + k] : 0;
        for (ptrdiff_t begin = 0; begin < pass.positions; begin += POSITIONS) {
            ptrdiff_t deep = smaller(over_positions - begin, POSITIONS);
            ptrdiff_t here = smaller(pass.positions - begin, POSITIONS);
            for (ptrdiff_t at = 0; at < here; at += PANEL)
                grad_logits(&pass, first, count, begin + at, by_class + at, by_position + at * over_classes, class_sums);
            add_product(
                count, depth, deep, by_class, POSITIONS, pass.across + begin * PANEL, over_positions * PANEL,
                pass.grad_weight + first * depth, depth);
            add_product(
                depth, here, over_classes, transposed, CLASSES, by_position, over_classes * PANEL,
                pass.grad_hidden + begin, pass.positions);
        }
        for (ptrdiff_t class = 0; class < count; class++)
            for (int lane = 0; lane < LANES; lane++)
                pass.grad_bias[first + class] += class_sums[class * LANES + lane];
    }
}
