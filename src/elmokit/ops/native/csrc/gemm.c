/* Matrix products with prepacked weights, and the recurrence of a layer on top of them, for processors with AVX-512.
 *
 * A weight (columns, depth) is kept as panels of 64 columns: in a panel the 64 values of one depth lie together (of two
 * depths, alternating, in bfloat16, and of four in int8, as their instructions read them). A tile of up to six rows by
 * one panel is summed in registers. In the recurrence a panel holds the four gates of 16 units, so that the cell is
 * computed on the sums while they are still in cache: gates never see memory, except as the trace for training.
 *
 * Common parts come first; then each template (avx512_*.h) is included once for each TYPE of the products.
 */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(NO_AVX512)
#include <float.h>
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "elmokit.h"

#define LANES 16
#define GROUPS 4 /* of lanes in a panel: four gates in the recurrence */
#define PANEL (LANES * GROUPS)
#define MAX_ROWS 6

#define FOR_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vnni,fma")))
#define INLINE FOR_AVX512 static inline __attribute__((always_inline))


/* 1: float32 products, 2: bfloat16 ones too */
int elmokit_avx512(void) {
    __builtin_cpu_init();
    int float32 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    return float32 ? 1 + !!__builtin_cpu_supports("avx512bf16") : 0;
}

/* --- The cell's functions on sixteen values ---------------------------------------------------------------------- */

