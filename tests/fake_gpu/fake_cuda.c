// The driver's entries: what each demands of its caller, and then objects.c or streams.c.
#include "fake_cuda.h"

#include <stdlib.h>
#include <string.h>

enum {
#define CALL(member, symbol, parameters) CALL_##member,
  INFC_CUDA_ENTRIES(CALL) CALLS
#undef CALL
};

static fake_call calls[CALLS] = {
#define CALL(member, symbol, parameters) {symbol, 0},
    INFC_CUDA_ENTRIES(CALL)
#undef CALL
};

static atomic_bool initialised, forked;

static void note_fork(void) {
  forked = initialised;
}

bool fake_forked(void) {
  return forked;
}

__attribute__((constructor)) static void begin(void) {
  fake_register(calls, CALLS);
  pthread_atfork(NULL, NULL, note_fork);
}

#define ENTRY FAKE_API CUresult

static atomic_int retained[FAKE_MAX_DEVICES];
static atomic_uintptr_t last_launched;
static _Thread_local int stack[FAKE_MAX_DEPTH];
static _Thread_local uint32_t depth;

// ---- What a call demands

typedef enum demand { NOTHING, INITIALISED, CONTEXT, NO_CAPTURE } demand; // each what those before it do

// Cleaning up after a failure need not have the context that could not be pushed.
static CUresult check(int call, demand demanded, bool cleans_up) {
  const char *name = calls[call].name;
  if (forked && call != CALL_init && demanded != NOTHING) {
    fake_misuse("%s in a child after fork", name);
    return CUDA_ERROR_NOT_INITIALIZED;
  }
  if (demanded >= INITIALISED && !initialised) {
    fake_misuse("%s before cuInit", name);
    return CUDA_ERROR_NOT_INITIALIZED;
  }
  if (demanded >= CONTEXT && !depth && !(cleans_up && fake_failed())) {
    fake_misuse("%s without a current context", name);
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  if (demanded >= NO_CAPTURE && fake_forbidden(name))
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  return 0;
}

static CUresult enter(int call, demand demanded) {
  CUresult failure = fake_enter(&calls[call]);
  return failure ? failure : check(call, demanded, false);
}

#define ENTER(member, demanded)                                                                                        \
  do {                                                                                                                 \
    CUresult entered = enter(CALL_##member, demanded);                                                                 \
    if (entered)                                                                                                       \
      return entered;                                                                                                  \
  } while (0)

// A call that does its work even if it is told to fail.
#define ENTER_LATE(member, demanded)                                                                                   \
  CUresult failure = fake_enter(&calls[CALL_##member]);                                                                \
  do {                                                                                                                 \
    CUresult broken = check(CALL_##member, demanded, true);                                                            \
    if (broken)                                                                                                        \
      return broken;                                                                                                   \
  } while (0)

static CUresult invalid(const char *what) {
  fake_misuse("%s", what);
  return CUDA_ERROR_INVALID_VALUE;
}

// ---- Driver and devices

ENTRY cuInit(unsigned flags) {
  ENTER(init, NOTHING);
  if (flags)
    return invalid("cuInit with flags");
  if (forked)
    return CUDA_ERROR_NOT_INITIALIZED;
  if (!fake_set.devices)
    return CUDA_ERROR_NO_DEVICE;
  initialised = true;
  return 0;
}

ENTRY cuDriverGetVersion(int *version) {
  ENTER(driver_version, NOTHING);
  *version = fake_set.driver;
  return 0;
}

ENTRY cuDeviceGetCount(int *count) {
  ENTER(device_count, INITIALISED);
  *count = fake_set.devices;
  return 0;
}

static bool known(CUdevice device) {
  return device >= 0 && device < fake_set.devices;
}

ENTRY cuDeviceGet(CUdevice *device, int ordinal) {
  ENTER(device_get, INITIALISED);
  if (!known(ordinal))
    return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return 0;
}

ENTRY cuDeviceGetName(char *name, int size, CUdevice device) {
  ENTER(device_name, INITIALISED);
  if (!known(device))
    return CUDA_ERROR_INVALID_DEVICE;
  static const char text[] = "Fake GPU";
  if (size > 0)
    memcpy(name, text, (size_t)size < sizeof text ? (size_t)size : sizeof text);
  return 0;
}

ENTRY cuDeviceGetAttribute(int *value, int attribute, CUdevice device) {
  ENTER(device_attribute, INITIALISED);
  if (!known(device))
    return CUDA_ERROR_INVALID_DEVICE;
  if (attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)
    *value = fake_set.sms[device] / 10;
  else if (attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
    *value = fake_set.sms[device] % 10;
  else
    return invalid("an attribute of a device that the fake does not know");
  return 0;
}

// ---- Contexts: a device's number, so that none can be taken for a pointer

static CUcontext context_of(int device) {
  return (CUcontext)(uintptr_t)((0xC700ull << 48) + (uintptr_t)device + 1);
}

ENTRY cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
  ENTER(primary_retain, INITIALISED);
  if (!known(device))
    return CUDA_ERROR_INVALID_DEVICE;
  atomic_fetch_add(&retained[device], 1);
  *context = context_of(device);
  return 0;
}

ENTRY cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  ENTER_LATE(primary_release, INITIALISED);
  if (!known(device) || !atomic_load(&retained[device])) {
    fake_misuse("a primary context is released that is not retained");
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  if (atomic_fetch_sub(&retained[device], 1) == 1 && fake_live_on(device))
    fake_misuse("device %d's primary context goes with objects in it: %s", device, fake_live_text());
  return failure;
}

ENTRY cuCtxPushCurrent_v2(CUcontext context) {
  ENTER(context_push, INITIALISED);
  int device = 0;
  while (device < fake_set.devices && (context_of(device) != context || !atomic_load(&retained[device])))
    device++;
  if (device == fake_set.devices || depth == FAKE_MAX_DEPTH) {
    fake_misuse("a context is pushed that is not retained, or one too many");
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  stack[depth++] = device;
  return 0;
}

ENTRY cuCtxPopCurrent_v2(CUcontext *context) {
  ENTER_LATE(context_pop, CONTEXT);
  if (!depth)
    return CUDA_ERROR_INVALID_CONTEXT;
  depth--;
  if (context)
    *context = context_of(stack[depth]);
  return failure;
}

int fake_device(void) {
  return depth ? stack[depth - 1] : -1;
}

uint32_t fake_depth(void) {
  return depth;
}

uint32_t fake_live(void) {
  uint32_t live = fake_live_on(-1);
  for (int i = 0; i < FAKE_MAX_DEVICES; i++)
    live += (uint32_t)atomic_load(&retained[i]);
  return live;
}

// ---- Memory

ENTRY cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
  ENTER(memory_info, CONTEXT);
  *total = (size_t)fake_set.memory;
  *free_bytes = (size_t)(fake_set.memory - fake_memory_used(fake_device()));
  return 0;
}

ENTRY cuMemAlloc_v2(CUdeviceptr *memory, size_t size) {
  ENTER(memory_alloc, NO_CAPTURE);
  if (!size)
    return invalid("cuMemAlloc of 0 bytes");
  void *block = fake_block_add(size, fake_device());
  if (!block)
    return CUDA_ERROR_OUT_OF_MEMORY;
  *memory = fake_device_address(block);
  return 0;
}

ENTRY cuMemFree_v2(CUdeviceptr memory) {
  ENTER_LATE(memory_free, NO_CAPTURE);
  void *block = fake_memory(memory, 1);
  return block && fake_block_remove(block, false) ? failure : CUDA_ERROR_INVALID_VALUE;
}

ENTRY cuMemHostAlloc(void **memory, size_t size, unsigned flags) {
  ENTER(host_alloc, NO_CAPTURE);
  if (!size || flags & ~(unsigned)CU_MEMHOSTALLOC_PORTABLE)
    return invalid("cuMemHostAlloc of 0 bytes or with unknown flags");
  void *block = fake_block_add(size, -1);
  if (!block)
    return CUDA_ERROR_OUT_OF_MEMORY;
  *memory = block;
  return 0;
}

ENTRY cuMemFreeHost(void *memory) {
  ENTER_LATE(host_free, NO_CAPTURE);
  return fake_block_remove(memory, true) ? failure : CUDA_ERROR_INVALID_VALUE;
}

// ---- Streams

// CU_STREAM_LEGACY, the default stream: it is there without having been created.
enum { LEGACY = 1 };

static fake_stream *legacy;

static void make_legacy(void) {
  legacy = fake_stream_new();
}

static fake_stream *stream_of(CUstream handle) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  if ((uintptr_t)handle == LEGACY) {
    pthread_once(&once, make_legacy);
    return legacy;
  }
  return fake_object_get((uintptr_t)handle, FAKE_STREAM, !depth); // while cleaning up
}

CUresult fake_enqueue(CUstream handle, fake_kernel kernel, const void *data, size_t size) {
  fake_stream *stream = stream_of(handle);
  return stream ? fake_stream_push(stream, kernel, data, size) : CUDA_ERROR_INVALID_HANDLE;
}

bool fake_capturing(CUstream handle) {
  fake_stream *stream = stream_of(handle);
  return stream && fake_stream_capturing(stream);
}

void fake_spoil_capture(CUstream handle) {
  if (fake_capturing(handle))
    fake_forbidden("TensorRT initialises lazily");
}

// Addresses are looked up when the work is done: memory may be gone by then.
typedef struct transfer {
  CUdeviceptr device, other; // the latter: another place there, if any
  const void *from;
  void *to;
  size_t size;
} transfer;

static CUresult do_copy_in(const void *data) {
  const transfer *t = data;
  void *memory = fake_memory(t->device, t->size);
  return memory ? (memcpy(memory, t->from, t->size), 0) : CUDA_ERROR_ILLEGAL_ADDRESS;
}

static CUresult do_copy_out(const void *data) {
  const transfer *t = data;
  const void *memory = fake_memory(t->device, t->size);
  return memory ? (memcpy(t->to, memory, t->size), 0) : CUDA_ERROR_ILLEGAL_ADDRESS;
}

static CUresult do_copy_within(const void *data) {
  const transfer *t = data;
  void *to = fake_memory(t->device, t->size);
  const void *from = fake_memory(t->other, t->size);
  return to && from ? (memmove(to, from, t->size), 0) : CUDA_ERROR_ILLEGAL_ADDRESS;
}

static CUresult do_clear(const void *data) {
  const transfer *t = data;
  void *memory = fake_memory(t->device, t->size);
  return memory ? (memset(memory, 0, t->size), 0) : CUDA_ERROR_ILLEGAL_ADDRESS;
}

static CUresult move(CUstream stream, fake_kernel kernel, const transfer *t) {
  if (!t->size)
    return invalid("a transfer of 0 bytes");
  return fake_memory(t->device, t->size) ? fake_enqueue(stream, kernel, t, sizeof *t) : CUDA_ERROR_INVALID_VALUE;
}

ENTRY cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t size, CUstream stream) {
  ENTER(copy_in, CONTEXT);
  return move(stream, do_copy_in, &(transfer){.device = to, .from = from, .size = size});
}

ENTRY cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t size, CUstream stream) {
  ENTER(copy_out, CONTEXT);
  return move(stream, do_copy_out, &(transfer){.device = from, .to = to, .size = size});
}

ENTRY cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream) {
  ENTER(copy_within, CONTEXT);
  return move(stream, do_copy_within, &(transfer){.device = to, .other = from, .size = size});
}

ENTRY cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t size, CUstream stream) {
  ENTER(set_bytes, CONTEXT);
  if (value)
    return invalid("cuMemsetD8Async of what is not 0");
  return move(stream, do_clear, &(transfer){.device = to, .size = size});
}

