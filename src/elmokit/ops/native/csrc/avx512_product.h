/* Included by gemm.c for each TYPE: out = a times a prepacked weight, plus a bias; and a highway layer. */

/* rows of a times a panel; `rows` is known when it is compiled, so that the sums stay in registers */
INLINE void OF_TYPE(multiply_rows_)(
    const int rows, ptrdiff_t depth, const TYPE *a, ptrdiff_t stride, const TYPE *panel, const prefetch_plan *plan,
    tile *result) {
    prefetcher left = start_prefetch(plan, depth * sizeof(TYPE));
    SUM sums[MAX_ROWS][GROUPS];
    for (int row = 0; row < rows; row++)
        for (int group = 0; group < GROUPS; group++) sums[row][group] = OF_TYPE(first_sum_)(panel, depth, group);
    for (ptrdiff_t begin = 0; begin < depth; begin += LINE_OF(TYPE)) {
        prefetch_some(&left);
        for (ptrdiff_t k = begin, end = smaller(begin + LINE_OF(TYPE), depth); k < end; k += STEP) {
            __m512i weights[GROUPS];
            for (int group = 0; group < GROUPS; group++)
                weights[group] = _mm512_loadu_si512(panel + k * PANEL + group * LANES * STEP);
            for (int row = 0; row < rows; row++) {
                int32_t bits;
                memcpy(&bits, a + row * stride + k, sizeof bits);
                __m512i value = _mm512_set1_epi32(bits);
                for (int group = 0; group < GROUPS; group++)
                    sums[row][group] = OF_TYPE(add_products_)(sums[row][group], value, weights[group]);
            }
        }
    }
    OF_TYPE(store_tile_)(rows, depth, a, stride, panel, sums, result);
}

/* result = a (rows, depth) times a panel */
FOR_AVX512 static __attribute__((noinline)) void OF_TYPE(multiply_)(
    ptrdiff_t rows, ptrdiff_t depth, const TYPE *a, ptrdiff_t stride, const TYPE *panel, const prefetch_plan *plan,
    tile *result) {
    switch (rows) {
        case 1: OF_TYPE(multiply_rows_)(1, depth, a, stride, panel, plan, result); break;
        case 2: OF_TYPE(multiply_rows_)(2, depth, a, stride, panel, plan, result); break;
        case 3: OF_TYPE(multiply_rows_)(3, depth, a, stride, panel, plan, result); break;
        case 4: OF_TYPE(multiply_rows_)(4, depth, a, stride, panel, plan, result); break;
        case 5: OF_TYPE(multiply_rows_)(5, depth, a, stride, panel, plan, result); break;
        default: OF_TYPE(multiply_rows_)(6, depth, a, stride, panel, plan, result);
    }
}

INLINE void OF_TYPE(product_tile_)(
    ptrdiff_t rows, ptrdiff_t columns, ptrdiff_t depth, const TYPE *a, ptrdiff_t stride, const TYPE *panel,
    const prefetch_plan *plan, const float *bias, void *out, ptrdiff_t out_stride, int wide, int more) {
    tile sums;
    OF_TYPE(multiply_)(rows, depth, a, stride, panel, plan, &sums);
    for (ptrdiff_t row = 0; row < rows; row++)
        for (int group = 0; group < GROUPS; group++) {
            __mmask16 lanes = first_lanes(columns - group * LANES);
            ptrdiff_t place = row * out_stride + group * LANES;
            __m512 sum = of_tile(&sums, row, group);
            if (more) sum = _mm512_add_ps(sum, load_float((float *)out + place, lanes));
            else if (bias) sum = _mm512_add_ps(sum, load_float(bias + group * LANES, lanes));
            if (wide) store_float((float *)out + place, lanes, sum);
            else STORE_RESULT((RESULT *)out + place, lanes, sum);
        }
}

/* a (rows, depth), out (rows, columns), of float where `wide`, else of RESULT: only float can take the sum in parts. */
FOR_AVX512 void OF_TYPE(elmokit_product_)(
    ptrdiff_t rows, ptrdiff_t columns, ptrdiff_t depth, const void *values, ptrdiff_t stride, const void *panels,
    const float *bias, void *out, ptrdiff_t out_stride, int wide) {
    const TYPE *a = values;
    ptrdiff_t part = wide ? MAX_SUM : PTRDIFF_MAX;
    for (ptrdiff_t begin = 0; begin == 0 || begin < depth; begin += part) {
        ptrdiff_t deep = smaller(depth - begin, part), size = OF_TYPE(panel_size_)(depth);
        const TYPE *panel = (const TYPE *)panels + begin * PANEL;
        for (ptrdiff_t column = 0; column < columns; column += PANEL, panel += size)
            for (ptrdiff_t row = 0, height; row < rows; row += height) {
                prefetch_plan plan;
                height = tile_rows(rows - row);
                plan_panel(&plan, panel + size, OF_TYPE(panel_size_)(deep) * sizeof(TYPE), row, row + height, rows);
                void *to = (char *)out + (row * out_stride + column) * (wide ? sizeof(float) : sizeof(RESULT));
                OF_TYPE(product_tile_)(
                    height, columns - column, deep, a + row * stride + begin, stride, panel, &plan,
                    bias ? bias + column : NULL, to, out_stride, wide, begin > 0);
            }
    }
}

/* x through a highway layer whose weight is prepacked with two gates. */
FOR_AVX512 void OF_TYPE(elmokit_prepacked_highway_)(
    ptrdiff_t rows, ptrdiff_t units, const void *values, const void *panels, const float *bias, void *result,
    const void *quantized) {
    const TYPE *a = quantized ? quantized : values, *panel = panels;
    const VALUE *x = values;
    VALUE *out = result;
    ptrdiff_t stride = OF_TYPE(row_size_)(units);
    for (ptrdiff_t first = 0; first < units; first += PANEL / 2, panel += OF_TYPE(panel_size_)(units))
        for (ptrdiff_t row = 0, height; row < rows; row += height) {
            tile sums;
            height = tile_rows(rows - row);
            OF_TYPE(multiply_)(height, units, a + row * stride, stride, panel, &no_prefetch, &sums);
            for (ptrdiff_t r = 0; r < height; r++)
                for (int group = 0; group < GROUPS / 2; group++) {
                    ptrdiff_t unit = first + group * LANES, place = (row + r) * units + unit;
                    __mmask16 lanes = first_lanes(units - unit);
                    __m512 before = LOAD_VALUE(x + place, lanes);
                    STORE_VALUE(out + place, lanes, highway_of_tile(&sums, r, group, bias + unit, units, lanes, before));
                }
        }
}
