/* Included by avx512.c once for each TYPE of the products; PAIR values of a column's depth lie together in a panel. */

#define LOAD OF_TYPE(load_)
#define STORE OF_TYPE(store_)
#define MULTIPLY OF_TYPE(multiply_)

/* A weight's panels from its values: column j at depth k is weight[j * column_stride + k * depth_stride]. With four
 * gates a panel holds those of 16 units; what is missing to whole panels is zero. */
FOR_AVX512 void OF_TYPE(elmokit_pack_)(
    ptrdiff_t columns, ptrdiff_t depth, ptrdiff_t gates, ptrdiff_t first_panel, ptrdiff_t end_panel, const void *values,
    ptrdiff_t column_stride, ptrdiff_t depth_stride, void *all_panels) {
    ptrdiff_t of_gate = columns / gates, across = PANEL / gates;
    const float *weight = values;
    for (ptrdiff_t panel = first_panel; panel < end_panel; panel++) {
        ptrdiff_t first = panel * across;
        TYPE *panels = (TYPE *)all_panels + panel * PANEL * depth;
        for (ptrdiff_t place = 0; place < PANEL; place += LANES) {
            ptrdiff_t unit = first + place % across, column = place / across * of_gate + unit;
            __mmask16 lanes = first_lanes(of_gate - unit);
            for (ptrdiff_t k = 0; k < depth; k += PAIR) {
                const float *from = weight + column * column_stride + k * depth_stride;
                __m512 now = load_strided(from, column_stride, lanes), next = now;
                if (PAIR == 2) next = load_strided(from + depth_stride, column_stride, lanes);
                OF_TYPE(store_in_panel_)(panels + k * PANEL + place * PAIR, now, next);
            }
        }
    }
}

INLINE void OF_TYPE(narrow_row_)(ptrdiff_t count, const float *from, TYPE *to) {
    for (ptrdiff_t k = 0; k < count; k += LANES) {
        __mmask16 lanes = first_lanes(count - k);
        STORE(to + k, lanes, load_float(from + k, lanes));
    }
}

/* --- out = a times a packed weight, plus a bias --------------------------------------------------------------------- */

INLINE void OF_TYPE(product_tile_)(
    ptrdiff_t rows, ptrdiff_t columns, ptrdiff_t depth, const TYPE *a, ptrdiff_t stride, const TYPE *panel,
    const prefetch_plan *plan, const float *bias, void *out, ptrdiff_t out_stride, int wide, int more) {
    tile sums;
    MULTIPLY(rows, depth, a, stride, panel, plan, &sums);
    for (ptrdiff_t row = 0; row < rows; row++)
        for (int group = 0; group < GROUPS; group++) {
            __mmask16 lanes = first_lanes(columns - group * LANES);
            ptrdiff_t place = row * out_stride + group * LANES;
            __m512 sum = of_tile(&sums, row, group);
            if (more) sum = _mm512_add_ps(sum, load_float((float *)out + place, lanes));
            else if (bias) sum = _mm512_add_ps(sum, load_float(bias + group * LANES, lanes));
            if (wide) store_float((float *)out + place, lanes, sum);
            else STORE((TYPE *)out + place, lanes, sum);
        }
}

/* a (rows, depth), out (rows, columns), of float where `wide`, else of TYPE: only float can take the sum in parts. */
FOR_AVX512 void OF_TYPE(elmokit_product_)(
    ptrdiff_t rows, ptrdiff_t columns, ptrdiff_t depth, const void *values, ptrdiff_t stride, const void *panels,
    const float *bias, void *out, ptrdiff_t out_stride, int wide) {
    const TYPE *a = values;
    ptrdiff_t at_once = wide ? MAX_DEPTH : PTRDIFF_MAX;
    for (ptrdiff_t begin = 0; begin == 0 || begin < depth; begin += at_once) {
        ptrdiff_t deep = depth - begin < at_once ? depth - begin : at_once;
        const TYPE *panel = (const TYPE *)panels + begin * PANEL;
        for (ptrdiff_t column = 0; column < columns; column += PANEL, panel += PANEL * depth)
            for (ptrdiff_t row = 0, height; row < rows; row += height) {
                prefetch_plan plan;
                height = tile_rows(rows - row);
                plan_panel(&plan, panel + PANEL * depth, deep * PANEL * sizeof(TYPE), row, row + height, rows);
                void *to = (char *)out + (row * out_stride + column) * (wide ? sizeof(float) : sizeof(TYPE));
                OF_TYPE(product_tile_)(
                    height, columns - column, deep, a + row * stride + begin, stride, panel, &plan,
                    bias ? bias + column : NULL, to, out_stride, wide, begin > 0);
            }
    }
}