ENTRY cuStreamCreate(CUstream *stream, unsigned flags) {
  ENTER(stream_create, CONTEXT);
  if (flags & ~(unsigned)CU_STREAM_NON_BLOCKING)
    return invalid("cuStreamCreate with unknown flags");
  *stream = (CUstream)(uintptr_t)fake_object_add(FAKE_STREAM, fake_stream_new());
  return 0;
}

ENTRY cuStreamDestroy_v2(CUstream handle) {
  ENTER_LATE(stream_destroy, CONTEXT);
  fake_stream *stream = fake_object_remove((uintptr_t)handle, FAKE_STREAM);
  if (!stream)
    return CUDA_ERROR_INVALID_HANDLE;
  fake_stream_free(stream);
  return failure;
}

ENTRY cuStreamSynchronize(CUstream handle) {
  ENTER_LATE(stream_synchronize, NO_CAPTURE);
  fake_stream *stream = stream_of(handle);
  if (!stream)
    return CUDA_ERROR_INVALID_HANDLE;
  CUresult result = fake_stream_wait(stream);
  return failure ? failure : result;
}

// ---- Graphs

ENTRY cuStreamBeginCapture_v2(CUstream handle, int mode) {
  ENTER(capture_begin, CONTEXT);
  if ((uintptr_t)handle == LEGACY)
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  fake_stream *stream = stream_of(handle);
  if (!stream)
    return CUDA_ERROR_INVALID_HANDLE;
  return mode == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL ? fake_stream_begin(stream)
                                                     : invalid("a capture that is not of the thread alone");
}

