#include "kernels.h"
#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define MTRUN_ISA avx2_set
#define MTRUN_NAME "avx2"
#include "simd_avx2.h"
#include "kernels.inl"
const mtrun::Kernels* mtrun::avx2_kernels() { return &MTRUN_ISA::table; }
#else
const mtrun::Kernels* mtrun::avx2_kernels() { return nullptr; }
#endif
