/* Convolutions over the characters of words, as sums of rows of a table: there are few characters, so
 * the product of each with each filter at each offset is computed once for all words (char_conv.py).
 *
 * table: (blocks, alphabet, width, BLOCK); filters lie in blocks of BLOCK, the last block filled up.
 * ids: (words, characters), each below `alphabet`; used: of each word, how many come before the padding at its end.
 * values, places, grad: (words, stride), of which these filters have the columns from `column` on.
 *
 * Blocks are the outermost loop: their part of the table stays in the nearest cache while all words pass.
 */
#include "elmokit.h"

#define BLOCK 32

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
    for (int filter = 0; filter < BLOCK; filter++) {
        float x = table[id[0] * width * BLOCK + filter];
        for (ptrdiff_t offset = 1; offset < width; offset++)
            x += table[(id[offset] * width + offset) * BLOCK + filter];
        sum[filter] = x;
    }
}

INLINE void forward_block(ptrdiff_t width, ptrdiff_t words, ptrdiff_t characters, const int32_t *ids,
                          const int32_t *used, const float *table, ptrdiff_t stride, ptrdiff_t in_block, float *values,
                          uint8_t *places) {
    for (ptrdiff_t word = 0; word < words; word++) {
        const int32_t *id = ids + word * characters;
        /* windows that lie wholly in the padding are all alike: one is enough */
        int32_t last = (int32_t)smaller(characters - width, used[word]);
        float best[BLOCK], sum[BLOCK];
        int32_t place_of[BLOCK] = {0};
        window(width, id, table, best);
        for (int32_t place = 1; place <= last; place++) {
            window(width, id + place, table, sum);
            if (places)
                for (int filter = 0; filter < BLOCK; filter++)
                    place_of[filter] = sum[filter] > best[filter] || sum[filter] != sum[filter] ? place : place_of[filter];
            for (int filter = 0; filter < BLOCK; filter++)
                best[filter] = sum[filter] > best[filter] || sum[filter] != sum[filter] ? sum[filter] : best[filter];
        }
        for (ptrdiff_t filter = 0; filter < in_block; filter++) values[word * stride + filter] = best[filter];
        if (places)
            for (ptrdiff_t filter = 0; filter < in_block; filter++)
                places[word * stride + filter] = (uint8_t)place_of[filter];
    }
}

/* Blocks `first` to `end`: values <- the maximum over all places of a word; places, unless NULL, <- where it is. */
void PLAIN(characters_forward)(
    ptrdiff_t words, ptrdiff_t characters, ptrdiff_t alphabet, ptrdiff_t width, ptrdiff_t filters, ptrdiff_t stride,
    ptrdiff_t column, ptrdiff_t first, ptrdiff_t end, const int32_t *ids, const float *table,
    const int32_t *used, float *values, uint8_t *places) {
    for (ptrdiff_t block = first; block < end; block++) {
        const float *rows = table + block * (alphabet * width * BLOCK);
        ptrdiff_t in_block = smaller(BLOCK, filters - block * BLOCK), begin = column + block * BLOCK;
#define FORWARD(WIDTH)                                                                                                   \
    forward_block(WIDTH, words, characters, ids, used, rows, stride, in_block, values + begin,                           \
                  places ? places + begin : NULL)
        FOR_WIDTH(width, FORWARD)
    }
}

INLINE void backward_block(ptrdiff_t width, ptrdiff_t words, ptrdiff_t characters, const int32_t *ids,
                           const uint8_t *places, ptrdiff_t stride, ptrdiff_t in_block, const float *grad, float *table) {
    for (ptrdiff_t word = 0; word < words; word++)
        for (ptrdiff_t filter = 0; filter < in_block; filter++) {
            const int32_t *id = ids + word * characters + places[word * stride + filter];
            float from = grad[word * stride + filter];
            for (ptrdiff_t offset = 0; offset < width; offset++)
                table[(id[offset] * width + offset) * BLOCK + filter] += from;
        }
}

/* Blocks `first` to `end`: grad_table <- the table's gradient, from that of the values. */
void PLAIN(characters_backward)(
    ptrdiff_t words, ptrdiff_t characters, ptrdiff_t alphabet, ptrdiff_t width, ptrdiff_t filters, ptrdiff_t stride,
    ptrdiff_t column, ptrdiff_t first, ptrdiff_t end, const int32_t *ids, float *grad_table,
    const uint8_t *places, const float *grad) {
    for (ptrdiff_t block = first; block < end; block++) {
        ptrdiff_t size = alphabet * width * BLOCK;
        float *rows = grad_table + block * size;
        memset(rows, 0, (size_t)size * sizeof *rows);
        ptrdiff_t in_block = smaller(BLOCK, filters - block * BLOCK), begin = column + block * BLOCK;
#define BACKWARD(WIDTH)                                                                                                  \
    backward_block(WIDTH, words, characters, ids, places + begin, stride, in_block, grad + begin, rows)
        FOR_WIDTH(width, BACKWARD)
    }
}
