/* Every function of the library: the C files include it, so that the compiler checks their definitions, and library.py
 * reads it for the arguments. A macro of (TYPE) stands for a function of each number type.
 *
 * Sizes count values, not bytes. `rows` of a step are those of a packed stream (packing.py). A stride is the distance
 * in values from one row to the next. Pointers to `void` are to values of the function's TYPE, or to packed panels.
 */
#ifndef ELMOKIT_H
#define ELMOKIT_H

#include <stddef.h>
#include <stdint.h>

typedef uint16_t bfloat16;

/* --- The instructions of this processor (gemm.c) -------------------------------------------------------------------------- */

/* 0: no AVX-512, 1: its float32 products, 2: bfloat16 too */
int elmokit_avx512(void);
/* 1: products of int8 */
int elmokit_avx512_int8(void);

/* --- Products with prepacked weights (gemm.c) ----------------------------------------------------------------------- */

/* Panels first_panel to end_panel of a weight whose column j has at depth k weight[j * column_stride + k * depth_stride]. */
#define ELMOKIT_PREPACK(TYPE)                                                                                             \
    void elmokit_prepack_##TYPE(                                                                                          \
        ptrdiff_t columns, ptrdiff_t depth, ptrdiff_t gates, ptrdiff_t first_panel, ptrdiff_t end_panel,               \
        const void *weight, ptrdiff_t column_stride, ptrdiff_t depth_stride, void *panels);
ELMOKIT_PREPACK(float)
ELMOKIT_PREPACK(bfloat16)
ELMOKIT_PREPACK(int8)

/* out (rows, columns) = a (rows, depth) times the weight, plus a bias; out is of float where `wide`. */
#define ELMOKIT_PRODUCT(TYPE)                                                                                          \
    void elmokit_product_##TYPE(                                                                                       \
        ptrdiff_t rows, ptrdiff_t columns, ptrdiff_t depth, const void *a, ptrdiff_t stride, const void *panels,       \
        const float *bias, void *out, ptrdiff_t out_stride, int wide);
ELMOKIT_PRODUCT(float)
ELMOKIT_PRODUCT(bfloat16)
ELMOKIT_PRODUCT(int8)

/* x (rows, units) through a highway layer whose weight is packed with two gates; `quantized`: the rows of x, for int8. */
#define ELMOKIT_PREPACKED_HIGHWAY(TYPE)                                                                                   \
    void elmokit_prepacked_highway_##TYPE(                                                                                \
        ptrdiff_t rows, ptrdiff_t units, const void *x, const void *panels, const float *bias, void *out,              \
        const void *quantized);
ELMOKIT_PREPACKED_HIGHWAY(float)
ELMOKIT_PREPACKED_HIGHWAY(bfloat16)
ELMOKIT_PREPACKED_HIGHWAY(int8)

/* Rows of floats to rows of int8 and their scale (avx512_int8.h). */
void elmokit_quantize(ptrdiff_t rows, ptrdiff_t depth, const float *values, uint8_t *quantized);

/* --- A layer of the LSTM in one direction (gemm.c) -------------------------------------------------------------------- */

/* Rows first_row to end_row through all steps. A clip of infinity is none. Without a trace (gates NULL) low_h and
 * low_hidden are scratch for a step; with one, input_width columns of xh are filled already. `index`: the row of `inputs`
 * that each slot reads, NULL for its own; rows, gates and 16 units of `inputs` lie in those strides. h and c become the
 * state after the last step. */
#define ELMOKIT_LSTM_FORWARD(TYPE)                                                                                     \
    void elmokit_lstm_forward_##TYPE(                                                                                  \
        ptrdiff_t steps, const int64_t *batch_sizes, const uint8_t *resets, ptrdiff_t first_row, ptrdiff_t end_row,    \
        ptrdiff_t hidden_size, ptrdiff_t width, ptrdiff_t input_width, float cell_clip, float projection_clip,         \
        const void *recurrent, const void *projection, const void *inputs, const int64_t *index,                       \
        ptrdiff_t row_stride, ptrdiff_t gate_stride, ptrdiff_t unit_stride, float *outputs, float *h, float *c,        \
        const float *start_h, const float *start_c, void *gates, void *hidden, void *xh, float *cells,                 \
        float *previous_c, void *low_h, void *low_hidden);
ELMOKIT_LSTM_FORWARD(float)
ELMOKIT_LSTM_FORWARD(bfloat16)
ELMOKIT_LSTM_FORWARD(int8)

