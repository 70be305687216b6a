/* Matrix products on packed weights, and the recurrence of a layer made of them, for processors with AVX-512.
 *
 * A weight (columns, depth) is kept as panels of 64 columns: in a panel the 64 values of one depth lie together (of two
 * depths, alternating, in bfloat16, as its instruction wants them). A tile of up to six rows by one panel is summed in
 * registers. In the recurrence a panel holds the four gates of 16 units, so that the cell is computed on the sums while
 * they are still in registers: gates never see memory, except as the trace that training asks for.
 */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(NO_AVX512)
#include <float.h>
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define LANES 16
#define GROUPS 4 /* of lanes in a panel: four gates in the recurrence */
#define PANEL (LANES * GROUPS)
#define MOST_ROWS 6
#define MOST_DEPTH 1024 /* so that this much of all rows, and of a panel, stays in cache */

#define FOR_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vnni,fma")))
#define INLINE FOR_AVX512 static inline __attribute__((always_inline))

typedef uint16_t bfloat16;

/* 1: float32 products, 2: bfloat16 ones too */
int elmokit_avx512(void) {
    __builtin_cpu_init();
    int float32 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    return float32 ? 1 + !!__builtin_cpu_supports("avx512bf16") : 0;
}

/* --- The cell's functions on sixteen values ---------------------------------------------------------------------- */

/* 2^x = 2^n 2^r, 0 <= r < 1, to about 1e-7; the polynomial is the one of least relative error there. In this order of
 * min a NaN passes, and infinity is brought near, where one_part can divide by it; of -infinity r is 0. */
INLINE __m512 power_of_two(__m512 x) {
    x = _mm512_min_ps(_mm512_set1_ps(126.0f), x);
    __m512 r = _mm512_reduce_ps(x, 9); /* x - floor(x) */
    __m512 p = _mm512_set1_ps(2.1702254889532924e-4f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.2439688434824347e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(9.678840637207031e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.5483341217041016e-2f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(2.4022983014583588e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(6.931470036506653e-1f));
    return _mm512_scalef_ps(_mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f)), x);
}

/* 1 / (1 + 2^x): an estimate and one step of Newton's method */
INLINE __m512 one_part(__m512 x) {
    __m512 whole = _mm512_add_ps(_mm512_set1_ps(1.0f), power_of_two(x)), part = _mm512_rcp14_ps(whole);
    return _mm512_fmadd_ps(part, _mm512_fnmadd_ps(whole, part, _mm512_set1_ps(1.0f)), part);
}
#define LOG2_E 1.44269504088896341f
INLINE __m512 sigmoid(__m512 x) { return one_part(_mm512_mul_ps(x, _mm512_set1_ps(-LOG2_E))); }
INLINE __m512 hyperbolic_tangent(__m512 x) {
    __m512 part = one_part(_mm512_mul_ps(x, _mm512_set1_ps(2.0f * LOG2_E)));
    return _mm512_fnmadd_ps(_mm512_set1_ps(2.0f), part, _mm512_set1_ps(1.0f));
}
INLINE __m512 one_minus(__m512 x) { return _mm512_sub_ps(_mm512_set1_ps(1.0f), x); }
INLINE __m512 clipped(__m512 x, float clip) {
    return _mm512_min_ps(_mm512_set1_ps(clip), _mm512_max_ps(_mm512_set1_ps(-clip), x));
}
INLINE __mmask16 inside(__m512 x, float clip) {
    return _mm512_cmp_ps_mask(_mm512_abs_ps(x), _mm512_set1_ps(clip), _CMP_LT_OQ);
}

/* --- Sixteen values from and to memory, for each type ----------------------------------------------------------- */

INLINE __mmask16 first_lanes(ptrdiff_t count) {
    return count >= LANES ? 0xffff : count <= 0 ? 0 : (__mmask16)((1u << count) - 1);
}

INLINE __m512 load_float(const float *from, __mmask16 lanes) { return _mm512_maskz_loadu_ps(lanes, from); }
INLINE void store_float(float *to, __mmask16 lanes, __m512 x) { _mm512_mask_storeu_ps(to, lanes, x); }
/* each `stride` behind the one before: 15 strides are less than 2^31 */
INLINE __m512 load_apart(const float *from, ptrdiff_t stride, __mmask16 lanes) {
    if (stride == 1) return load_float(from, lanes);
    __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    __m512i places = _mm512_mullo_epi32(lane, _mm512_set1_epi32((int32_t)stride));
    return _mm512_mask_i32gather_ps(_mm512_setzero_ps(), lanes, places, from, sizeof(float));
}

