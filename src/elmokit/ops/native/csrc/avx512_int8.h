/* Included by avx512.c: products of int8, for processors with AVX-512 VNNI. For use only, not for training.
 *
 * A column of a weight is int8 from -127 to 127 and a scale, its largest value / 127. So is a row that is
 * multiplied by it, from just before until after. The instruction adds up four products at once, of numbers without a
 * sign and numbers with one: those of a row therefore have 128 added to them, and a column's sum begins at what takes
 * that away again, -128 times the sum of its own. Sums are exact, whatever their order; all that follows is float.
 *
 * A row in memory: its numbers, up to a multiple of four of them, then its scale. A panel: the numbers of 64 columns,
 * four depths of each together, then where their sums begin, then their scales.
 */
#define QUAD 4

typedef uint8_t byte;
typedef int32_t int32_lanes __attribute__((vector_size(64))); /* sums in __m512i GCC copies about */

/* 1: products of int8 */
int elmokit_avx512_int8(void) { return elmokit_avx512() && __builtin_cpu_supports("avx512vnni"); }

static inline ptrdiff_t in_quads(ptrdiff_t depth) { return (depth + QUAD - 1) / QUAD * QUAD; }
static inline ptrdiff_t row_bytes(ptrdiff_t depth) { return in_quads(depth) + sizeof(float); }
static inline ptrdiff_t panel_bytes(ptrdiff_t depth) { return PANEL * (row_bytes(depth) + sizeof(int32_t)); }

/* --- From floats ------------------------------------------------------------------------------------------------------ */

/* What is no number makes the scale none; what is nearly nothing becomes 0. */
INLINE void quantize_row(ptrdiff_t depth, const float *from, byte *to) {
    __m512i most = _mm512_setzero_si512(); /* as int8 sizes have the same order, and a NaN is most */
    for (ptrdiff_t k = 0; k < depth; k += LANES) {
        __m512 size = _mm512_abs_ps(load_float(from + k, first_lanes(depth - k)));
        most = _mm512_max_epu32(most, _mm512_castps_si512(size));
    }
    uint32_t bits = _mm512_reduce_max_epu32(most);
    float largest;
    memcpy(&largest, &bits, sizeof largest);
    float in_steps = largest < 1e-30f ? 0.0f : 127.0f / largest, scale = largest / 127.0f;
    for (ptrdiff_t k = 0; k < in_quads(depth); k += LANES) {
        __m512 value = load_float(from + k, first_lanes(depth - k));
        __m512i number = _mm512_cvtps_epi32(_mm512_mul_ps(value, _mm512_set1_ps(in_steps)));
        __m128i bytes = _mm_xor_si128(_mm512_cvtsepi32_epi8(number), _mm_set1_epi8(-128)); /* + 128 */
        _mm_mask_storeu_epi8(to + k, first_lanes(in_quads(depth) - k), bytes);
    }
    memcpy(to + in_quads(depth), &scale, sizeof scale);
}

FOR_AVX512 void elmokit_quantize(ptrdiff_t rows, ptrdiff_t depth, const float *from, byte *to) {
    for (ptrdiff_t row = 0; row < rows; row++) quantize_row(depth, from + row * depth, to + row * row_bytes(depth));
}

/* A weight's panels from its columns, each of them quantized as a row is; see elmokit_pack_float. */
FOR_AVX512 void elmokit_pack_int8(
    ptrdiff_t columns, ptrdiff_t depth, ptrdiff_t gates, ptrdiff_t first_panel, ptrdiff_t end_panel, const void *weight,
    ptrdiff_t column_stride, ptrdiff_t depth_stride, void *all_panels) {
    (void)depth_stride; /* one */
    ptrdiff_t of_gate = columns / gates, across = PANEL / gates;
    for (ptrdiff_t panel = first_panel; panel < end_panel; panel++) {
        ptrdiff_t first = panel * across;
        byte *panels = (byte *)all_panels + panel * panel_bytes(depth);
        byte *begins = panels + PANEL * in_quads(depth), *scales = begins + PANEL * sizeof(int32_t);
        memset(panels, 0, panel_bytes(depth));
        for (ptrdiff_t place = 0; place < PANEL; place++) {
            ptrdiff_t unit = first + place % across, column = place / across * of_gate + unit;
            if (unit >= of_gate) continue;
            const byte *numbers = (const byte *)weight + column * column_stride;
            int32_t sum = 0, begin;
            for (ptrdiff_t k = 0; k < in_quads(depth); k++) {
                sum += numbers[k] - 128;
                panels[(k - k % QUAD) * PANEL + place * QUAD + k % QUAD] = numbers[k] ^ 128; /* - 128 */
            }
            begin = -128 * sum;
            memcpy(begins + place * sizeof begin, &begin, sizeof begin);
            memcpy(scales + place * sizeof(float), numbers + in_quads(depth), sizeof(float));
        }
    }
}

/* --- Products --------------------------------------------------------------------------------------------------------- */

