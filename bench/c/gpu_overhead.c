// What a run on a GPU costs besides the GPU's work: infc_run and infc_run_async with infc_context_wait, on the fake
// driver, less the driver's calls that any caller makes for a launch and a wait. Prints nanoseconds.
#include "tensorrt/gpu_test.h"

#include <time.h>

enum { REPEATS = 2000, RUNS = 50 };

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

typedef struct bench {
  infc_context *context;
  CUcontext primary;
  CUstream stream;
  CUevent event;
  CUgraphExec graph;
} bench;

static int with_infc(bench *b) {
  return infc_run(b->context);
}

static int with_infc_async(bench *b) {
  return infc_run_async(b->context, b->stream) || infc_context_wait(b->context);
}

static int by_hand(bench *b) {
  CUcontext popped;
  return driver_context_push(b->primary) || driver_graph_launch(b->graph, b->stream) ||
         driver_event_record(b->event, b->stream) || driver_event_synchronize(b->event) || driver_context_pop(&popped);
}

// The least of several means: others share the machine. Taken in turns, so that they see the same machine.
static void measure(bench *b, int (*const calls[])(bench *), double *best, int count) {
  for (int i = 0; i < count; i++)
    best[i] = 1e18;
  for (int repeat = 0; repeat < REPEATS; repeat++)
    for (int i = 0; i < count; i++) {
      double start = now();
      for (int j = 0; j < RUNS; j++)
        if (calls[i](b))
          exit(1);
      double mean = (now() - start) / RUNS;
      best[i] = mean < best[i] ? mean : best[i];
    }
}

// The work by hand is that of the toy's own graph, captured once more: the toy's copies and its run cost what they
// cost.
static void bench_batch(bench *b, int64_t batch, const art_toy *toy) {
  art_run run = art_bind(b->context, toy, batch);
  if (infc_run(b->context))
    exit(1);
  b->graph = fake_last_launched();
  double best[3];
  measure(b, (int (*const[])(bench *)){by_hand, with_infc, with_infc_async}, best, 3);
  printf("batch %2d: driver's calls %.0f ns; infc_run adds %.0f ns, run_async and wait add %.0f ns\n", (int)batch,
         best[0], best[1] - best[0], best[2] - best[0]);
  art_free(&run);
}

int main(void) {
  art_toy toy = art_default;
  toy.negations = 0;
  size_t size;
  uint8_t *data = art_make_gpu(&toy, &art_plan_default, 1, &size);
  infc_engine *engine = gpu_open(data, size, "cuda");
  bench b = {.context = gpu_context(engine)};
  CUcontext popped;
  if (test_failures || driver_primary_retain(&b.primary, 0) || driver_context_push(b.primary) ||
      driver_stream_create(&b.stream, CU_STREAM_NON_BLOCKING) || driver_event_create(&b.event, CU_EVENT_DISABLE_TIMING))
    return 1;
  bench_batch(&b, 4, &toy);
  bench_batch(&b, 16, &toy);
  bench_batch(&b, 7, &toy);
  infc_context_destroy(b.context);
  infc_engine_close(engine);
  driver_event_destroy(b.event);
  driver_stream_destroy(b.stream);
  driver_context_pop(&popped);
  driver_primary_release(0);
  test_free(data);
  return test_result();
}
