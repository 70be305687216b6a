/* Included by kernels.c: a layer of the LSTM in one direction. */

typedef struct {
    ptrdiff_t steps, first_row, end_row;
    ptrdiff_t hidden, width, input_width; /* units of the cell; values of h; values of x that are multiplied with it */
    const int64_t *batch_sizes;           /* rows of each step, never rising */
    const uint8_t *resets;                /* of each slot, or NULL: the state is set to the start there */
    float cell_clip, projection_clip; /* infinity: none */
} lstm_steps;

/* How many of a layer's rows are in a step. */
INLINE ptrdiff_t rows_of_step(const lstm_steps *layer, ptrdiff_t t) {
    ptrdiff_t end = smaller(layer->batch_sizes[t], layer->end_row);
    return end > layer->first_row ? end - layer->first_row : 0;
}

/* With gradients, a step multiplies [x; h]: input_width columns of xh are filled already, and what the backward pass needs is
 * stored. Without (gates NULL), x was multiplied before, and low_h and low_units are scratch for a step. */
typedef struct {
    const TYPE *recurrent, *projection;             /* panels; no projection: NULL */
    const RESULT *inputs;                           /* products of x and the bias, or the bias */
    const int64_t *index;                           /* the row of `inputs` that each slot reads, or NULL: its own */
    ptrdiff_t row_stride, gate_stride, unit_stride; /* of rows, gates and 16 units of `inputs` */
    float *outputs, *h, *c;
    const float *start_h, *start_c; /* what a reset sets */
    VALUE *gates, *units;
    TYPE *xh;
    float *cells, *previous_c;
    TYPE *low_h;
    VALUE *low_units;
} forward_pass;

/* c <- clip(sigmoid(i) tanh(g) + sigmoid(f) c), hidden <- sigmoid(o) tanh(c), for LANES units of a row from `unit` on. */
INLINE void forward_cell(
    const lstm_steps *layer, const forward_pass *pass, const RESULT *inputs, const tile *sums, ptrdiff_t r,
    ptrdiff_t row, ptrdiff_t slot, ptrdiff_t unit, ptrdiff_t count, VALUE *hidden) {
    ptrdiff_t units = layer->hidden, lane = unit % UNITS;
    float *cell = pass->c + row * units + unit;
    vector before = load_float(cell, count), gate[GATES];
    for (int k = 0; k < GATES; k++)
        gate[k] = load_from_tile(sums, r, k * UNITS + lane) + load_result(inputs + k * pass->gate_stride + lane, count);
    vector i = sigmoid(gate[0]), g = hyperbolic_tangent(gate[1]), f = sigmoid(gate[2]), o = sigmoid(gate[3]);
    vector now = clipped(i * g + f * before, layer->cell_clip);
    store_float(cell, count, now);
    store_value(hidden + row * units + unit, count, o * hyperbolic_tangent(now));
    if (pass->gates) {
        VALUE *gates = pass->gates + (slot + row) * GATES * units + unit;
        store_value(gates, count, i);
        store_value(gates + units, count, g);
        store_value(gates + 2 * units, count, f);
        store_value(gates + 3 * units, count, o);
        store_float(pass->cells + (slot + row) * units + unit, count, now);
        store_float(pass->previous_c + (slot + row) * units + unit, count, before);
    }
}

