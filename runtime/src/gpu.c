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

enum { STATE_NAME = 32 }; // bytes

// Of a layer's keys or values, [1, heads, tokens, size]: a context, and a run of the largest profile, which writes all
// of its tokens whatever is in use.
static infc_gpu_tensor describe_state(const infc_engine *engine, uint32_t number, char *name) {
  const infc_state_layer *layer = &engine->state.layers[number / 2];
  const infc_io *io = &engine->io;
  uint32_t most = 0;
  for (uint32_t p = 0; p < io->header->profile_count; p++) {
    const uint32_t tokens = io->bounds[(size_t)p * io->header->symbol_count + engine->language.tokens_symbol];
    most = tokens > most ? tokens : most;
  }
  snprintf(name, STATE_NAME, "cache.%u.%s", number / 2, number % 2 ? "value" : "key");
  return (infc_gpu_tensor){.name = name,
                           .rank = 4,
                           .dims = {1, layer->heads, (int64_t)engine->state.header->context + most,
                                    number % 2 ? layer->v_dim : layer->k_dim}};
}

infc_status infc_gpu_open(infc_engine *engine, int device, const char *tensorrt_library, infc_error error) {
  const infc_io *io = &engine->io;
  const infc_executor_api *api = NULL;
  infc_status status = load_executor(&api, error);
  if (status)
    return status;
  uint32_t tensors = infc_io_count(io), profiles = io->header->profile_count;
  infc_gpu *gpu = &engine->gpu;
  const uint32_t states = engine->state.header && engine->language.header ? 2 * engine->state.header->layer_count : 0;
  const size_t count = (size_t)tensors * profiles;
  gpu->tensors = infc_alloc(&engine->allocator, (count + states) * sizeof *gpu->tensors + (size_t)states * STATE_NAME);
  if (!gpu->tensors)
    return infc_fail(error, INFC_STATUS_OUT_OF_MEMORY, "out of memory for %u profiles", profiles);
  char *names = (char *)(gpu->tensors + count + states);
  for (uint32_t s = 0; s < states; s++)
    gpu->tensors[count + s] = describe_state(engine, s, names + (size_t)s * STATE_NAME);
  for (uint32_t p = 0; p < profiles; p++)
    for (uint32_t t = 0; t < tensors; t++)
      gpu->tensors[(size_t)p * tensors + t] = describe(io, &io->inputs[t], p);
  infc_gpu_artifact artifact = {
      .plans = engine->plans,
      .tensors = gpu->tensors,
      .states = gpu->tensors + count,
      .state_count = states,
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
