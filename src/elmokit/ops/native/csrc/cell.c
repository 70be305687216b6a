/* The LSTM cell between two matrix products as one pass over memory, forward and backward.
 *
 * Gates lie side by side in a row of 4 * hidden values in the order i, g, f, o; they are float32 or bfloat16, the cell is
 * float32. Loops are plain so that the compiler turns them into vectors; each function is built for several processors
 * and the loader picks the best one.
 */
#include <stddef.h>

#include "elmokit.h"
#include "targets.h"
#include "values.h"

static inline float clipped(float x, float clip) { return x < -clip ? -clip : (x > clip ? clip : x); }

/* c <- clip(sigmoid(i) tanh(g) + sigmoid(f) c), out <- sigmoid(o) tanh(c). With a trace (cells not NULL) the gates are
 * left as their functions made them, and c is noted before and after. A clip of infinity is none. */
#define DEFINE_FORWARD(TYPE)                                                                                             \
    FOR_EACH_TARGET void elmokit_cell_forward_##TYPE(                                                                 \
        ptrdiff_t rows, ptrdiff_t hidden, TYPE *restrict gates, float *restrict c, TYPE *restrict out,                   \
        float *restrict cells, float *restrict previous, float clip) {                                                   \
        for (ptrdiff_t row = 0; row < rows; row++) {                                                                     \
            TYPE *restrict i = gates + row * 4 * hidden, *restrict g = i + hidden, *restrict f = g + hidden,             \
                 *restrict o = f + hidden;                                                                               \
            float *restrict cell = c + row * hidden;                                                                     \
            TYPE *restrict result = out + row * hidden;                                                                  \
            if (cells) {                                                                                                 \
                float *restrict after = cells + row * hidden, *restrict before = previous + row * hidden;                \
                for (ptrdiff_t k = 0; k < hidden; k++) {                                                                 \
                    float in = sigmoid(load_##TYPE(i[k])), to = hyperbolic_tangent(load_##TYPE(g[k]));                   \
                    float keep = sigmoid(load_##TYPE(f[k])), show = sigmoid(load_##TYPE(o[k]));                          \
                    before[k] = cell[k];                                                                                 \
                    float now = clipped(in * to + keep * cell[k], clip);                                                 \
                    after[k] = cell[k] = now;                                                                            \
                    i[k] = store_##TYPE(in), g[k] = store_##TYPE(to), f[k] = store_##TYPE(keep);                         \
                    o[k] = store_##TYPE(show);                                                                           \
                    result[k] = store_##TYPE(show * hyperbolic_tangent(now));                                            \
                }                                                                                                        \
            } else {                                                                                                     \
                for (ptrdiff_t k = 0; k < hidden; k++) {                                                                 \
                    float in = sigmoid(load_##TYPE(i[k])), to = hyperbolic_tangent(load_##TYPE(g[k]));                   \
                    float keep = sigmoid(load_##TYPE(f[k])), show = sigmoid(load_##TYPE(o[k]));                          \
                    float now = clipped(in * to + keep * cell[k], clip);                                                 \
                    cell[k] = now;                                                                                       \
                    result[k] = store_##TYPE(show * hyperbolic_tangent(now));                                            \
                }                                                                                                        \
            }                                                                                                            \
        }                                                                                                                \
    }

/* From the trace of a step and the gradient of its output: the gates' gradient, and in grad_c that of c before the step. */
#define DEFINE_BACKWARD(TYPE)                                                                                            \
    FOR_EACH_TARGET void elmokit_cell_backward_##TYPE(                                                                \
        ptrdiff_t rows, ptrdiff_t hidden, const TYPE *restrict gates, const float *restrict cells,                       \
        const float *restrict previous, const TYPE *restrict grad_out, float *restrict grad_c,                           \
        TYPE *restrict grad_gates, float clip) {                                                                         \
        for (ptrdiff_t row = 0; row < rows; row++) {                                                                     \
            const TYPE *restrict i = gates + row * 4 * hidden, *restrict g = i + hidden, *restrict f = g + hidden,       \
                       *restrict o = f + hidden;                                                                         \
            TYPE *restrict grad_i = grad_gates + row * 4 * hidden, *restrict grad_g = grad_i + hidden,                   \
                 *restrict grad_f = grad_g + hidden, *restrict grad_o = grad_f + hidden;                                 \
            const float *restrict cell = cells + row * hidden, *restrict before = previous + row * hidden;               \
            const TYPE *restrict grad = grad_out + row * hidden;                                                         \
            float *restrict carried = grad_c + row * hidden;                                                             \
            for (ptrdiff_t k = 0; k < hidden; k++) {                                                                     \
                float in = load_##TYPE(i[k]), to = load_##TYPE(g[k]), keep = load_##TYPE(f[k]);                          \
                float show = load_##TYPE(o[k]), tanh_c = hyperbolic_tangent(cell[k]), from = load_##TYPE(grad[k]);       \
                float of_c = carried[k] + from * show * (1.0f - tanh_c * tanh_c);                                        \
                of_c = cell[k] < clip && cell[k] > -clip ? of_c : 0.0f;                                                  \
                grad_i[k] = store_##TYPE(of_c * to * in * (1.0f - in));                                                  \
                grad_g[k] = store_##TYPE(of_c * in * (1.0f - to * to));                                                  \
                grad_f[k] = store_##TYPE(of_c * before[k] * keep * (1.0f - keep));                                       \
                grad_o[k] = store_##TYPE(from * tanh_c * show * (1.0f - show));                                          \
                carried[k] = of_c * keep;                                                                                \
            }                                                                                                            \
        }                                                                                                                \
    }

DEFINE_FORWARD(float)
DEFINE_FORWARD(bfloat16)
DEFINE_BACKWARD(float)
DEFINE_BACKWARD(bfloat16)
