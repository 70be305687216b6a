/* Included by kernels.c for float and bfloat16: the gradient of a layer of the LSTM. */

typedef struct {
    const TYPE *recurrent, *projection, *input; /* panels of the transposed weights; no projection: NULL */
    const float *outputs;
    const TYPE *gates;
    const float *cells, *previous_c;
    float *grad_outputs, *grad_h, *grad_c;
    TYPE *grad_gates, *low; /* may be `gates`; scratch for a step */
    float *grad_x, *grad_bias; /* of the bias, one row for every ROWS_OF_A_SUM rows, which is added to */
} backward_pass;

/* From the gradient `from` of LANES hidden values of a row, computes that of their gates, which is also added to `total`,
 * and replaces the gradient in grad_c by that of the cell of the step before. */
INLINE void backward_cell(
    const lstm_steps *layer, const backward_pass *pass, vector from, ptrdiff_t row, ptrdiff_t slot, ptrdiff_t unit,
    ptrdiff_t count, vector total[GATES]) {
    ptrdiff_t units = layer->hidden, at = slot + row;
    const TYPE *gates = pass->gates + at * GATES * units + unit;
    float *grad_c = pass->grad_c + row * units + unit;
    vector i = load_value(gates, count), g = load_value(gates + units, count);
    vector f = load_value(gates + 2 * units, count), o = load_value(gates + 3 * units, count);
    vector cell = load_float(pass->cells + at * units + unit, count), tanh_c = hyperbolic_tangent(cell);
    vector before = load_float(pass->previous_c + at * units + unit, count);
    vector of_c = from * o * (1.0f - tanh_c * tanh_c) + load_float(grad_c, count);
    of_c = where(magnitude(cell) < layer->cell_clip, of_c);
    vector grad[GATES] = {
        of_c * g * (i * (1.0f - i)), of_c * i * (1.0f - g * g), of_c * before * (f * (1.0f - f)),
        from * tanh_c * (o * (1.0f - o))};
    for (int gate = 0; gate < GATES; gate++) {
        store_value(pass->grad_gates + (at * GATES + gate) * units + unit, count, grad[gate]);
        total[gate] += grad[gate];
    }
    store_float(grad_c, count, of_c * f);
}

/* The rows of a tile, 64 units from `first` on: their gradients are a product with the projection, where there is one. */
INLINE void backward_tile(
    ptrdiff_t rows, const lstm_steps *layer, const backward_pass *pass, ptrdiff_t slot, ptrdiff_t row,
    ptrdiff_t first, const float *grad_outputs, const TYPE *panel, prefetch_plan *plan) {
    float *grad_bias = pass->grad_bias + (layer->first_row + row) / ROWS_OF_A_SUM * GATES * layer->hidden;
    ptrdiff_t units = layer->hidden, width = layer->width;
    tile sums;
    for (ptrdiff_t r = 0; r < rows; r++)
        for (ptrdiff_t unit = first; unit < first + PANEL; unit += LINE_OF(float)) {
            plan_line(plan, pass->cells + (slot + row + r) * units + unit);
            plan_line(plan, pass->previous_c + (slot + row + r) * units + unit);
        }
    for (ptrdiff_t r = 0; r < rows; r++)
        for (int gate = 0; gate < GATES; gate++)
            for (ptrdiff_t unit = first; unit < first + PANEL; unit += LINE_OF(TYPE)) {
                ptrdiff_t place = ((slot + row + r) * GATES + gate) * units + unit;
                plan_line(plan, pass->gates + place);
                plan_line(plan, pass->grad_gates + place);
            }
    if (panel) multiply(rows, width, pass->low + row * width, width, panel, plan, &sums);
    for (ptrdiff_t unit = first, count; unit < first + PANEL && (count = units - unit) > 0; unit += LANES) {
        vector total[GATES] = {{0}};
        for (ptrdiff_t r = 0; r < rows; r++) {
            const float *of_row = grad_outputs + (row + r) * width + unit;
            vector from = panel ? load_from_tile(&sums, r, unit - first) : load_float(of_row, count);
            if (count >= LANES) backward_cell(layer, pass, from, row + r, slot, unit, LANES, total);
            else backward_cell(layer, pass, from, row + r, slot, unit, count, total);
        }
        for (int gate = 0; gate < GATES; gate++) {
            float *place = grad_bias + gate * units + unit;
            store_float(place, count, load_float(place, count) + total[gate]);
        }
    }
}

