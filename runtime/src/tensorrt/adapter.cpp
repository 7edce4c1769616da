// TensorRT for the executor: fills infc_trt_api. The only file that includes NVIDIA's headers. It links none of
// NVIDIA's libraries but opens the one it is told to, so that one adapter serves both TensorRT and TensorRT-RTX: what
// is called here lies at the same place in the interfaces of both.
#include <NvInfer.h>

#define _Static_assert static_assert // of layout.h, which is C
#include "layout.h"
#include "tensorrt/trt_api.h"

#include <dlfcn.h>
#include <initializer_list>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef TRT_MAJOR_ENTERPRISE
#define TRT_MAJOR_ENTERPRISE 11
#endif
#ifndef TRT_MAJOR_RTX
#define TRT_MAJOR_RTX 1
#endif
#define TEXT_OF(number) #number
#define TEXT(macro) TEXT_OF(macro)

namespace {

// ---- Errors

// A call of the executor's in progress, and its buffer for the first error: the cause, of which later ones are
// consequences. TensorRT reports to objects that a runtime, its engines and contexts share; a thread's call must not
// get another thread's text.
class Call {
public:
  Call(char *error, size_t size) : error_(error), size_(error ? size : 0) {
    if (size_)
      *error_ = '\0';
    current = this;
  }
  ~Call() { current = nullptr; }
  Call(const Call &) = delete;
  Call &operator=(const Call &) = delete;

  static void report(const char *text, infc_trt_result cause) {
    if (current)
      current->add(text, cause);
  }

  infc_trt_result result(bool succeeded, const char *otherwise) {
    if (succeeded)
      return INFC_TRT_OK;
    add(otherwise, INFC_TRT_FAILED);
    return cause_;
  }
  bool failed() const { return failed_; }

private:
  void add(const char *text, infc_trt_result cause) {
    if (cause_ == INFC_TRT_FAILED || cause == INFC_TRT_OUT_OF_MEMORY) // the most telling of all
      cause_ = cause;
    if (!failed_ && size_) {
      snprintf(error_, size_, "%s", text);
      for (char *c = error_; *c; c++)
        if (*c == '\n' || *c == '\r')
          *c = ' ';
    }
    failed_ = true;
  }

