// The entry points of the CUDA driver that the executor uses, found with dlopen. Types and constants are declared here,
// so that no CUDA header is needed; names and values are those of the CUDA driver API reference.
#ifndef INFC_TENSORRT_CUDA_API_H
#define INFC_TENSORRT_CUDA_API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define INFC_CUDA_LIBRARY "libcuda.so.1"

typedef int CUresult;
typedef int CUdevice;
typedef uint64_t CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphExec_st *CUgraphExec;

enum {
  CUDA_SUCCESS = 0,
  CUDA_ERROR_OUT_OF_MEMORY = 2,
  CUDA_ERROR_NOT_INITIALIZED = 3,
  CUDA_ERROR_NO_DEVICE = 100,
  CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
  CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
  CU_STREAM_NON_BLOCKING = 1,
  CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1,
  CU_EVENT_DISABLE_TIMING = 2,
  CU_MEMHOSTALLOC_PORTABLE = 1,
};

// X(member, symbol in the library, parameters); all return CUresult.
#define INFC_CUDA_ENTRIES(X)                                                                                           \
  X(init, "cuInit", (unsigned flags))                                                                                  \
  X(driver_version, "cuDriverGetVersion", (int *version))                                                              \
  X(device_count, "cuDeviceGetCount", (int *count))                                                                    \
  X(device_get, "cuDeviceGet", (CUdevice * device, int ordinal))                                                       \
  X(device_name, "cuDeviceGetName", (char *name, int size, CUdevice device))                                           \
  X(device_attribute, "cuDeviceGetAttribute", (int *value, int attribute, CUdevice device))                            \
  X(primary_retain, "cuDevicePrimaryCtxRetain", (CUcontext * context, CUdevice device))                                \
  X(primary_release, "cuDevicePrimaryCtxRelease_v2", (CUdevice device))                                                \
  X(context_push, "cuCtxPushCurrent_v2", (CUcontext context))                                                          \
  X(context_pop, "cuCtxPopCurrent_v2", (CUcontext * context))                                                          \
  X(memory_info, "cuMemGetInfo_v2", (size_t *free_bytes, size_t *total))                                               \
  X(memory_alloc, "cuMemAlloc_v2", (CUdeviceptr * memory, size_t size))                                                \
  X(memory_free, "cuMemFree_v2", (CUdeviceptr memory))                                                                 \
  X(host_alloc, "cuMemHostAlloc", (void **memory, size_t size, unsigned flags))                                        \
  X(host_free, "cuMemFreeHost", (void *memory))                                                                        \
  X(copy_in, "cuMemcpyHtoDAsync_v2", (CUdeviceptr to, const void *from, size_t size, CUstream stream))                 \
  X(copy_out, "cuMemcpyDtoHAsync_v2", (void *to, CUdeviceptr from, size_t size, CUstream stream))                      \
  X(copy_within, "cuMemcpyDtoDAsync_v2", (CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream))             \
  X(set_bytes, "cuMemsetD8Async", (CUdeviceptr to, unsigned char value, size_t size, CUstream stream))                 \
  X(stream_create, "cuStreamCreate", (CUstream * stream, unsigned flags))                                              \
  X(stream_destroy, "cuStreamDestroy_v2", (CUstream stream))                                                           \
  X(stream_synchronize, "cuStreamSynchronize", (CUstream stream))                                                      \
  X(capture_begin, "cuStreamBeginCapture_v2", (CUstream stream, int mode))                                             \
  X(capture_end, "cuStreamEndCapture", (CUstream stream, CUgraph * graph))                                             \
  X(graph_instantiate, "cuGraphInstantiateWithFlags",                                                                  \
    (CUgraphExec * executable, CUgraph graph, unsigned long long flags))                                               \
  X(graph_launch, "cuGraphLaunch", (CUgraphExec executable, CUstream stream))                                          \
  X(graph_destroy, "cuGraphDestroy", (CUgraph graph))                                                                  \
  X(graph_exec_destroy, "cuGraphExecDestroy", (CUgraphExec executable))                                                \
  X(event_create, "cuEventCreate", (CUevent * event, unsigned flags))                                                  \
  X(event_destroy, "cuEventDestroy_v2", (CUevent event))                                                               \
  X(event_record, "cuEventRecord", (CUevent event, CUstream stream))                                                   \
  X(event_synchronize, "cuEventSynchronize", (CUevent event))                                                          \
  X(error_name, "cuGetErrorName", (CUresult error, const char **text))                                                 \
  X(error_string, "cuGetErrorString", (CUresult error, const char **text))

typedef struct infc_cuda_api {
#define INFC_CUDA_MEMBER(member, symbol, parameters) CUresult(*member) parameters;
  INFC_CUDA_ENTRIES(INFC_CUDA_MEMBER)
#undef INFC_CUDA_MEMBER
  void *library;
} infc_cuda_api;

#endif // INFC_TENSORRT_CUDA_API_H
