/* Included by gemm.c for float and bfloat16: the gradient of a layer of the LSTM. */

/* From the gradient of a step's hidden values to that of its gates, and in grad_c that of the cell before it. */
INLINE void OF_TYPE(backward_tile_)(
    ptrdiff_t rows, const steps_of_layer *layer, const backward_pass *pass, ptrdiff_t slot, ptrdiff_t row,
    ptrdiff_t first, const float *grad_outputs, const TYPE *panel, prefetch_plan *plan) {
    float *grad_bias = pass->grad_bias + (layer->first_row + row) / ROWS_OF_A_SUM * GROUPS * layer->hidden;
    ptrdiff_t units = layer->hidden, width = layer->width;
    tile sums;
    for (ptrdiff_t r = 0; r < rows; r++)
        for (int group = 0; group < GROUPS; group++) {
            ptrdiff_t place = (slot + row + r) * units + first + group * LANES;
            plan_line(plan, pass->cells + place);
            plan_line(plan, pass->previous_c + place);
        }
    for (ptrdiff_t r = 0; r < rows; r++)
        for (int gate = 0; gate < GROUPS; gate++)
            for (ptrdiff_t value = 0; value < PANEL; value += LINE_OF(TYPE)) {
                ptrdiff_t place = ((slot + row + r) * GROUPS + gate) * units + first + value;
                plan_line(plan, (const TYPE *)pass->gates + place);
                plan_line(plan, (const TYPE *)pass->grad_gates + place);
            }
    if (panel) OF_TYPE(multiply_)(rows, width, (const TYPE *)pass->low + row * width, width, panel, plan, &sums);
    for (int group = 0; group < GROUPS; group++) {
        ptrdiff_t unit = first + group * LANES;
        __mmask16 lanes = first_lanes(units - unit);
        __m512 total[GROUPS] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps()};
        for (ptrdiff_t r = 0; lanes && r < rows; r++) {
            ptrdiff_t at = slot + row + r;
            const TYPE *gates = (const TYPE *)pass->gates + at * GROUPS * units + unit;
            TYPE *grad_gates = (TYPE *)pass->grad_gates + at * GROUPS * units + unit;
            float *grad_c = pass->grad_c + (row + r) * units + unit;
            __m512 from = panel ? of_tile(&sums, r, group) : load_float(grad_outputs + (row + r) * width + unit, lanes);
            __m512 i = LOAD_VALUE(gates, lanes), g = LOAD_VALUE(gates + units, lanes);
            __m512 f = LOAD_VALUE(gates + 2 * units, lanes), o = LOAD_VALUE(gates + 3 * units, lanes);
            __m512 cell = load_float(pass->cells + at * units + unit, lanes), tanh_c = hyperbolic_tangent(cell);
            __m512 before = load_float(pass->previous_c + at * units + unit, lanes);
            __m512 slope = one_minus(_mm512_mul_ps(tanh_c, tanh_c));
            __m512 of_c = _mm512_fmadd_ps(_mm512_mul_ps(from, o), slope, load_float(grad_c, lanes));
            of_c = _mm512_maskz_mov_ps(inside(cell, layer->cell_clip), of_c);
            __m512 of_i = _mm512_mul_ps(_mm512_mul_ps(of_c, g), _mm512_mul_ps(i, one_minus(i)));
            __m512 of_g = _mm512_mul_ps(_mm512_mul_ps(of_c, i), one_minus(_mm512_mul_ps(g, g)));
            __m512 of_f = _mm512_mul_ps(_mm512_mul_ps(of_c, before), _mm512_mul_ps(f, one_minus(f)));
            __m512 of_o = _mm512_mul_ps(_mm512_mul_ps(from, tanh_c), _mm512_mul_ps(o, one_minus(o)));
            __m512 grad[GROUPS] = {of_i, of_g, of_f, of_o};
            for (int gate = 0; gate < GROUPS; gate++) {
                STORE_VALUE(grad_gates + gate * units, lanes, grad[gate]);
                total[gate] = _mm512_add_ps(total[gate], grad[gate]);
            }
            store_float(grad_c, lanes, _mm512_mul_ps(of_c, f));
        }
        for (int gate = 0; lanes && gate < GROUPS; gate++) {
            float *place = grad_bias + gate * units + unit;
            store_float(place, lanes, _mm512_add_ps(load_float(place, lanes), total[gate]));
        }
    }
}