INLINE __m512 load_bfloat16(const bfloat16 *from, __mmask16 lanes) {
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, from));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
/* to the nearest, ties to even, as torch rounds; but what is below float's normal numbers becomes 0 */
INLINE void store_bfloat16(bfloat16 *to, __mmask16 lanes, __m512 x) {
    _mm256_mask_storeu_epi16(to, lanes, (__m256i)_mm512_cvtneps_pbh(x));
}

/* Into a panel at sixteen columns: at one depth, or two of them. */
INLINE void store_in_panel_float(float *to, __m512 x, __m512 next) {
    (void)next;
    _mm512_storeu_ps(to, x);
}
INLINE void store_in_panel_bfloat16(bfloat16 *to, __m512 x, __m512 next) {
    static const uint16_t alternating[2 * LANES] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                    8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    __m512i both = (__m512i)_mm512_cvtne2ps_pbh(next, x);
    _mm512_storeu_si512(to, _mm512_permutexvar_epi16(_mm512_loadu_si512(alternating), both));
}

/* --- Memory that is needed soon -------------------------------------------------------------------------------------- */

#define LINE 64 /* bytes */
#define LINE_OF(TYPE) ((ptrdiff_t)(LINE / sizeof(TYPE)))
/* at most, in the backward pass: cells before and after; gates and their gradients, 64 units of each */
#define LINES_OF_A_ROW (2 * GROUPS + 2 * GROUPS * (PANEL / LINE_OF(float)))

/* A stretch of the next weights, for the larger cache, and lines that lie here and there, for the smaller one. They are
 * called for bit by bit while a tile is multiplied: all at once they would keep the tile's own weights waiting. */
typedef struct {
    const char *next, *end;
    ptrdiff_t count;
    const void *lines[MOST_ROWS * LINES_OF_A_ROW];
} needed_soon;

static const needed_soon nothing_soon;

/* Of the next panel the share of the rows from `row` to `end` out of `rows` that pass by this one; no lines yet. */
INLINE void need_next(
    needed_soon *soon, const void *panel, ptrdiff_t bytes, ptrdiff_t row, ptrdiff_t end, ptrdiff_t rows) {
    soon->next = (const char *)panel + bytes * row / rows / LINE * LINE;
    soon->end = (const char *)panel + bytes * end / rows / LINE * LINE;
    soon->count = 0;
}

INLINE void need_line(needed_soon *soon, const void *line) { soon->lines[soon->count++] = line; }

/* What is left to call for, and how much of it each time. */
typedef struct {
    const char *next, *end;
    const void *const *line, *const *last;
    ptrdiff_t bytes, lines;
} calls;

/* One call for each line of a row of the tile. */
INLINE calls calls_along(const needed_soon *soon, ptrdiff_t bytes_of_row) {
    ptrdiff_t times = bytes_of_row / LINE + 1, stretch = (soon->end - soon->next) / LINE;
    return (calls){
        .next = soon->next,
        .end = soon->end,
        .line = soon->lines,
        .last = soon->lines + soon->count,
        .bytes = (stretch + times - 1) / times * LINE,
        .lines = (soon->count + times - 1) / times,
    };
}

INLINE void call(calls *left) {
    for (const char *stop = left->next + left->bytes; left->next < stop && left->next < left->end; left->next += LINE)
        _mm_prefetch(left->next, _MM_HINT_T1);
    for (const void *const *stop = left->line + left->lines; left->line < stop && left->line < left->last; left->line++)
        _mm_prefetch(*left->line, _MM_HINT_T0);
}

/* --- A tile: rows times a panel -------------------------------------------------------------------------------------- */

/* A tile's sums, in memory: the sums of a loop stay in registers only in a function that needs no others. */
typedef struct { _Alignas(64) float values[MOST_ROWS][PANEL]; } tile;

INLINE __m512 of_tile(const tile *sums, ptrdiff_t row, int group) {
    return _mm512_load_ps(sums->values[row] + group * LANES);
}
INLINE void to_tile(tile *sums, ptrdiff_t row, int group, __m512 x) {
    _mm512_store_ps(sums->values[row] + group * LANES, x);
}

