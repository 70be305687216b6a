/* Included by gemm.c for float and bfloat16: weights to panels. */

/* A weight's panels from its values: column j at depth k is weight[j * column_stride + k * depth_stride]. With four
 * gates a panel holds those of 16 units; panels are filled up with zeros. */
FOR_AVX512 void OF_TYPE(elmokit_prepack_)(
    ptrdiff_t columns, ptrdiff_t depth, ptrdiff_t gates, ptrdiff_t first_panel, ptrdiff_t end_panel, const void *values,
    ptrdiff_t column_stride, ptrdiff_t depth_stride, void *all_panels) {
    ptrdiff_t of_gate = columns / gates, across = PANEL / gates;
    const float *weight = values;
    for (ptrdiff_t panel = first_panel; panel < end_panel; panel++) {
        ptrdiff_t first = panel * across;
        TYPE *panels = (TYPE *)all_panels + panel * PANEL * depth;
        for (ptrdiff_t place = 0; place < PANEL; place += LANES) {
            ptrdiff_t unit = first + place % across, column = place / across * of_gate + unit;
            __mmask16 lanes = first_lanes(of_gate - unit);
            for (ptrdiff_t k = 0; k < depth; k += STEP) {
                const float *from = weight + column * column_stride + k * depth_stride;
                __m512 now = load_strided(from, column_stride, lanes), next = now;
                if (STEP == 2) next = load_strided(from + depth_stride, column_stride, lanes);
                OF_TYPE(store_in_panel_)(panels + k * PANEL + place * STEP, now, next);
            }
        }
    }
}