/* Adds to grad_outputs the gradient through h, and zeroes it outside the clip; the same as TYPE into pass->low. */
INLINE void OF_TYPE(backward_outputs_)(
    const steps_of_layer *layer, const backward_pass *pass, ptrdiff_t rows, const float *outputs, float *grad_outputs) {
    for (ptrdiff_t k = 0; k < rows * layer->width; k += LANES) {
        __mmask16 lanes = first_lanes(rows * layer->width - k);
        __m512 grad = _mm512_add_ps(load_float(grad_outputs + k, lanes), load_float(pass->grad_h + k, lanes));
        if (pass->projection)
            grad = _mm512_maskz_mov_ps(inside(load_float(outputs + k, lanes), layer->projection_clip), grad);
        store_float(grad_outputs + k, lanes, grad);
        STORE_VALUE((TYPE *)pass->low + k, lanes, grad);
    }
}

INLINE void OF_TYPE(backward_steps_)(const steps_of_layer *layer, const backward_pass *pass) {
    ptrdiff_t width = layer->width, hidden = layer->hidden, deep = GROUPS * hidden, slot = layer->first_row;
    for (ptrdiff_t t = 0; t < layer->steps; t++) slot += layer->batch_sizes[t];
    for (ptrdiff_t t = layer->steps - 1; t >= 0; t--) {
        ptrdiff_t rows = rows_of_step(layer, t);
        slot -= layer->batch_sizes[t];
        float *grad_outputs = pass->grad_outputs + slot * width;
        OF_TYPE(backward_outputs_)(layer, pass, rows, pass->outputs + slot * width, grad_outputs);
        const TYPE *panel = pass->projection;
        for (ptrdiff_t unit = 0; unit < hidden; unit += PANEL) {
            const TYPE *next = panel ? panel + PANEL * width : NULL;
            for (ptrdiff_t row = 0, height; row < rows; row += height) {
                prefetch_plan plan;
                ptrdiff_t sum_end = (row / ROWS_OF_A_SUM + 1) * ROWS_OF_A_SUM;
                height = tile_rows((sum_end < rows ? sum_end : rows) - row);
                plan_panel(&plan, next, next ? PANEL * width * sizeof(TYPE) : 0, row, row + height, rows);
                OF_TYPE(backward_tile_)(height, layer, pass, slot, row, unit, grad_outputs, panel, &plan);
            }
            panel = next;
        }
        const TYPE *grad_gates = (const TYPE *)pass->grad_gates + slot * deep;
        OF_TYPE(elmokit_product_)(rows, width, deep, grad_gates, deep, pass->recurrent, NULL, pass->grad_h, width, 1);
        OF_TYPE(elmokit_product_)(
            rows, layer->input_width, deep, grad_gates, deep, pass->input, NULL,
            pass->grad_x + slot * layer->input_width, layer->input_width, 1);
        for (ptrdiff_t row = 0; layer->resets && row < rows; row++)
            if (layer->resets[slot + row]) {
                memset(pass->grad_h + row * width, 0, width * sizeof(float));
                memset(pass->grad_c + row * hidden, 0, hidden * sizeof(float));
            }
    }
}

/* Last step first. */
FOR_AVX512 void OF_TYPE(elmokit_lstm_backward_)(
    ptrdiff_t steps, const int64_t *batch_sizes, const uint8_t *resets, ptrdiff_t first_row, ptrdiff_t end_row,
    ptrdiff_t hidden_size, ptrdiff_t width, ptrdiff_t input_width, float cell_clip, float projection_clip,
    const void *recurrent, const void *projection, const void *input, const float *outputs, const void *gates,
    const float *cells, const float *previous_c, float *grad_outputs, float *grad_h, float *grad_c, void *grad_gates,
    void *low, float *grad_x, float *grad_bias) {
    steps_of_layer layer = {steps,  first_row,   end_row,     hidden_size, width,
                            input_width, batch_sizes, resets, cell_clip,   projection_clip};
    backward_pass pass = {recurrent, projection, input, outputs, gates, cells, previous_c, grad_outputs,
                          grad_h + first_row * width, grad_c + first_row * hidden_size, grad_gates, low, grad_x, grad_bias};
    OF_TYPE(backward_steps_)(&layer, &pass);
}
