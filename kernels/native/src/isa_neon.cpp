#include "kernels.h"
#if defined(__ARM_NEON) && defined(__aarch64__)
#define MTRUN_ISA neon_set
#define MTRUN_NAME "neon"
#include "simd_neon.h"
#include "kernels.inl"
const mtrun::Kernels* mtrun::neon_kernels() { return &MTRUN_ISA::table; }
#else
const mtrun::Kernels* mtrun::neon_kernels() { return nullptr; }
#endif