/* The same rows, last step first. The panels are those of transposed weights. grad_h and grad_c become the gradient of
 * the state before the first step, grad_outputs that of the projection before it was clipped; grad_gates may be `gates`,
 * low is scratch for a step; grad_bias, one row for every ROWS_OF_A_SUM rows, is added to. first_row is a multiple of
 * ROWS_OF_A_SUM, so that sums are the same however rows are split. */
#define ROWS_OF_A_SUM 32
#define ELMOKIT_LSTM_BACKWARD(TYPE)                                                                                    \
    void elmokit_lstm_backward_##TYPE(                                                                                 \
        ptrdiff_t steps, const int64_t *batch_sizes, const uint8_t *resets, ptrdiff_t first_row, ptrdiff_t end_row,    \
        ptrdiff_t hidden_size, ptrdiff_t width, ptrdiff_t input_width, float cell_clip, float projection_clip,         \
        const void *recurrent, const void *projection, const void *input, const float *outputs, const void *gates,     \
        const float *cells, const float *previous_c, float *grad_outputs, float *grad_h, float *grad_c,                \
        void *grad_gates, void *low, float *grad_x, float *grad_bias);
ELMOKIT_LSTM_BACKWARD(float)
ELMOKIT_LSTM_BACKWARD(bfloat16)

/* --- log(sum(exp(hidden @ weight.T + bias))) (gemm.c) ------------------------------------------------------------------ */

/* Of each position the maximum of its logits and the sum of 2^(logit - maximum), both in units of log 2. */
#define ELMOKIT_LOGSUMEXP(TYPE)                                                                                        \
    void elmokit_logsumexp_##TYPE(                                                                                     \
        ptrdiff_t positions, ptrdiff_t classes, ptrdiff_t depth, const void *panels, const void *weight,               \
        const float *bias, const int32_t *excluded, float *max, float *total);
ELMOKIT_LOGSUMEXP(float)
ELMOKIT_LOGSUMEXP(bfloat16)

/* Adds to grad_hidden (depth, positions), grad_weight (classes, depth) and grad_bias; scratch is of
 * 2 * 256 * 256 + depth * 256 values. */
#define ELMOKIT_LOGSUMEXP_BACKWARD(TYPE)                                                                               \
    void elmokit_logsumexp_backward_##TYPE(                                                                            \
        ptrdiff_t positions, ptrdiff_t classes, ptrdiff_t depth, const void *panels, const void *across,               \
        const void *weight, const float *bias, const int32_t *excluded, const float *result, const float *grad,        \
        float *grad_hidden, float *grad_weight, float *grad_bias, void *scratch);
ELMOKIT_LOGSUMEXP_BACKWARD(float)
ELMOKIT_LOGSUMEXP_BACKWARD(bfloat16)

/* --- For any processor ------------------------------------------------------------------------------------------------ */

/* Maxima over all places of sums of rows of a table, and their gradient (characters.c). */
void elmokit_characters_forward(
    ptrdiff_t words, ptrdiff_t characters, ptrdiff_t alphabet, ptrdiff_t width, ptrdiff_t filters, ptrdiff_t stride,
    ptrdiff_t column, ptrdiff_t first, ptrdiff_t end, const int32_t *ids, const float *table, const int32_t *used,
    float *values, uint8_t *places);
void elmokit_characters_backward(
    ptrdiff_t words, ptrdiff_t characters, ptrdiff_t alphabet, ptrdiff_t width, ptrdiff_t filters, ptrdiff_t stride,
    ptrdiff_t column, ptrdiff_t first, ptrdiff_t end, const int32_t *ids, float *grad_table, const uint8_t *places,
    const float *grad);

/* From streams to text (unpack.c): a token goes from the slots fwd and bwd of its directions to the address outs, its
 * layers layer_strides values from one to the next; 1 where finite numbers were too large for float16. */
#define ELMOKIT_UNPACK(TYPE)                                                                                           \
    int elmokit_unpack_##TYPE(                                                                                         \
        ptrdiff_t layers, ptrdiff_t slots, ptrdiff_t width, ptrdiff_t tokens, const float *streams,                    \
        const int64_t *fwd, const int64_t *bwd, const int64_t *outs, const int64_t *layer_strides);
ELMOKIT_UNPACK(float)
ELMOKIT_UNPACK(float16)

#endif
