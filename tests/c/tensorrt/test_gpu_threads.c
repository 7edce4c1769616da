// Several contexts of one engine in as many threads, on a fake that works beside its callers; contexts are also made
// and destroyed meanwhile. What the callers have current stays so.
#include "gpu_test.h"

#include <pthread.h>

enum { CALLERS = 5, RUNS = 30 };

typedef struct caller {
  infc_engine *engine;
  int64_t seed;
  int failures;
} caller;

static void *call(void *argument) {
  caller *self = argument;
  infc_context *context = NULL;
  for (int i = 0; i < RUNS; i++) {
    if (i % 10 == 0) {
      infc_context_destroy(context);
      if (infc_context_create(self->engine, NULL, &context, NULL, 0))
        return self->failures++, NULL;
    }
    int64_t batch = 1 + (self->seed * 7 + i * 5) % 16;
    art_run run = art_bind(context, &art_default, batch);
    infc_status status = i % 2 ? infc_run(context) : infc_run_async(context, NULL);
    self->failures += status || infc_context_wait(context) || !art_correct(&run, &art_default, batch);
    self->failures += fake_depth() != 0;
    art_free(&run);
  }
  infc_context_destroy(context);
  return NULL;
}

static void test_callers(const char *settings) {
  fake_reset();
  fake_configure(settings);
  size_t size;
  uint8_t *data = art_make_gpu(&art_default, &art_plan_default, 1, &size);
  infc_engine *engine = gpu_open(data, size, "cuda");
  caller callers[CALLERS];
  pthread_t handles[CALLERS];
  for (int i = 0; i < CALLERS; i++) {
    callers[i] = (caller){engine, i, 0};
    pthread_create(&handles[i], NULL, call, &callers[i]);
  }
  for (int i = 0; i < CALLERS; i++) {
    pthread_join(handles[i], NULL);
    CHECK(callers[i].failures == 0, "%s: caller %d: %d failures", settings, i, callers[i].failures);
  }
  infc_engine_close(engine);
  test_free(data);
  gpu_check_clean(settings);
}

// One context that two threads want.
static void *compete(void *argument) {
  infc_context *context = argument;
  intptr_t other = 0;
  for (int i = 0; i < 200; i++) {
    infc_status status = i % 3 ? infc_run(context) : infc_context_wait(context);
    other += status != INFC_STATUS_OK && status != INFC_STATUS_BUSY;
  }
  return (void *)other;
}

static void test_busy(void) {
  fake_reset();
  fake_configure("async=1");
  size_t size;
  uint8_t *data = art_make_gpu(&art_default, &art_plan_default, 1, &size);
  infc_engine *engine = gpu_open(data, size, "cuda");
  infc_context *context = gpu_context(engine);
  art_run run = art_bind(context, &art_default, 16);
  pthread_t handles[2];
  for (int i = 0; i < 2; i++)
    pthread_create(&handles[i], NULL, compete, context);
  for (int i = 0; i < 2; i++) {
    void *other;
    pthread_join(handles[i], &other);
    CHECK(!other);
  }
  CHECK(!infc_run(context) && art_correct(&run, &art_default, 16));
  infc_context_destroy(context);
  infc_engine_close(engine);
  art_free(&run);
  test_free(data);
  gpu_check_clean("busy");
}

int main(void) {
  test_callers("");
  test_callers("async=1");
  test_callers("async=1,delay=200");
  test_busy();
  return test_result();
}
