// What tests/fake_gpu's driver lacks to launch kernels: modules, launches and times. A module holds every kernel that
// is compiled in, whatever its bytes.
#include "emulated_kernels.h"
#include "fake.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { CUDA_ERROR_NOT_FOUND = 500 };

typedef struct launch {
  const emulated_kernel *kernel;
  unsigned grid, block;
  uint64_t values[EMULATED_ARGUMENTS];
} launch;

static CUresult perform(const void *data) {
  static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;
  launch l = *(const launch *)data;
  void *arguments[EMULATED_ARGUMENTS];
  for (uint32_t i = 0; i < l.kernel->argument_count; i++) {
    if (l.kernel->arguments[i].pointer && l.values[i]) {
      l.values[i] = (uintptr_t)fake_memory(l.values[i], 1);
      if (!l.values[i])
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    arguments[i] = &l.values[i];
  }
  pthread_mutex_lock(&one);
  l.kernel->run(arguments, l.grid, l.block);
  pthread_mutex_unlock(&one);
  return 0;
}

FAKE_API CUresult cuLibraryLoadData(void **library, const void *code, void *options, void *values, unsigned count,
                                    void *library_options, void *library_values, unsigned library_count) {
  (void)options, (void)values, (void)count, (void)library_options, (void)library_values, (void)library_count;
  *library = (void *)code;
  return code ? 0 : CUDA_ERROR_INVALID_VALUE;
}

FAKE_API CUresult cuLibraryUnload(void *library) {
  (void)library;
  return 0;
}

FAKE_API CUresult cuLibraryGetKernel(const emulated_kernel **kernel, void *library, const char *name) {
  (void)library;
  for (uint32_t i = 0; i < emulated_kernel_count; i++)
    if (!strcmp(emulated_kernels[i].name, name)) {
      *kernel = &emulated_kernels[i];
      return 0;
    }
  return CUDA_ERROR_NOT_FOUND;
}

FAKE_API CUresult cuLaunchKernel(const emulated_kernel *kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                 unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared, CUstream stream,
                                 void **arguments, void **extra) {
  if (!grid_x || grid_y != 1 || grid_z != 1 || !block_x || block_x > 1024 || block_y != 1 || block_z != 1 || shared ||
      extra)
    return CUDA_ERROR_INVALID_VALUE;
  launch l = {kernel, grid_x, block_x, {0}};
  for (uint32_t i = 0; i < kernel->argument_count; i++)
    memcpy(&l.values[i], arguments[i], kernel->arguments[i].size);
  return fake_enqueue(stream, perform, &l, sizeof l);
}

// Time says nothing here.
FAKE_API CUresult cuEventElapsedTime(float *milliseconds, CUevent from, CUevent to) {
  *milliseconds = 1;
  return from && to ? 0 : CUDA_ERROR_INVALID_HANDLE;
}
