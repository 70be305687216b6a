/* Functions marked FOR_EACH_TARGET are built for several processors; the loader picks the best one. */
#ifndef ELMOKIT_TARGETS_H
#define ELMOKIT_TARGETS_H

/* Compilers or C libraries that cannot do this are given -DFOR_EACH_TARGET= (hatch_build.py). */
#ifndef FOR_EACH_TARGET
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define FOR_EACH_TARGET __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FOR_EACH_TARGET
#endif
#endif

#endif