ENTRY cuStreamEndCapture(CUstream handle, CUgraph *graph) {
  ENTER_LATE(capture_end, CONTEXT);
  fake_stream *stream = stream_of(handle);
  if (!stream)
    return CUDA_ERROR_INVALID_HANDLE;
  fake_graph *captured;
  CUresult result = fake_stream_end(stream, &captured);
  if (!result && failure)
    fake_graph_release(captured);
  if (result || failure)
    return *graph = NULL, failure ? failure : result;
  *graph = (CUgraph)(uintptr_t)fake_object_add(FAKE_GRAPH, captured);
  return 0;
}

ENTRY cuGraphInstantiateWithFlags(CUgraphExec *executable, CUgraph handle, unsigned long long flags) {
  ENTER(graph_instantiate, NO_CAPTURE);
  fake_graph *graph = fake_object_get((uintptr_t)handle, FAKE_GRAPH, true);
  if (!graph || flags)
    return graph ? invalid("cuGraphInstantiate with flags") : CUDA_ERROR_INVALID_HANDLE;
  *executable = (CUgraphExec)(uintptr_t)fake_object_add(FAKE_EXEC, fake_graph_copy(graph));
  return 0;
}

CUgraphExec fake_last_launched(void) {
  return (CUgraphExec)atomic_load_explicit(&last_launched, memory_order_relaxed);
}

