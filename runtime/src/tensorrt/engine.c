// Engines: the plans for one device, deserialised and held against the artifact.
#include "dtype.h"
#include "gpu.h"
#include "nvtx.h"
#include "staging.h"

#include <string.h>

infc_status infc_gpu_trt_failed(infc_error error, infc_status status, infc_trt_result result, const char *call,
                                const char *text) {
  if (result == INFC_TRT_OUT_OF_MEMORY || result == INFC_TRT_DEVICE)
    status = result == INFC_TRT_DEVICE ? INFC_STATUS_DEVICE : INFC_STATUS_OUT_OF_MEMORY;
  return infc_fail(error, status, "TensorRT %s: %s", call, *text ? text : "failed");
}

static infc_status mismatch(infc_error error, uint32_t plan, const char *what, const char *name) {
  return infc_fail(error, INFC_STATUS_BAD_ARTIFACT, "TensorRT engine %u does not belong to the artifact: %s%s", plan,
                   what, name);
}

// The input in whose memory an output is written, which is as large: all plans must agree.
static infc_status check_alias(infc_gpu_engine *engine, uint32_t plan, uint32_t output, const char *alias,
                               infc_error error) {
  const infc_gpu_artifact *artifact = &engine->artifact;
  uint32_t tensor = artifact->input_count + output, input = 0;
  const infc_gpu_tensor *tensors = infc_gpu_tensors(artifact, 0);
  while (alias && input < artifact->input_count && strcmp(tensors[input].name, alias))
    input++;
  uint32_t found = alias ? input + 1 : 0;
  bool fits = input < artifact->input_count || !alias, first = plan == engine->routes[0].plan;
  for (uint32_t p = 0; fits && found && p < artifact->profile_count; p++) {
    tensors = infc_gpu_tensors(artifact, p);
    fits = tensors[input].dtype == tensors[tensor].dtype && tensors[input].rank == tensors[tensor].rank &&
           !memcmp(tensors[input].dims, tensors[tensor].dims, sizeof tensors[input].dims);
  }
  if (!fits || (!first && engine->aliases[output] != found))
    return mismatch(error, plan, "it writes in another input's memory ", tensors[tensor].name);
  engine->aliases[output] = found;
  return INFC_STATUS_OK;
}

// The engine's tensor of a name; one without a name if it has none.
static infc_trt_tensor find_tensor(const infc_gpu_engine *engine, uint32_t plan, const char *name) {
  const uint32_t count = engine->trt->engine_tensor_count(engine->engines[plan]);
  for (uint32_t i = 0; i < count; i++) {
    const infc_trt_tensor tensor = engine->trt->engine_tensor(engine->engines[plan], i);
    if (tensor.name && !strcmp(tensor.name, name))
      return tensor;
  }
  return (infc_trt_tensor){0};
}

// A sequence's cache: each tensor is read and written in place. All plans must agree on types.
static infc_status check_states(infc_gpu_engine *engine, uint32_t plan, infc_error error) {
  const infc_gpu_artifact *artifact = &engine->artifact;
  const infc_trt_tensor length = find_tensor(engine, plan, INFC_STATE_LENGTH);
  if (artifact->state_count && (!length.name || length.output || length.dtype != INFC_DTYPE_I64))
    return mismatch(error, plan, "it has no integer ", INFC_STATE_LENGTH);
  const bool first = plan == engine->routes[0].plan;
  size_t bytes = 0;
  bool overflow = false;
  for (uint32_t s = 0; s < artifact->state_count; s++) {
    infc_gpu_tensor tensor = artifact->states[s];
    char name[INFC_STATE_NAME];
    infc_state_output(name, &tensor);
    const infc_trt_tensor in = find_tensor(engine, plan, tensor.name), out = find_tensor(engine, plan, name);
    if (!in.name || in.output || !out.name || !out.output || out.dtype != in.dtype || !infc_dtype_size(in.dtype))
      return mismatch(error, plan, "it does not keep ", tensor.name);
    if (!out.alias || strcmp(out.alias, tensor.name))
      return mismatch(error, plan, "it does not update in place ", tensor.name);
    if (!first && engine->state_dtypes[s] != in.dtype)
      return mismatch(error, plan, "another type of ", tensor.name);
    engine->state_dtypes[s] = tensor.dtype = in.dtype;
    engine->state_offsets[s] = bytes;
    overflow |= __builtin_add_overflow(bytes, infc_gpu_round_up(infc_staging_bytes(&tensor)), &bytes);
  }
  if (overflow)
    return infc_fail(error, INFC_STATUS_OUT_OF_MEMORY, "a sequence's cache is too large for any memory");
  engine->state_bytes = bytes;
  return INFC_STATUS_OK;
}

// The engine's tensors are the artifact's, in any order, and the cache's.
static infc_status check_tensors(infc_gpu_engine *engine, uint32_t plan, infc_error error) {
  const uint32_t count = infc_gpu_tensor_count(&engine->artifact), states = engine->artifact.state_count;
  const infc_gpu_tensor *tensors = infc_gpu_tensors(&engine->artifact, 0);
  if (engine->trt->engine_tensor_count(engine->engines[plan]) != count + (states ? 2 * states + 1 : 0))
    return mismatch(error, plan, "another number of tensors", "");
  for (uint32_t i = 0; i < count; i++) {
    const bool output = i >= engine->artifact.input_count;
    const infc_trt_tensor tensor = find_tensor(engine, plan, tensors[i].name);
    if (!tensor.name)
      return mismatch(error, plan, "it has no tensor ", tensors[i].name);
    if (tensor.dtype != tensors[i].dtype || tensor.output != output)
      return mismatch(error, plan, "another type or direction of ", tensors[i].name);
    infc_status status =
        output ? check_alias(engine, plan, i - engine->artifact.input_count, tensor.alias, error) : INFC_STATUS_OK;
    if (status)
      return status;
  }
  return check_states(engine, plan, error);
}

