#include "kernels.h"
#if 1
#define MTRUN_ISA generic_set
#define MTRUN_NAME "generic"
#include "simd_generic.h"
#include "kernels.inl"
const mtrun::Kernels* mtrun::generic_kernels() { return &MTRUN_ISA::table; }
#else
const mtrun::Kernels* mtrun::generic_kernels() { return nullptr; }
#endif