/* The rows of a tile, 16 units from `unit` on. */
INLINE void forward_tile(
    ptrdiff_t rows, const lstm_steps *layer, const forward_pass *pass, ptrdiff_t slot, ptrdiff_t row, ptrdiff_t unit,
    const TYPE *xh, const TYPE *panel, prefetch_plan *plan, VALUE *hidden) {
    ptrdiff_t units = layer->hidden, depth = layer->input_width + layer->width, stride = row_size(depth);
    const RESULT *inputs[MR];
    tile sums;
    for (ptrdiff_t r = 0; r < rows; r++) {
        ptrdiff_t at = slot + row + r;
        inputs[r] = pass->inputs + (pass->index ? pass->index[at] : at) * pass->row_stride + unit / UNITS * pass->unit_stride;
        for (int gate = 0; gate < GATES; gate++) plan_line(plan, inputs[r] + gate * pass->gate_stride);
        plan_line(plan, pass->c + (row + r) * units + unit);
        if (pass->gates) {
            for (int gate = 0; gate < GATES; gate++) plan_line(plan, pass->gates + (at * GATES + gate) * units + unit);
            plan_line(plan, pass->cells + at * units + unit);
            plan_line(plan, pass->previous_c + at * units + unit);
        }
    }
    multiply(rows, depth, xh + row * stride, stride, panel, plan, &sums);
    for (ptrdiff_t r = 0; r < rows; r++)
        if (units - unit >= UNITS) /* the usual case, without counts */
            for (ptrdiff_t lane = 0; lane < UNITS; lane += LANES)
                forward_cell(layer, pass, inputs[r], &sums, r, row + r, slot, unit + lane, LANES, hidden);
        else
            for (ptrdiff_t lane = 0; unit + lane < units; lane += LANES)
                forward_cell(layer, pass, inputs[r], &sums, r, row + r, slot, unit + lane, units - unit - lane, hidden);
}

/* The outputs of a step from its hidden values: projected and clipped, or as they are. */
INLINE void forward_outputs(
    const lstm_steps *layer, const forward_pass *pass, ptrdiff_t rows, const VALUE *hidden, float *outputs) {
    ptrdiff_t width = layer->width;
    if (pass->projection)
        TYPED(product)(
            rows, width, layer->hidden, 0, (width + PANEL - 1) / PANEL,
            rows_of_values(rows, layer->hidden, hidden, pass->low_h), row_size(layer->hidden), pass->projection, NULL,
            outputs, width, 1);
    for (ptrdiff_t k = 0, count; (count = rows * width - k) > 0; k += LANES) {
        vector now = pass->projection ? clipped(load_float(outputs + k, count), layer->projection_clip)
                                      : load_value(hidden + k, count);
        store_float(outputs + k, count, now);
        store_float(pass->h + k, count, now);
    }
}

/* Rows first_row to end_row through all steps (portable/lstm.py has the same in PyTorch). h and c become the state after the
 * last step. */
void TYPED(lstm_forward)(const lstm_steps *stream, const forward_pass *arguments) {
    const lstm_steps layer = *stream;
    forward_pass pass = *arguments;
    pass.h += layer.first_row * layer.width;
    pass.c += layer.first_row * layer.hidden;
    ptrdiff_t depth = layer.input_width + layer.width, stride = row_size(depth), size = panel_size(depth);
    ptrdiff_t slot = layer.first_row;
    for (ptrdiff_t t = 0; t < layer.steps; slot += layer.batch_sizes[t], t++) {
        ptrdiff_t rows = rows_of_step(&layer, t);
        TYPE *now_xh = pass.gates ? pass.xh + slot * stride : pass.low_h;
        VALUE *now_hidden = pass.gates ? pass.units + slot * layer.hidden : pass.low_units;
        for (ptrdiff_t row = 0; row < rows; row++) {
            if (layer.resets && layer.resets[slot + row]) {
                memcpy(pass.h + row * layer.width, pass.start_h, layer.width * sizeof *pass.h);
                memcpy(pass.c + row * layer.hidden, pass.start_c, layer.hidden * sizeof *pass.c);
            }
            to_row(layer.width, pass.h + row * layer.width, now_xh + row * stride + layer.input_width);
        }
        const TYPE *panel = pass.recurrent;
        for (ptrdiff_t unit = 0; unit < layer.hidden; unit += UNITS, panel += size)
            for (ptrdiff_t row = 0, height; row < rows; row += height) {
                prefetch_plan plan;
                height = tile_rows(rows - row);
                plan_panel(&plan, panel + size, size, row, row + height, rows);
                forward_tile(height, &layer, &pass, slot, row, unit, now_xh, panel, &plan, now_hidden);
            }
        forward_outputs(&layer, &pass, rows, now_hidden, pass.outputs + slot * layer.width);
    }
}