  static thread_local Call *current;
  char *error_;
  size_t size_;
  bool failed_ = false;
  infc_trt_result cause_ = INFC_TRT_FAILED;
};

thread_local Call *Call::current = nullptr;

// What failed, by TensorRT's code or, since it has few and reports an exception of CUDA's as unspecified, by its words.
infc_trt_result cause_of(nvinfer1::ErrorCode code, const char *text) {
  if (code == nvinfer1::ErrorCode::kFAILED_ALLOCATION || strcasestr(text, "out of memory") ||
      strstr(text, "OutOfMemory"))
    return INFC_TRT_OUT_OF_MEMORY;
  bool device = code == nvinfer1::ErrorCode::kFAILED_EXECUTION;
  for (const char *words : {"cuda runtime (", "cuda driver (", "cuda error", "cuda failure", "cuda initialization"})
    device |= strcasestr(text, words) != nullptr;
  return device ? INFC_TRT_DEVICE : INFC_TRT_FAILED;
}

// Without a recorder errors go to the logger, with one to the recorder, which gets their codes too.
class Logger final : public nvinfer1::ILogger {
  void log(Severity severity, const char *text) noexcept override {
    if (severity <= Severity::kERROR)
      Call::report(text, cause_of(nvinfer1::ErrorCode::kUNSPECIFIED_ERROR, text));
  }
};

// Keeps nothing: the caller of the failing function gets the text.
class Recorder final : public nvinfer1::IErrorRecorder {
public:
  int32_t getNbErrors() const noexcept override { return 0; }
  nvinfer1::ErrorCode getErrorCode(int32_t) const noexcept override { return nvinfer1::ErrorCode::kSUCCESS; }
  ErrorDesc getErrorDesc(int32_t) const noexcept override { return ""; }
  bool hasOverflowed() const noexcept override { return false; }
  void clear() noexcept override {}
  bool reportError(nvinfer1::ErrorCode code, ErrorDesc text) noexcept override {
    Call::report(text, cause_of(code, text));
    return false; // nothing to abort
  }
  RefCount incRefCount() noexcept override { return 1; } // it lives as long as the process
  RefCount decRefCount() noexcept override { return 1; }
};

Logger logger;
Recorder recorder;

// ---- Runtime

nvinfer1::IRuntime *of(infc_trt_runtime *runtime) {
  return reinterpret_cast<nvinfer1::IRuntime *>(runtime);
}
nvinfer1::ICudaEngine *of(infc_trt_engine *engine) {
  return reinterpret_cast<nvinfer1::ICudaEngine *>(engine);
}
const nvinfer1::ICudaEngine *of(const infc_trt_engine *engine) {
  return reinterpret_cast<const nvinfer1::ICudaEngine *>(engine);
}
nvinfer1::IExecutionContext *of(infc_trt_context *context) {
  return reinterpret_cast<nvinfer1::IExecutionContext *>(context);
}
const nvinfer1::IExecutionContext *of(const infc_trt_context *context) {
  return reinterpret_cast<const nvinfer1::IExecutionContext *>(context);
}

// A function of the library by name; null if there is none.
template <typename Function> bool find(void *library, const char *name, Function **out) {
  *out = reinterpret_cast<Function *>(dlsym(library, name));
  return *out;
}

// Custom operators (plugins/tensorrt/ops), if they were compiled: the file that INFC_TENSORRT_PLUGINS names, or one
// beside this library. An engine that has some does not deserialise without; TensorRT then names the operator.
void load_plugins(nvinfer1::IRuntime *runtime) {
  const char *given = getenv("INFC_TENSORRT_PLUGINS");
  void *library = dlopen(given ? given : "libinfc_tensorrt_plugins.so", RTLD_NOW | RTLD_LOCAL);
  link_map *map = nullptr;
  if (!library)
    return;
  if (!dlinfo(library, RTLD_DI_LINKMAP, &map)) // the registry wants the path
    runtime->getPluginRegistry().loadLibrary(map->l_name);
  dlclose(library);
}

infc_trt_result runtime_create(uint32_t flavour, const char *path, infc_trt_runtime **out, uint32_t version[4],
                               char *error, size_t error_size) {
  if (!path)
    path = flavour == INFC_TENSORRT_RTX ? "libtensorrt_rtx.so." TEXT(TRT_MAJOR_RTX)
                                        : "libnvinfer.so." TEXT(TRT_MAJOR_ENTERPRISE);
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL); // for good: it has threads and statics of its own
  if (!library) {
    snprintf(error, error_size, "%s", dlerror());
    return INFC_TRT_NO_LIBRARY;
  }
  decltype(createInferRuntime_INTERNAL) *create;
  decltype(getInferLibVersion) *whole, *part[4];
  if (!find(library, "createInferRuntime_INTERNAL", &create) || !find(library, "getInferLibVersion", &whole) ||
      !find(library, "getInferLibMajorVersion", &part[0]) || !find(library, "getInferLibMinorVersion", &part[1]) ||
      !find(library, "getInferLibPatchVersion", &part[2]) || !find(library, "getInferLibBuildVersion", &part[3])) {
    dlclose(library);
    snprintf(error, error_size, "%s is not TensorRT 10 or newer", path);
    return INFC_TRT_NO_LIBRARY;
  }
  for (int i = 0; i < 4; i++)
    version[i] = static_cast<uint32_t>(part[i]());
  Call call(error, error_size);
  auto *runtime = static_cast<nvinfer1::IRuntime *>(create(&logger, whole()));
  if (call.failed()) // then the pointer may be garbage instead of null
    runtime = nullptr;
  if (runtime) {
    runtime->setErrorRecorder(&recorder);
    load_plugins(runtime);
  }
  *out = reinterpret_cast<infc_trt_runtime *>(runtime);
  return call.result(runtime, "TensorRT created no runtime");
}

void runtime_destroy(infc_trt_runtime *runtime) {
  delete of(runtime);
}

// ---- Engine

infc_trt_result engine_create(infc_trt_runtime *runtime, const void *plan, size_t size, infc_trt_engine **out,
                              char *error, size_t error_size) {
  Call call(error, error_size);
  *out = reinterpret_cast<infc_trt_engine *>(of(runtime)->deserializeCudaEngine(plan, size));
  return call.result(*out, "TensorRT read no engine from the plan");
}

void engine_destroy(infc_trt_engine *engine) {
  delete of(engine);
}

uint32_t dtype(nvinfer1::DataType type) {
  switch (type) {
  case nvinfer1::DataType::kFLOAT:
    return INFC_DTYPE_F32;
  case nvinfer1::DataType::kHALF:
    return INFC_DTYPE_F16;
  case nvinfer1::DataType::kBF16:
    return INFC_DTYPE_BF16;
  case nvinfer1::DataType::kINT64:
    return INFC_DTYPE_I64;
  case nvinfer1::DataType::kINT32:
    return INFC_DTYPE_I32;
  case nvinfer1::DataType::kINT8:
    return INFC_DTYPE_I8;
  case nvinfer1::DataType::kUINT8:
    return INFC_DTYPE_U8;
  case nvinfer1::DataType::kBOOL:
    return INFC_DTYPE_BOOL;
  default: // 8- and 4-bit floats, 4-bit integers: inside of an engine only
    return 0;
  }
}

