// Instructions beyond x86-64-v3 and -v4 that kernels of these levels use where the machine has them, so that a program
// for a level runs on every machine of that level.
#ifndef INFC_CPU_FEATURES_H
#define INFC_CPU_FEATURES_H

#include <stdint.h>

enum {
  INFC_CPU_AVX_VNNI = 1u << 0,    // of 256 bits; on a machine of level v3
  INFC_CPU_AVX512_VNNI = 1u << 1, // of 512 bits; on a machine of level v4, as are those below
  INFC_CPU_AVX512_BF16 = 1u << 2,
  INFC_CPU_AVX512_VBMI = 1u << 3,
};

// Those that this machine has, less those masked. Cheap: the machine is asked once.
uint32_t infc_cpu_features(void);
// Hides all features but these, for tests of every path; ~0u hides none.
void infc_cpu_allow(uint32_t features);

#endif // INFC_CPU_FEATURES_H
