#include "cuda.h"

#include <dlfcn.h>

static const char *const symbols[] = {
#define INFC_CUDA_SYMBOL(member, symbol, parameters) symbol,
    INFC_CUDA_ENTRIES(INFC_CUDA_SYMBOL)
#undef INFC_CUDA_SYMBOL
};

// The library stays loaded: the driver cannot be unloaded.
infc_status infc_cuda_load(infc_cuda_api *cuda, infc_error error) {
  cuda->library = dlopen(INFC_CUDA_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  if (!cuda->library)
    return infc_fail(error, INFC_STATUS_INCOMPATIBLE, "no NVIDIA driver (%s)", dlerror());
  void *entries[INFC_CUDA_ENTRY_COUNT];
  for (int i = 0; i < INFC_CUDA_ENTRY_COUNT; i++)
    if (!(entries[i] = dlsym(cuda->library, symbols[i])))
      return infc_fail(error, INFC_STATUS_INCOMPATIBLE, "an NVIDIA driver too old to have %s", symbols[i]);
#define INFC_CUDA_FILL(member, symbol, parameters) *(void **)&cuda->member = entries[INFC_CUDA_##member];
  INFC_CUDA_ENTRIES(INFC_CUDA_FILL)
#undef INFC_CUDA_FILL
  return INFC_STATUS_OK;
}

infc_status infc_cuda_failed(const infc_cuda_api *cuda, infc_error error, int entry, CUresult result) {
  const char *name = NULL, *text = NULL;
  infc_status status = result == CUDA_ERROR_OUT_OF_MEMORY ? INFC_STATUS_OUT_OF_MEMORY : INFC_STATUS_DEVICE;
  if (cuda->error_name(result, &name) || !name)
    return infc_fail(error, status, "%s: CUDA error %d", symbols[entry], result);
  if (cuda->error_string(result, &text) || !text)
    return infc_fail(error, status, "%s: %s", symbols[entry], name);
  return infc_fail(error, status, "%s: %s (%s)", symbols[entry], name, text);
}
