/* Convolutions over the characters of words, as sums of rows of a table: there are few characters, so
 * the product of each with each filter at each offset is computed once for all words (char_conv.py).
 *
 * table: (blocks, alphabet, width, LANES); filters lie in blocks of LANES, the last block filled up.
 * ids: (words, characters), each below `alphabet`; used: of each word, how many come before the padding at its end.
 * values, places, grad: (words, stride), of which these filters have the columns from `column` on.
 *
 * Blocks are the outermost loop: their part of the table stays in the nearest cache while all words pass.
 */
#include "elmokit.h"

#define LANES 32

/* Where a width is known the loops over a window unroll; the published ones are. */
#define FOR_WIDTH(width, CALL)                                                                                           \
    switch (width) {                                                                                                     \
        case 1: CALL(1); break;                                                                                          \
        case 2: CALL(2); break;                                                                                          \
        case 3: CALL(3); break;                                                                                          \
        case 4: CALL(4); break;                                                                                          \
        case 5: CALL(5); break;                                                                                          \
        case 6: CALL(6); break;                                                                                          \
        case 7: CALL(7); break;                                                                                          \
        default: CALL(width);                                                                                            \
    }

/* sum <- the sums of the filters of a block in the window that begins at `id`: one pass, so that it stays in registers */
INLINE void window(ptrdiff_t width, const int32_t *id, const float *table, float *sum) {
    for (int lane = 0; lane < LANES; lane++) {
        float x = table[id[0] * width * LANES + lane];
        for (ptrdiff_t offset = 1; offset < width; offset++)
            x += table[(id[offset] * width + offset) * LANES + lane];
        sum[lane] = x;
    }
}

INLINE void forward_block(ptrdiff_t width, ptrdiff_t words, ptrdiff_t characters, const int32_t *ids,
                          const int32_t *used, const float *table, ptrdiff_t stride, ptrdiff_t lanes, float *values,
                          uint8_t *places) {
    for (ptrdiff_t word = 0; word < words; word++) {
        const int32_t *id = ids + word * characters;
        /* windows that lie wholly in the padding are all alike: one is enough */
        int32_t last = (int32_t)smaller(characters - width, used[word]);
        float best[LANES], sum[LANES];
        int32_t place_of[LANES] = {0};
        window(width, id, table, best);
        for (int32_t place = 1; place <= last; place++) {
            window(width, id + place, table, sum);
            if (places)
                for (int lane = 0; lane < LANES; lane++)
                    place_of[lane] = sum[lane] > best[lane] || sum[lane] != sum[lane] ? place : place_of[lane];
            for (int lane = 0; lane < LANES; lane++)
                best[lane] = sum[lane] > best[lane] || sum[lane] != sum[lane] ? sum[lane] : best[lane];
        }
        for (ptrdiff_t lane = 0; lane < lanes; lane++) values[word * stride + lane] = best[lane];
        if (places)
            for (ptrdiff_t lane = 0; lane < lanes; lane++) places[word * stride + lane] = (uint8_t)place_of[lane];
    }
}

/* Blocks `first` to `end`: values <- the maximum over all places of a word; places, unless NULL, <- where it is. */
void PLAIN(characters_forward)(
    ptrdiff_t words, ptrdiff_t characters, ptrdiff_t alphabet, ptrdiff_t width, ptrdiff_t filters, ptrdiff_t stride,
    ptrdiff_t column, ptrdiff_t first, ptrdiff_t end, const int32_t *ids, const float *table,
    const int32_t *used, float *values, uint8_t *places) {
    for (ptrdiff_t block = first; block < end; block++) {
        const float *rows = table + block * (alphabet * width * LANES);
        ptrdiff_t lanes = smaller(LANES, filters - block * LANES), begin = column + block * LANES;
#define FORWARD(WIDTH)                                                                                                   \
    forward_block(WIDTH, words, characters, ids, used, rows, stride, lanes, values + begin,                              \
                  places ? places + begin : NULL)
        FOR_WIDTH(width, FORWARD)
    }
}

INLINE void backward_block(ptrdiff_t width, ptrdiff_t words, ptrdiff_t characters, const int32_t *ids,
                           const uint8_t *places, ptrdiff_t stride, ptrdiff_t lanes, const float *grad, float *table) {
    for (ptrdiff_t word = 0; word < words; word++)
        for (ptrdiff_t lane = 0; lane < lanes; lane++) {
            const int32_t *id = ids + word * characters + places[word * stride + lane];
            float from = grad[word * stride + lane];
            for (ptrdiff_t offset = 0; offset < width; offset++)
                table[(id[offset] * width + offset) * LANES + lane] += from;
        }
}

/* Blocks `first` to `end`: grad_table <- the table's gradient, from that of the values. */
void PLAIN(characters_backward)(
    ptrdiff_t words, ptrdiff_t characters, ptrdiff_t alphabet, ptrdiff_t width, ptrdiff_t filters, ptrdiff_t stride,
    ptrdiff_t column, ptrdiff_t first, ptrdiff_t end, const int32_t *ids, float *grad_table,
    const uint8_t *places, const float *grad) {
    for (ptrdiff_t block = first; block < end; block++) {
        ptrdiff_t size = alphabet * width * LANES;
        float *rows = grad_table + block * size;
        memset(rows, 0, (size_t)size * sizeof *rows);
        ptrdiff_t lanes = smaller(LANES, filters - block * LANES), begin = column + block * LANES;
#define BACKWARD(WIDTH)                                                                                                  \
    backward_block(WIDTH, words, characters, ids, places + begin, stride, lanes, grad + begin, rows)
        FOR_WIDTH(width, BACKWARD)
    }
}
