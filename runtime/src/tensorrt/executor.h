// What libinfc and libinfc_tensorrt.so say to each other. libinfc validates the artifact, chooses profiles and checks
// values; the executor knows devices, streams and TensorRT. Nothing here is API.
#ifndef INFC_TENSORRT_EXECUTOR_H
#define INFC_TENSORRT_EXECUTOR_H

#include "infc/infc.h"
#include "layout.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define INFC_EXECUTOR_ABI 2
#define INFC_EXECUTOR_LIBRARY "libinfc_tensorrt.so"
#define INFC_EXECUTOR_SYMBOL "infc_executor"

typedef struct infc_gpu_engine infc_gpu_engine;
typedef struct infc_gpu_context infc_gpu_context;

// One TENSORRT section, validated.
typedef struct infc_gpu_plan {
  const infc_tensorrt_header *header;
  const uint32_t *profiles; // of the artifact, by optimisation profile
  const char *command;
  const void *data; // the serialised engine
  size_t size;
} infc_gpu_plan;

// A tensor in one profile.
typedef struct infc_gpu_tensor {
  const char *name;
  uint32_t dtype; // INFC_DTYPE_*
  uint32_t rank;
  int64_t dims[INFC_MAX_DIMS];
  int64_t fill; // inputs: what an unbound one reads as within the dimensions in use; beyond them every input is zero
} infc_gpu_tensor;

// What an engine of a language model has besides: an int64, how many tokens are in the cache, and for each tensor of
// the cache an input, and an output of its name and NEW in the input's memory.
#define INFC_STATE_LENGTH "cache.length"
#define INFC_STATE_NEW ".new"

// One sequence's cache.
typedef struct infc_gpu_state {
  uint64_t memory; // of state_create
  uint32_t length; // tokens
} infc_gpu_state;

// The artifact as the executor sees it; all pointers live as long as the engine.
typedef struct infc_gpu_artifact {
  const infc_gpu_plan *plans;
  const infc_gpu_tensor *tensors; // [profile][tensor]: inputs, then outputs
  const infc_gpu_tensor *states;  // of a sequence's cache, the same in all profiles, in the types of the engines
  uint32_t plan_count, profile_count, input_count, output_count, state_count;
  bool cpu; // it holds CPU programs too: for the command that builds it again
} infc_gpu_artifact;

typedef struct infc_gpu_binding {
  uint64_t memory; // an address of the host or of the device; 0: an unbound optional input
  bool device;
  int64_t dims[INFC_MAX_DIMS]; // in use; at most the profile's, and equal to them if in device memory
} infc_gpu_binding;

typedef struct infc_gpu_place {
  uint64_t address;
  bool device;
} infc_gpu_place;

// All messages go to `error`, at most `error_size` bytes of one line.
typedef struct infc_executor_api {
  uint32_t abi; // INFC_EXECUTOR_ABI

  // Preflight (driver, device, SM, library, version), then deserialises the plans for that device. `device` -1: the
  // first one that has a plan. Sets `device_number`. `artifact` is copied, what it points to is not.
  infc_status (*engine_open)(const infc_gpu_artifact *artifact, int device, const char *tensorrt_library,
                             const infc_allocator *allocator, infc_gpu_engine **out, int *device_number, char *error,
                             size_t error_size);
  void (*engine_close)(infc_gpu_engine *engine);

  // Allocates all memory, runs each profile once and captures it.
  infc_status (*context_create)(infc_gpu_engine *engine, const infc_allocator *allocator, infc_gpu_context **out,
                                char *error, size_t error_size);
  void (*context_destroy)(infc_gpu_context *context);
  // Bytes of host and device memory.
  size_t (*context_memory)(const infc_gpu_context *context);

  // Copies host inputs, launches the profile's graph on `stream` (NULL: the context's own). `changed`: bindings or
  // profile differ from the last call's. `bindings`: inputs, then outputs; kept until wait returns. `state`: NULL where
  // there are no states, and for a run of a sequence that begins and ends with it.
  infc_status (*enqueue)(infc_gpu_context *context, uint32_t profile, const infc_gpu_binding *bindings, bool changed,
                         const infc_gpu_state *state, void *stream, char *error, size_t error_size);
  // Waits for the run in flight, if any, and copies host outputs. May be called again if it fails.
  infc_status (*wait)(infc_gpu_context *context, char *error, size_t error_size);

  // Device memory of one sequence's cache, of zeros; the context's runs can use it, none being in flight. A sequence
  // begins with zeros: what is no number would spoil even keys that nobody sees.
  size_t (*state_bytes)(const infc_gpu_context *context);
  infc_status (*state_create)(infc_gpu_context *context, uint64_t *state, char *error, size_t error_size);
  infc_status (*state_clear)(infc_gpu_context *context, uint64_t state, char *error, size_t error_size);
  void (*state_destroy)(infc_gpu_context *context, uint64_t state);
  // All of its bytes. Either side may be memory of the host's.
  infc_status (*state_copy)(infc_gpu_context *context, infc_gpu_place to, infc_gpu_place from, char *error,
                            size_t error_size);
} infc_executor_api;

// The one symbol that libinfc_tensorrt.so exports, under INFC_EXECUTOR_SYMBOL.
typedef const infc_executor_api *(*infc_executor_fn)(void);

#endif // INFC_TENSORRT_EXECUTOR_H