uint32_t engine_tensor_count(const infc_trt_engine *engine) {
  return static_cast<uint32_t>(of(engine)->getNbIOTensors());
}

infc_trt_tensor engine_tensor(const infc_trt_engine *engine, uint32_t index) {
  const char *name = of(engine)->getIOTensorName(static_cast<int32_t>(index));
  return {name, dtype(of(engine)->getTensorDataType(name)),
          of(engine)->getTensorIOMode(name) == nvinfer1::TensorIOMode::kOUTPUT,
          of(engine)->getAliasedInputTensor(name)};
}

uint32_t engine_profile_count(const infc_trt_engine *engine) {
  return static_cast<uint32_t>(of(engine)->getNbOptimizationProfiles());
}

size_t engine_memory(const infc_trt_engine *engine, uint32_t profile) {
  return static_cast<size_t>(of(engine)->getDeviceMemorySizeForProfileV2(static_cast<int32_t>(profile)));
}

// ---- Context

cudaStream_t stream_of(void *stream) {
  return static_cast<cudaStream_t>(stream);
}

// TensorRT-RTX compiles its kernels here. Its cache for them stays unused: TensorRT's headers do not declare it. It
// could capture CUDA graphs itself; that is off unless asked for, as it must be: the executor captures.
infc_trt_result context_create(infc_trt_engine *engine, uint32_t profile, void *stream, infc_trt_context **out,
                               char *error, size_t error_size) {
  Call call(error, error_size);
  auto *context = of(engine)->createExecutionContext(nvinfer1::ExecutionContextAllocationStrategy::kUSER_MANAGED);
  if (context && !context->setOptimizationProfileAsync(static_cast<int32_t>(profile), stream_of(stream))) {
    delete context;
    context = nullptr;
  }
  *out = reinterpret_cast<infc_trt_context *>(context);
  return call.result(context, "TensorRT created no context");
}

void context_destroy(infc_trt_context *context) {
  delete of(context);
}

infc_trt_result context_set_memory(infc_trt_context *context, uint64_t memory, size_t size, char *error,
                                   size_t error_size) {
  Call call(error, error_size);
  of(context)->setDeviceMemoryV2(reinterpret_cast<void *>(memory), static_cast<int64_t>(size));
  return call.result(!call.failed(), "");
}

infc_trt_result context_set_shape(infc_trt_context *context, const char *input, const int64_t *dims, uint32_t rank,
                                  char *error, size_t error_size) {
  Call call(error, error_size);
  nvinfer1::Dims shape{static_cast<int32_t>(rank), {}};
  memcpy(shape.d, dims, rank * sizeof *dims);
  return call.result(of(context)->setInputShape(input, shape), "TensorRT refused the input's shape");
}

infc_trt_result context_set_address(infc_trt_context *context, const char *tensor, uint64_t memory, char *error,
                                    size_t error_size) {
  Call call(error, error_size);
  return call.result(of(context)->setTensorAddress(tensor, reinterpret_cast<void *>(memory)),
                     "TensorRT refused the tensor's address");
}

infc_trt_result context_enqueue(infc_trt_context *context, void *stream, char *error, size_t error_size) {
  Call call(error, error_size);
  return call.result(of(context)->enqueueV3(stream_of(stream)), "TensorRT enqueued nothing");
}

infc_trt_result context_shape(const infc_trt_context *context, const char *tensor, int64_t *dims, uint32_t *rank,
                              char *error, size_t error_size) {
  Call call(error, error_size);
  const nvinfer1::Dims shape = of(context)->getTensorShape(tensor);
  const bool known = shape.nbDims >= 0 && shape.nbDims <= INFC_MAX_RANK;
  *rank = known ? static_cast<uint32_t>(shape.nbDims) : 0;
  memcpy(dims, shape.d, *rank * sizeof *dims);
  return call.result(known, "TensorRT knows no shape");
}

const infc_trt_api api = {
    INFC_TRT_ABI,      runtime_create,       runtime_destroy, engine_create,  engine_destroy,  engine_tensor_count,
    engine_tensor,     engine_profile_count, engine_memory,   context_create, context_destroy, context_set_memory,
    context_set_shape, context_set_address,  context_enqueue, context_shape,
};

} // namespace

extern "C" __attribute__((visibility("default"))) const infc_trt_api *infc_trt_adapter() {
  return &api;
}
