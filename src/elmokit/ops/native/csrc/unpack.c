/* From streams to text: rows of both directions, which lie apart, side by side.
 *
 * streams: `layers` times two directions of slots, each of `width` values. fwd, bwd: the slots of `tokens` tokens.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "elmokit.h"
#include "targets.h"
#include "values.h"

/* Tokens whose rows are on their way while those of one are copied: they lie where no processor expects the next. */
#define AHEAD 2
#define FLOATS_OF_A_LINE 16

static inline void fetch(const float *row, ptrdiff_t width) {
    for (ptrdiff_t k = 0; k < width; k += FLOATS_OF_A_LINE) __builtin_prefetch(row + k);
}

void elmokit_unpack_sentences(
    ptrdiff_t layers, ptrdiff_t slots, ptrdiff_t width, ptrdiff_t first, ptrdiff_t end, const float *streams,
    const int64_t *fwd, const int64_t *bwd, const int64_t *begins, const int64_t *lengths, const int64_t *outs) {
    for (ptrdiff_t sentence = first; sentence < end; sentence++) {
        float *out = (float *)(intptr_t)outs[sentence];
        const int64_t *from_fwd = fwd + begins[sentence], *from_bwd = bwd + begins[sentence];
        const float *layer = streams;
        for (ptrdiff_t number = 0; number < layers; number++, layer += 2 * slots * width)
            for (ptrdiff_t token = 0; token < lengths[sentence]; token++, out += 2 * width) {
                memcpy(out, layer + from_fwd[token] * width, width * sizeof(float));
                memcpy(out + width, layer + (slots + from_bwd[token]) * width, width * sizeof(float));
            }
    }
}

/* out (tokens, layers, 2 * width), as words are stored. */
int elmokit_unpack_words_float32(
    ptrdiff_t layers, ptrdiff_t slots, ptrdiff_t width, ptrdiff_t tokens, const float *streams, const int64_t *fwd,
    const int64_t *bwd, float *out) {
    for (ptrdiff_t token = 0; token < tokens; token++)
        for (ptrdiff_t half = 0; half < 2 * layers; half++, out += width) {
            const int64_t *slot = (half % 2 ? bwd : fwd) + token;
            memcpy(out, streams + (half * slots + *slot) * width, width * sizeof(float));
        }
    return 0;
}

/* The same as float16. Returns 1, and not 0, where finite numbers were too large for it and have become infinite. */
FOR_EACH_TARGET int elmokit_unpack_words_float16(
    ptrdiff_t layers, ptrdiff_t slots, ptrdiff_t width, ptrdiff_t tokens, const float *streams, const int64_t *fwd,
    const int64_t *bwd, uint16_t *out) {
    uint32_t overflows = 0;
    for (ptrdiff_t token = 0; token < tokens; token++)
        for (ptrdiff_t half = 0; half < 2 * layers; half++, out += width) {
            const int64_t *slot = (half % 2 ? bwd : fwd) + token;
            const float *restrict from = streams + (half * slots + *slot) * width;
            uint16_t *restrict to = out;
            if (token + AHEAD < tokens) fetch(streams + (half * slots + slot[AHEAD]) * width, width);
            for (ptrdiff_t k = 0; k < width; k++) {
                uint32_t size = to_bits(from[k]) & 0x7fffffff;
                overflows |= (size >= FLOAT16_OVERFLOWS) & (size < 0x7f800000);
                to[k] = store_float16(from[k]);
            }
        }
    return (int)overflows;
}
