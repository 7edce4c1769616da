// Contexts: all memory taken at creation, one captured graph a profile, and a run that only launches it.
#include "gpu.h"
#include "nvtx.h"
#include "staging.h"

#include <string.h>

// One profile, ready to launch.
typedef struct program {
  infc_trt_context *trt;
  CUgraphExec graph;      // NULL: to be captured again
  CUdeviceptr *addresses; // [tensor]; 0: unknown. Our own buffer's means that the tensor is copied from or to the host.
  CUdeviceptr state;      // 0: unknown
} program;

struct infc_gpu_context {
  infc_gpu_engine *engine;
  infc_allocator allocator;
  CUstream stream;
  CUevent done; // recorded after each run
  CUdeviceptr memory;
  uint8_t *staging;
  CUdeviceptr state; // of runs that are given none; 0 where there are no states
  size_t own_bytes, activation_bytes, buffer_bytes;
  size_t *offsets;   // [tensor], and of the length of a state: of its buffer in staging, and behind the activations
  program *programs; // [profile]
  bool in_flight;
  uint32_t profile; // of the run in flight
  const infc_gpu_binding *bindings;
};

static uint32_t tensor_count(const infc_gpu_context *context) {
  return infc_gpu_tensor_count(&context->engine->artifact);
}

static CUdeviceptr length_buffer(const infc_gpu_context *context) {
  return context->memory + context->activation_bytes + context->offsets[tensor_count(context)];
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
  if (!status && artifact->state_count)
    status = INFC_CUDA(cuda, error, copy_in, length_buffer(context),
                       context->staging + context->offsets[tensor_count(context)], sizeof(int64_t), context->stream);
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

static void drop_graph(const infc_gpu_context *context, program *program) {
  if (program->graph)
    context->engine->cuda.graph_exec_destroy(program->graph);
  program->graph = NULL;
}

static infc_status set_address(const infc_gpu_context *context, const program *program, const char *name,
                               CUdeviceptr memory, infc_error error) {
  char text[256] = "";
  const infc_trt_result result =
      context->engine->trt->context_set_address(program->trt, name, memory, text, sizeof text);
  return result ? infc_gpu_trt_failed(error, INFC_STATUS_DEVICE, result, "setTensorAddress", text) : INFC_STATUS_OK;
}

// Gives TensorRT a sequence's memory; a graph captured with another's is dropped.
static infc_status set_state(infc_gpu_context *context, uint32_t profile, CUdeviceptr state, infc_error error) {
  const infc_gpu_engine *engine = context->engine;
  program *program = &context->programs[profile];
  if (program->state == state)
    return INFC_STATUS_OK;
  drop_graph(context, program);
  program->state = 0;
  infc_status status = set_address(context, program, INFC_STATE_LENGTH, length_buffer(context), error);
  for (uint32_t s = 0; !status && s < engine->artifact.state_count; s++) {
    const infc_gpu_tensor *tensor = &engine->artifact.states[s];
    const CUdeviceptr memory = state + engine->state_offsets[s];
    char output[INFC_STATE_NAME];
    infc_state_output(output, tensor);
    status = set_address(context, program, tensor->name, memory, error);
    if (!status)
      status = set_address(context, program, output, memory, error);
  }
  program->state = status ? 0 : state;
  return status;
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
    drop_graph(context, program);
    program->addresses[t] = 0;
    status = set_address(context, program, tensors[t].name, wanted, error);
    program->addresses[t] = status ? 0 : wanted;
  }
  return status;
}

// ---- Creation

static infc_status check_shape(const infc_gpu_context *context, uint32_t profile, const infc_gpu_tensor *tensor,
                               const char *name, infc_error error) {
  const infc_gpu_engine *engine = context->engine;
  char text[256] = "";
  int64_t dims[INFC_MAX_DIMS];
  uint32_t rank = 0;
  infc_trt_result result =
      engine->trt->context_shape(context->programs[profile].trt, name, dims, &rank, text, sizeof text);
  if (result)
    return infc_gpu_trt_failed(error, INFC_STATUS_DEVICE, result, "getTensorShape", text);
  if (rank != tensor->rank || memcmp(dims, tensor->dims, rank * sizeof *dims))
    return infc_fail(error, INFC_STATUS_BAD_ARTIFACT,
                     "TensorRT engine %u does not belong to the artifact: another shape of %s",
                     engine->routes[profile].plan, name);
  return INFC_STATUS_OK;
}

