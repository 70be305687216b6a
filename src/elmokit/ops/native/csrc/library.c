/* What the library was built of, and which of its targets this processor can run. */
#include "elmokit.h"

const char elmokit_sources[] = ELMOKIT_SOURCES; /* their digest (hatch_build.py): library.py takes no other */

#if defined(__x86_64__)
#include <cpuid.h>

/* Features whose names __builtin_cpu_supports refuses in older compilers: bits of EAX in part 1 of leaf 7. */
enum { AVX_VNNI = 4, AVX512_BF16 = 5 };
static int has_bit(int bit) {
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> bit & 1);
}

#define HAS(feature) (__builtin_cpu_init(), __builtin_cpu_supports(feature))
int elmokit_runs_avx2(void) { return HAS("avx2") && HAS("fma"); }
int elmokit_runs_avx2_vnni(void) { return elmokit_runs_avx2() && has_bit(AVX_VNNI); }
int elmokit_runs_avx512(void) {
    return elmokit_runs_avx2() && HAS("avx512f") && HAS("avx512bw") && HAS("avx512vl") && HAS("avx512dq");
}
int elmokit_runs_avx512_vnni(void) { return elmokit_runs_avx512() && HAS("avx512vnni"); }
int elmokit_runs_avx512_bf16(void) { return elmokit_runs_avx512_vnni() && has_bit(AVX512_BF16); }
#elif defined(__aarch64__)
#if defined(__linux__)
#include <sys/auxv.h>
int elmokit_runs_neon_dotprod(void) { return getauxval(AT_HWCAP) >> 20 & 1; } /* HWCAP_ASIMDDP */
#elif defined(__APPLE__)
int elmokit_runs_neon_dotprod(void) { return 1; } /* every Apple processor that runs macOS */
#else
int elmokit_runs_neon_dotprod(void) { return 0; }
#endif
#endif
int elmokit_runs_baseline(void) { return 1; }