/* carry relu(transform) + (1 - carry) x for 16 units of a row: a panel has both sums of 32 units. `bias` is that of
 * these units' transform; that of their carry lies `units` behind it. */
INLINE __m512 highway_of_tile(
    const tile *sums, ptrdiff_t row, int group, const float *bias, ptrdiff_t units, __mmask16 lanes, __m512 x) {
    __m512 transform = _mm512_add_ps(of_tile(sums, row, group), load_float(bias, lanes));
    __m512 carry = _mm512_add_ps(of_tile(sums, row, group + GROUPS / 2), load_float(bias + units, lanes));
    transform = _mm512_max_ps(_mm512_setzero_ps(), transform);
    return _mm512_fmadd_ps(sigmoid(carry), _mm512_sub_ps(transform, x), x);
}

INLINE ptrdiff_t smaller(ptrdiff_t a, ptrdiff_t b) { return a < b ? a : b; }

INLINE void multiply_rows_float(
    const int rows, ptrdiff_t depth, const float *a, ptrdiff_t stride, const float *panel, const needed_soon *soon,
    tile *result) {
    calls left = calls_along(soon, depth * sizeof(float));
    __m512 sums[MOST_ROWS][GROUPS];
    for (int row = 0; row < rows; row++)
        for (int group = 0; group < GROUPS; group++) sums[row][group] = _mm512_setzero_ps();
    for (ptrdiff_t begin = 0; begin < depth; begin += LINE_OF(float)) {
        call(&left);
        for (ptrdiff_t k = begin, end = smaller(begin + LINE_OF(float), depth); k < end; k++) {
            __m512 weights[GROUPS];
            for (int group = 0; group < GROUPS; group++)
                weights[group] = _mm512_loadu_ps(panel + k * PANEL + group * LANES);
            for (int row = 0; row < rows; row++) {
                __m512 value = _mm512_set1_ps(a[row * stride + k]);
                for (int group = 0; group < GROUPS; group++)
                    sums[row][group] = _mm512_fmadd_ps(value, weights[group], sums[row][group]);
            }
        }
    }
    for (int row = 0; row < rows; row++)
        for (int group = 0; group < GROUPS; group++) _mm512_store_ps(result->values[row] + group * LANES, sums[row][group]);
}

/* depth is even: pairs of values, each pair one number of 32 bits */
INLINE void multiply_rows_bfloat16(
    const int rows, ptrdiff_t depth, const bfloat16 *a, ptrdiff_t stride, const bfloat16 *panel,
    const needed_soon *soon, tile *result) {
    calls left = calls_along(soon, depth * sizeof(bfloat16));
    __m512 sums[MOST_ROWS][GROUPS];
    for (int row = 0; row < rows; row++)
        for (int group = 0; group < GROUPS; group++) sums[row][group] = _mm512_setzero_ps();
    for (ptrdiff_t begin = 0; begin < depth; begin += LINE_OF(bfloat16)) {
        call(&left);
        for (ptrdiff_t k = begin, end = smaller(begin + LINE_OF(bfloat16), depth); k < end; k += 2) {
            __m512bh weights[GROUPS];
            for (int group = 0; group < GROUPS; group++)
                weights[group] = (__m512bh)_mm512_loadu_si512(panel + k * PANEL + group * 2 * LANES);
            for (int row = 0; row < rows; row++) {
                int32_t pair;
                memcpy(&pair, a + row * stride + k, sizeof pair);
                __m512bh value = (__m512bh)_mm512_set1_epi32(pair);
                for (int group = 0; group < GROUPS; group++)
                    sums[row][group] = _mm512_dpbf16_ps(sums[row][group], value, weights[group]);
            }
        }
    }
    for (int row = 0; row < rows; row++)
        for (int group = 0; group < GROUPS; group++) _mm512_store_ps(result->values[row] + group * LANES, sums[row][group]);
}

/* result = a (rows, depth) times a panel. A loop for each number of rows, so that the sums have registers of their own. */
#define DEFINE_MULTIPLY(TYPE)                                                                                            \
    FOR_AVX512 static __attribute__((noinline)) void multiply_##TYPE(                                                    \
        ptrdiff_t rows, ptrdiff_t depth, const TYPE *a, ptrdiff_t stride, const TYPE *panel, const needed_soon *soon,    \
        tile *result) {                                                                                                  \
        switch (rows) {                                                                                                  \
            case 1: multiply_rows_##TYPE(1, depth, a, stride, panel, soon, result); break;                               \
            case 2: multiply_rows_##TYPE(2, depth, a, stride, panel, soon, result); break;                               \
            case 3: multiply_rows_##TYPE(3, depth, a, stride, panel, soon, result); break;                               \
            case 4: multiply_rows_##TYPE(4, depth, a, stride, panel, soon, result); break;                               \
            case 5: multiply_rows_##TYPE(5, depth, a, stride, panel, soon, result); break;                               \
            default: multiply_rows_##TYPE(6, depth, a, stride, panel, soon, result);                                     \
        }                                                                                                                \
    }
