/* Included by gemm.c for float and bfloat16: log(sum(exp(hidden @ weight.T + bias))) and its gradient.
 *
 * The rows of a tile are classes, its lanes positions, so that a position's sum grows in a lane of its own; logits are
 * used in cache, and never reach memory. `panels` hold hidden (positions, depth), a position a column;
 * `across` hidden.T, a column for each value, over the positions (up to an even number of them). Logits and their
 * maxima are in units of log 2. The class `excluded` of a position is left out; -1 for none, NULL for none in
 * any position.
 */

/* Into `logits`, of `rows` classes from `first` on. */
INLINE void OF_TYPE(logits_tile_)(
    ptrdiff_t rows, ptrdiff_t first, ptrdiff_t depth, const TYPE *weight, const float *bias, const TYPE *panel,
    const __m512i *excluded, tile *logits) {
    OF_TYPE(multiply_)(rows, depth, weight + first * depth, depth, panel, &no_prefetch, logits);
    for (ptrdiff_t row = 0; row < rows; row++) {
        __m512 constant = _mm512_set1_ps(bias[first + row] * LOG2_E);
        __m512i class = _mm512_set1_epi32((int32_t)(first + row));
        for (int group = 0; group < GROUPS; group++) {
            __m512 logit = _mm512_fmadd_ps(of_tile(logits, row, group), _mm512_set1_ps(LOG2_E), constant);
            __mmask16 out = _mm512_cmpeq_epi32_mask(excluded[group], class);
            to_tile(logits, row, group, _mm512_mask_mov_ps(logit, out, _mm512_set1_ps(-FLT_MAX)));
        }
    }
}

/* For each position the `max` of its logits, and the `total` of 2^(logit - max). */
FOR_AVX512 void OF_TYPE(elmokit_logsumexp_)(
    ptrdiff_t positions, ptrdiff_t classes, ptrdiff_t depth, const void *all_panels, const void *weights,
    const float *bias, const int32_t *excluded, float *max, float *total) {
    const TYPE *panels = all_panels, *weight = weights;
    ptrdiff_t at_once = CLASS_BYTES / (depth * sizeof(TYPE)) / MAX_ROWS * MAX_ROWS + MAX_ROWS;
    for (ptrdiff_t begin = 0; begin < classes; begin += at_once)
        for (ptrdiff_t position = 0; position < positions; position += PANEL) {
            ptrdiff_t end = begin + at_once < classes ? begin + at_once : classes;
            __m512 high[GROUPS], sum[GROUPS];
            __m512i left_out[GROUPS];
            for (int group = 0; group < GROUPS; group++) {
                ptrdiff_t at = position + group * LANES;
                __mmask16 lanes = first_lanes(positions - at);
                left_out[group] = excluded_at(excluded, at, lanes);
                high[group] = begin ? load_float(max + at, lanes) : _mm512_set1_ps(-FLT_MAX);
                sum[group] = begin ? load_float(total + at, lanes) : _mm512_setzero_ps();
            }
            for (ptrdiff_t first = begin, rows; first < end; first += rows) {
                tile logits;
                rows = tile_rows(end - first);
                OF_TYPE(logits_tile_)(rows, first, depth, weight, bias, panels + position * depth, left_out, &logits);
                for (int group = 0; group < GROUPS; group++) {
                    __m512 before = high[group];
                    for (ptrdiff_t row = 0; row < rows; row++) /* in this order of max a NaN is left to the sum */
                        high[group] = _mm512_max_ps(of_tile(&logits, row, group), high[group]);
                    sum[group] = _mm512_mul_ps(sum[group], power_of_two(_mm512_sub_ps(before, high[group])));
                    for (ptrdiff_t row = 0; row < rows; row++)
                        sum[group] = _mm512_add_ps(
                            sum[group], power_of_two(_mm512_sub_ps(of_tile(&logits, row, group), high[group])));
                }
            }
            for (int group = 0; group < GROUPS; group++) {
                ptrdiff_t at = position + group * LANES;
                store_float(max + at, first_lanes(positions - at), high[group]);
                store_float(total + at, first_lanes(positions - at), sum[group]);
            }
        }
}

/* --- Gradient ----------------------------------------------------------------------------------------------------- */

/* The gradient of the logits of `classes` from `first` on at the 64 positions from `position` on: as rows of classes,
 * `by_class`, and as a panel of positions over the classes, `by_position`. Adds it up in grad_bias, 16 sums a class. */
