/* Forwards the three BLAS symbols that libmlx imports to a faster library.
 *
 * The Linux wheel of MLX binds cblas_{s,d,c}gemm to a reference BLAS. The dynamic linker resolves
 * those names when libmlx is loaded, first definition in the global scope wins; so this library has to be
 * opened with RTLD_GLOBAL before mlx.core is imported, and has no effect afterwards. It links to nothing:
 * the target is opened by path and its functions are looked up by prefix + name.
 */
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>

typedef void (*sgemm_t)(int, int, int, int, int, int, float, const float *, int, const float *, int, float,
                        float *, int);
typedef void (*dgemm_t)(int, int, int, int, int, int, double, const double *, int, const double *, int, double,
                        double *, int);
typedef void (*cgemm_t)(int, int, int, int, int, int, const void *, const void *, int, const void *, int,
                        const void *, void *, int);
typedef void (*threads_t)(int);

static sgemm_t target_sgemm;
static dgemm_t target_dgemm;
static cgemm_t target_cgemm;
static threads_t target_set_threads;
static atomic_ulong calls;

static void *find(void *library, const char *prefix, const char *name) {
  char symbol[128];
  snprintf(symbol, sizeof symbol, "%s%s", prefix, name);
  return dlsym(library, symbol);
}

/* Opens `path` and binds its functions, each named `prefix` + the standard name.
 * Returns 0, 1 when the library cannot be opened, 2 when a function is missing. Nothing is bound on failure. */
int mtrun_blas_bind(const char *path, const char *prefix) {
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) return 1;
  sgemm_t s = (sgemm_t)find(library, prefix, "cblas_sgemm");
  dgemm_t d = (dgemm_t)find(library, prefix, "cblas_dgemm");
  cgemm_t c = (cgemm_t)find(library, prefix, "cblas_cgemm");
  threads_t t = (threads_t)find(library, prefix, "openblas_set_num_threads");
  if (!s || !d || !c || !t) return 2;
  target_sgemm = s;
  target_dgemm = d;
  target_cgemm = c;
  target_set_threads = t;
  return 0;
}

/* How many products have been forwarded in this process: the evidence that libmlx bound to this library. */
unsigned long mtrun_blas_calls(void) { return atomic_load_explicit(&calls, memory_order_relaxed); }

void mtrun_blas_set_threads(int count) { target_set_threads(count); }

static void count_call(void) { atomic_fetch_add_explicit(&calls, 1, memory_order_relaxed); }

void cblas_sgemm(int order, int trans_a, int trans_b, int m, int n, int k, float alpha, const float *a, int lda,
                 const float *b, int ldb, float beta, float *c, int ldc) {
  count_call();
  target_sgemm(order, trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

void cblas_dgemm(int order, int trans_a, int trans_b, int m, int n, int k, double alpha, const double *a, int lda,
                 const double *b, int ldb, double beta, double *c, int ldc) {
  count_call();
  target_dgemm(order, trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

void cblas_cgemm(int order, int trans_a, int trans_b, int m, int n, int k, const void *alpha, const void *a, int lda,
                 const void *b, int ldb, const void *beta, void *c, int ldc) {
  count_call();
  target_cgemm(order, trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}
