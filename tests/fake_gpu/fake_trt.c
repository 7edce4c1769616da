// The fake TensorRT adapter: an engine is an artifact for the CPU behind a small header, and a run is infc_run on the
// fake device's memory when its stream comes to it.
#include "fake_plan.h"
#include "internal.h"
#include "tensorrt/executor.h"
#include "tensorrt/trt_api.h"

#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FALLIBLE(X)                                                                                                    \
  X(runtime_create)                                                                                                    \
  X(engine_create)                                                                                                     \
  X(context_create)                                                                                                    \
  X(context_set_memory)                                                                                                \
  X(context_set_shape)                                                                                                 \
  X(context_set_address)                                                                                               \
  X(context_enqueue)                                                                                                   \
  X(context_shape)

enum {
#define CALL(member) CALL_##member,
  FALLIBLE(CALL) CALLS
#undef CALL
};

static fake_call calls[CALLS] = {
#define CALL(member) {#member, 0},
    FALLIBLE(CALL)
#undef CALL
};

__attribute__((constructor)) static void begin(void) {
  fake_register(calls, CALLS);
}

struct infc_trt_runtime {
  uint64_t object;
  atomic_int engines;
};

struct infc_trt_engine {
  uint64_t object;
  infc_trt_runtime *runtime;
  atomic_int contexts;
  atomic_bool creating; // a context
  int device;
  void *plan; // a copy, as TensorRT keeps
  size_t size;
  uint32_t profiles;
  uint32_t alias_output, alias_input; // 1 + the tensor's index; 0: there is no alias
  infc_engine *cpu;
};

// Handles: a launch of a graph may come after the context is gone.
struct infc_trt_context {
  uint64_t object;
  infc_trt_engine *engine;
  uint32_t profile;
  infc_context *cpu;
  uint64_t memory;
  size_t memory_size;
  bool warm; // enqueued once outside of a capture
  uint32_t tensors;
  struct {
    bool shaped;
    uint64_t memory;
  } tensor[];
};

