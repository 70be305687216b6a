/* A highway layer after its matrix product as one pass over memory, forward and backward: carry t + (1 - carry) x, with
 * t = relu(transform). A row of gates has 2 * units values: the transforms, then the carries.
 */
#include <stddef.h>

#include "elmokit.h"
#include "targets.h"
#include "values.h"

/* Leaves the gates as their functions made them. */
#define DEFINE_FORWARD(TYPE)                                                                                             \
    FOR_EACH_TARGET void elmokit_highway_forward_##TYPE(                                                              \
        ptrdiff_t rows, ptrdiff_t units, TYPE *restrict gates, const TYPE *restrict x, TYPE *restrict out) {             \
        for (ptrdiff_t row = 0; row < rows; row++) {                                                                     \
            TYPE *restrict transforms = gates + row * 2 * units, *restrict carries = transforms + units;                 \
            const TYPE *restrict before = x + row * units;                                                               \
            TYPE *restrict after = out + row * units;                                                                    \
            for (ptrdiff_t k = 0; k < units; k++) {                                                                      \
                float transform = load_##TYPE(transforms[k]), carry = sigmoid(load_##TYPE(carries[k]));                  \
                float value = load_##TYPE(before[k]);                                                                    \
                transform = transform < 0.0f ? 0.0f : transform; /* a NaN stays */                                       \
                transforms[k] = store_##TYPE(transform), carries[k] = store_##TYPE(carry);                               \
                after[k] = store_##TYPE(value + carry * (transform - value));                                            \
            }                                                                                                            \
        }                                                                                                                \
    }

/* Turns the gates into their gradients, which it also adds to grad_bias; into grad_x what does not go through gates. */
#define DEFINE_BACKWARD(TYPE)                                                                                            \
    FOR_EACH_TARGET void elmokit_highway_backward_##TYPE(                                                             \
        ptrdiff_t rows, ptrdiff_t units, TYPE *restrict gates, const TYPE *restrict x, const TYPE *restrict grad_out,    \
        TYPE *restrict grad_x, float *restrict grad_bias) {                                                              \
        float *restrict of_transforms = grad_bias, *restrict of_carries = grad_bias + units;                             \
        for (ptrdiff_t row = 0; row < rows; row++) {                                                                     \
            TYPE *restrict transforms = gates + row * 2 * units, *restrict carries = transforms + units;                 \
            const TYPE *restrict before = x + row * units, *restrict grads = grad_out + row * units;                     \
            TYPE *restrict direct = grad_x + row * units;                                                                \
            for (ptrdiff_t k = 0; k < units; k++) {                                                                      \
                float transform = load_##TYPE(transforms[k]), carry = load_##TYPE(carries[k]);                           \
                float grad = load_##TYPE(grads[k]), through = grad * carry;                                              \
                float of_carry = through * (1.0f - carry) * (transform - load_##TYPE(before[k]));                        \
                float of_transform = transform > 0.0f ? through : 0.0f;                                                  \
                direct[k] = store_##TYPE(grad - through);                                                                \
                transforms[k] = store_##TYPE(of_transform), carries[k] = store_##TYPE(of_carry);                         \
                of_transforms[k] += of_transform, of_carries[k] += of_carry;                                             \
            }                                                                                                            \
        }                                                                                                                \
    }

DEFINE_FORWARD(float)
DEFINE_FORWARD(bfloat16)
DEFINE_BACKWARD(float)
DEFINE_BACKWARD(bfloat16)
