// What the files of the fake driver share.
#ifndef INFC_FAKE_CUDA_H
#define INFC_FAKE_CUDA_H

#include "fake.h"

#include <pthread.h>

enum { FAKE_MAX_DEVICES = 8, FAKE_MAX_DEPTH = 16 };

typedef struct fake_settings {
  int devices, driver;
  int sms[FAKE_MAX_DEVICES];
  int64_t memory;
  bool async;
  int delay; // microseconds
} fake_settings;

extern fake_settings fake_set;

// ---- objects.c

typedef struct fake_memory_block {
  uint8_t *base;
  size_t size;
  int device; // -1: pinned memory of the host
} fake_memory_block;

// Address of the host, NULL if there are too few bytes.
void *fake_block_add(size_t size, int device);
bool fake_block_remove(void *base, bool pinned);
CUdeviceptr fake_device_address(const void *base);
int64_t fake_memory_used(int device);
// Objects and memory of a device.
uint32_t fake_live_on(int device);

// ---- streams.c

typedef struct fake_stream fake_stream;
typedef struct fake_event fake_event;
typedef struct fake_graph fake_graph;

fake_stream *fake_stream_new(void);
void fake_stream_free(fake_stream *stream);
CUresult fake_stream_wait(fake_stream *stream);
bool fake_stream_capturing(fake_stream *stream);
CUresult fake_stream_push(fake_stream *stream, fake_kernel kernel, const void *data, size_t size);
CUresult fake_stream_begin(fake_stream *stream);
CUresult fake_stream_end(fake_stream *stream, fake_graph **graph);
CUresult fake_stream_launch(fake_stream *stream, fake_graph *graph);
// Spoils the calling thread's capture, if it has one: true.
bool fake_forbidden(const char *call);

fake_event *fake_event_new(void);
void fake_event_release(fake_event *event);
CUresult fake_event_record(fake_event *event, fake_stream *stream);
void fake_event_wait(fake_event *event);

fake_graph *fake_graph_copy(const fake_graph *graph);
void fake_graph_release(fake_graph *graph);

// What a kernel failed with: every later launch and wait reports it, as a real context does. 0: none.
int fake_fault(void);
void fake_fault_reset(void);

#endif // INFC_FAKE_CUDA_H