/* x through a highway layer, its weight packed with two `gates`. */
FOR_AVX512 void OF_TYPE(elmokit_packed_highway_)(
    ptrdiff_t rows, ptrdiff_t units, const void *values, const void *panels, const float *bias, void *result,
    const void *quantized) {
    const TYPE *x = values, *panel = panels;
    TYPE *out = result;
    (void)quantized; /* of int8 */
    for (ptrdiff_t first = 0; first < units; first += PANEL / 2, panel += PANEL * units)
        for (ptrdiff_t row = 0, height; row < rows; row += height) {
            tile sums;
            height = tile_rows(rows - row);
            MULTIPLY(height, units, x + row * units, units, panel, &no_prefetch, &sums);
            for (ptrdiff_t r = 0; r < height; r++)
                for (int group = 0; group < GROUPS / 2; group++) {
                    ptrdiff_t unit = first + group * LANES, place = (row + r) * units + unit;
                    __mmask16 lanes = first_lanes(units - unit);
                    __m512 before = LOAD(x + place, lanes);
                    STORE(out + place, lanes, highway_of_tile(&sums, r, group, bias + unit, units, lanes, before));
                }
        }
}

/* --- Forward ---------------------------------------------------------------------------------------------------------- */

INLINE void OF_TYPE(reset_row_)(const steps_of_layer *layer, const forward_pass *pass, ptrdiff_t row) {
    memcpy(pass->h + row * layer->width, pass->start_h, layer->width * sizeof(float));
    memcpy(pass->c + row * layer->hidden, pass->start_c, layer->hidden * sizeof(float));
}

/* c <- clip(sigmoid(i) tanh(g) + sigmoid(f) c), hidden <- sigmoid(o) tanh(c), for 16 units from `unit` on. */
INLINE void OF_TYPE(forward_tile_)(
    ptrdiff_t rows, const steps_of_layer *layer, const forward_pass *pass, ptrdiff_t slot, ptrdiff_t row,
    ptrdiff_t unit, const TYPE *xh, const TYPE *panel, prefetch_plan *plan, TYPE *hidden) {
    ptrdiff_t units = layer->hidden, depth = layer->input_width + layer->width;
    __mmask16 lanes = first_lanes(units - unit);
    const TYPE *inputs[MAX_ROWS];
    tile sums;
    for (ptrdiff_t r = 0; r < rows; r++) {
        ptrdiff_t at = slot + row + r;
        inputs[r] = (const TYPE *)pass->inputs + input_offset(pass, at, unit);
        for (int gate = 0; gate < GROUPS; gate++) plan_line(plan, inputs[r] + gate * pass->gate_stride);
        plan_line(plan, pass->c + (row + r) * units + unit);
        if (pass->gates) {
            for (int gate = 0; gate < GROUPS; gate++)
                plan_line(plan, (const TYPE *)pass->gates + (at * GROUPS + gate) * units + unit);
            plan_line(plan, pass->cells + at * units + unit);
            plan_line(plan, pass->previous_c + at * units + unit);
        }
    }
    MULTIPLY(rows, depth, xh + row * depth, depth, panel, plan, &sums);
    for (ptrdiff_t r = 0; r < rows; r++) {
        float *cell = pass->c + (row + r) * units + unit;
        __m512 before = load_float(cell, lanes), gate[GROUPS];
        for (int k = 0; k < GROUPS; k++)
            gate[k] = _mm512_add_ps(of_tile(&sums, r, k), LOAD(inputs[r] + k * pass->gate_stride, lanes));
        __m512 i = sigmoid(gate[0]), g = hyperbolic_tangent(gate[1]), f = sigmoid(gate[2]), o = sigmoid(gate[3]);
        __m512 now = clipped(_mm512_fmadd_ps(i, g, _mm512_mul_ps(f, before)), layer->cell_clip);
        store_float(cell, lanes, now);
        STORE(hidden + (row + r) * units + unit, lanes, _mm512_mul_ps(o, hyperbolic_tangent(now)));
        if (pass->gates) {
            ptrdiff_t place = (slot + row + r) * units + unit;
            TYPE *gates = (TYPE *)pass->gates + (slot + row + r) * GROUPS * units + unit;
            STORE(gates, lanes, i);
            STORE(gates + units, lanes, g);
            STORE(gates + 2 * units, lanes, f);
            STORE(gates + 3 * units, lanes, o);
            store_float(pass->cells + place, lanes, now);
            store_float(pass->previous_c + place, lanes, before);
        }
    }
}

