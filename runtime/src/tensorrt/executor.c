// The shared object's one symbol.
#include "gpu.h"

INFC_API const infc_executor_api *infc_executor(void);

const infc_executor_api *infc_executor(void) {
  static const infc_executor_api api = {
      .abi = INFC_EXECUTOR_ABI,
      .engine_open = infc_gpu_engine_open,
      .engine_close = infc_gpu_engine_close,
      .context_create = infc_gpu_context_open,
      .context_destroy = infc_gpu_context_close,
      .context_memory = infc_gpu_context_bytes,
      .enqueue = infc_gpu_context_enqueue,
      .wait = infc_gpu_context_wait,
      .state_bytes = infc_gpu_state_bytes,
      .state_create = infc_gpu_state_create,
      .state_clear = infc_gpu_state_clear,
      .state_destroy = infc_gpu_state_destroy,
      .state_copy = infc_gpu_state_copy,
  };
  return &api;
}
