// A CUDA driver and a TensorRT that run on the CPU, for tests: libcuda.so.1 and libinfc_tensorrt_adapter.so. They hold
// their callers to the rules of the real ones; a broken rule is an error for the caller and a line of fake_problem().
//
// Settings, from the environment or fake_configure, are "key=value,key=value":
//   FAKE_CUDA  sm=86+89 (one a device), devices=1, driver=13000, memory=BYTES (of each device), async=1 (a worker
//   thread a
//              stream), delay=MICROSECONDS (before each piece of work of a worker), fail=CALL:OCCURRENCE:RESULT
//   FAKE_TRT   version=1.7.1.116, flavour=rtx|enterprise
#ifndef INFC_FAKE_GPU_H
#define INFC_FAKE_GPU_H

#include "tensorrt/cuda_api.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define FAKE_API __attribute__((visibility("default")))

// Results of the driver that the executor does not name.
enum {
  CUDA_ERROR_INVALID_VALUE = 1,
  CUDA_ERROR_INVALID_DEVICE = 101,
  CUDA_ERROR_INVALID_CONTEXT = 201,
  CUDA_ERROR_INVALID_HANDLE = 400,
  CUDA_ERROR_ILLEGAL_ADDRESS = 700,
  CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
  CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901,
  CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD = 908,
  CUDA_ERROR_UNKNOWN = 999,
};

// ---- For tests

// Only while nothing of the fake is in use.
FAKE_API void fake_configure(const char *settings);
// Counts, the failure to come and problems are forgotten.
FAKE_API void fake_reset(void);
// The call of that name fails at its n-th occurrence from the last fake_reset on, counted from 1. Names are the
// driver's symbols and the members of infc_trt_api. A call that destroys, frees or waits does so and still reports the
// result.
FAKE_API void fake_fail(const char *call, uint64_t occurrence, int result);
// That has happened.
FAKE_API bool fake_failed(void);
FAKE_API uint64_t fake_count(const char *call);
// The index-th call that was made since the process began, NULL past the last; `count` as fake_count.
FAKE_API const char *fake_called(uint32_t index, uint64_t *count);
// Objects, allocations and retained contexts that live.
FAKE_API uint32_t fake_live(void);
// What kind they are, for a message.
FAKE_API const char *fake_live_text(void);
// The first broken rule, or NULL.
FAKE_API const char *fake_problem(void);
// Of the launches of any thread.
FAKE_API CUgraphExec fake_last_launched(void);
// Contexts on the calling thread's stack.
FAKE_API uint32_t fake_depth(void);

// In a child after fork() of a process that had called cuInit: nothing but cuInit may be called, and that fails.
FAKE_API bool fake_forked(void);

// ---- For the fake adapter

typedef struct fake_call {
  const char *name;
  atomic_ulong count;
} fake_call;

FAKE_API void fake_register(fake_call *calls, uint32_t count);
// Counts a call; what it shall fail with, or 0.
FAKE_API int fake_enter(fake_call *call);
FAKE_API void fake_misuse(const char *format, ...) __attribute__((format(printf, 1, 2)));

// "key" of settings such as FAKE_TRT's; `text` is left alone if it is not there.
FAKE_API bool fake_setting(const char *settings, const char *key, char *text, size_t size);
// Device of the calling thread's current context, -1 if there is none.
FAKE_API int fake_device(void);
// Bytes of the current device's memory that an object holds besides cuMemAlloc's; false if there are too few.
FAKE_API bool fake_reserve(int device, int64_t bytes);

// Where the bytes of live device memory are; NULL and a problem if some are outside of any allocation. Device addresses
// are none that the host can read.
FAKE_API void *fake_memory(CUdeviceptr memory, size_t size);

typedef enum fake_kind {
  FAKE_STREAM = 1,
  FAKE_EVENT,
  FAKE_GRAPH,
  FAKE_EXEC,
  FAKE_TRT_RUNTIME,
  FAKE_TRT_ENGINE,
  FAKE_TRT_CONTEXT,
  FAKE_KINDS
} fake_kind;

// Handles are numbers that are never used again. An object belongs to the device current at its creation. `get` returns
// NULL and notes a problem if it is gone, of another kind, or of another device than the current one (unless
// `anywhere`).
FAKE_API uint64_t fake_object_add(fake_kind kind, void *data);
FAKE_API void *fake_object_get(uint64_t handle, fake_kind kind, bool anywhere);
FAKE_API void *fake_object_remove(uint64_t handle, fake_kind kind);

// Runs `kernel` on a copy of `size` bytes of data when the stream comes to it, each time if it was captured.
typedef CUresult (*fake_kernel)(const void *data);
FAKE_API CUresult fake_enqueue(CUstream stream, fake_kernel kernel, const void *data, size_t size);
FAKE_API bool fake_capturing(CUstream stream);
// As a call that is not allowed in capture does.
FAKE_API void fake_spoil_capture(CUstream stream);

#endif // INFC_FAKE_GPU_H