ENTRY cuGraphLaunch(CUgraphExec executable, CUstream handle) {
  ENTER(graph_launch, CONTEXT);
  atomic_store_explicit(&last_launched, (uintptr_t)executable, memory_order_relaxed);
  fake_graph *graph = fake_object_get((uintptr_t)executable, FAKE_EXEC, false);
  fake_stream *stream = stream_of(handle);
  return graph && stream ? fake_stream_launch(stream, graph) : CUDA_ERROR_INVALID_HANDLE;
}

ENTRY cuGraphDestroy(CUgraph handle) {
  ENTER_LATE(graph_destroy, INITIALISED);
  fake_graph *graph = fake_object_remove((uintptr_t)handle, FAKE_GRAPH);
  if (!graph)
    return CUDA_ERROR_INVALID_HANDLE;
  fake_graph_release(graph);
  return failure;
}

ENTRY cuGraphExecDestroy(CUgraphExec handle) {
  ENTER_LATE(graph_exec_destroy, CONTEXT);
  fake_graph *graph = fake_object_remove((uintptr_t)handle, FAKE_EXEC);
  if (!graph)
    return CUDA_ERROR_INVALID_HANDLE;
  fake_graph_release(graph);
  return failure;
}

// ---- Events

ENTRY cuEventCreate(CUevent *event, unsigned flags) {
  ENTER(event_create, CONTEXT);
  if (flags & ~(unsigned)CU_EVENT_DISABLE_TIMING)
    return invalid("cuEventCreate with unknown flags");
  *event = (CUevent)(uintptr_t)fake_object_add(FAKE_EVENT, fake_event_new());
  return 0;
}

ENTRY cuEventDestroy_v2(CUevent handle) {
  ENTER_LATE(event_destroy, CONTEXT);
  fake_event *event = fake_object_remove((uintptr_t)handle, FAKE_EVENT);
  if (!event)
    return CUDA_ERROR_INVALID_HANDLE;
  fake_event_release(event);
  return failure;
}

ENTRY cuEventRecord(CUevent handle, CUstream stream_handle) {
  ENTER(event_record, CONTEXT);
  fake_event *event = fake_object_get((uintptr_t)handle, FAKE_EVENT, false);
  fake_stream *stream = stream_of(stream_handle);
  return event && stream ? fake_event_record(event, stream) : CUDA_ERROR_INVALID_HANDLE;
}

ENTRY cuEventSynchronize(CUevent handle) {
  ENTER_LATE(event_synchronize, NO_CAPTURE);
  fake_event *event = fake_object_get((uintptr_t)handle, FAKE_EVENT, !depth);
  if (!event)
    return CUDA_ERROR_INVALID_HANDLE;
  fake_event_wait(event);
  return failure ? failure : fake_fault();
}

// ---- Errors in words

static const struct {
  CUresult error;
  const char *name, *text;
} errors[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
    {CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
     "operation failed due to a previous error during capture"},
    {CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
     "attempt to terminate a thread-local capture sequence from another thread"},
    {CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

ENTRY cuGetErrorName(CUresult error, const char **text) {
  ENTER(error_name, NOTHING);
  *text = NULL;
  for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
    if (errors[i].error == error)
      *text = errors[i].name;
  return *text ? 0 : CUDA_ERROR_INVALID_VALUE;
}

ENTRY cuGetErrorString(CUresult error, const char **text) {
  ENTER(error_string, NOTHING);
  *text = NULL;
  for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
    if (errors[i].error == error)
      *text = errors[i].text;
  return *text ? 0 : CUDA_ERROR_INVALID_VALUE;
}