INLINE void OF_TYPE(grad_logits_)(
    const logsumexp_pass *pass, ptrdiff_t first, ptrdiff_t classes, ptrdiff_t position, TYPE *by_class,
    TYPE *by_position, float *grad_bias) {
    const TYPE *panel = (const TYPE *)pass->panels + position * pass->depth;
    __m512i left_out[GROUPS];
    __m512 result[GROUPS], grad[GROUPS];
    __mmask16 lanes[GROUPS];
    for (int group = 0; group < GROUPS; group++) {
        ptrdiff_t at = position + group * LANES;
        lanes[group] = first_lanes(pass->positions - at);
        left_out[group] = excluded_at(pass->excluded, at, lanes[group]);
        result[group] = _mm512_mul_ps(load_float(pass->result + at, lanes[group]), _mm512_set1_ps(LOG2_E));
        grad[group] = load_float(pass->grad + at, lanes[group]);
    }
    for (ptrdiff_t begin = 0; begin < classes; begin += MAX_ROWS) { /* an even number: classes go in pairs */
        tile logits;
        ptrdiff_t rows = classes - begin < MAX_ROWS ? classes - begin : MAX_ROWS;
        OF_TYPE(logits_tile_)(rows, first + begin, pass->depth, pass->weight, pass->bias, panel, left_out, &logits);
        for (ptrdiff_t row = 0; row < rows; row++) {
            __m512 sum = _mm512_loadu_ps(grad_bias + (begin + row) * LANES);
            __m512i class = _mm512_set1_epi32((int32_t)(first + begin + row));
            for (int group = 0; group < GROUPS; group++) {
                __m512 part = power_of_two(_mm512_sub_ps(of_tile(&logits, row, group), result[group]));
                __mmask16 in = lanes[group] & _mm512_cmpneq_epi32_mask(left_out[group], class);
                part = _mm512_maskz_mul_ps(in, part, grad[group]);
                sum = _mm512_add_ps(sum, part);
                to_tile(&logits, row, group, part);
                STORE_VALUE(by_class + (begin + row) * POSITIONS + group * LANES, 0xffff, part);
            }
            _mm512_storeu_ps(grad_bias + (begin + row) * LANES, sum);
        }
        for (ptrdiff_t row = 0; row < rows; row += STEP)
            for (int group = 0; group < GROUPS; group++) {
                __m512 next = row + 1 < rows ? of_tile(&logits, row + 1, group) : _mm512_setzero_ps();
                OF_TYPE(store_in_panel_)(
                    by_position + (begin + row) * PANEL + group * LANES * STEP, of_tile(&logits, row, group), next);
            }
    }
}

/* out (rows, columns) += a (rows, depth) times panels `panel_stride` values from one to the next */
INLINE void OF_TYPE(add_product_)(
    ptrdiff_t rows, ptrdiff_t columns, ptrdiff_t depth, const TYPE *a, ptrdiff_t stride, const TYPE *panels,
    ptrdiff_t panel_stride, float *out, ptrdiff_t out_stride) {
    for (ptrdiff_t column = 0; column < columns; column += PANEL, panels += panel_stride)
        for (ptrdiff_t row = 0, height; row < rows; row += height) {
            height = tile_rows(rows - row);
            OF_TYPE(product_tile_)(
                height, columns - column, depth, a + row * stride, stride, panels, &no_prefetch, NULL,
                out + row * out_stride + column, out_stride, 1, 1);
        }
}

/* Adds to grad_weight (classes, depth), grad_bias (classes) and grad_hidden (depth, positions). */
INLINE void OF_TYPE(add_gradients_)(const logsumexp_pass *pass) {
    ptrdiff_t depth = pass->depth, positions = pass->positions;
    ptrdiff_t over_positions = (positions + 1) / 2 * 2;
    TYPE *by_class = pass->scratch, *by_position = by_class + CLASSES * POSITIONS;
    TYPE *transposed = by_position + CLASSES * POSITIONS; /* weights (depth, CLASSES) */
    for (ptrdiff_t first = 0; first < pass->classes; first += CLASSES) {
        ptrdiff_t classes = pass->classes - first < CLASSES ? pass->classes - first : CLASSES;
        ptrdiff_t over_classes = (classes + STEP - 1) / STEP * STEP;
        const TYPE *weight = (const TYPE *)pass->weight + first * depth;
        float grad_bias[CLASSES * LANES];
        memset(grad_bias, 0, sizeof grad_bias);
        for (ptrdiff_t from = 0; from < over_classes; from += LANES) /* a block of lines that stay in cache */
            for (ptrdiff_t k = 0; k < depth; k++)
                for (ptrdiff_t class = from; class < from + LANES; class++)
                    transposed[k * CLASSES + class] = class < classes ? weight[class * depth + k] : 0;
        for (ptrdiff_t begin = 0; begin < positions; begin += POSITIONS) {
            ptrdiff_t deep = over_positions - begin < POSITIONS ? over_positions - begin : POSITIONS;
            ptrdiff_t here = positions - begin < POSITIONS ? positions - begin : POSITIONS;
            for (ptrdiff_t at = 0; at < here; at += PANEL)
                OF_TYPE(grad_logits_)(
                    pass, first, classes, begin + at, by_class + at, by_position + at * over_classes, grad_bias);
            OF_TYPE(add_product_)(
                classes, depth, deep, by_class, POSITIONS, (const TYPE *)pass->across + begin * PANEL,
                over_positions * PANEL, pass->grad_weight + first * depth, depth);
            OF_TYPE(add_product_)(
                depth, here, over_classes, transposed, CLASSES, by_position, over_classes * PANEL,
                pass->grad_hidden + begin, positions);
        }
        for (ptrdiff_t class = 0; class < classes; class++)
            pass->grad_bias[first + class] += _mm512_reduce_add_ps(_mm512_loadu_ps(grad_bias + class * LANES));
    }
}

FOR_AVX512 void OF_TYPE(elmokit_logsumexp_backward_)(
    ptrdiff_t positions, ptrdiff_t classes, ptrdiff_t depth, const void *panels, const void *across, const void *weight,
    const float *bias, const int32_t *excluded, const float *result, const float *grad, float *grad_hidden,
    float *grad_weight, float *grad_bias, void *scratch) {
    logsumexp_pass pass = {positions, classes, depth,       panels,      across,    weight, bias,
                           excluded,  result,  grad, grad_hidden, grad_weight, grad_bias, scratch};
    OF_TYPE(add_gradients_)(&pass);
}
