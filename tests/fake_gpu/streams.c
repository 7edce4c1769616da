// Streams, graphs and events. Work is a closure: run at once, or by the stream's worker, or kept while capturing.
#include "fake_cuda.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct work {
  struct work *next;
  fake_kernel kernel;
  size_t size;
  _Alignas(16) uint8_t data[];
} work;

typedef struct queue {
  work *first, **end;
} queue;

struct fake_graph {
  atomic_uint references;
  pthread_mutex_t running; // launches of one graph take turns
  queue work;
};

struct fake_stream {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  queue work;
  bool async, busy, stop;
  pthread_t worker;
  // Capture, of the thread that began it alone.
  fake_graph *capture;
  bool spoiled;
};

struct fake_event {
  atomic_uint references;
  pthread_mutex_t lock;
  pthread_cond_t changed;
  uint64_t recorded, reached;
};

static atomic_int fault;
static _Thread_local fake_stream *capturing;

int fake_fault(void) {
  return atomic_load(&fault);
}

void fake_fault_reset(void) {
  atomic_store(&fault, 0);
}

// ---- Work

static void *checked(void *memory) {
  if (!memory)
    abort();
  return memory;
}

static work *work_new(fake_kernel kernel, const void *data, size_t size) {
  work *w = checked(malloc(sizeof *w + size));
  w->next = NULL;
  w->kernel = kernel;
  w->size = size;
  memcpy(w->data, data, size);
  return w;
}

static void append(queue *q, work *w) {
  if (!q->first)
    q->end = &q->first;
  *q->end = w;
  q->end = &w->next;
}

static work *take(queue *q) {
  work *w = q->first;
  q->first = w->next;
  return w;
}

static void perform(fake_kernel kernel, const void *data) {
  CUresult result = kernel(data);
  if (result)
    atomic_store(&fault, result);
}

// ---- Graphs

static fake_graph *graph_new(void) {
  fake_graph *graph = checked(calloc(1, sizeof *graph));
  atomic_init(&graph->references, 1);
  pthread_mutex_init(&graph->running, NULL);
  return graph;
}

fake_graph *fake_graph_copy(const fake_graph *graph) {
  fake_graph *copy = graph_new();
  for (const work *w = graph->work.first; w; w = w->next)
    append(&copy->work, work_new(w->kernel, w->data, w->size));
  return copy;
}

void fake_graph_release(fake_graph *graph) {
  if (atomic_fetch_sub(&graph->references, 1) > 1)
    return;
  while (graph->work.first)
    free(take(&graph->work));
  pthread_mutex_destroy(&graph->running);
  free(graph);
}

static CUresult run_graph(const void *data) {
  fake_graph *graph = *(fake_graph *const *)data;
  pthread_mutex_lock(&graph->running);
  for (const work *w = graph->work.first; w; w = w->next)
    perform(w->kernel, w->data);
  pthread_mutex_unlock(&graph->running);
  fake_graph_release(graph);
  return 0;
}

// ---- Streams

static void *serve(void *argument) {
  fake_stream *stream = argument;
  pthread_mutex_lock(&stream->lock);
  for (;;) {
    while (!stream->work.first && !stream->stop)
      pthread_cond_wait(&stream->changed, &stream->lock);
    if (!stream->work.first)
      break;
    work *w = take(&stream->work);
    stream->busy = true;
    pthread_mutex_unlock(&stream->lock);
    if (fake_set.delay)
      usleep((unsigned)fake_set.delay);
    perform(w->kernel, w->data);
    free(w);
    pthread_mutex_lock(&stream->lock);
    stream->busy = false;
    pthread_cond_broadcast(&stream->changed);
  }
  pthread_mutex_unlock(&stream->lock);
  return NULL;
}

fake_stream *fake_stream_new(void) {
  fake_stream *stream = checked(calloc(1, sizeof *stream));
  pthread_mutex_init(&stream->lock, NULL);
  pthread_cond_init(&stream->changed, NULL);
  stream->async = fake_set.async;
  if (stream->async && pthread_create(&stream->worker, NULL, serve, stream))
    abort();
  return stream;
}

