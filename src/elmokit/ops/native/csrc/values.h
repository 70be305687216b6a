/* Numbers of both types from and to memory, and functions of them: plain, so that loops over them become vectors. */
#ifndef ELMOKIT_VALUES_H
#define ELMOKIT_VALUES_H

#include <stdint.h>
#include <string.h>

#include "elmokit.h"


static inline float from_bits(uint32_t bits) { float x; memcpy(&x, &bits, 4); return x; }
static inline uint32_t to_bits(float x) { uint32_t bits; memcpy(&bits, &x, 4); return bits; }

static inline float load_float(float x) { return x; }
static inline float store_float(float x) { return x; }
static inline float load_bfloat16(bfloat16 x) { return from_bits((uint32_t)x << 16); }
/* to the nearest, ties to even, as torch rounds */
static inline bfloat16 store_bfloat16(float x) {
    uint32_t bits = to_bits(x);
    return (bfloat16)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

/* A finite float32 from here on is one that float16 does not hold: half way from its largest number to the next one. */
#define FLOAT16_OVERFLOWS 0x477ff000u

/* to the nearest, ties to even, for numbers of any size, as NumPy rounds */
static inline uint16_t store_float16(float x) {
    uint32_t bits = to_bits(x), size = bits & 0x7fffffff, sign = (bits >> 16) & 0x8000;
    uint32_t normal = (size + 0xfff + ((size >> 13) & 1) - 0x38000000) >> 13;
    /* next to 0.5 float32 has the steps of float16's smallest numbers, and rounds to them */
    uint32_t small = to_bits(from_bits(size) + 0.5f) - 0x3f000000;
    uint32_t large = size > 0x7f800000 ? 0x7e00 : 0x7c00;
    uint32_t half = size < 0x38800000 ? small : size < FLOAT16_OVERFLOWS ? normal : large;
    return (uint16_t)(sign | half);
}

/* exp by 2^n * exp(r), |r| <= log(2)/2, to about 2e-7 (the polynomial of Cephes' expf) */
static inline float exponential(float x) {
    x = x < -87.0f ? -87.0f : (x > 88.0f ? 88.0f : x);
    float n = __builtin_rintf(x * 1.44269504088896341f);
    float r = x - n * 0.693359375f + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    return p * from_bits((uint32_t)((int32_t)n + 127) << 23);
}
static inline float sigmoid(float x) { return 1.0f / (1.0f + exponential(-x)); }
static inline float hyperbolic_tangent(float x) { return 1.0f - 2.0f / (1.0f + exponential(2.0f * x)); }

#endif
