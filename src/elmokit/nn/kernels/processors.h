/* Functions marked FOR_EACH_PROCESSOR are built for several processors; the loader picks the best one. */
#ifndef ELMOKIT_PROCESSORS_H
#define ELMOKIT_PROCESSORS_H

/* Compilers or C libraries that cannot do this are given -DFOR_EACH_PROCESSOR= (hatch_build.py). */
#ifndef FOR_EACH_PROCESSOR
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define FOR_EACH_PROCESSOR __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FOR_EACH_PROCESSOR
#endif
#endif

#endif
