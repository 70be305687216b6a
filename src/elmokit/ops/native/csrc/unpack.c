/* From streams to text: the rows of both directions, which lie in different places, side by side. */
#include <stddef.h>
#include <stdint.h>

#include "elmokit.h"
#include "targets.h"
#include "values.h"

/* Tokens whose rows are prefetched while those of one are copied: they lie where no processor expects the next. */
#define AHEAD 2
#define FLOATS_OF_A_LINE 16

static inline void prefetch_row(const float *row, ptrdiff_t width) {
    for (ptrdiff_t k = 0; k < width; k += FLOATS_OF_A_LINE) __builtin_prefetch(row + k);
}

/* Returns 1, and not 0, where finite numbers were too large for float16 and have become infinite. */
#define DEFINE_UNPACK(TYPE, VALUE, STORE, OVERFLOWS)                                                                     \
    FOR_EACH_TARGET int elmokit_unpack_##TYPE(                                                                           \
        ptrdiff_t layers, ptrdiff_t slots, ptrdiff_t width, ptrdiff_t tokens, const float *streams, const int64_t *fwd,  \
        const int64_t *bwd, const int64_t *outs, const int64_t *layer_strides) {                                         \
        uint32_t overflows = 0;                                                                                          \
        for (ptrdiff_t token = 0; token < tokens; token++)                                                               \
            for (ptrdiff_t half = 0; half < 2 * layers; half++) {                                                        \
                const int64_t *slot = (half % 2 ? bwd : fwd) + token;                                                    \
                const float *restrict from = streams + (half * slots + *slot) * width;                                   \
                VALUE *out = (VALUE *)(intptr_t)outs[token];                                                             \
                VALUE *restrict to = out + half / 2 * layer_strides[token] + half % 2 * width;                           \
                if (token + AHEAD < tokens) prefetch_row(streams + (half * slots + slot[AHEAD]) * width, width);         \
                for (ptrdiff_t k = 0; k < width; k++) {                                                                  \
                    uint32_t size = to_bits(from[k]) & 0x7fffffff;                                                       \
                    overflows |= OVERFLOWS;                                                                              \
                    to[k] = STORE(from[k]);                                                                              \
                }                                                                                                        \
            }                                                                                                            \
        return (int)overflows;                                                                                           \
    }

DEFINE_UNPACK(float, float, store_float, (size & 0))
DEFINE_UNPACK(float16, uint16_t, store_float16, ((size >= FLOAT16_OVERFLOWS) & (size < 0x7f800000)))
