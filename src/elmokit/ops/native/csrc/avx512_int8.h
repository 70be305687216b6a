/* Included by gemm.c: int8 rows and panels, for processors with AVX-512 VNNI. For inference only.
 *
 * A column of a weight is int8 from -127 to 127 and a scale, its largest absolute value / 127; so is a row that is
 * multiplied by it. The instruction adds up four products at once, of unsigned and of signed numbers: those of a row
 * therefore have 128 added to them, and a column's sum begins at -128 times the sum of its numbers, which takes that
 * away again. Sums are exact, whatever their order; all that follows is float.
 *
 * A row in memory: its numbers, up to a multiple of four of them, then its scale. A panel: the numbers of 64 columns,
 * four depths of each together, then where their sums begin, then their scales.
 */
#define QUAD 4

typedef uint8_t int8; /* of rows and panels, with their scales */
typedef int32_t int32_lanes __attribute__((vector_size(64))); /* sums in __m512i GCC copies about */

/* 1: products of int8 */
int elmokit_avx512_int8(void) { return elmokit_avx512() && __builtin_cpu_supports("avx512vnni"); }

static inline ptrdiff_t in_quads(ptrdiff_t depth) { return (depth + QUAD - 1) / QUAD * QUAD; }
INLINE ptrdiff_t row_size_int8(ptrdiff_t depth) { return in_quads(depth) + sizeof(float); }
INLINE ptrdiff_t panel_size_int8(ptrdiff_t depth) { return PANEL * (row_size_int8(depth) + sizeof(int32_t)); }

/* --- From floats ------------------------------------------------------------------------------------------------------ */

/* A NaN among the values makes the scale NaN; values that are all nearly 0 become 0. */
INLINE void to_row_int8(ptrdiff_t depth, const float *from, int8 *to) {
    __m512i max = _mm512_setzero_si512(); /* sizes have the same order as integers, where a NaN is the largest */
    for (ptrdiff_t k = 0; k < depth; k += LANES) {
        __m512 size = _mm512_abs_ps(load_float(from + k, first_lanes(depth - k)));
        max = _mm512_max_epu32(max, _mm512_castps_si512(size));
    }
    uint32_t bits = _mm512_reduce_max_epu32(max);
    float largest;
    memcpy(&largest, &bits, sizeof largest);
    float in_steps = largest < 1e-30f ? 0.0f : 127.0f / largest, scale = largest / 127.0f;
    for (ptrdiff_t k = 0; k < in_quads(depth); k += LANES) {
        __m512 value = load_float(from + k, first_lanes(depth - k));
        __m512i number = _mm512_cvtps_epi32(_mm512_mul_ps(value, _mm512_set1_ps(in_steps)));
        __m128i bytes = _mm_xor_si128(_mm512_cvtsepi32_epi8(number), _mm_set1_epi8(-128)); /* + 128 */
        _mm_mask_storeu_epi8(to + k, first_lanes(in_quads(depth) - k), bytes);
    }
    memcpy(to + in_quads(depth), &scale, sizeof scale);
}

FOR_AVX512 void elmokit_quantize(ptrdiff_t rows, ptrdiff_t depth, const float *from, uint8_t *to) {
    for (ptrdiff_t row = 0; row < rows; row++) to_row_int8(depth, from + row * depth, to + row * row_size_int8(depth));
}

/* A weight's panels from its columns, each of them quantized as a row is; see elmokit_prepack_float. */
FOR_AVX512 void elmokit_prepack_int8(
    ptrdiff_t columns, ptrdiff_t depth, ptrdiff_t gates, ptrdiff_t first_panel, ptrdiff_t end_panel, const void *weight,
    ptrdiff_t column_stride, ptrdiff_t depth_stride, void *all_panels) {
    (void)depth_stride; /* one */
    ptrdiff_t of_gate = columns / gates, across = PANEL / gates;
    for (ptrdiff_t panel = first_panel; panel < end_panel; panel++) {
        ptrdiff_t first = panel * across;
        int8 *panels = (int8 *)all_panels + panel * panel_size_int8(depth);
        int8 *begins = panels + PANEL * in_quads(depth), *scales = begins + PANEL * sizeof(int32_t);
        memset(panels, 0, panel_size_int8(depth));
        for (ptrdiff_t place = 0; place < PANEL; place++) {
            ptrdiff_t unit = first + place % across, column = place / across * of_gate + unit;
            if (unit >= of_gate) continue;
            const int8 *numbers = (const int8 *)weight + column * column_stride;
            int32_t sum = 0, begin;
            for (ptrdiff_t k = 0; k < in_quads(depth); k++) {
                sum += numbers[k] - 128;
                panels[(k - k % QUAD) * PANEL + place * QUAD + k % QUAD] = numbers[k] ^ 128; /* - 128 */
            }
            begin = -128 * sum;
            memcpy(begins + place * sizeof begin, &begin, sizeof begin);
            memcpy(scales + place * sizeof(float), numbers + in_quads(depth), sizeof(float));
        }
    }
}

/* --- Products --------------------------------------------------------------------------------------------------------- */

INLINE int32_lanes first_sum_int8(const int8 *panel, ptrdiff_t depth, int group) {
    return (int32_lanes)_mm512_loadu_si512(panel + PANEL * in_quads(depth) + group * 64);
}

INLINE int32_lanes add_products_int8(int32_lanes sum, __m512i value, __m512i weights) {
    return (int32_lanes)_mm512_dpbusd_epi32((__m512i)sum, value, weights);
}

/* Sums times the scales of their columns and rows, which are read after all sums are stored: they have no registers. */
INLINE void store_tile_int8(
    int rows, ptrdiff_t depth, const int8 *a, ptrdiff_t stride, const int8 *panel, int32_lanes sums[][GROUPS],
    tile *result) {
    const int8 *scales = panel + PANEL * (in_quads(depth) + sizeof(int32_t));
    for (int row = 0; row < rows; row++)
        for (int group = 0; group < GROUPS; group++)
            to_tile(result, row, group, _mm512_cvtepi32_ps((__m512i)sums[row][group]));
    for (int row = 0; row < rows; row++) {
        float scale;
        memcpy(&scale, a + row * stride + in_quads(depth), sizeof scale);
        for (int group = 0; group < GROUPS; group++) {
            __m512 of_column = _mm512_mul_ps(of_tile(result, row, group), _mm512_loadu_ps(scales + group * 64));
            to_tile(result, row, group, _mm512_mul_ps(of_column, _mm512_set1_ps(scale)));
        }
    }
}

INLINE const int8 *rows_of_values_int8(ptrdiff_t rows, ptrdiff_t count, const float *values, void *scratch) {
    elmokit_quantize(rows, count, values, scratch);
    return scratch;
}

/* As store_bfloat16 of values.h, for processors that have no instruction for it. */
INLINE void store_result_int8(bfloat16 *to, __mmask16 lanes, __m512 x) {
    __m512i bits = _mm512_castps_si512(x), odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    bits = _mm512_srli_epi32(_mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
    bits = _mm512_mask_mov_epi32(bits, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), _mm512_set1_epi32(0x7fc0));
    _mm256_mask_storeu_epi16(to, lanes, _mm512_cvtepi32_epi16(bits));
}
