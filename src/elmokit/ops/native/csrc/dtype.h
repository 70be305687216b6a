/* The dtypes of a GEMM. TYPE (float, bfloat16 or int8) is multiplied: STEP values that are neighbours in depth, in
 * four bytes, are multiplied at once into a lane of `accumulators`. Values between products are stored as VALUE,
 * products as RESULT unless the caller asks for float. What is named `low` is stored as the next product reads it, or as
 * VALUE.
 *
 * int8, for inference only: a column of a weight is integers from -127 to 127 and a scale, its largest absolute value /
 * 127; so is a row that is multiplied by it. Where an instruction wants the row's numbers unsigned they have OFFSET added
 * to them, and a column's sum begins at -OFFSET times the sum of its numbers, which takes that away again. Sums are
 * exact, whatever their order; all that follows is float.
 */
#pragma once

#include "vector.h"

#define float_STEP 1
#define bfloat16_STEP 2
#define int8_STEP 4
#define STEP JOIN(TYPE, _STEP)

#if STEP == 1
typedef float VALUE, RESULT;
#define OF_VALUE(function) function##_float
#define OF_RESULT OF_VALUE
#elif STEP == 2
typedef bfloat16 VALUE, RESULT;
#define OF_VALUE(function) function##_bfloat16
#define OF_RESULT OF_VALUE
#else
typedef float VALUE;
typedef bfloat16 RESULT;
#define OF_VALUE(function) function##_float
#define OF_RESULT(function) function##_bfloat16
#endif

INLINE vector load_value(const VALUE *from, ptrdiff_t count) { return OF_VALUE(load)(from, count); }
INLINE vector load_result(const RESULT *from, ptrdiff_t count) { return OF_RESULT(load)(from, count); }
INLINE void store_value(VALUE *to, ptrdiff_t count, vector x) { OF_VALUE(store)(to, count, x); }
INLINE void store_result(RESULT *to, ptrdiff_t count, vector x) { OF_RESULT(store)(to, count, x); }

/* --- The products of one step: those of each of the PARTS into which values are widened first ------------------------ */

#if STEP == 4
typedef int32_vector accumulators;
#else
typedef vector accumulators;
#endif

#if STEP == 1
#define PARTS 1
INLINE accumulators add_products(accumulators sum, int32_vector value, int32_vector weights) {
    return sum + (vector)value * (vector)weights;
}
#elif STEP == 2 && defined(__AVX512BF16__)
#define PARTS 1
INLINE accumulators add_products(accumulators sum, int32_vector value, int32_vector weights) {
    return _mm512_dpbf16_ps(sum, (__m512bh)value, (__m512bh)weights);
}
#elif STEP == 2
#define PARTS 2
INLINE int32_vector part_of(int32_vector x, int part) { return part ? x & (int32_t)0xffff0000 : x << 16; }
INLINE accumulators add_products(accumulators sum, int32_vector value, int32_vector weights) {
    return sum + (vector)value * (vector)weights;
}
#elif defined(__AVX512VNNI__) || defined(__AVXVNNI__)
#define PARTS 1
#define OFFSET 128
INLINE accumulators add_products(accumulators sum, int32_vector value, int32_vector weights) {
#ifdef __AVX512VNNI__
    return (accumulators)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)value, (__m512i)weights);
#else
    return (accumulators)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)value, (__m256i)weights);
#endif
}
#elif defined(__ARM_FEATURE_DOTPROD)
#define PARTS 1
INLINE accumulators add_products(accumulators sum, int32_vector value, int32_vector weights) {
    return vdotq_s32(sum, (int8x16_t)value, (int8x16_t)weights);
}
#elif defined(__SSE2__) /* numbers 0 and 2, then 1 and 3, as integers of 16 bits */
#define PARTS 2
typedef int16_t int16_vector __attribute__((vector_size(BYTES)));
INLINE int32_vector part_of(int32_vector x, int part) {
    return (int32_vector)((part ? (int16_vector)x : (int16_vector)x << 8) >> 8);
}
INLINE accumulators add_products(accumulators sum, int32_vector value, int32_vector weights) {
#if LANES == 16
    return sum + (accumulators)_mm512_madd_epi16((__m512i)value, (__m512i)weights);
#elif LANES == 8
    return sum + (accumulators)_mm256_madd_epi16((__m256i)value, (__m256i)weights);
#else
    return sum + (accumulators)_mm_madd_epi16((__m128i)value, (__m128i)weights);
#endif
}
#else
#define PARTS 4
INLINE int32_vector part_of(int32_vector x, int part) { return x << (24 - 8 * part) >> 24; }
INLINE accumulators add_products(accumulators sum, int32_vector value, int32_vector weights) { return sum + value * weights; }
#endif