/* The outputs of a step from its hidden values: projected and clipped, or as they are. */
INLINE void OF_TYPE(forward_outputs_)(
    const steps_of_layer *layer, const forward_pass *pass, ptrdiff_t rows, const TYPE *hidden, float *outputs) {
    ptrdiff_t width = layer->width;
    if (pass->projection)
        OF_TYPE(elmokit_product_)(
            rows, width, layer->hidden, hidden, layer->hidden, pass->projection, NULL, outputs, width, 1);
    for (ptrdiff_t k = 0; k < rows * width; k += LANES) {
        __mmask16 lanes = first_lanes(rows * width - k);
        __m512 now = pass->projection ? clipped(load_float(outputs + k, lanes), layer->projection_clip)
                                      : LOAD(hidden + k, lanes);
        store_float(outputs + k, lanes, now);
        store_float(pass->h + k, lanes, now);
    }
}

INLINE void OF_TYPE(forward_steps_)(const steps_of_layer *layer, const forward_pass *pass) {
    ptrdiff_t width = layer->width, hidden = layer->hidden, depth = layer->input_width + width, slot = layer->first_row;
    for (ptrdiff_t t = 0; t < layer->steps; slot += layer->batch_sizes[t], t++) {
        ptrdiff_t rows = rows_of_step(layer, t);
        TYPE *xh = pass->gates ? (TYPE *)pass->xh + slot * depth : (TYPE *)pass->low_h;
        TYPE *low_hidden = pass->gates ? (TYPE *)pass->hidden + slot * hidden : (TYPE *)pass->low_hidden;
        for (ptrdiff_t row = 0; row < rows; row++) {
            if (layer->resets && layer->resets[slot + row]) OF_TYPE(reset_row_)(layer, pass, row);
            OF_TYPE(narrow_row_)(width, pass->h + row * width, xh + row * depth + layer->input_width);
        }
        const TYPE *panel = pass->recurrent;
        for (ptrdiff_t unit = 0; unit < hidden; unit += LANES, panel += PANEL * depth)
            for (ptrdiff_t row = 0, height; row < rows; row += height) {
                prefetch_plan plan;
                height = tile_rows(rows - row);
                plan_panel(&plan, panel + PANEL * depth, PANEL * depth * sizeof(TYPE), row, row + height, rows);
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

/* --- Backward --------------------------------------------------------------------------------------------------------- */

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
    if (panel) MULTIPLY(rows, width, (const TYPE *)pass->low + row * width, width, panel, plan, &sums);
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
            __m512 i = LOAD(gates, lanes), g = LOAD(gates + units, lanes);
            __m512 f = LOAD(gates + 2 * units, lanes), o = LOAD(gates + 3 * units, lanes);
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
                STORE(grad_gates + gate * units, lanes, grad[gate]);
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

/* Into grad_outputs what came over h and stays within the clip; the same, narrow, into pass->low. */
INLINE void OF_TYPE(backward_outputs_)(
    const steps_of_layer *layer, const backward_pass *pass, ptrdiff_t rows, const float *outputs, float *grad_outputs) {
    for (ptrdiff_t k = 0; k < rows * layer->width; k += LANES) {
        __mmask16 lanes = first_lanes(rows * layer->width - k);
        __m512 grad = _mm512_add_ps(load_float(grad_outputs + k, lanes), load_float(pass->grad_h + k, lanes));
        if (pass->projection)
            grad = _mm512_maskz_mov_ps(inside(load_float(outputs + k, lanes), layer->projection_clip), grad);
        store_float(grad_outputs + k, lanes, grad);
        STORE((TYPE *)pass->low + k, lanes, grad);
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

#undef LOAD
#undef STORE
#undef MULTIPLY