/* 2^x = 2^n 2^r, 0 <= r < 1, to about 1e-7; the polynomial is the one of least relative error there. In this order of
 * min a NaN passes, and infinity is brought near, where reciprocal_of_one_plus_exp2 can divide by it; of -infinity r is 0. */
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
INLINE __m512 reciprocal_of_one_plus_exp2(__m512 x) {
    __m512 whole = _mm512_add_ps(_mm512_set1_ps(1.0f), power_of_two(x)), part = _mm512_rcp14_ps(whole);
    return _mm512_fmadd_ps(part, _mm512_fnmadd_ps(whole, part, _mm512_set1_ps(1.0f)), part);
}
#define LOG2_E 1.44269504088896341f
INLINE __m512 sigmoid(__m512 x) { return reciprocal_of_one_plus_exp2(_mm512_mul_ps(x, _mm512_set1_ps(-LOG2_E))); }
INLINE __m512 hyperbolic_tangent(__m512 x) {
    __m512 part = reciprocal_of_one_plus_exp2(_mm512_mul_ps(x, _mm512_set1_ps(2.0f * LOG2_E)));
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
/* 15 strides are less than 2^31 */
INLINE __m512 load_strided(const float *from, ptrdiff_t stride, __mmask16 lanes) {
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

/* --- Prefetching --------------------------------------------------------------------------------------------------- */

#define LINE 64 /* bytes */
#define LINE_OF(TYPE) ((ptrdiff_t)(LINE / sizeof(TYPE)))
/* at most, in the backward pass: cells before and after; gates and their gradients, 64 units of each */
#define LINES_OF_A_ROW (2 * GROUPS + 2 * GROUPS * (PANEL / LINE_OF(float)))

/* A stretch of the next weights, for the larger cache, and lines that lie here and there, for the smaller one. They are
 * prefetched bit by bit while a tile is multiplied: all at once they would keep the tile's own weights waiting. */
typedef struct {
    const char *next, *end;
    ptrdiff_t count;
    const void *lines[MAX_ROWS * LINES_OF_A_ROW];
} prefetch_plan;

static const prefetch_plan no_prefetch;

/* Of the next panel the share of the rows from `row` to `end` out of `rows` that pass by this one; no lines yet. */
INLINE void plan_panel(
    prefetch_plan *plan, const void *panel, ptrdiff_t bytes, ptrdiff_t row, ptrdiff_t end, ptrdiff_t rows) {
    plan->next = (const char *)panel + bytes * row / rows / LINE * LINE;
    plan->end = (const char *)panel + bytes * end / rows / LINE * LINE;
    plan->count = 0;
}

INLINE void plan_line(prefetch_plan *plan, const void *line) { plan->lines[plan->count++] = line; }

/* What is left to prefetch, and how much of it at a time. */
typedef struct {
    const char *next, *end;
    const void *const *line, *const *last;
    ptrdiff_t bytes, lines;
} prefetcher;

/* A share of the plan for each cache line of a row of the tile. */
INLINE prefetcher start_prefetch(const prefetch_plan *plan, ptrdiff_t bytes_of_row) {
    ptrdiff_t times = bytes_of_row / LINE + 1, stretch = (plan->end - plan->next) / LINE;
    return (prefetcher){
        .next = plan->next,
        .end = plan->end,
        .line = plan->lines,
        .last = plan->lines + plan->count,
        .bytes = (stretch + times - 1) / times * LINE,
        .lines = (plan->count + times - 1) / times,
    };
}

INLINE void prefetch_some(prefetcher *left) {
    for (const char *stop = left->next + left->bytes; left->next < stop && left->next < left->end; left->next += LINE)
        _mm_prefetch(left->next, _MM_HINT_T1);
    for (const void *const *stop = left->line + left->lines; left->line < stop && left->line < left->last; left->line++)
        _mm_prefetch(*left->line, _MM_HINT_T0);
}

/* --- A tile: rows times a panel -------------------------------------------------------------------------------------- */

/* A tile's sums, in memory: the sums of a loop stay in registers only in a function that needs no others. */
typedef struct { _Alignas(64) float values[MAX_ROWS][PANEL]; } tile;

INLINE __m512 of_tile(const tile *sums, ptrdiff_t row, int group) {
    return _mm512_load_ps(sums->values[row] + group * LANES);
}
INLINE void to_tile(tile *sums, ptrdiff_t row, int group, __m512 x) {
    _mm512_store_ps(sums->values[row] + group * LANES, x);
}

/* carry relu(transform) + (1 - carry) x for 16 units of a row: a panel has both sums of 32 units. `bias` is that of
 * these units' transform; that of their carry lies `units` after it. */
INLINE __m512 highway_of_tile(
    const tile *sums, ptrdiff_t row, int group, const float *bias, ptrdiff_t units, __mmask16 lanes, __m512 x) {
    __m512 transform = _mm512_add_ps(of_tile(sums, row, group), load_float(bias, lanes));
    __m512 carry = _mm512_add_ps(of_tile(sums, row, group + GROUPS / 2), load_float(bias + units, lanes));
    transform = _mm512_max_ps(_mm512_setzero_ps(), transform);
    return _mm512_fmadd_ps(sigmoid(carry), _mm512_sub_ps(transform, x), x);
}

INLINE ptrdiff_t smaller(ptrdiff_t a, ptrdiff_t b) { return a < b ? a : b; }

/* How many rows the next tile takes, so that tiles are about equally high. */
static inline ptrdiff_t tile_rows(ptrdiff_t rows_left) {
    ptrdiff_t tiles = (rows_left + MAX_ROWS - 1) / MAX_ROWS;
    return (rows_left + tiles - 1) / tiles;
}

/* --- A layer in one direction; elmokit.h says what the fields are ------------------------------------------------- */

typedef struct {
    ptrdiff_t steps, first_row, end_row;
    ptrdiff_t hidden, width, input_width; /* units of the cell; values of h; values of x that are multiplied with it */
    const int64_t *batch_sizes;           /* rows of each step, never rising */
    const uint8_t *resets;                /* of each slot, or NULL: the state is set to the start there */
    float cell_clip, projection_clip; /* infinity: none */
} steps_of_layer;

typedef struct {
    const void *recurrent, *projection; /* panels; no projection: NULL */
    const void *inputs;
    const int64_t *index;
    ptrdiff_t row_stride, gate_stride, unit_stride;
    float *outputs, *h, *c;
    const float *start_h, *start_c;
    void *gates, *hidden, *xh;
    float *cells, *previous_c;
    void *low_h, *low_hidden;
} forward_pass;

typedef struct {
    const void *recurrent, *projection, *input; /* panels of the transposed weights */
    const float *outputs;
    const void *gates;
    const float *cells, *previous_c;
    float *grad_outputs, *grad_h, *grad_c;
    void *grad_gates, *low;
    float *grad_x, *grad_bias;
} backward_pass;

/* How many of a layer's rows are in a step. */
static inline ptrdiff_t rows_of_step(const steps_of_layer *layer, ptrdiff_t t) {
    ptrdiff_t end = layer->batch_sizes[t] < layer->end_row ? layer->batch_sizes[t] : layer->end_row;
    return end > layer->first_row ? end - layer->first_row : 0;
}

/* Where a slot's inputs begin, for 16 units from `unit` on. */
INLINE ptrdiff_t input_offset(const forward_pass *pass, ptrdiff_t slot, ptrdiff_t unit) {
    return (pass->index ? pass->index[slot] : slot) * pass->row_stride + unit / LANES * pass->unit_stride;
}

/* --- What the gradient of a logsumexp reads and writes ----------------------------------------------------- */

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
    void *scratch;
} logsumexp_pass;

INLINE __m512i excluded_at(const int32_t *excluded, ptrdiff_t position, __mmask16 lanes) {
    return excluded ? _mm512_maskz_loadu_epi32(lanes, excluded + position) : _mm512_set1_epi32(-1);
}

/* --- The types of products ------------------------------------------------------------------------------------------
 *
 * TYPE is multiplied. STEP values of a column's depth lie together in a panel: four bytes, which are multiplied at once
 * into a lane of SUM. Values between products are of VALUE, and products that are not asked for in float are of RESULT.
 */

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define OF_TYPE(name) JOIN(name, TYPE)
#define LOAD_VALUE JOIN(load_, VALUE)
#define STORE_VALUE JOIN(store_, VALUE)
#define LOAD_RESULT JOIN(load_, RESULT)
#define STORE_RESULT OF_TYPE(store_result_)

/* Of float and bfloat16: where sums begin, what a step adds, how many values a row and a panel have, and rows from
 * floats and from values. */
#define DEFINE_ROWS(TYPE)                                                                                                \
    INLINE ptrdiff_t row_size_##TYPE(ptrdiff_t depth) { return depth; }                                                  \
    INLINE ptrdiff_t panel_size_##TYPE(ptrdiff_t depth) { return PANEL * depth; }                                        \
    INLINE __m512 first_sum_##TYPE(const TYPE *panel, ptrdiff_t depth, int group) {                                      \
        (void)panel, (void)depth, (void)group;                                                                           \
        return _mm512_setzero_ps();                                                                                      \
    }                                                                                                                    \
    INLINE void store_tile_##TYPE(                                                                                       \
        int rows, ptrdiff_t depth, const TYPE *a, ptrdiff_t stride, const TYPE *panel, __m512 sums[][GROUPS],            \
        tile *result) {                                                                                                  \
        (void)depth, (void)a, (void)stride, (void)panel;                                                                 \
        for (int row = 0; row < rows; row++)                                                                             \
            for (int group = 0; group < GROUPS; group++) to_tile(result, row, group, sums[row][group]);                  \
    }                                                                                                                    \
    INLINE void to_row_##TYPE(ptrdiff_t count, const float *from, TYPE *to) {                                            \
        for (ptrdiff_t k = 0; k < count; k += LANES)                                                                     \
            store_##TYPE(to + k, first_lanes(count - k), load_float(from + k, first_lanes(count - k)));                  \
    }                                                                                                                    \
    INLINE const TYPE *rows_of_values_##TYPE(                                                                            \
        ptrdiff_t rows, ptrdiff_t count, const TYPE *values, void *scratch) {                                            \
        (void)rows, (void)count, (void)scratch;                                                                          \
        return values;                                                                                                   \
    }                                                                                                                    \
    INLINE void store_result_##TYPE(TYPE *to, __mmask16 lanes, __m512 x) { store_##TYPE(to, lanes, x); }