INLINE void multiply_rows_byte(
    const int rows, ptrdiff_t depth, const byte *a, ptrdiff_t stride, const byte *panel, const prefetch_plan *plan,
    tile *result) {
    prefetcher left = start_prefetch(plan, depth);
    const byte *begins = panel + PANEL * in_quads(depth), *scales = begins + PANEL * sizeof(int32_t);
    int32_lanes sums[MAX_ROWS][GROUPS];
    for (int row = 0; row < rows; row++)
        for (int group = 0; group < GROUPS; group++)
            sums[row][group] = (int32_lanes)_mm512_loadu_si512(begins + group * 64);
    for (ptrdiff_t begin = 0; begin < depth; begin += LINE_OF(byte)) {
        prefetch_some(&left);
        for (ptrdiff_t k = begin, end = smaller(begin + LINE_OF(byte), depth); k < end; k += QUAD) {
            __m512i weights[GROUPS];
            for (int group = 0; group < GROUPS; group++)
                weights[group] = _mm512_loadu_si512(panel + k * PANEL + group * 64);
            for (int row = 0; row < rows; row++) {
                int32_t quad;
                memcpy(&quad, a + row * stride + k, sizeof quad);
                __m512i value = _mm512_set1_epi32(quad);
                for (int group = 0; group < GROUPS; group++)
                    sums[row][group] =
                        (int32_lanes)_mm512_dpbusd_epi32((__m512i)sums[row][group], value, weights[group]);
            }
        }
    }
    for (int row = 0; row < rows; row++)
        for (int group = 0; group < GROUPS; group++)
            _mm512_store_ps(result->values[row] + group * LANES, _mm512_cvtepi32_ps((__m512i)sums[row][group]));
    for (int row = 0; row < rows; row++) { /* apart, or sums would not stay in registers */
        float scale;
        memcpy(&scale, a + row * stride + in_quads(depth), sizeof scale);
        for (int group = 0; group < GROUPS; group++) {
            __m512 of_column = _mm512_mul_ps(of_tile(result, row, group), _mm512_loadu_ps(scales + group * 64));
            to_tile(result, row, group, _mm512_mul_ps(of_column, _mm512_set1_ps(scale)));
        }
    }
}
DEFINE_MULTIPLY(byte)

/* As store_bfloat16, for processors that have no instruction for it. */
INLINE void store_rounded(bfloat16 *to, __mmask16 lanes, __m512 x) {
    __m512i bits = _mm512_castps_si512(x), odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    bits = _mm512_srli_epi32(_mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
    bits = _mm512_mask_mov_epi32(bits, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), _mm512_set1_epi32(0x7fc0));
    _mm256_mask_storeu_epi16(to, lanes, _mm512_cvtepi32_epi16(bits));
}

/* As elmokit_product_float, of rows that were quantized; out is of float where `wide`, else of bfloat16. */
FOR_AVX512 void elmokit_product_int8(
    ptrdiff_t rows, ptrdiff_t columns, ptrdiff_t depth, const void *quantized, ptrdiff_t stride, const void *panels,
    const float *bias, void *out, ptrdiff_t out_stride, int wide) {
    const byte *a = quantized, *panel = panels;
    for (ptrdiff_t column = 0; column < columns; column += PANEL, panel += panel_bytes(depth))
        for (ptrdiff_t row = 0, height; row < rows; row += height) {
            prefetch_plan plan;
            tile sums;
            height = tile_rows(rows - row);
            plan_panel(&plan, panel + panel_bytes(depth), panel_bytes(depth), row, row + height, rows);
            multiply_byte(height, depth, a + row * stride, stride, panel, &plan, &sums);
            for (ptrdiff_t r = 0; r < height; r++)
                for (int group = 0; group < GROUPS; group++) {
                    ptrdiff_t at = column + group * LANES;
                    __mmask16 lanes = first_lanes(columns - at);
                    __m512 sum = of_tile(&sums, r, group);
                    if (bias) sum = _mm512_add_ps(sum, load_float(bias + at, lanes));
                    if (wide) store_float((float *)out + (row + r) * out_stride + at, lanes, sum);
                    else store_rounded((bfloat16 *)out + (row + r) * out_stride + at, lanes, sum);
                }
        }
}

/* x and the result are of float. */
FOR_AVX512 void elmokit_packed_highway_int8(
    ptrdiff_t rows, ptrdiff_t units, const void *values, const void *panels, const float *bias, void *result,
    const void *quantized) {
    const float *x = values;
    const byte *panel = panels, *numbers = quantized;
    float *out = result;
    for (ptrdiff_t first = 0; first < units; first += PANEL / 2, panel += panel_bytes(units))
        for (ptrdiff_t row = 0, height; row < rows; row += height) {
            tile sums;
            height = tile_rows(rows - row);
            multiply_byte(height, units, numbers + row * row_bytes(units), row_bytes(units), panel, &no_prefetch, &sums);
            for (ptrdiff_t r = 0; r < height; r++)
                for (int group = 0; group < GROUPS / 2; group++) {
                    ptrdiff_t unit = first + group * LANES, place = (row + r) * units + unit;
                    __mmask16 lanes = first_lanes(units - unit);
                    __m512 before = load_float(x + place, lanes);
                    store_float(out + place, lanes, highway_of_tile(&sums, r, group, bias + unit, units, lanes, before));
                }
        }
}