void fake_stream_free(fake_stream *stream) {
  if (stream->async) {
    pthread_mutex_lock(&stream->lock);
    stream->stop = true;
    pthread_cond_broadcast(&stream->changed);
    pthread_mutex_unlock(&stream->lock);
    pthread_join(stream->worker, NULL);
  }
  if (stream->capture) {
    fake_misuse("a stream is destroyed while it captures");
    fake_graph_release(stream->capture);
    capturing = NULL;
  }
  pthread_cond_destroy(&stream->changed);
  pthread_mutex_destroy(&stream->lock);
  free(stream);
}

CUresult fake_stream_wait(fake_stream *stream) {
  pthread_mutex_lock(&stream->lock);
  while (stream->async && (stream->work.first || stream->busy))
    pthread_cond_wait(&stream->changed, &stream->lock);
  pthread_mutex_unlock(&stream->lock);
  return fake_fault();
}

bool fake_stream_capturing(fake_stream *stream) {
  return capturing == stream;
}

CUresult fake_stream_push(fake_stream *stream, fake_kernel kernel, const void *data, size_t size) {
  if (fake_fault())
    return fake_fault();
  if (capturing == stream && stream->spoiled)
    return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (capturing == stream)
    append(&stream->capture->work, work_new(kernel, data, size));
  else if (stream->async) {
    pthread_mutex_lock(&stream->lock);
    append(&stream->work, work_new(kernel, data, size));
    pthread_cond_broadcast(&stream->changed);
    pthread_mutex_unlock(&stream->lock);
  } else
    perform(kernel, data);
  return 0;
}

CUresult fake_stream_launch(fake_stream *stream, fake_graph *graph) {
  if (fake_stream_capturing(stream))
    return fake_forbidden("cuGraphLaunch"), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  atomic_fetch_add(&graph->references, 1);
  CUresult result = fake_stream_push(stream, run_graph, &graph, sizeof graph);
  if (result)
    fake_graph_release(graph);
  return result;
}

// ---- Capture

CUresult fake_stream_begin(fake_stream *stream) {
  if (capturing) {
    fake_misuse("a capture begins in another");
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  stream->capture = graph_new();
  stream->spoiled = false;
  capturing = stream;
  return 0;
}

CUresult fake_stream_end(fake_stream *stream, fake_graph **graph) {
  if (capturing != stream) {
    fake_misuse("a capture ends on a stream that does not capture in this thread");
    return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  }
  *graph = stream->capture;
  stream->capture = NULL;
  capturing = NULL;
  if (!stream->spoiled)
    return 0;
  fake_graph_release(*graph);
  return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
}

bool fake_forbidden(const char *call) {
  if (!capturing)
    return false;
  fake_misuse("%s while capturing", call);
  capturing->spoiled = true;
  return true;
}

// ---- Events

typedef struct reached {
  fake_event *event;
  uint64_t number;
} reached;

fake_event *fake_event_new(void) {
  fake_event *event = checked(calloc(1, sizeof *event));
  atomic_init(&event->references, 1);
  pthread_mutex_init(&event->lock, NULL);
  pthread_cond_init(&event->changed, NULL);
  return event;
}

void fake_event_release(fake_event *event) {
  if (atomic_fetch_sub(&event->references, 1) > 1)
    return;
  pthread_cond_destroy(&event->changed);
  pthread_mutex_destroy(&event->lock);
  free(event);
}

static CUresult reach(const void *data) {
  const reached *r = data;
  pthread_mutex_lock(&r->event->lock);
  r->event->reached = r->number;
  pthread_cond_broadcast(&r->event->changed);
  pthread_mutex_unlock(&r->event->lock);
  fake_event_release(r->event);
  return 0;
}

CUresult fake_event_record(fake_event *event, fake_stream *stream) {
  if (fake_stream_capturing(stream))
    return fake_forbidden("cuEventRecord"), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  pthread_mutex_lock(&event->lock);
  reached r = {event, ++event->recorded};
  pthread_mutex_unlock(&event->lock);
  atomic_fetch_add(&event->references, 1);
  CUresult result = fake_stream_push(stream, reach, &r, sizeof r);
  if (result)
    reach(&r);
  return result;
}

void fake_event_wait(fake_event *event) {
  pthread_mutex_lock(&event->lock);
  while (event->reached < event->recorded)
    pthread_cond_wait(&event->changed, &event->lock);
  pthread_mutex_unlock(&event->lock);
}