DEFINE_ROWS(float)
DEFINE_ROWS(bfloat16)

INLINE __m512 add_products_float(__m512 sum, __m512i value, __m512i weights) {
    return _mm512_fmadd_ps((__m512)value, (__m512)weights, sum);
}
INLINE __m512 add_products_bfloat16(__m512 sum, __m512i value, __m512i weights) {
    return _mm512_dpbf16_ps(sum, (__m512bh)value, (__m512bh)weights);
}

#include "avx512_int8.h"

#define TYPE float
#define VALUE float
#define RESULT float
#define SUM __m512
#define STEP 1
#define MAX_SUM 1024 /* depth that is summed before a float result is added to: so much of all rows stays in cache */
#include "avx512_prepack.h"
#include "avx512_product.h"
#include "avx512_lstm_forward.h"
#include "avx512_lstm_backward.h"
#include "avx512_logsumexp.h"
#undef TYPE
#undef VALUE
#undef RESULT
#undef STEP
#define TYPE bfloat16
#define VALUE bfloat16
#define RESULT bfloat16
#define STEP 2
#include "avx512_prepack.h"
#include "avx512_product.h"
#include "avx512_lstm_forward.h"
#include "avx512_lstm_backward.h"
#include "avx512_logsumexp.h"
#undef TYPE
#undef VALUE
#undef SUM
#undef STEP
#undef MAX_SUM
#define TYPE int8
#define VALUE float
#define SUM int32_lanes
#define STEP 4
#define MAX_SUM PTRDIFF_MAX
#include "avx512_product.h"
#include "avx512_lstm_forward.h"
#else
int elmokit_avx512(void) { return 0; }
#endif
