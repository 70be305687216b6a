/* Included by gemm.c for each TYPE: a layer of the LSTM in one direction; elmokit.h says what its arguments are. */

INLINE void OF_TYPE(reset_row_)(const steps_of_layer *layer, const forward_pass *pass, ptrdiff_t row) {
    memcpy(pass->h + row * layer->width, pass->start_h, layer->width * sizeof(float));
    memcpy(pass->c + row * layer->hidden, pass->start_c, layer->hidden * sizeof(float));
}

/* c <- clip(sigmoid(i) tanh(g) + sigmoid(f) c), hidden <- sigmoid(o) tanh(c), for 16 units from `unit` on. */
INLINE void OF_TYPE(forward_tile_)(
    ptrdiff_t rows, const steps_of_layer *layer, const forward_pass *pass, ptrdiff_t slot, ptrdiff_t row,
    ptrdiff_t unit, const TYPE *xh, const TYPE *panel, prefetch_plan *plan, VALUE *hidden) {
    ptrdiff_t units = layer->hidden, depth = layer->input_width + layer->width, stride = OF_TYPE(row_size_)(depth);
    __mmask16 lanes = first_lanes(units - unit);
    const RESULT *inputs[MAX_ROWS];
    tile sums;
    for (ptrdiff_t r = 0; r < rows; r++) {
        ptrdiff_t at = slot + row + r;
        inputs[r] = (const RESULT *)pass->inputs + input_offset(pass, at, unit);
        for (int gate = 0; gate < GROUPS; gate++) plan_line(plan, inputs[r] + gate * pass->gate_stride);
        plan_line(plan, pass->c + (row + r) * units + unit);
        if (pass->gates) {
            for (int gate = 0; gate < GROUPS; gate++)
                plan_line(plan, (const VALUE *)pass->gates + (at * GROUPS + gate) * units + unit);
            plan_line(plan, pass->cells + at * units + unit);
            plan_line(plan, pass->previous_c + at * units + unit);
        }
    }
    OF_TYPE(multiply_)(rows, depth, xh + row * stride, stride, panel, plan, &sums);
    for (ptrdiff_t r = 0; r < rows; r++) {
        float *cell = pass->c + (row + r) * units + unit;
        __m512 before = load_float(cell, lanes), gate[GROUPS];
        for (int k = 0; k < GROUPS; k++)
            gate[k] = _mm512_add_ps(of_tile(&sums, r, k), LOAD_RESULT(inputs[r] + k * pass->gate_stride, lanes));
        __m512 i = sigmoid(gate[0]), g = hyperbolic_tangent(gate[1]), f = sigmoid(gate[2]), o = sigmoid(gate[3]);
        __m512 now = clipped(_mm512_fmadd_ps(i, g, _mm512_mul_ps(f, before)), layer->cell_clip);
        store_float(cell, lanes, now);
        STORE_VALUE(hidden + (row + r) * units + unit, lanes, _mm512_mul_ps(o, hyperbolic_tangent(now)));
        if (pass->gates) {
            ptrdiff_t place = (slot + row + r) * units + unit;
            VALUE *gates = (VALUE *)pass->gates + (slot + row + r) * GROUPS * units + unit;
            STORE_VALUE(gates, lanes, i);
            STORE_VALUE(gates + units, lanes, g);
            STORE_VALUE(gates + 2 * units, lanes, f);
            STORE_VALUE(gates + 3 * units, lanes, o);
            store_float(pass->cells + place, lanes, now);
            store_float(pass->previous_c + place, lanes, before);
        }
    }
}

/* The outputs of a step from its hidden values: projected and clipped, or as they are. */
INLINE void OF_TYPE(forward_outputs_)(
    const steps_of_layer *layer, const forward_pass *pass, ptrdiff_t rows, const VALUE *hidden, float *outputs) {
    ptrdiff_t width = layer->width;
    if (pass->projection) {
        const TYPE *a = OF_TYPE(rows_of_values_)(rows, layer->hidden, hidden, pass->low_h);
        OF_TYPE(elmokit_product_)(
            rows, width, layer->hidden, a, OF_TYPE(row_size_)(layer->hidden), pass->projection, NULL, outputs, width, 1);
    }
    for (ptrdiff_t k = 0; k < rows * width; k += LANES) {
        __mmask16 lanes = first_lanes(rows * width - k);
        __m512 now = pass->projection ? clipped(load_float(outputs + k, lanes), layer->projection_clip)
                                      : LOAD_VALUE(hidden + k, lanes);
        store_float(outputs + k, lanes, now);
        store_float(pass->h + k, lanes, now);
    }
}

INLINE void OF_TYPE(forward_steps_)(const steps_of_layer *layer, const forward_pass *pass) {
    ptrdiff_t width = layer->width, hidden = layer->hidden, depth = layer->input_width + width, slot = layer->first_row;
    ptrdiff_t stride = OF_TYPE(row_size_)(depth), size = OF_TYPE(panel_size_)(depth);
    for (ptrdiff_t t = 0; t < layer->steps; slot += layer->batch_sizes[t], t++) {
        ptrdiff_t rows = rows_of_step(layer, t);
        TYPE *xh = pass->gates ? (TYPE *)pass->xh + slot * stride : (TYPE *)pass->low_h;
        VALUE *low_hidden = pass->gates ? (VALUE *)pass->hidden + slot * hidden : (VALUE *)pass->low_hidden;
        for (ptrdiff_t row = 0; row < rows; row++) {
            if (layer->resets && layer->resets[slot + row]) OF_TYPE(reset_row_)(layer, pass, row);
            OF_TYPE(to_row_)(width, pass->h + row * width, xh + row * stride + layer->input_width);
        }
        const TYPE *panel = pass->recurrent;
        for (ptrdiff_t unit = 0; unit < hidden; unit += LANES, panel += size)
            for (ptrdiff_t row = 0, height; row < rows; row += height) {
                prefetch_plan plan;
                height = tile_rows(rows - row);
                plan_panel(&plan, panel + size, size * sizeof(TYPE), row, row + height, rows);
                OF_TYPE(forward_tile_)(height, layer, pass, slot, row, unit, xh, panel, &plan, low_hidden);
            }
        OF_TYPE(forward_outputs_)(layer, pass, rows, low_hidden, pass->outputs + slot * width);
    }
}

/* First step first (portable/lstm.py has the same in PyTorch). */
FOR_AVX512 void OF_TYPE(elmokit_lstm_forward_)(
    ptrdiff_t steps, const int64_t *batch_sizes, const uint8_t *resets, ptrdiff_t first_row, ptrdiff_t end_row,
    ptrdiff_t hidden_size, ptrdiff_t width, ptrdiff_t input_width, float cell_clip, float projection_clip,
    const void *recurrent, const void *projection, const void *inputs, const int64_t *index, ptrdiff_t row_stride,
    ptrdiff_t gate_stride, ptrdiff_t unit_stride, float *outputs, float *h, float *c, const float *start_h,
    const float *start_c, void *gates, void *hidden, void *xh, float *cells, float *previous_c, void *low_h,
    void *low_hidden) {
    steps_of_layer layer = {steps,  first_row,   end_row,     hidden_size, width,
                            input_width, batch_sizes, resets, cell_clip,   projection_clip};
    forward_pass pass = {
        recurrent, projection, inputs, index,  row_stride, gate_stride, unit_stride, outputs,
        h + first_row * width, c + first_row * hidden_size, start_h, start_c, gates, hidden, xh, cells, previous_c,
        low_h, low_hidden};
    OF_TYPE(forward_steps_)(&layer, &pass);
}
