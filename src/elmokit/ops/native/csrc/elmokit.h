/* What every source shares: names, dtypes, sizes that Python has too.
 *
 * Files are compiled once for each TARGET, and once for each TYPE where their functions are TYPED (hatch_build.py), so
 * that names end in _TYPE_TARGET or _TARGET. library.py reads the arguments of a function from its definition, and
 * where that takes a pointer to a struct, from the struct's.
 *
 * Sizes count values, not bytes. `rows` of a step are those of a packed stream (packing.py). A stride is the distance
 * in values from one row to the next. `panels` are prepacked weights, `bias` may be NULL.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define PLAIN(function) JOIN(JOIN(elmokit_##function, _), TARGET)
#define TYPED(function) JOIN(JOIN(JOIN(JOIN(elmokit_##function, _), TYPE), _), TARGET)
#define INLINE static inline __attribute__((always_inline))

typedef uint16_t bfloat16, float16;
typedef int8_t int8; /* rows and panels, with their scales (dtype.h) */

#define PANEL 64         /* columns of a panel: one gate's, or 32 units of two gates, or 16 units of four */
#define ROWS_OF_A_SUM 32 /* in the gradient of a bias */
#define CLASSES 256      /* of a tile of a softmax's gradient ... */
#define POSITIONS 256    /* ... that stays in cache, where two products read it */

INLINE ptrdiff_t smaller(ptrdiff_t a, ptrdiff_t b) { return a < b ? a : b; }