// An engine whose outputs are larger than the artifact says would write past them.
static infc_status check_outputs(const infc_gpu_context *context, uint32_t profile, infc_error error) {
  const infc_gpu_artifact *artifact = &context->engine->artifact;
  const infc_gpu_tensor *tensors = infc_gpu_tensors(artifact, profile);
  infc_status status = INFC_STATUS_OK;
  for (uint32_t t = artifact->input_count; !status && t < tensor_count(context); t++)
    status = check_shape(context, profile, &tensors[t], tensors[t].name, error);
  for (uint32_t s = 0; !status && s < artifact->state_count; s++) {
    char output[INFC_STATE_NAME];
    infc_state_output(output, &artifact->states[s]);
    status = check_shape(context, profile, &artifact->states[s], output, error);
  }
  return status;
}

static infc_status set_shape(const infc_gpu_context *context, uint32_t profile, const infc_gpu_tensor *tensor,
                             infc_error error) {
  char text[256] = "";
  const infc_trt_result result = context->engine->trt->context_set_shape(context->programs[profile].trt, tensor->name,
                                                                         tensor->dims, tensor->rank, text, sizeof text);
  return result ? infc_gpu_trt_failed(error, INFC_STATUS_DEVICE, result, "setInputShape", text) : INFC_STATUS_OK;
}

static infc_status set_shapes(const infc_gpu_context *context, uint32_t profile, infc_error error) {
  const infc_gpu_artifact *artifact = &context->engine->artifact;
  const infc_gpu_tensor *tensors = infc_gpu_tensors(artifact, profile);
  infc_status status = INFC_STATUS_OK;
  for (uint32_t t = 0; !status && t < artifact->input_count; t++)
    status = set_shape(context, profile, &tensors[t], error);
  const infc_gpu_tensor length = {.name = INFC_STATE_LENGTH, .rank = 1, .dims = {1}};
  if (!status && artifact->state_count)
    status = set_shape(context, profile, &length, error);
  for (uint32_t s = 0; !status && s < artifact->state_count; s++)
    status = set_shape(context, profile, &artifact->states[s], error);
  return status;
}

static infc_status create_trt_context(infc_gpu_context *context, uint32_t profile, infc_error error) {
  infc_gpu_engine *engine = context->engine;
  const infc_gpu_route *route = &engine->routes[profile];
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
  const infc_status status = set_shapes(context, profile, error);
  return status ? status : check_outputs(context, profile, error);
}

// TensorRT finishes its own preparations in the first run, which cannot be captured.
static infc_status create_program(infc_gpu_context *context, uint32_t profile, infc_error error) {
  infc_status status = create_trt_context(context, profile, error);
  if (!status)
    status = set_addresses(context, profile, NULL, error);
  if (!status && context->state)
    status = set_state(context, profile, context->state, error);
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
    overflow |= __builtin_add_overflow(context->buffer_bytes, infc_gpu_round_up(largest), &context->buffer_bytes);
  }
  context->offsets[tensor_count(context)] = context->buffer_bytes;
  overflow |= __builtin_add_overflow(context->buffer_bytes, INFC_GPU_ALIGN, &context->buffer_bytes);
  if (overflow || context->buffer_bytes > SIZE_MAX / 4)
    return infc_fail(error, INFC_STATUS_OUT_OF_MEMORY, "a context is too large for any memory");
  context->activation_bytes = infc_gpu_round_up(context->activation_bytes);
  return INFC_STATUS_OK;
}

static infc_status take_device_memory(const infc_gpu_context *context, size_t size, const char *what, CUdeviceptr *out,
                                      infc_error error) {
  const infc_cuda_api *cuda = &context->engine->cuda;
  size_t available = 0, total = 0;
  char text[192] = "";
  infc_error reason = {text, sizeof text};
  infc_status status = INFC_CUDA(cuda, reason, memory_alloc, out, size);
  if (!status)
    return status;
  *out = 0;
  if (status != INFC_STATUS_OUT_OF_MEMORY || cuda->memory_info(&available, &total))
    return infc_fail(error, status, "%s", text);
  return infc_fail(error, status, "%s: %s needs %zu MiB, %zu of %zu MiB are free", text, what, (size >> 20) + 1,
                   available >> 20, total >> 20);
}

static infc_status clear_state(const infc_gpu_context *context, CUdeviceptr state, infc_error error) {
  const infc_cuda_api *cuda = &context->engine->cuda;
  infc_status status = INFC_CUDA(cuda, error, set_bytes, state, 0, context->engine->state_bytes, context->stream);
  return status ? status : INFC_CUDA(cuda, error, stream_synchronize, context->stream);
}

static infc_status take_state(const infc_gpu_context *context, CUdeviceptr *out, infc_error error) {
  infc_status status = take_device_memory(context, context->engine->state_bytes, "a sequence's cache", out, error);
  if (status)
    return status;
  status = clear_state(context, *out, error);
  if (status) {
    context->engine->cuda.memory_free(*out);
    *out = 0;
  }
  return status;
}

