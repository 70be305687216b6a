/* From streams to text: rows of both directions, which lie apart, side by side. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* streams: `layers` times two directions of slots, each of `width` values. fwd, bwd: the slots of `tokens` tokens.
 * out (layers, tokens, 2 * width). */
void elmokit_text_order(
    ptrdiff_t layers, ptrdiff_t slots, ptrdiff_t width, ptrdiff_t tokens, const float *streams, const int64_t *fwd,
    const int64_t *bwd, float *out) {
    for (ptrdiff_t layer = 0; layer < layers; layer++, streams += 2 * slots * width)
        for (ptrdiff_t token = 0; token < tokens; token++, out += 2 * width) {
            memcpy(out, streams + fwd[token] * width, width * sizeof(float));
            memcpy(out + width, streams + (slots + bwd[token]) * width, width * sizeof(float));
        }
}