DEFINE_MULTIPLY(float)
DEFINE_MULTIPLY(bfloat16)

/* How many rows the next tile takes, so that tiles are about equally high. */
static inline ptrdiff_t tile_rows(ptrdiff_t rows_left) {
    ptrdiff_t tiles = (rows_left + MOST_ROWS - 1) / MOST_ROWS;
    return (rows_left + tiles - 1) / tiles;
}

/* --- What a layer's passes read and write (fused.py has the same) ------------------------------------- */

typedef struct {
    ptrdiff_t steps, hidden, width; /* hidden: units of the cell; width: of the output */
    ptrdiff_t beside;               /* values that are multiplied beside h, before it */
    const int64_t *batch_sizes;     /* rows of each step, falling */
    const uint8_t *resets;          /* of each slot, or NULL: the state starts afresh there */
    float cell_clip, projection_clip; /* infinity: none */
} steps_of_layer;

typedef struct {
    const void *recurrent, *projection; /* panels; no projection: NULL */
    ptrdiff_t row_apart, gate_apart, units_apart; /* values between inputs of rows, of gates, of 16 units */
    const void *inputs;
    const int64_t *which;               /* the row of `inputs` for each slot; NULL: the slot itself */
    float *outputs, *h, *c;
    const float *start_h, *start_c;
    void *gates, *all_hidden; /* the trace, or NULL: gates, hidden values, ... */
    void *factors;            /* ... what is multiplied: what is beside h is there already, the pass adds h, ... */
    float *cells, *previous_c;
    void *low_h, *low_hidden; /* ... and without a trace room for a step */
} forward_pass;

typedef struct {
    const void *recurrent, *projection, *beside; /* panels of the transposed weights; nothing beside h: NULL */
    const float *outputs;
    const void *gates;
    const float *cells, *previous_c;
    float *grad_outputs, *grad_h, *grad_c;
    void *grad_gates, *low; /* grad_gates: may be `gates`; low: room for a step's gradient of outputs */
    float *grad_beside, *grad_constant; /* of each slot; of all slots together, added to, or NULL */
} backward_pass;

/* Where a slot's inputs begin, for 16 units from `unit` on. */
INLINE ptrdiff_t inputs_begin(const forward_pass *pass, ptrdiff_t slot, ptrdiff_t unit) {
    return (pass->which ? pass->which[slot] : slot) * pass->row_apart + unit / LANES * pass->units_apart;
}

/* --- What the gradient of a logsumexp reads and writes (kernels/packed_logsumexp.py has the same) ------------------- */

#define CLASS_BYTES (1 << 18) /* weights that stay in cache while all positions pass */
#define CLASSES 256           /* of a piece of the gradient ... */
#define POSITIONS 256         /* ... that stays in cache, where two products read it */

typedef struct {
    ptrdiff_t positions, classes, depth;
    const void *panels, *across, *weight;
    const float *bias;
    const int32_t *excluded;
    const float *result, *grad;
    float *grad_hidden, *grad_weight, *grad_bias;
    void *room; /* 2 * CLASSES * POSITIONS + depth * CLASSES values */
} logsumexp_pass;

INLINE __m512i excluded_at(const int32_t *excluded, ptrdiff_t position, __mmask16 lanes) {
    return excluded ? _mm512_maskz_loadu_epi32(lanes, excluded + position) : _mm512_set1_epi32(-1);
}

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define OF_TYPE(name) JOIN(name, TYPE)

#define TYPE float
#define PAIR 1
#include "avx512_layer.h"
#include "avx512_softmax.h"
#undef TYPE
#undef PAIR
#define TYPE bfloat16
#define PAIR 2
#include "avx512_layer.h"
#include "avx512_softmax.h"
#include "avx512_int8.h"
#else
int elmokit_avx512(void) { return 0; }
#endif