static infc_status take_memory(infc_gpu_context *context, infc_error error) {
  void *staging = NULL;
  const size_t size = context->activation_bytes + context->buffer_bytes;
  infc_status status = take_device_memory(context, size, "a context", &context->memory, error);
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
  CUdeviceptr state = 0;
  if (!status && context->engine->artifact.state_count)
    status = take_state(context, &state, error);
  context->state = status ? 0 : state;
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
  if (context->state)
    cuda->memory_free(context->state);
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
  size_t size = sizeof(infc_gpu_context) + (tensors + 1) * sizeof(size_t) + profiles * sizeof(program) +
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
    context->programs[p].addresses = (CUdeviceptr *)(context->offsets + tensors + 1) + p * tensors;
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
  const size_t state = context->state ? context->engine->state_bytes : 0;
  return context->own_bytes + context->activation_bytes + 2 * context->buffer_bytes + state;
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
                           const infc_gpu_state *state, CUstream stream, infc_error error) {
  infc_status status = changed ? set_addresses(context, profile, bindings, error) : INFC_STATUS_OK;
  if (!status && context->state) {
    const int64_t length = state ? state->length : 0;
    memcpy(context->staging + context->offsets[tensor_count(context)], &length, sizeof length);
    status = set_state(context, profile, state ? state->memory : context->state, error);
  }
  if (!status && !context->programs[profile].graph)
    status = capture(context, profile, error);
  if (status)
    return status;
  fill_staging(context, profile, bindings, changed);
  return launch(context, profile, stream ? stream : context->stream, error);
}

infc_status infc_gpu_context_enqueue(infc_gpu_context *context, uint32_t profile, const infc_gpu_binding *bindings,
                                     bool changed, const infc_gpu_state *state, void *stream, char *error_text,
                                     size_t error_size) {
  infc_error error = {error_text, error_size};
  infc_status status = infc_gpu_context_wait(context, error_text, error_size);
  if (!status)
    status = infc_gpu_enter(context->engine, error);
  if (status)
    return status;
  infc_nvtx_push("infc run");
  status = enqueue(context, profile, bindings, changed, state, stream, error);
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

// ---- States

size_t infc_gpu_state_bytes(const infc_gpu_context *context) {
  return context->engine->state_bytes;
}

infc_status infc_gpu_state_create(infc_gpu_context *context, uint64_t *state, char *error_text, size_t error_size) {
  infc_error error = {error_text, error_size};
  infc_status status = infc_gpu_enter(context->engine, error);
  if (status)
    return status;
  status = take_state(context, state, error);
  infc_gpu_leave(context->engine);
  return status;
}

infc_status infc_gpu_state_clear(infc_gpu_context *context, uint64_t state, char *error_text, size_t error_size) {
  infc_error error = {error_text, error_size};
  infc_status status = infc_gpu_enter(context->engine, error);
  if (status)
    return status;
  status = clear_state(context, state, error);
  infc_gpu_leave(context->engine);
  return status;
}

// A later state may have its address.
static void forget_state(infc_gpu_context *context, CUdeviceptr state) {
  for (uint32_t p = 0; p < context->engine->artifact.profile_count; p++)
    if (context->programs[p].state == state) {
      drop_graph(context, &context->programs[p]);
      context->programs[p].state = 0;
    }
}

void infc_gpu_state_destroy(infc_gpu_context *context, uint64_t state) {
  if (!infc_gpu_alive(context->engine))
    return;
  const bool entered = !infc_gpu_enter(context->engine, (infc_error){0});
  forget_state(context, state);
  context->engine->cuda.memory_free(state);
  if (entered)
    infc_gpu_leave(context->engine);
}

static infc_status copy(infc_gpu_context *context, infc_gpu_place to, infc_gpu_place from, infc_error error) {
  const infc_cuda_api *cuda = &context->engine->cuda;
  const size_t size = context->engine->state_bytes;
  if (to.device && from.device)
    return INFC_CUDA(cuda, error, copy_within, to.address, from.address, size, context->stream);
  if (to.device)
    return INFC_CUDA(cuda, error, copy_in, to.address, (const void *)(uintptr_t)from.address, size, context->stream);
  return INFC_CUDA(cuda, error, copy_out, (void *)(uintptr_t)to.address, from.address, size, context->stream);
}

infc_status infc_gpu_state_copy(infc_gpu_context *context, infc_gpu_place to, infc_gpu_place from, char *error_text,
                                size_t error_size) {
  infc_error error = {error_text, error_size};
  infc_status status = infc_gpu_enter(context->engine, error);
  if (status)
    return status;
  status = copy(context, to, from, error);
  if (!status)
    status = INFC_CUDA(&context->engine->cuda, error, stream_synchronize, context->stream);
  infc_gpu_leave(context->engine);
  return status;
}
