// Contexts: all memory taken at creation, one captured graph a profile, and a run that only launches it.
#include "gpu.h"
#include "nvtx.h"
#include "staging.h"

#include <string.h>

enum { ALIGN = 256 }; // TensorRT's, of device memory

// One profile, ready to launch.
typedef struct program {
  infc_trt_context *trt;
  CUgraphExec graph;      // NULL: to be captured again
  CUdeviceptr *addresses; // [tensor]; 0: unknown. Our own buffer's means that the tensor is copied from or to the host.
} program;

struct infc_gpu_context {
  infc_gpu_engine *engine;
  infc_allocator allocator;
  CUstream stream;
  CUevent done; // recorded after each run
  CUdeviceptr memory;
  uint8_t *staging;
  size_t own_bytes, activation_bytes, buffer_bytes;
  size_t *offsets;   // [tensor]: of its buffer in staging, and behind the activations in memory
  program *programs; // [profile]
  bool in_flight;
  uint32_t profile; // of the run in flight
  const infc_gpu_binding *bindings;
};

static size_t round_up(size_t size) {
  return (size + ALIGN - 1) / ALIGN * ALIGN;
}

static uint32_t tensor_count(const infc_gpu_context *context) {
  return infc_gpu_tensor_count(&context->engine->artifact);
}

// That of its input for an output that is written in place.
static CUdeviceptr own_buffer(const infc_gpu_context *context, uint32_t tensor) {
  uint32_t inputs = context->engine->artifact.input_count;
  if (tensor >= inputs && context->engine->aliases[tensor - inputs])
    tensor = context->engine->aliases[tensor - inputs] - 1;
  return context->memory + context->activation_bytes + context->offsets[tensor];
}

// ---- Capture

// Copies in, runs, copies out, on the context's stream.
static infc_status issue(infc_gpu_context *context, uint32_t profile, infc_error error) {
  const infc_gpu_artifact *artifact = &context->engine->artifact;
  const infc_cuda_api *cuda = &context->engine->cuda;
  const infc_gpu_tensor *tensors = infc_gpu_tensors(artifact, profile);
  const program *program = &context->programs[profile];
  infc_status status = INFC_STATUS_OK;
  for (uint32_t t = 0; !status && t < artifact->input_count; t++)
    if (program->addresses[t] == own_buffer(context, t))
      status = INFC_CUDA(cuda, error, copy_in, program->addresses[t], context->staging + context->offsets[t],
                         infc_staging_bytes(&tensors[t]), context->stream);
  if (status)
    return status;
  char text[256] = "";
  infc_trt_result result = context->engine->trt->context_enqueue(program->trt, context->stream, text, sizeof text);
  if (result)
    return infc_gpu_trt_failed(error, INFC_STATUS_DEVICE, result, "enqueueV3", text);
  for (uint32_t t = artifact->input_count; !status && t < tensor_count(context); t++)
    if (program->addresses[t] == own_buffer(context, t))
      status = INFC_CUDA(cuda, error, copy_out, context->staging + context->offsets[t], program->addresses[t],
                         infc_staging_bytes(&tensors[t]), context->stream);
  return status;
}