static infc_status load_plan(infc_gpu_engine *engine, uint32_t number, infc_error error) {
  const infc_gpu_plan *plan = &engine->artifact.plans[number];
  char text[256] = "";
  infc_trt_result result =
      engine->trt->engine_create(engine->runtime, plan->data, plan->size, &engine->engines[number], text, sizeof text);
  if (result)
    return infc_gpu_trt_failed(error, INFC_STATUS_BAD_ARTIFACT, result, "deserializeCudaEngine", text);
  if (engine->trt->engine_profile_count(engine->engines[number]) != plan->header->profile_count)
    return mismatch(error, number, "another number of profiles", "");
  return check_tensors(engine, number, error);
}

static infc_status load_plans(infc_gpu_engine *engine, infc_error error) {
  infc_status status = INFC_STATUS_OK;
  for (uint32_t i = 0; !status && i < engine->artifact.profile_count; i++)
    if (!engine->engines[engine->routes[i].plan])
      status = load_plan(engine, engine->routes[i].plan, error);
  return status;
}

static void destroy_plans(infc_gpu_engine *engine) {
  for (uint32_t i = 0; i < engine->artifact.plan_count; i++)
    if (engine->engines[i])
      engine->trt->engine_destroy(engine->engines[i]);
  if (engine->runtime)
    engine->trt->runtime_destroy(engine->runtime);
}

// In the primary context.
static infc_status load(infc_gpu_engine *engine, const char *library, infc_error error) {
  infc_status status = infc_gpu_enter(engine, error);
  if (status)
    return status;
  status = infc_gpu_find_tensorrt(engine, library, error);
  if (!status)
    status = load_plans(engine, error);
  if (status)
    destroy_plans(engine);
  infc_gpu_leave(engine);
  return status;
}

static infc_status open_device(infc_gpu_engine *engine, int device, const char *library, infc_error error) {
  CUcontext primary = NULL;
  infc_status status = infc_gpu_preflight(engine, device, error);
  if (!status)
    status = INFC_CUDA(&engine->cuda, error, primary_retain, &primary, engine->device);
  engine->primary = status ? NULL : primary;
  return status ? status : load(engine, library, error);
}

static void release_engine(infc_gpu_engine *engine) {
  if (engine->primary && infc_gpu_alive(engine))
    engine->cuda.primary_release(engine->device);
  pthread_mutex_destroy(&engine->creation);
  infc_allocator allocator = engine->allocator;
  allocator.free(allocator.user, engine);
}

// ---- Forks. This library stays loaded, as the handler must.

atomic_uint infc_gpu_forks;

static void count_fork(void) {
  atomic_fetch_add_explicit(&infc_gpu_forks, 1, memory_order_relaxed);
}

static void watch_forks(void) {
  pthread_atfork(NULL, NULL, count_fork);
}

// ---- Opening and closing

// In one block with its arrays.
static infc_gpu_engine *allocate(const infc_gpu_artifact *artifact, const infc_allocator *allocator) {
  size_t engines = artifact->plan_count * sizeof(infc_trt_engine *);
  size_t routes = artifact->profile_count * sizeof(infc_gpu_route);
  size_t states = artifact->state_count * sizeof(size_t), words = artifact->output_count + artifact->state_count;
  size_t size = sizeof(infc_gpu_engine) + engines + routes + states + words * sizeof(uint32_t);
  infc_gpu_engine *engine = allocator->alloc(allocator->user, size, 64);
  if (!engine)
    return NULL;
  memset(engine, 0, size);
  engine->allocator = *allocator;
  engine->artifact = *artifact;
  engine->engines = (infc_trt_engine **)(engine + 1);
  engine->state_offsets = (size_t *)(engine->engines + artifact->plan_count);
  engine->routes = (infc_gpu_route *)(engine->state_offsets + artifact->state_count);
  engine->aliases = (uint32_t *)(engine->routes + artifact->profile_count);
  engine->state_dtypes = engine->aliases + artifact->output_count;
  engine->forks = atomic_load(&infc_gpu_forks);
  pthread_mutex_init(&engine->creation, NULL);
  return engine;
}

infc_status infc_gpu_engine_open(const infc_gpu_artifact *artifact, int device, const char *tensorrt_library,
                                 const infc_allocator *allocator, infc_gpu_engine **out, int *device_number,
                                 char *error_text, size_t error_size) {
  infc_error error = {error_text, error_size};
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, watch_forks);
  infc_gpu_engine *engine = allocate(artifact, allocator);
  if (!engine)
    return infc_fail(error, INFC_STATUS_OUT_OF_MEMORY, "out of memory for an engine");
  infc_nvtx_load();
  infc_nvtx_push("infc load");
  infc_status status = open_device(engine, device, tensorrt_library, error);
  infc_nvtx_pop();
  if (status) {
    release_engine(engine);
    return status;
  }
  *out = engine;
  *device_number = engine->number;
  return INFC_STATUS_OK;
}

void infc_gpu_engine_close(infc_gpu_engine *engine) {
  if (infc_gpu_alive(engine)) {
    bool entered = !infc_gpu_enter(engine, (infc_error){0});
    destroy_plans(engine);
    if (entered)
      infc_gpu_leave(engine);
  }
  release_engine(engine);
}
