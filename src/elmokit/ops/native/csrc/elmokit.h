/* Every function of the library: the C files include it, so that the compiler checks their definitions, and library.py
 * reads it for the arguments. Files are compiled once for each target (hatch_build.py), those of products also once for
 * each number type, so that names end in _TYPE_TARGET or _TARGET.
 *
 * Sizes count values, not bytes. `rows` of a step are those of a packed stream (packing.py). A stride is the distance
 * in values from one row to the next. `panels` are prepacked weights, `bias` may be NULL.
 */
#ifndef ELMOKIT_H
#define ELMOKIT_H

#include <stddef.h>
#include <stdint.h>

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define PLAIN(function) JOIN(JOIN(elmokit_##function, _), TARGET)
#define TYPED(function) JOIN(JOIN(JOIN(JOIN(elmokit_##function, _), TYPE), _), TARGET)

typedef uint16_t bfloat16;
typedef uint8_t int8; /* numbers of rows and panels, with their scales (number.h) */

#ifdef TYPE

/* --- Products with prepacked weights (kernels.c) ------------------------------------------------------------------- */

#define PANEL 64          /* columns of a panel: one gate's, or 32 units of two gates, or 16 units of four */
#define ROWS_OF_A_SUM 32  /* in the gradient of a bias */
#define CLASSES 256       /* of a tile of a softmax's gradient ... */
#define POSITIONS 256     /* ... that stays in cache, where two products read it */

/* Panels first_panel to end_panel of a weight whose column j has at depth k weight[j * column_stride + k * depth_stride];
 * for int8 its columns are rows that quantize wrote. */
void TYPED(prepack)(
    ptrdiff_t columns, ptrdiff_t depth, ptrdiff_t gates, ptrdiff_t first_panel, ptrdiff_t end_panel,
    const void *weight, ptrdiff_t column_stride, ptrdiff_t depth_stride, TYPE *panels);

/* Rows of floats to rows of TYPE; for int8 with their scales. */
void TYPED(quantize)(ptrdiff_t rows, ptrdiff_t depth, const float *values, TYPE *quantized);

/* Columns of panels first_panel to end_panel of out (rows, columns) = a (rows, depth) times the weight, plus a bias; out
 * is of float where `wide`. */
void TYPED(product)(
    ptrdiff_t rows, ptrdiff_t columns, ptrdiff_t depth, ptrdiff_t first_panel, ptrdiff_t end_panel, const TYPE *a,
    ptrdiff_t stride, const TYPE *panels, const float *bias, void *out, ptrdiff_t out_stride, int wide);

/* x (rows, units) through a highway layer whose weight is prepacked with two gates; `quantized`: x as rows of TYPE. */
void TYPED(highway)(
    ptrdiff_t rows, ptrdiff_t units, ptrdiff_t first_panel, ptrdiff_t end_panel, const void *x, const TYPE *quantized,
    const TYPE *panels, const float *bias, void *out);

/* --- A layer of the LSTM in one direction (lstm_forward.h, lstm_backward.h) ------------------------------------------- */

/* Rows first_row to end_row through all steps. A clip of infinity is none. Without a trace (gates NULL) low_h and
 * low_hidden are scratch for a step; with one, input_width columns of xh are filled already. `index`: the row of `inputs`
 * that each slot reads, NULL for its own; rows, gates and 16 units of `inputs` lie in those strides. h and c become the
 * state after the last step. */
void TYPED(lstm_forward)(
    ptrdiff_t steps, const int64_t *batch_sizes, const uint8_t *resets, ptrdiff_t first_row, ptrdiff_t end_row,
    ptrdiff_t hidden_size, ptrdiff_t width, ptrdiff_t input_width, float cell_clip, float projection_clip,
    const TYPE *recurrent, const TYPE *projection, const void *inputs, const int64_t *index, ptrdiff_t row_stride,
    ptrdiff_t gate_stride, ptrdiff_t unit_stride, float *outputs, float *h, float *c, const float *start_h,
    const float *start_c, void *gates, void *hidden, TYPE *xh, float *cells, float *previous_c, TYPE *low_h,
    void *low_hidden);

/* The same rows, last step first. The panels are those of transposed weights. grad_h and grad_c become the gradient of
 * the state before the first step, grad_outputs that of the projection before it was clipped; grad_gates may be `gates`,
 * low is scratch for a step; grad_bias, one row for every ROWS_OF_A_SUM rows, is added to. first_row is a multiple of
 * ROWS_OF_A_SUM, so that sums are the same however rows are split. Not for int8. */
void TYPED(lstm_backward)(
    ptrdiff_t steps, const int64_t *batch_sizes, const uint8_t *resets, ptrdiff_t first_row, ptrdiff_t end_row,
    ptrdiff_t hidden_size, ptrdiff_t width, ptrdiff_t input_width, float cell_clip, float projection_clip,
    const TYPE *recurrent, const TYPE *projection, const TYPE *input, const float *outputs, const TYPE *gates,
    const float *cells, const float *previous_c, float *grad_outputs, float *grad_h, float *grad_c, TYPE *grad_gates,
    TYPE *low, float *grad_x, float *grad_bias);

/* --- log(sum(exp(hidden @ weight.T + bias))) (logsumexp.h), not for int8 ---------------------------------------------- */

/* Of each position the maximum of its logits and the sum of 2^(logit - maximum), both in units of log 2. */
void TYPED(logsumexp)(
    ptrdiff_t positions, ptrdiff_t classes, ptrdiff_t depth, const TYPE *panels, const TYPE *weight, const float *bias,
    const int32_t *excluded, float *max, float *total);

/* Adds to grad_hidden (depth, positions), grad_weight (classes, depth) and grad_bias; scratch is of
 * 2 * CLASSES * POSITIONS + depth * CLASSES values. */
void TYPED(logsumexp_backward)(
    ptrdiff_t positions, ptrdiff_t classes, ptrdiff_t depth, const TYPE *panels, const TYPE *across,
    const TYPE *weight, const float *bias, const int32_t *excluded, const float *result, const float *grad,
    float *grad_hidden, float *grad_weight, float *grad_bias, TYPE *scratch);

#endif

/* --- Without products ------------------------------------------------------------------------------------------------- */

#ifdef TARGET

/* Maxima over all places of sums of rows of a table, and their gradient (characters.c). */
void PLAIN(characters_forward)(
    ptrdiff_t words, ptrdiff_t characters, ptrdiff_t alphabet, ptrdiff_t width, ptrdiff_t filters, ptrdiff_t stride,
    ptrdiff_t column, ptrdiff_t first, ptrdiff_t end, const int32_t *ids, const float *table, const int32_t *used,
    float *values, uint8_t *places);
void PLAIN(characters_backward)(
    ptrdiff_t words, ptrdiff_t characters, ptrdiff_t alphabet, ptrdiff_t width, ptrdiff_t filters, ptrdiff_t stride,
    ptrdiff_t column, ptrdiff_t first, ptrdiff_t end, const int32_t *ids, float *grad_table, const uint8_t *places,
    const float *grad);

/* From streams to text (unpack.c): a token goes from the slots fwd and bwd of its directions to the address outs, its
 * layers layer_strides values from one to the next; 1 where finite numbers were too large for float16. */
int PLAIN(unpack_float)(
    ptrdiff_t layers, ptrdiff_t slots, ptrdiff_t width, ptrdiff_t tokens, const float *streams, const int64_t *fwd,
    const int64_t *bwd, const int64_t *outs, const int64_t *layer_strides);
int PLAIN(unpack_float16)(
    ptrdiff_t layers, ptrdiff_t slots, ptrdiff_t width, ptrdiff_t tokens, const float *streams, const int64_t *fwd,
    const int64_t *bwd, const int64_t *outs, const int64_t *layer_strides);

#endif
#endif
