/* A register of floats on the target that a file is compiled for: the vector extensions of GCC and Clang, and
 * intrinsics for the few operations that these cannot express. Further: exp2, sigmoid and tanh, which are the same
 * operations on every target. */
#pragma once

#include <float.h>

#include "elmokit.h"

/* minimum and maximum are NaN where their second operand is NaN; reciprocal_estimate is good to some bits, which each of
 * the NEWTON_STEPS doubles. */
#if defined(__AVX512F__)
#include <immintrin.h>
#define LANES 16
#define REGISTERS 32
#define minimum _mm512_min_ps
#define maximum _mm512_max_ps
#define reciprocal_estimate _mm512_rcp14_ps
#define NEWTON_STEPS 1
#elif defined(__AVX2__)
#include <immintrin.h>
#define LANES 8
#define REGISTERS 16
#define minimum _mm256_min_ps
#define maximum _mm256_max_ps
#define reciprocal_estimate _mm256_rcp_ps
#define NEWTON_STEPS 1
#elif defined(__SSE2__)
#include <immintrin.h>
#define LANES 4
#define REGISTERS 16
#define minimum _mm_min_ps
#define maximum _mm_max_ps
#define reciprocal_estimate _mm_rcp_ps
#define NEWTON_STEPS 1
#elif defined(__aarch64__)
#include <arm_neon.h>
#define LANES 4
#define REGISTERS 32
#define minimum vminq_f32
#define maximum vmaxq_f32
#define reciprocal_estimate vrecpeq_f32
#define NEWTON_STEPS 2
#else
#define LANES 4
#define REGISTERS 16
#define minimum(a, b) (where((a) < (b), (a)) + where(~((a) < (b)), (b)))
#define maximum(a, b) (where((a) > (b), (a)) + where(~((a) > (b)), (b)))
#define reciprocal_estimate(x) (1.0f / (x))
#define NEWTON_STEPS 0
#endif

#define BYTES (4 * LANES)
typedef float vector __attribute__((vector_size(BYTES)));
typedef int32_t int32_vector __attribute__((vector_size(BYTES)));
typedef uint32_t uint32_vector __attribute__((vector_size(BYTES)));
typedef uint16_t uint16_vector __attribute__((vector_size(BYTES / 2)));
typedef uint8_t uint8_vector __attribute__((vector_size(BYTES / 4)));

/* An array of registers stays in registers only if every index is a constant: loops over it are unrolled whole. */
#ifdef __clang__
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

/* x - 0 is x, for -0 too, so that the compiler drops the operation; x + 0 would not be. */
INLINE vector broadcast(float x) { return x - (vector){0}; }
INLINE int32_vector broadcast_integer(int32_t x) { return x - (int32_vector){0}; }
INLINE vector where(int32_vector mask, vector x) { return (vector)(mask & (int32_vector)x); } /* 0 elsewhere */
INLINE vector magnitude(vector x) { return (vector)((int32_vector)x & 0x7fffffff); }

/* --- From and to memory: the first `count` lanes, zeros beyond ------------------------------------------------------ */

INLINE vector load_float(const float *from, ptrdiff_t count) {
    vector x = {0};
    if (count >= LANES) memcpy(&x, from, sizeof x);
    else if (count > 0) memcpy(&x, from, (size_t)count * sizeof *from);
    return x;
}

INLINE void store_float(float *to, ptrdiff_t count, vector x) {
    if (count >= LANES) memcpy(to, &x, sizeof x);
    else if (count > 0) memcpy(to, &x, (size_t)count * sizeof *to);
}

INLINE vector load_strided(const float *from, ptrdiff_t stride, ptrdiff_t count) {
    if (stride == 1) return load_float(from, count);
    float x[LANES] = {0};
    for (ptrdiff_t lane = 0; lane < smaller(LANES, count); lane++) x[lane] = from[lane * stride];
    return load_float(x, LANES);
}

/* In the upper half of each word the nearest bfloat16, ties to even, as torch rounds. */
INLINE uint32_vector rounded(vector x) {
    uint32_vector bits = (uint32_vector)x, nearest = bits + 0x7fff + ((bits >> 16) & 1), is_nan = (uint32_vector)(x != x);
    return (nearest & ~is_nan) | (0x7fc00000u & is_nan);
}

INLINE vector load_bfloat16(const bfloat16 *from, ptrdiff_t count) {
    uint16_vector x = {0};
    if (count >= LANES) memcpy(&x, from, sizeof x);
    else if (count > 0) memcpy(&x, from, (size_t)count * sizeof *from);
    return (vector)(__builtin_convertvector(x, uint32_vector) << 16);
}

INLINE void store_bfloat16(bfloat16 *to, ptrdiff_t count, vector x) {
#ifdef __AVX512BF16__
    __m256bh low = _mm512_cvtneps_pbh(x); /* turns subnormal numbers into 0, as `rounded` does not */
#else
    uint16_vector low = __builtin_convertvector(rounded(x) >> 16, uint16_vector);
#endif
    if (count >= LANES) memcpy(to, &low, sizeof low);
    else if (count > 0) memcpy(to, &low, (size_t)count * sizeof *to);
}

/* --- Functions ------------------------------------------------------------------------------------------------------ */

#define LOG2_E 1.44269504088896341f

/* 2^x to about 2e-7, for x brought between -126 and 126; NaN of a NaN. 2^x = 2^n 2^r, where adding ROUNDS rounds to n
 * and leaves it in the lowest bits; the polynomial is the one of least relative error for -1/2 <= r <= 1/2. */
#define ROUNDS 12582912.0f /* 1.5 * 2^23 */
INLINE vector exp2_of(vector x) {
    x = minimum(broadcast(126.0f), maximum(broadcast(-126.0f), x));
    vector n = x + ROUNDS, r = x - (n - ROUNDS);
    vector power = (vector)(((int32_vector)n << 23) + 0x3f800000);
    vector p = r * 1.32647273e-3f + 9.67151299e-3f;
    p = p * r + 5.55073358e-2f;
    p = p * r + 2.40222424e-1f;
    p = p * r + 6.93147004e-1f;
    p = p * r + 1.0f;
    return p * power;
}

INLINE vector reciprocal(vector x) {
    vector y = reciprocal_estimate(x);
    for (int step = 0; step < NEWTON_STEPS; step++) y = y * (1.0f - x * y) + y;
    return y;
}

INLINE vector sigmoid(vector x) { return reciprocal(1.0f + exp2_of(x * -LOG2_E)); }
INLINE vector hyperbolic_tangent(vector x) { return 1.0f - 2.0f * reciprocal(1.0f + exp2_of(x * (2 * LOG2_E))); }
INLINE vector clipped(vector x, float clip) { return minimum(broadcast(clip), maximum(broadcast(-clip), x)); }
