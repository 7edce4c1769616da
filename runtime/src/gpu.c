// The artifact as the executor sees it, and the executor itself: a shared object loaded when it is first needed, so
// that libinfc depends on nothing of a GPU's.
#include "internal.h"

#include <dlfcn.h>
#include <stdio.h>

// It stays loaded: the driver that it loads in turn cannot be unloaded.
static infc_status load_executor(const infc_executor_api **out, infc_error error) {
  void *library = dlopen(INFC_EXECUTOR_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  if (!library)
    return infc_fail(error, INFC_STATUS_INCOMPATIBLE, "this installation of infc cannot use a GPU: %s", dlerror());
  infc_executor_fn entry = (infc_executor_fn)dlsym(library, INFC_EXECUTOR_SYMBOL);
  const infc_executor_api *api = entry ? entry() : NULL;
  if (!api || api->abi != INFC_EXECUTOR_ABI)
    return infc_fail(error, INFC_STATUS_INCOMPATIBLE, "%s belongs to another version of infc: install infc again",
                     INFC_EXECUTOR_LIBRARY);
  *out = api;
  return INFC_STATUS_OK;
}

static infc_gpu_tensor describe(const infc_io *io, const infc_io_tensor *tensor, uint32_t profile) {
  infc_gpu_tensor ours = {
      .name = infc_tensor_name(io, tensor), .dtype = tensor->dtype, .rank = tensor->rank, .fill = tensor->fill};
  for (uint32_t d = 0; d < tensor->rank; d++)
    ours.dims[d] = infc_dim_bound(io, profile, tensor->dims[d]);
  return ours;
}

infc_status infc_gpu_open(infc_engine *engine, int device, const char *tensorrt_library, infc_error error) {
  const infc_io *io = &engine->io;
  const infc_executor_api *api = NULL;
  infc_status status = load_executor(&api, error);
  if (status)
    return status;
  uint32_t tensors = infc_io_count(io), profiles = io->header->profile_count;
  infc_gpu *gpu = &engine->gpu;
  gpu->tensors = infc_alloc(&engine->allocator, (size_t)tensors * profiles * sizeof *gpu->tensors);
  if (!gpu->tensors)
    return infc_fail(error, INFC_STATUS_OUT_OF_MEMORY, "out of memory for %u profiles", profiles);
  for (uint32_t p = 0; p < profiles; p++)
    for (uint32_t t = 0; t < tensors; t++)
      gpu->tensors[(size_t)p * tensors + t] = describe(io, &io->inputs[t], p);
  infc_gpu_artifact artifact = {
      .plans = engine->plans,
      .tensors = gpu->tensors,
      .plan_count = engine->plan_count,
      .profile_count = profiles,
      .input_count = io->header->input_count,
      .output_count = io->header->output_count,
      .cpu = engine->program_count > 0,
  };
  int number;
  status = api->engine_open(&artifact, device, tensorrt_library, &engine->allocator, &gpu->engine, &number, error.text,
                            error.size);
  if (status)
    return status;
  gpu->api = api;
  snprintf(gpu->name, sizeof gpu->name, "cuda:%d", number);
  return INFC_STATUS_OK;
}

void infc_gpu_close(infc_engine *engine) {
  if (engine->gpu.api)
    engine->gpu.api->engine_close(engine->gpu.engine);
  infc_free(&engine->allocator, engine->gpu.tensors);
}
