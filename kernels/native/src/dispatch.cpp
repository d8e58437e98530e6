#include "dispatch.h"

#include <cstring>

namespace mtrun {
namespace {

struct Candidate {
  const Kernels* table;
  bool runs;
};

// Best first. Wide byte products need AVX-512 VNNI as a whole: a processor that has only the 256-bit form takes avx2.
int candidates(Candidate* out) {
  int n = 0;
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                    __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                    __builtin_cpu_supports("fma");
  out[n++] = {avx512_vnni_kernels(), wide && __builtin_cpu_supports("avx512vnni")};
  out[n++] = {avx512_kernels(), wide};
  // F16C came before AVX2 in every line of processors; the compiler of this file may not know its name.
  out[n++] = {avx2_kernels(), __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")};
#elif defined(__aarch64__)
  out[n++] = {neon_kernels(), true};
#endif
  out[n++] = {generic_kernels(), true};
  return n;
}

}  // namespace

const Kernels* find_kernels(const char* name) {
  Candidate all[8];
  const int n = candidates(all);
  const bool any = std::strcmp(name, "auto") == 0;
  for (int i = 0; i < n; i++)
    if (all[i].table && all[i].runs && (any || std::strcmp(name, all[i].table->name) == 0)) return all[i].table;
  return nullptr;
}

}  // namespace mtrun
