#include "kernels.h"
#if defined(__AVX512VNNI__)
#define MTRUN_ISA avx512_vnni_set
#define MTRUN_NAME "avx512_vnni"
#define MTRUN_VNNI
#include "simd_avx512.h"
#include "kernels.inl"
const mtrun::Kernels* mtrun::avx512_vnni_kernels() { return &MTRUN_ISA::table; }
#else
const mtrun::Kernels* mtrun::avx512_vnni_kernels() { return nullptr; }
#endif
