#include "kernels.h"
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define MTRUN_ISA avx512_set
#define MTRUN_NAME "avx512"
#include "simd_avx512.h"
#include "kernels.inl"
const mtrun::Kernels* mtrun::avx512_kernels() { return &MTRUN_ISA::table; }
#else
const mtrun::Kernels* mtrun::avx512_kernels() { return nullptr; }
#endif
