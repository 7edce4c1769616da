// What the executor needs of TensorRT, as plain C: filled by adapter.cpp, the only file that includes NvInfer.h, or by
// the fake of tests/fake_gpu.
#ifndef INFC_TENSORRT_TRT_API_H
#define INFC_TENSORRT_TRT_API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define INFC_TRT_ABI 2
#define INFC_TRT_ADAPTER_LIBRARY "libinfc_tensorrt_adapter.so"
#define INFC_TRT_ADAPTER_SYMBOL "infc_trt_adapter"

typedef struct infc_trt_runtime infc_trt_runtime;
typedef struct infc_trt_engine infc_trt_engine;
typedef struct infc_trt_context infc_trt_context;

typedef enum infc_trt_result {
  INFC_TRT_OK = 0,
  INFC_TRT_FAILED = 1,        // TensorRT refused; the text is its own
  INFC_TRT_NO_LIBRARY = 2,    // the library of that flavour cannot be loaded
  INFC_TRT_OUT_OF_MEMORY = 3, // device memory
  INFC_TRT_DEVICE = 4,        // the device or its driver failed under TensorRT
} infc_trt_result;

typedef struct infc_trt_tensor {
  const char *name; // lives as long as the engine
  uint32_t dtype;   // INFC_DTYPE_*; 0: a type the artifact format does not know
  bool output;
  const char *alias; // an output that is written into this input's memory, such as a cache; NULL: it has its own
} infc_trt_tensor;

// Functions that can fail write one line to `error`. A driver must have been initialised and a device's primary context
// be current in every call: without a driver TensorRT hands out garbage instead of failing.
typedef struct infc_trt_api {
  uint32_t abi; // INFC_TRT_ABI

  // Loads the library of a flavour (INFC_TENSORRT_*), `library` or by the loader's search, and creates a runtime.
  // `version` gets the library's major, minor, patch, build.
  infc_trt_result (*runtime_create)(uint32_t flavour, const char *library, infc_trt_runtime **out, uint32_t version[4],
                                    char *error, size_t error_size);
  void (*runtime_destroy)(infc_trt_runtime *runtime);

  infc_trt_result (*engine_create)(infc_trt_runtime *runtime, const void *plan, size_t size, infc_trt_engine **out,
                                   char *error, size_t error_size);
  void (*engine_destroy)(infc_trt_engine *engine);
  uint32_t (*engine_tensor_count)(const infc_trt_engine *engine);
  infc_trt_tensor (*engine_tensor)(const infc_trt_engine *engine, uint32_t index);
  uint32_t (*engine_profile_count)(const infc_trt_engine *engine);
  // Bytes of device memory that a context of this optimisation profile needs for activations.
  size_t (*engine_memory)(const infc_trt_engine *engine, uint32_t profile);

  // A context of one optimisation profile that has no memory of its own.
  infc_trt_result (*context_create)(infc_trt_engine *engine, uint32_t profile, void *stream, infc_trt_context **out,
                                    char *error, size_t error_size);
  void (*context_destroy)(infc_trt_context *context);
  infc_trt_result (*context_set_memory)(infc_trt_context *context, uint64_t memory, size_t size, char *error,
                                        size_t error_size);
  infc_trt_result (*context_set_shape)(infc_trt_context *context, const char *input, const int64_t *dims, uint32_t rank,
                                       char *error, size_t error_size);
  infc_trt_result (*context_set_address)(infc_trt_context *context, const char *tensor, uint64_t memory, char *error,
                                         size_t error_size);
  infc_trt_result (*context_enqueue)(infc_trt_context *context, void *stream, char *error, size_t error_size);
  // What a tensor has once all inputs' shapes are set; `dims` has room for INFC_MAX_DIMS.
  infc_trt_result (*context_shape)(const infc_trt_context *context, const char *tensor, int64_t *dims, uint32_t *rank,
                                   char *error, size_t error_size);
} infc_trt_api;

// The one symbol that an adapter exports, under INFC_TRT_ADAPTER_SYMBOL.
typedef const infc_trt_api *(*infc_trt_adapter_fn)(void);

#ifdef __cplusplus
}
#endif
#endif // INFC_TENSORRT_TRT_API_H