static infc_status capture(infc_gpu_context *context, uint32_t profile, infc_error error) {
  const infc_cuda_api *cuda = &context->engine->cuda;
  infc_status status = INFC_CUDA(cuda, error, capture_begin, context->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  if (status)
    return status;
  infc_nvtx_push("infc capture");
  CUgraph graph = NULL;
  status = issue(context, profile, error);
  // What failed first is what is told: a capture that was broken off cannot end well.
  infc_status ended = INFC_CUDA(cuda, status ? (infc_error){0} : error, capture_end, context->stream, &graph);
  if (!status)
    status = ended;
  CUgraphExec executable = NULL;
  if (!status)
    status = INFC_CUDA(cuda, error, graph_instantiate, &executable, graph, 0);
  if (graph)
    cuda->graph_destroy(graph);
  if (!status)
    context->programs[profile].graph = executable;
  infc_nvtx_pop();
  return status;
}

// An output that is written in place and its input are bound to the same memory, if to the device's.
static infc_status check_aliases(const infc_gpu_context *context, uint32_t profile, const infc_gpu_binding *bindings,
                                 infc_error error) {
  const infc_gpu_artifact *artifact = &context->engine->artifact;
  const infc_gpu_tensor *tensors = infc_gpu_tensors(artifact, profile);
  for (uint32_t o = 0; o < artifact->output_count; o++) {
    uint32_t t = artifact->input_count + o, alias = context->engine->aliases[o];
    const infc_gpu_binding *in = &bindings[alias ? alias - 1 : t], *out = &bindings[t];
    if (in->device != out->device || (out->device && in->memory != out->memory))
      return infc_fail(error, INFC_STATUS_INVALID_ARGUMENT,
                       "the engine writes '%s' into the memory of '%s': bind both to the same device memory, or both "
                       "to the host's",
                       tensors[t].name, tensors[alias - 1].name);
  }
  return INFC_STATUS_OK;
}

// Gives TensorRT the addresses of the bindings, our own buffers without; a graph captured with others is dropped.
static infc_status set_addresses(infc_gpu_context *context, uint32_t profile, const infc_gpu_binding *bindings,
                                 infc_error error) {
  const infc_gpu_engine *engine = context->engine;
  const infc_gpu_tensor *tensors = infc_gpu_tensors(&engine->artifact, profile);
  program *program = &context->programs[profile];
  infc_status status = bindings ? check_aliases(context, profile, bindings, error) : INFC_STATUS_OK;
  for (uint32_t t = 0; !status && t < tensor_count(context); t++) {
    CUdeviceptr wanted = bindings && bindings[t].device ? bindings[t].memory : own_buffer(context, t);
    if (program->addresses[t] == wanted)
      continue;
    if (program->graph)
      engine->cuda.graph_exec_destroy(program->graph);
    program->graph = NULL;
    program->addresses[t] = 0;
    char text[256] = "";
    infc_trt_result result = engine->trt->context_set_address(program->trt, tensors[t].name, wanted, text, sizeof text);
    if (result)
      return infc_gpu_trt_failed(error, INFC_STATUS_DEVICE, result, "setTensorAddress", text);
    program->addresses[t] = wanted;
  }
  return status;
}

// ---- Creation

// An engine whose outputs are larger than the artifact says would write past them.
static infc_status check_outputs(const infc_gpu_context *context, uint32_t profile, infc_error error) {
  const infc_gpu_engine *engine = context->engine;
  const infc_gpu_tensor *tensors = infc_gpu_tensors(&engine->artifact, profile);
  for (uint32_t t = engine->artifact.input_count; t < tensor_count(context); t++) {
    char text[256] = "";
    int64_t dims[INFC_MAX_DIMS];
    uint32_t rank = 0;
    infc_trt_result result =
        engine->trt->context_shape(context->programs[profile].trt, tensors[t].name, dims, &rank, text, sizeof text);
    if (result)
      return infc_gpu_trt_failed(error, INFC_STATUS_DEVICE, result, "getTensorShape", text);
    if (rank != tensors[t].rank || memcmp(dims, tensors[t].dims, rank * sizeof *dims))
      return infc_fail(error, INFC_STATUS_BAD_ARTIFACT,
                       "TensorRT engine %u does not belong to the artifact: another shape of %s",
                       engine->routes[profile].plan, tensors[t].name);
  }
  return INFC_STATUS_OK;
}

static infc_status create_trt_context(infc_gpu_context *context, uint32_t profile, infc_error error) {
  infc_gpu_engine *engine = context->engine;
  const infc_gpu_route *route = &engine->routes[profile];
  const infc_gpu_tensor *tensors = infc_gpu_tensors(&engine->artifact, profile);
  program *program = &context->programs[profile];
  char text[256] = "";
  pthread_mutex_lock(&engine->creation);
  infc_trt_result result = engine->trt->context_create(engine->engines[route->plan], route->profile, context->stream,
                                                       &program->trt, text, sizeof text);
  pthread_mutex_unlock(&engine->creation);
  if (result)
    return infc_gpu_trt_failed(error, INFC_STATUS_DEVICE, result, "createExecutionContext", text);
  result = engine->trt->context_set_memory(program->trt, context->memory, context->activation_bytes, text, sizeof text);
  if (result)
    return infc_gpu_trt_failed(error, INFC_STATUS_DEVICE, result, "setDeviceMemoryV2", text);
  for (uint32_t t = 0; t < engine->artifact.input_count; t++) {
    result = engine->trt->context_set_shape(program->trt, tensors[t].name, tensors[t].dims, tensors[t].rank, text,
                                            sizeof text);
    if (result)
      return infc_gpu_trt_failed(error, INFC_STATUS_DEVICE, result, "setInputShape", text);
  }
  return check_outputs(context, profile, error);
}

// TensorRT finishes its own preparations in the first run, which cannot be captured.
static infc_status create_program(infc_gpu_context *context, uint32_t profile, infc_error error) {
  infc_status status = create_trt_context(context, profile, error);
  if (!status)
    status = set_addresses(context, profile, NULL, error);
  if (!status)
    status = issue(context, profile, error);
  if (!status)
    status = INFC_CUDA(&context->engine->cuda, error, stream_synchronize, context->stream);
  return status ? status : capture(context, profile, error);
}

// Sizes of the activations, which all profiles share since one runs at a time, and of a buffer a tensor.
static infc_status measure(infc_gpu_context *context, infc_error error) {
  const infc_gpu_engine *engine = context->engine;
  bool overflow = false;
  for (uint32_t p = 0; p < engine->artifact.profile_count; p++) {
    const infc_gpu_route *route = &engine->routes[p];
    size_t bytes = engine->trt->engine_memory(engine->engines[route->plan], route->profile);
    overflow |= bytes > SIZE_MAX / 4;
    context->activation_bytes = bytes > context->activation_bytes ? bytes : context->activation_bytes;
  }
  for (uint32_t t = 0; t < tensor_count(context); t++) {
    size_t largest = 0;
    for (uint32_t p = 0; p < engine->artifact.profile_count; p++) {
      size_t bytes = infc_staging_bytes(&infc_gpu_tensors(&engine->artifact, p)[t]);
      largest = bytes > largest ? bytes : largest;
    }
    context->offsets[t] = context->buffer_bytes;
    overflow |= __builtin_add_overflow(context->buffer_bytes, round_up(largest), &context->buffer_bytes);
  }
  if (overflow || context->buffer_bytes > SIZE_MAX / 4)
    return infc_fail(error, INFC_STATUS_OUT_OF_MEMORY, "a context is too large for any memory");
  context->activation_bytes = round_up(context->activation_bytes);
  return INFC_STATUS_OK;
}

static infc_status take_device_memory(infc_gpu_context *context, infc_error error) {
  const infc_cuda_api *cuda = &context->engine->cuda;
  size_t size = context->activation_bytes + context->buffer_bytes, available = 0, total = 0;
  char text[192] = "";
  infc_error reason = {text, sizeof text};
  infc_status status = INFC_CUDA(cuda, reason, memory_alloc, &context->memory, size);
  if (!status)
    return status;
  context->memory = 0;
  if (status != INFC_STATUS_OUT_OF_MEMORY || cuda->memory_info(&available, &total))
    return infc_fail(error, status, "%s", text);
  return infc_fail(error, status, "%s: a context needs %zu MiB, %zu of %zu MiB are free", text, (size >> 20) + 1,
                   available >> 20, total >> 20);
}

static infc_status take_memory(infc_gpu_context *context, infc_error error) {
  void *staging = NULL;
  infc_status status = take_device_memory(context, error);
  if (!status)
    status =
        INFC_CUDA(&context->engine->cuda, error, host_alloc, &staging, context->buffer_bytes, CU_MEMHOSTALLOC_PORTABLE);
  if (status)
    return status;
  context->staging = staging;
  memset(staging, 0, context->buffer_bytes); // what the first run reads
  return INFC_STATUS_OK;
}

static infc_status create(infc_gpu_context *context, infc_error error) {
  const infc_cuda_api *cuda = &context->engine->cuda;
  CUstream stream;
  CUevent event;
  infc_status status = INFC_CUDA(cuda, error, stream_create, &stream, CU_STREAM_NON_BLOCKING);
  if (status)
    return status;
  context->stream = stream;
  if ((status = INFC_CUDA(cuda, error, event_create, &event, CU_EVENT_DISABLE_TIMING)))
    return status;
  context->done = event;
  if (!(status = measure(context, error)))
    status = take_memory(context, error);
  for (uint32_t p = 0; !status && p < context->engine->artifact.profile_count; p++)
    status = create_program(context, p, error);
  return status;
}

// Releases what there is, in the order in which one thing uses another. Nothing is queued any more.
static void release(infc_gpu_context *context) {
  const infc_gpu_engine *engine = context->engine;
  const infc_cuda_api *cuda = &engine->cuda;
  for (uint32_t p = 0; p < engine->artifact.profile_count; p++) {
    if (context->programs[p].graph)
      cuda->graph_exec_destroy(context->programs[p].graph);
    if (context->programs[p].trt)
      engine->trt->context_destroy(context->programs[p].trt);
  }
  if (context->staging)
    cuda->host_free(context->staging);
  if (context->memory)
    cuda->memory_free(context->memory);
  if (context->done)
    cuda->event_destroy(context->done);
  if (context->stream)
    cuda->stream_destroy(context->stream);
}

// In one block with its arrays.
static infc_gpu_context *allocate(infc_gpu_engine *engine, const infc_allocator *allocator) {
  size_t tensors = infc_gpu_tensor_count(&engine->artifact), profiles = engine->artifact.profile_count;
  size_t size = sizeof(infc_gpu_context) + tensors * sizeof(size_t) + profiles * sizeof(program) +
                profiles * tensors * sizeof(CUdeviceptr);
  infc_gpu_context *context = allocator->alloc(allocator->user, size, 64);
  if (!context)
    return NULL;
  memset(context, 0, size);
  context->engine = engine;
  context->allocator = *allocator;
  context->own_bytes = size;
  context->programs = (program *)(context + 1);
  context->offsets = (size_t *)(context->programs + profiles);
  for (size_t p = 0; p < profiles; p++)
    context->programs[p].addresses = (CUdeviceptr *)(context->offsets + tensors) + p * tensors;
  return context;
}

infc_status infc_gpu_context_open(infc_gpu_engine *engine, const infc_allocator *allocator, infc_gpu_context **out,
                                  char *error_text, size_t error_size) {
  infc_error error = {error_text, error_size};
  infc_gpu_context *context = allocate(engine, allocator);
  if (!context)
    return infc_fail(error, INFC_STATUS_OUT_OF_MEMORY, "out of memory for a context");
  infc_status status = infc_gpu_enter(engine, error);
  if (!status) {
    status = create(context, error);
    if (status) {
      if (context->stream)
        engine->cuda.stream_synchronize(context->stream);
      release(context);
    }
    infc_gpu_leave(engine);
  }
  if (status)
    allocator->free(allocator->user, context);
  else
    *out = context;
  return status;
}

void infc_gpu_context_close(infc_gpu_context *context) {
  const infc_gpu_engine *engine = context->engine;
  infc_allocator allocator = context->allocator;
  if (infc_gpu_alive(engine)) {
    bool entered = !infc_gpu_enter(engine, (infc_error){0});
    if (context->in_flight) // an event can be waited for whatever context is current
      engine->cuda.event_synchronize(context->done);
    release(context);
    if (entered)
      infc_gpu_leave(engine);
  }
  allocator.free(allocator.user, context);
}

size_t infc_gpu_context_bytes(const infc_gpu_context *context) {
  return context->own_bytes + context->activation_bytes + 2 * context->buffer_bytes;
}

// ---- Running

static void fill_staging(infc_gpu_context *context, uint32_t profile, const infc_gpu_binding *bindings, bool changed) {
  const infc_gpu_tensor *tensors = infc_gpu_tensors(&context->engine->artifact, profile);
  for (uint32_t t = 0; t < context->engine->artifact.input_count; t++)
    if (!bindings[t].device)
      infc_staging_fill(&tensors[t], &bindings[t], changed, context->staging + context->offsets[t]);
}

static void read_staging(const infc_gpu_context *context) {
  const infc_gpu_tensor *tensors = infc_gpu_tensors(&context->engine->artifact, context->profile);
  for (uint32_t t = context->engine->artifact.input_count; t < tensor_count(context); t++)
    if (!context->bindings[t].device)
      infc_staging_read(&tensors[t], &context->bindings[t], context->staging + context->offsets[t]);
}

static infc_status launch(infc_gpu_context *context, uint32_t profile, CUstream stream, infc_error error) {
  const infc_cuda_api *cuda = &context->engine->cuda;
  infc_status status = INFC_CUDA(cuda, error, graph_launch, context->programs[profile].graph, stream);
  if (status)
    return status;
  status = INFC_CUDA(cuda, error, event_record, context->done, stream);
  if (status) // it runs, and nothing else tells when it is done
    cuda->stream_synchronize(stream);
  return status;
}

static infc_status enqueue(infc_gpu_context *context, uint32_t profile, const infc_gpu_binding *bindings, bool changed,
                           CUstream stream, infc_error error) {
  infc_status status = changed ? set_addresses(context, profile, bindings, error) : INFC_STATUS_OK;
  if (!status && !context->programs[profile].graph)
    status = capture(context, profile, error);
  if (status)
    return status;
  fill_staging(context, profile, bindings, changed);
  return launch(context, profile, stream ? stream : context->stream, error);
}

infc_status infc_gpu_context_enqueue(infc_gpu_context *context, uint32_t profile, const infc_gpu_binding *bindings,
                                     bool changed, void *stream, char *error_text, size_t error_size) {
  infc_error error = {error_text, error_size};
  infc_status status = infc_gpu_context_wait(context, error_text, error_size);
  if (!status)
    status = infc_gpu_enter(context->engine, error);
  if (status)
    return status;
  infc_nvtx_push("infc run");
  status = enqueue(context, profile, bindings, changed, stream, error);
  infc_nvtx_pop();
  infc_gpu_leave(context->engine);
  if (status)
    return status;
  context->in_flight = true;
  context->profile = profile;
  context->bindings = bindings;
  return INFC_STATUS_OK;
}

infc_status infc_gpu_context_wait(infc_gpu_context *context, char *error_text, size_t error_size) {
  infc_error error = {error_text, error_size};
  if (!context->in_flight)
    return INFC_STATUS_OK;
  infc_status status = infc_gpu_enter(context->engine, error);
  if (status)
    return status;
  status = INFC_CUDA(&context->engine->cuda, error, event_synchronize, context->done);
  infc_gpu_leave(context->engine);
  context->in_flight = false;
  if (!status)
    read_staging(context);
  return status;
}