/* Adds to grad_outputs the gradient through h, and zeroes it outside the clip; the same as TYPE into pass->low. */
INLINE void backward_outputs(
    const lstm_steps *layer, const backward_pass *pass, ptrdiff_t rows, const float *outputs, float *grad_outputs) {
    for (ptrdiff_t k = 0, count; (count = rows * layer->width - k) > 0; k += LANES) {
        vector grad = load_float(grad_outputs + k, count) + load_float(pass->grad_h + k, count);
        if (pass->projection) grad = where(magnitude(load_float(outputs + k, count)) < layer->projection_clip, grad);
        store_float(grad_outputs + k, count, grad);
        store_value(pass->low + k, count, grad);
    }
}

/* The backward pass of lstm_forward's rows, from the last step to the first. grad_h and grad_c become the gradient of the state
 * before the first step, grad_outputs that of the projection before it was clipped. first_row is a multiple of ROWS_OF_A_SUM,
 * so that sums are the same however rows are split. */
void TYPED(lstm_backward)(const lstm_steps *stream, const backward_pass *arguments) {
    const lstm_steps layer = *stream;
    backward_pass pass = *arguments;
    pass.grad_h += layer.first_row * layer.width;
    pass.grad_c += layer.first_row * layer.hidden;
    ptrdiff_t width = layer.width, deep = GATES * layer.hidden, size = panel_size(width), slot = layer.first_row;
    for (ptrdiff_t t = 0; t < layer.steps; t++) slot += layer.batch_sizes[t];
    for (ptrdiff_t t = layer.steps - 1; t >= 0; t--) {
        ptrdiff_t rows = rows_of_step(&layer, t);
        slot -= layer.batch_sizes[t];
        float *grad = pass.grad_outputs + slot * width;
        backward_outputs(&layer, &pass, rows, pass.outputs + slot * width, grad);
        const TYPE *panel = pass.projection;
        for (ptrdiff_t unit = 0; unit < layer.hidden; unit += PANEL) {
            const TYPE *next = panel ? panel + size : NULL;
            for (ptrdiff_t row = 0, height; row < rows; row += height) {
                prefetch_plan plan;
                height = tile_rows(smaller((row / ROWS_OF_A_SUM + 1) * ROWS_OF_A_SUM, rows) - row);
                plan_panel(&plan, next, next ? size : 0, row, row + height, rows);
                backward_tile(height, &layer, &pass, slot, row, unit, grad, panel, &plan);
            }
            panel = next;
        }
        const TYPE *now = pass.grad_gates + slot * deep;
        TYPED(product)(
            rows, width, deep, 0, (width + PANEL - 1) / PANEL, now, deep, pass.recurrent, NULL, pass.grad_h, width, 1);
        TYPED(product)(
            rows, layer.input_width, deep, 0, (layer.input_width + PANEL - 1) / PANEL, now, deep, pass.input, NULL,
            pass.grad_x + slot * layer.input_width, layer.input_width, 1);
        for (ptrdiff_t row = 0; layer.resets && row < rows; row++)
            if (layer.resets[slot + row]) {
                memset(pass.grad_h + row * width, 0, width * sizeof *pass.grad_h);
                memset(pass.grad_c + row * layer.hidden, 0, layer.hidden * sizeof *pass.grad_c);
            }
    }
}