/* --- Forward ---------------------------------------------------------------------------------------------------------- */

/* As forward_tile_bfloat16 without a trace, with the quantized rows of h; hidden values are float. */
INLINE void forward_tile_int8(
    ptrdiff_t rows, const steps_of_layer *layer, const forward_pass *pass, ptrdiff_t slot, ptrdiff_t row,
    ptrdiff_t unit, const byte *h, const byte *panel, prefetch_plan *plan, float *hidden) {
    ptrdiff_t units = layer->hidden, stride = row_bytes(layer->width);
    __mmask16 lanes = first_lanes(units - unit);
    const bfloat16 *inputs[MAX_ROWS];
    tile sums;
    for (ptrdiff_t r = 0; r < rows; r++) {
        inputs[r] = (const bfloat16 *)pass->inputs + input_offset(pass, slot + row + r, unit);
        for (int gate = 0; gate < GROUPS; gate++) plan_line(plan, inputs[r] + gate * pass->gate_stride);
        plan_line(plan, pass->c + (row + r) * units + unit);
    }
    multiply_byte(rows, layer->width, h + row * stride, stride, panel, plan, &sums);
    for (ptrdiff_t r = 0; r < rows; r++) {
        float *cell = pass->c + (row + r) * units + unit;
        __m512 gate[GROUPS];
        for (int k = 0; k < GROUPS; k++)
            gate[k] = _mm512_add_ps(of_tile(&sums, r, k), load_bfloat16(inputs[r] + k * pass->gate_stride, lanes));
        __m512 i = sigmoid(gate[0]), g = hyperbolic_tangent(gate[1]), f = sigmoid(gate[2]), o = sigmoid(gate[3]);
        __m512 kept = _mm512_mul_ps(f, load_float(cell, lanes));
        __m512 now = clipped(_mm512_fmadd_ps(i, g, kept), layer->cell_clip);
        store_float(cell, lanes, now);
        store_float(hidden + (row + r) * units + unit, lanes, _mm512_mul_ps(o, hyperbolic_tangent(now)));
    }
}

/* The outputs of a step from its hidden values: projected and clipped, or as they are. */
INLINE void forward_outputs_int8(
    const steps_of_layer *layer, const forward_pass *pass, ptrdiff_t rows, const float *hidden, float *outputs) {
    ptrdiff_t width = layer->width;
    if (pass->projection) {
        elmokit_quantize(rows, layer->hidden, hidden, pass->low_h);
        elmokit_product_int8(
            rows, width, layer->hidden, pass->low_h, row_bytes(layer->hidden), pass->projection, NULL, outputs, width,
            1);
        for (ptrdiff_t k = 0; k < rows * width; k += LANES) {
            __mmask16 lanes = first_lanes(rows * width - k);
            store_float(outputs + k, lanes, clipped(load_float(outputs + k, lanes), layer->projection_clip));
        }
    } else memcpy(outputs, hidden, rows * width * sizeof(float));
    memcpy(pass->h, outputs, rows * width * sizeof(float));
}

/* As forward_steps_bfloat16 without a trace. Scratch: low_h for a step's quantized rows, of h and then of the hidden
 * values, low_hidden for the latter as floats. */
INLINE void forward_steps_int8(const steps_of_layer *layer, const forward_pass *pass) {
    ptrdiff_t width = layer->width, hidden = layer->hidden, slot = layer->first_row;
    for (ptrdiff_t t = 0; t < layer->steps; slot += layer->batch_sizes[t], t++) {
        ptrdiff_t rows = rows_of_step(layer, t);
        for (ptrdiff_t row = 0; layer->resets && row < rows; row++)
            if (layer->resets[slot + row]) reset_row_float(layer, pass, row);
        elmokit_quantize(rows, width, pass->h, pass->low_h);
        const byte *panel = pass->recurrent;
        for (ptrdiff_t unit = 0; unit < hidden; unit += LANES, panel += panel_bytes(width))
            for (ptrdiff_t row = 0, height; row < rows; row += height) {
                prefetch_plan plan;
                height = tile_rows(rows - row);
                plan_panel(&plan, panel + panel_bytes(width), panel_bytes(width), row, row + height, rows);
                forward_tile_int8(height, layer, pass, slot, row, unit, pass->low_h, panel, &plan, pass->low_hidden);
            }
        forward_outputs_int8(layer, pass, rows, pass->low_hidden, pass->outputs + slot * width);
    }
}

FOR_AVX512 void elmokit_lstm_forward_int8(
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
    forward_steps_int8(&layer, &pass);
}
