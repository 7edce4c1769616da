// What the files of the executor share.
#ifndef INFC_TENSORRT_GPU_H
#define INFC_TENSORRT_GPU_H

#include "cuda.h"
#include "executor.h"
#include "trt_api.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#define INFC_GPU_FORKED                                                                                                \
  "a child after fork() cannot use the GPU that its parent uses: start it as a new process (spawn)"

// Who serves a profile.
typedef struct infc_gpu_route {
  uint32_t plan;
  uint32_t profile; // of the plan's optimisation profiles
} infc_gpu_route;

struct infc_gpu_engine {
  infc_allocator allocator;
  infc_gpu_artifact artifact;
  infc_cuda_api cuda;
  const infc_trt_api *trt;
  CUdevice device;
  int number;
  CUcontext primary; // retained; NULL: not yet
  infc_trt_runtime *runtime;
  infc_trt_engine **engines; // [plan]; NULL: not for this device
  infc_gpu_route *routes;    // [profile]
  uint32_t *aliases;         // [output]: 1 + the input in whose memory it is written; 0: it has its own
  uint32_t *state_dtypes;    // [state]
  size_t *state_offsets;     // [state]: in a sequence's memory
  size_t state_bytes;
  uint32_t forks;           // of the process, when the engine was opened
  pthread_mutex_t creation; // TensorRT creates one context of an engine at a time
};

// Compares what the artifact was built for with what is here (preflight.c): the driver, a device, a plan for it, our
// adapter. Sets cuda, device, number, routes and trt. `device` -1: the first that has a plan.
infc_status infc_gpu_preflight(infc_gpu_engine *engine, int device, infc_error error);
// Then, in the device's primary context, TensorRT's library and its version. Sets runtime, on failure too if there is
// one to destroy.
infc_status infc_gpu_find_tensorrt(infc_gpu_engine *engine, const char *library, infc_error error);

// Forks of this process and of those that it comes from.
extern atomic_uint infc_gpu_forks;
// False in a child after fork(): it has the memory of a driver and of TensorRT, but neither works. Nothing of theirs
// may be called there, not even to destroy something.
static inline bool infc_gpu_alive(const infc_gpu_engine *engine) {
  return engine->forks == atomic_load_explicit(&infc_gpu_forks, memory_order_relaxed);
}

// Makes the primary context current for the calling thread, and its own current again.
static inline infc_status infc_gpu_enter(const infc_gpu_engine *engine, infc_error error) {
  if (!infc_gpu_alive(engine))
    return infc_fail(error, INFC_STATUS_DEVICE, INFC_GPU_FORKED);
  return INFC_CUDA(&engine->cuda, error, context_push, engine->primary);
}
static inline void infc_gpu_leave(const infc_gpu_engine *engine) {
  CUcontext popped;
  engine->cuda.context_pop(&popped);
}

enum { INFC_GPU_ALIGN = 256, INFC_STATE_NAME = 64 }; // TensorRT's, of device memory; bytes of a state's name

static inline size_t infc_gpu_round_up(size_t size) {
  return (size + INFC_GPU_ALIGN - 1) / INFC_GPU_ALIGN * INFC_GPU_ALIGN;
}
// Name of the output that is written in a state's memory.
static inline void infc_state_output(char name[INFC_STATE_NAME], const infc_gpu_tensor *state) {
  snprintf(name, INFC_STATE_NAME, "%s" INFC_STATE_NEW, state->name);
}

static inline uint32_t infc_gpu_tensor_count(const infc_gpu_artifact *artifact) {
  return artifact->input_count + artifact->output_count;
}
static inline const infc_gpu_tensor *infc_gpu_tensors(const infc_gpu_artifact *artifact, uint32_t profile) {
  return artifact->tensors + (size_t)profile * infc_gpu_tensor_count(artifact);
}

// ---- What executor.h's table holds (engine.c, context.c)

infc_status infc_gpu_engine_open(const infc_gpu_artifact *artifact, int device, const char *tensorrt_library,
                                 const infc_allocator *allocator, infc_gpu_engine **out, int *device_number,
                                 char *error, size_t error_size);
void infc_gpu_engine_close(infc_gpu_engine *engine);
infc_status infc_gpu_context_open(infc_gpu_engine *engine, const infc_allocator *allocator, infc_gpu_context **out,
                                  char *error, size_t error_size);
void infc_gpu_context_close(infc_gpu_context *context);
size_t infc_gpu_context_bytes(const infc_gpu_context *context);
infc_status infc_gpu_context_enqueue(infc_gpu_context *context, uint32_t profile, const infc_gpu_binding *bindings,
                                     bool changed, const infc_gpu_state *state, void *stream, char *error,
                                     size_t error_size);
infc_status infc_gpu_context_wait(infc_gpu_context *context, char *error, size_t error_size);
size_t infc_gpu_state_bytes(const infc_gpu_context *context);
infc_status infc_gpu_state_create(infc_gpu_context *context, uint64_t *state, char *error, size_t error_size);
infc_status infc_gpu_state_clear(infc_gpu_context *context, uint64_t state, char *error, size_t error_size);
void infc_gpu_state_destroy(infc_gpu_context *context, uint64_t state);
infc_status infc_gpu_state_copy(infc_gpu_context *context, infc_gpu_place to, infc_gpu_place from, char *error,
                                size_t error_size);

// Fails with "TensorRT enqueueV3: text". The adapter's text is the rest of the line. `status` is for what is neither
// the device's fault nor a lack of its memory.
infc_status infc_gpu_trt_failed(infc_error error, infc_status status, infc_trt_result result, const char *call,
                                const char *text);

#endif // INFC_TENSORRT_GPU_H