#if PARTS == 1
INLINE int32_vector part_of(int32_vector x, int part) { return (void)part, x; }
#endif
#ifndef OFFSET
#define OFFSET 0
#endif

/* --- Rows and panels in memory ---------------------------------------------------------------------------------------
 *
 * A row of int8: its numbers, up to a multiple of four of them, then its scale. A panel has after its numbers where the
 * sums of its columns begin, then their scales.
 */

INLINE ptrdiff_t in_steps(ptrdiff_t depth) { return (depth + STEP - 1) / STEP * STEP; }
INLINE ptrdiff_t row_size(ptrdiff_t depth) { return STEP < 4 ? depth : in_steps(depth) + (ptrdiff_t)sizeof(float); }
INLINE ptrdiff_t panel_size(ptrdiff_t depth) {
    return PANEL * (row_size(depth) + (STEP < 4 ? 0 : (ptrdiff_t)sizeof(int32_t)));
}

#if STEP < 4
INLINE accumulators first_sum(const TYPE *panel, ptrdiff_t depth, ptrdiff_t column) {
    return (void)panel, (void)depth, (void)column, (accumulators){0};
}

INLINE vector scaled(accumulators sum, ptrdiff_t depth, const TYPE *row, const TYPE *panel, ptrdiff_t column) {
    return (void)depth, (void)row, (void)panel, (void)column, sum;
}

INLINE void to_row(ptrdiff_t count, const float *from, TYPE *to) {
    for (ptrdiff_t k = 0; k < count; k += LANES) store_value(to + k, count - k, load_float(from + k, count - k));
}

INLINE const TYPE *rows_of_values(ptrdiff_t rows, ptrdiff_t count, const VALUE *values, void *scratch) {
    return (void)rows, (void)count, (void)scratch, values;
}
#else
INLINE accumulators first_sum(const TYPE *panel, ptrdiff_t depth, ptrdiff_t column) {
    accumulators begin;
    memcpy(&begin, panel + PANEL * in_steps(depth) + column * sizeof(int32_t), sizeof begin);
    return begin;
}

INLINE vector scaled(accumulators sum, ptrdiff_t depth, const TYPE *row, const TYPE *panel, ptrdiff_t column) {
    float scale;
    vector scales;
    memcpy(&scale, row + in_steps(depth), sizeof scale);
    memcpy(&scales, panel + PANEL * (in_steps(depth) + sizeof(int32_t)) + column * sizeof scale, sizeof scales);
    return __builtin_convertvector(sum, vector) * scales * scale;
}

/* A NaN among the values makes the scale NaN; values that are all nearly 0 become 0. */
INLINE void to_row(ptrdiff_t count, const float *from, TYPE *to) {
    int32_vector max = {0}; /* magnitudes have the same order as integers, where a NaN is the largest */
    for (ptrdiff_t k = 0; k < count; k += LANES) {
        int32_vector now = (int32_vector)magnitude(load_float(from + k, count - k)), larger = now > max;
        max = (now & larger) | (max & ~larger);
    }
    int32_t largest_bits = 0;
    UNROLL for (int lane = 0; lane < LANES; lane++) largest_bits = max[lane] > largest_bits ? max[lane] : largest_bits;
    float largest;
    memcpy(&largest, &largest_bits, sizeof largest);
    float per_number = largest < 1e-30f ? 0.0f : 127.0f / largest, scale = largest / 127.0f;
    for (ptrdiff_t k = 0; k < in_steps(count); k += LANES) {
        vector x = clipped(load_float(from + k, count - k) * per_number, 127.0f) + ROUNDS;
        uint8_vector numbers = __builtin_convertvector((uint32_vector)x + OFFSET, uint8_vector);
        if (in_steps(count) - k >= LANES) memcpy(to + k, &numbers, LANES);
        else memcpy(to + k, &numbers, in_steps(count) - k);
    }
    memcpy(to + in_steps(count), &scale, sizeof scale);
}

INLINE const TYPE *rows_of_values(ptrdiff_t rows, ptrdiff_t count, const VALUE *values, void *scratch) {
    for (ptrdiff_t row = 0; row < rows; row++)
        to_row(count, values + row * count, (TYPE *)scratch + row * row_size(count));
    return scratch;
}
#endif
