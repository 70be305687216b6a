/* From streams to text: the rows of both directions, which lie in different places, side by side. */
#include "elmokit.h"

INLINE float from_bits(uint32_t bits) { float x; memcpy(&x, &bits, 4); return x; }
INLINE uint32_t to_bits(float x) { uint32_t bits; memcpy(&bits, &x, 4); return bits; }

/* Finite numbers of at least this size overflow float16: half way from its largest number to what would be the next. */
#define FLOAT16_OVERFLOWS 0x477ff000u

/* to the nearest, ties to even, for numbers of any size, as NumPy rounds */
INLINE uint16_t store_float16(float x) {
    uint32_t bits = to_bits(x), size = bits & 0x7fffffff, sign = (bits >> 16) & 0x8000;
    uint32_t normal = (size + 0xfff + ((size >> 13) & 1) - 0x38000000) >> 13;
    /* the spacing of float32 between 0.5 and 1 is that of float16's subnormal numbers, 2^-24: the sum is rounded to it */
    uint32_t small = to_bits(from_bits(size) + 0.5f) - 0x3f000000;
    uint32_t large = size > 0x7f800000 ? 0x7e00 : 0x7c00;
    uint32_t half = size < 0x38800000 ? small : size < FLOAT16_OVERFLOWS ? normal : large;
    return (uint16_t)(sign | half);
}

INLINE uint32_t overflows_float16(float x) {
    uint32_t size = to_bits(x) & 0x7fffffff;
    return (size >= FLOAT16_OVERFLOWS) & (size < 0x7f800000);
}
INLINE float store_float(float x) { return x; }
INLINE uint32_t overflows_float(float x) { return (void)x, 0; }

/* Tokens whose rows are prefetched while those of one are copied: they lie where no processor expects the next. */
#define AHEAD 2
#define FLOATS_OF_A_LINE 16

INLINE void prefetch_row(const float *row, ptrdiff_t width) {
    for (ptrdiff_t k = 0; k < width; k += FLOATS_OF_A_LINE) __builtin_prefetch(row + k);
}

/* A token goes from the slots fwd and bwd of its directions to the address outs, its layers layer_strides values from one to
 * the next. Returns 1, and not 0, where finite numbers were too large for float16 and have become infinite. */
int TYPED(unpack)(
    ptrdiff_t layers, ptrdiff_t slots, ptrdiff_t width, ptrdiff_t tokens, const float *streams, const int64_t *fwd,
    const int64_t *bwd, const int64_t *outs, const int64_t *layer_strides) {
    uint32_t overflows = 0;
    for (ptrdiff_t token = 0; token < tokens; token++)
        for (ptrdiff_t half = 0; half < 2 * layers; half++) {
            const int64_t *slot = (half % 2 ? bwd : fwd) + token;
            const float *restrict from = streams + (half * slots + *slot) * width;
            TYPE *restrict to = (TYPE *)(intptr_t)outs[token] + half / 2 * layer_strides[token] + half % 2 * width;
            if (token + AHEAD < tokens) prefetch_row(streams + (half * slots + slot[AHEAD]) * width, width);
            for (ptrdiff_t k = 0; k < width; k++) {
                overflows |= JOIN(overflows_, TYPE)(from[k]);
                to[k] = JOIN(store_, TYPE)(from[k]);
            }
        }
    return (int)overflows;
}
