// The driver: loading it, and its errors in words.
#ifndef INFC_TENSORRT_CUDA_H
#define INFC_TENSORRT_CUDA_H

#include "cuda_api.h"
#include "error.h"

// Fills the table. Fails with one line that says what is missing: the library or an entry point.
infc_status infc_cuda_load(infc_cuda_api *cuda, infc_error error);

enum {
#define INFC_CUDA_INDEX(member, symbol, parameters) INFC_CUDA_##member,
  INFC_CUDA_ENTRIES(INFC_CUDA_INDEX)
#undef INFC_CUDA_INDEX
      INFC_CUDA_ENTRY_COUNT
};

// OUT_OF_MEMORY or DEVICE, and "cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY (out of memory)".
infc_status infc_cuda_failed(const infc_cuda_api *cuda, infc_error error, int entry, CUresult result);

// Calls an entry point of the driver.
#define INFC_CUDA(cuda, error, member, ...)                                                                            \
  infc_cuda_check((cuda), (error), INFC_CUDA_##member, (cuda)->member(__VA_ARGS__))

static inline infc_status infc_cuda_check(const infc_cuda_api *cuda, infc_error error, int entry, CUresult result) {
  return __builtin_expect(result != CUDA_SUCCESS, 0) ? infc_cuda_failed(cuda, error, entry, result) : INFC_STATUS_OK;
}

#endif // INFC_TENSORRT_CUDA_H