static infc_trt_result fail(infc_trt_result result, char *error, size_t size, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

static infc_trt_result fail(infc_trt_result result, char *error, size_t size, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(error, size, format, arguments);
  va_end(arguments);
  return result;
}

// What every call demands; a failure to come is told as TensorRT would tell it.
static infc_trt_result enter(int call, char *error, size_t size) {
  int result = fake_enter(&calls[call]);
  if (result)
    return fail((infc_trt_result)result, error, size, "%s was told to fail", calls[call].name);
  if (fake_device() >= 0)
    return INFC_TRT_OK;
  fake_misuse("TensorRT's %s without a current context", calls[call].name);
  return fail(INFC_TRT_FAILED, error, size, "no current context");
}

// Aborts if the memory behind the pointer is gone. Cleaning up after a failure need not have the right context.
static void alive(uint64_t object, fake_kind kind) {
  if (fake_forked())
    fake_misuse("TensorRT is called in a child after fork");
  if (!fake_object_get(object, kind, fake_failed())) {
    fprintf(stderr, "fake TensorRT: %s\n", fake_problem());
    abort();
  }
}

// ---- Runtime

static infc_trt_result runtime_create(uint32_t flavour, const char *library, infc_trt_runtime **out,
                                      uint32_t version[4], char *error, size_t size) {
  infc_trt_result entered = enter(CALL_runtime_create, error, size);
  if (entered)
    return entered;
  const char *settings = getenv("FAKE_TRT");
  char text[64] = "rtx";
  fake_setting(settings, "flavour", text, sizeof text);
  const char *name = flavour == INFC_TENSORRT_RTX ? "libtensorrt_rtx.so.1" : "libnvinfer.so.11";
  if ((flavour == INFC_TENSORRT_RTX) != !strcmp(text, "rtx") || (library && access(library, R_OK)))
    return fail(INFC_TRT_NO_LIBRARY, error, size, "%s: cannot open shared object file: No such file or directory",
                library ? library : name);
  snprintf(text, sizeof text, "1.7.1.116");
  fake_setting(settings, "version", text, sizeof text);
  if (sscanf(text, "%u.%u.%u.%u", &version[0], &version[1], &version[2], &version[3]) != 4)
    abort();
  infc_trt_runtime *runtime = calloc(1, sizeof *runtime);
  if (!runtime)
    abort();
  runtime->object = fake_object_add(FAKE_TRT_RUNTIME, runtime);
  *out = runtime;
  return INFC_TRT_OK;
}

static void runtime_destroy(infc_trt_runtime *runtime) {
  alive(runtime->object, FAKE_TRT_RUNTIME);
  if (runtime->engines)
    fake_misuse("a TensorRT runtime is destroyed before its engines");
  fake_object_remove(runtime->object, FAKE_TRT_RUNTIME);
  free(runtime);
}

// ---- Engines

// Whether what a plan says of an alias is of an output and an input that there are.
static bool alias_exists(const fake_plan *plan, const infc_engine *engine) {
  uint32_t inputs = infc_engine_input_count(engine), tensors = inputs + infc_engine_output_count(engine);
  return tensors <= FAKE_PLAN_TENSORS &&
         (!plan->alias_output ||
          (plan->alias_output > inputs && plan->alias_output <= tensors && plan->alias_input - 1 < inputs));
}

static infc_trt_result engine_create(infc_trt_runtime *runtime, const void *plan, size_t size, infc_trt_engine **out,
                                     char *error, size_t error_size) {
  infc_trt_result entered = enter(CALL_engine_create, error, error_size);
  if (entered)
    return entered;
  alive(runtime->object, FAKE_TRT_RUNTIME);
  fake_plan header;
  if (size < sizeof header)
    return fail(INFC_TRT_FAILED, error, error_size, "the plan has %zu bytes", size);
  memcpy(&header, plan, sizeof header);
  if (memcmp(header.magic, FAKE_PLAN_MAGIC, sizeof header.magic) || header.size != size - sizeof header)
    return fail(INFC_TRT_FAILED, error, error_size, "the plan is damaged");
  int device = fake_device();
  if (!fake_reserve(device, (int64_t)size))
    return fail(INFC_TRT_OUT_OF_MEMORY, error, error_size, "%zu bytes of weights do not fit", size);
  infc_trt_engine *engine = calloc(1, sizeof *engine);
  void *copy = aligned_alloc(INFC_SECTION_ALIGN, (size_t)infc_round_up(header.size));
  if (!engine || !copy)
    abort();
  memcpy(copy, (const uint8_t *)plan + sizeof header, header.size);
  *engine = (infc_trt_engine){
      .runtime = runtime,
      .device = device,
      .plan = copy,
      .size = size,
      .profiles = header.profile_count,
      .alias_output = header.alias_output,
      .alias_input = header.alias_input,
  };
  infc_engine_options options = {.struct_size = sizeof options, .device = "cpu"};
  char why[256];
  bool opened = !infc_engine_open_memory(copy, header.size, &options, &engine->cpu, why, sizeof why);
  if (!opened || infc_engine_profile_count(engine->cpu) != header.profile_count ||
      !alias_exists(&header, engine->cpu)) {
    infc_engine_close(engine->cpu);
    free(copy);
    free(engine);
    fake_reserve(device, -(int64_t)size);
    return fail(INFC_TRT_FAILED, error, error_size, "deserialisation failed: %s", opened ? "profiles or aliases" : why);
  }
  runtime->engines++;
  engine->object = fake_object_add(FAKE_TRT_ENGINE, engine);
  *out = engine;
  return INFC_TRT_OK;
}

static void engine_destroy(infc_trt_engine *engine) {
  alive(engine->object, FAKE_TRT_ENGINE);
  if (engine->contexts)
    fake_misuse("a TensorRT engine is destroyed before its contexts");
  fake_object_remove(engine->object, FAKE_TRT_ENGINE);
  fake_reserve(engine->device, -(int64_t)engine->size);
  engine->runtime->engines--;
  infc_engine_close(engine->cpu);
  free(engine->plan);
  free(engine);
}

static uint32_t engine_tensor_count(const infc_trt_engine *engine) {
  return infc_engine_input_count(engine->cpu) + infc_engine_output_count(engine->cpu);
}

static infc_tensor_info tensor_info(const infc_engine *cpu, uint32_t index) {
  infc_tensor_info info = {.struct_size = sizeof info};
  uint32_t inputs = infc_engine_input_count(cpu);
  if (index < inputs ? infc_engine_input(cpu, index, &info) : infc_engine_output(cpu, index - inputs, &info))
    abort();
  return info;
}

// 1 + the input in whose memory a tensor is written, or 0.
static uint32_t alias_of(const infc_trt_engine *engine, uint32_t index) {
  const uint32_t inputs = infc_engine_input_count(engine->cpu);
  if (index + 1 == engine->alias_output)
    return engine->alias_input;
  const char *name = tensor_info(engine->cpu, index).name;
  const size_t length = strlen(name), more = strlen(INFC_STATE_NEW);
  if (index < inputs || length <= more || strcmp(name + length - more, INFC_STATE_NEW))
    return 0;
  for (uint32_t i = 0; i < inputs; i++) {
    const char *input = tensor_info(engine->cpu, i).name;
    if (strlen(input) == length - more && !memcmp(input, name, length - more))
      return i + 1;
  }
  return 0;
}

static infc_trt_tensor engine_tensor(const infc_trt_engine *engine, uint32_t index) {
  alive(engine->object, FAKE_TRT_ENGINE);
  infc_tensor_info info = tensor_info(engine->cpu, index);
  const uint32_t alias = alias_of(engine, index);
  return (infc_trt_tensor){info.name, (uint32_t)info.dtype, index >= infc_engine_input_count(engine->cpu),
                           alias ? tensor_info(engine->cpu, alias - 1).name : NULL};
}

static uint32_t engine_profile_count(const infc_trt_engine *engine) {
  return engine->profiles;
}

static size_t engine_memory(const infc_trt_engine *engine, uint32_t profile) {
  alive(engine->object, FAKE_TRT_ENGINE);
  return FAKE_PLAN_WORKSPACE * (profile + 1);
}

// ---- Contexts

static infc_trt_result context_create(infc_trt_engine *engine, uint32_t profile, void *stream, infc_trt_context **out,
                                      char *error, size_t size) {
  infc_trt_result entered = enter(CALL_context_create, error, size);
  if (entered)
    return entered;
  alive(engine->object, FAKE_TRT_ENGINE);
  fake_spoil_capture(stream);
  if (profile >= engine->profiles)
    return fail(INFC_TRT_FAILED, error, size, "no optimisation profile %u", profile);
  if (atomic_exchange(&engine->creating, true))
    fake_misuse("two contexts of a TensorRT engine are created at the same time");
  sched_yield();
  atomic_store(&engine->creating, false);
  uint32_t tensors = engine_tensor_count(engine);
  infc_context *cpu;
  char why[256];
  if (infc_context_create(engine->cpu, NULL, &cpu, why, sizeof why))
    return fail(INFC_TRT_OUT_OF_MEMORY, error, size, "%s", why);
  infc_trt_context *context = calloc(1, sizeof *context + tensors * sizeof context->tensor[0]);
  if (!context)
    abort();
  context->cpu = cpu;
  context->engine = engine;
  context->profile = profile;
  context->tensors = tensors;
  engine->contexts++;
  context->object = fake_object_add(FAKE_TRT_CONTEXT, context);
  *out = context;
  return INFC_TRT_OK;
}

static void context_destroy(infc_trt_context *context) {
  alive(context->object, FAKE_TRT_CONTEXT);
  fake_object_remove(context->object, FAKE_TRT_CONTEXT);
  context->engine->contexts--;
  infc_context_destroy(context->cpu);
  free(context);
}

static infc_trt_result context_set_memory(infc_trt_context *context, uint64_t memory, size_t memory_size, char *error,
                                          size_t size) {
  infc_trt_result entered = enter(CALL_context_set_memory, error, size);
  if (entered)
    return entered;
  alive(context->object, FAKE_TRT_CONTEXT);
  size_t needed = engine_memory(context->engine, context->profile);
  if (memory_size < needed || !fake_memory(memory, memory_size) || memory % 256)
    return fail(INFC_TRT_FAILED, error, size, "device memory for activations is too small or not at a multiple of 256");
  context->memory = memory;
  context->memory_size = needed;
  return INFC_TRT_OK;
}

// Index of a tensor by name, or -1.
static int find(const infc_trt_context *context, const char *name) {
  for (uint32_t i = 0; i < context->tensors; i++)
    if (!strcmp(tensor_info(context->engine->cpu, i).name, name))
      return (int)i;
  return -1;
}

// Size in this context's profile; `dims` receives the dimensions.
static size_t tensor_size(const infc_trt_context *context, uint32_t index, int64_t *dims) {
  infc_tensor_info info = tensor_info(context->engine->cpu, index);
  size_t bytes = infc_dtype_size((uint32_t)info.dtype);
  for (int32_t d = 0; d < info.rank; d++) {
    int32_t symbol = info.dims[d].symbol;
    dims[d] = symbol < 0 ? info.dims[d].max
                         : infc_engine_profile_size(context->engine->cpu, context->profile, (uint32_t)symbol);
    bytes *= (size_t)dims[d];
  }
  return bytes;
}

static infc_trt_result context_set_shape(infc_trt_context *context, const char *input, const int64_t *dims,
                                         uint32_t rank, char *error, size_t size) {
  infc_trt_result entered = enter(CALL_context_set_shape, error, size);
  if (entered)
    return entered;
  alive(context->object, FAKE_TRT_CONTEXT);
  int index = find(context, input);
  int64_t needed[INFC_MAX_DIMS];
  if (index < 0 || (uint32_t)index >= infc_engine_input_count(context->engine->cpu))
    return fail(INFC_TRT_FAILED, error, size, "no input '%s'", input);
  tensor_size(context, (uint32_t)index, needed);
  if (rank != (uint32_t)tensor_info(context->engine->cpu, (uint32_t)index).rank ||
      memcmp(dims, needed, rank * sizeof *dims))
    return fail(INFC_TRT_FAILED, error, size, "input '%s': dimensions are outside of optimisation profile %u", input,
                context->profile);
  context->tensor[index].shaped = true;
  context->warm = false;
  return INFC_TRT_OK;
}

static infc_trt_result context_set_address(infc_trt_context *context, const char *tensor, uint64_t memory, char *error,
                                           size_t size) {
  infc_trt_result entered = enter(CALL_context_set_address, error, size);
  if (entered)
    return entered;
  alive(context->object, FAKE_TRT_CONTEXT);
  int index = find(context, tensor);
  int64_t dims[INFC_MAX_DIMS];
  if (index < 0 || memory % 256 || !fake_memory(memory, tensor_size(context, (uint32_t)index, dims)))
    return fail(INFC_TRT_FAILED, error, size,
                "tensor '%s' is unknown, or its memory is not the device's at a multiple of 256", tensor);
  context->tensor[index].memory = memory;
  return INFC_TRT_OK;
}

static infc_trt_result context_shape(const infc_trt_context *context, const char *tensor, int64_t *dims, uint32_t *rank,
                                     char *error, size_t size) {
  infc_trt_result entered = enter(CALL_context_shape, error, size);
  if (entered)
    return entered;
  int index = find(context, tensor);
  if (index < 0)
    return fail(INFC_TRT_FAILED, error, size, "no tensor '%s'", tensor);
  tensor_size(context, (uint32_t)index, dims);
  *rank = (uint32_t)tensor_info(context->engine->cpu, (uint32_t)index).rank;
  return INFC_TRT_OK;
}

// ---- Running

// A run as it was enqueued: later calls on the context do not change it.
typedef struct launch {
  uint64_t context, memory;
  uint64_t tensors[FAKE_PLAN_TENSORS];
} launch;

// Activations are written and read back, so that two runs that share memory show.
static bool use_workspace(const launch *l, const infc_trt_context *context, bool fill) {
  uint8_t *memory = fake_memory(l->memory, context->memory_size);
  uint8_t value = (uint8_t)(l->context >> 8);
  if (memory && fill)
    memset(memory, value, context->memory_size);
  bool ours = memory;
  for (size_t i = 0; memory && i < context->memory_size; i++)
    ours &= memory[i] == value;
  if (memory && !ours)
    fake_misuse("two runs share memory for activations");
  return ours;
}

static CUresult run(const void *data) {
  const launch *l = data;
  infc_trt_context *context = fake_object_get(l->context, FAKE_TRT_CONTEXT, true);
  if (!context || !use_workspace(l, context, true))
    return CUDA_ERROR_ILLEGAL_ADDRESS;
  uint32_t inputs = infc_engine_input_count(context->engine->cpu);
  int64_t dims[INFC_MAX_DIMS];
  void *aside[FAKE_PLAN_TENSORS] = {NULL}; // the CPU's engine does not write in place
  bool bound = true;
  for (uint32_t i = 0; bound && i < context->tensors; i++) {
    size_t bytes = tensor_size(context, i, dims);
    void *memory = fake_memory(l->tensors[i], bytes);
    if (memory && alias_of(context->engine, i))
      memory = aside[i] = malloc(bytes);
    uint32_t rank = (uint32_t)tensor_info(context->engine->cpu, i).rank;
    bound = memory && !(i < inputs ? infc_context_bind_input(context->cpu, i, memory, dims, rank)
                                   : infc_context_bind_output(context->cpu, i - inputs, memory, bytes));
  }
  infc_status status = bound ? infc_run(context->cpu) : INFC_STATUS_INVALID_ARGUMENT;
  for (uint32_t i = 0; i < context->tensors; i++) {
    void *in_place = aside[i] ? fake_memory(l->tensors[i], tensor_size(context, i, dims)) : NULL;
    if (!status && in_place)
      memcpy(in_place, aside[i], tensor_size(context, i, dims));
    free(aside[i]);
  }
  if (status == INFC_STATUS_BUSY)
    fake_misuse("two runs of a TensorRT context at the same time");
  return !status && use_workspace(l, context, false) ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS;
}

static infc_trt_result context_enqueue(infc_trt_context *context, void *stream, char *error, size_t size) {
  infc_trt_result entered = enter(CALL_context_enqueue, error, size);
  if (entered)
    return entered;
  alive(context->object, FAKE_TRT_CONTEXT);
  if (!context->memory)
    return fail(INFC_TRT_FAILED, error, size, "no device memory for activations is set");
  launch l = {context->object, context->memory, {0}};
  for (uint32_t i = 0; i < context->tensors; i++) {
    bool input = i < infc_engine_input_count(context->engine->cpu);
    if (i >= FAKE_PLAN_TENSORS || !context->tensor[i].memory || (input && !context->tensor[i].shaped))
      return fail(INFC_TRT_FAILED, error, size, "tensor '%s' has no address or no shape",
                  tensor_info(context->engine->cpu, i).name);
    l.tensors[i] = context->tensor[i].memory;
  }
  const infc_trt_engine *engine = context->engine;
  for (uint32_t i = 0; i < context->tensors; i++) {
    const uint32_t alias = alias_of(engine, i);
    if (alias && l.tensors[i] != l.tensors[alias - 1])
      return fail(INFC_TRT_FAILED, error, size, "an output is not in the memory of the input that it aliases");
  }
  if (!context->warm && fake_capturing(stream)) {
    fake_spoil_capture(stream);
    return fail(INFC_TRT_FAILED, error, size, "the first run after a change of shapes cannot be captured");
  }
  context->warm = true;
  CUresult result = fake_enqueue(stream, run, &l, sizeof l);
  return result ? fail(INFC_TRT_FAILED, error, size, "the stream refuses: %d", result) : INFC_TRT_OK;
}

FAKE_API const infc_trt_api *infc_trt_adapter(void);

const infc_trt_api *infc_trt_adapter(void) {
  static const infc_trt_api api = {
      INFC_TRT_ABI,      runtime_create,       runtime_destroy, engine_create,  engine_destroy,  engine_tensor_count,
      engine_tensor,     engine_profile_count, engine_memory,   context_create, context_destroy, context_set_memory,
      context_set_shape, context_set_address,  context_enqueue, context_shape,
  };
  return &api;
}
