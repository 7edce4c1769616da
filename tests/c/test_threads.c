// Eight callers on one engine: contexts of their own, some sharing a pool; and one context that two threads want at
// once.
#include "artifact.h"

#include <pthread.h>

enum { CALLERS = 8, RUNS = 60 };

typedef struct caller {
  infc_engine *engine;
  infc_pool *pool;
  const art_toy *toy;
  int64_t seed;
  int failures;
} caller;

static void *call(void *argument) {
  caller *self = argument;
  infc_context_options options = {.struct_size = sizeof options, .pool = self->pool};
  infc_context *context;
  if (infc_context_create(self->engine, &options, &context, NULL, 0)) {
    self->failures++;
    return NULL;
  }
  for (int i = 0; i < RUNS; i++) {
    int64_t batch = 1 + (self->seed + i * 5) % 16;
    art_run run = art_bind(context, self->toy, batch);
    self->failures += infc_run(context) || !art_correct(&run, self->toy, batch);
    art_free(&run);
  }
  infc_context_destroy(context);
  return NULL;
}

static void test_callers(void) {
  size_t size;
  art_toy toy = art_default;
  toy.barriers = true;
  uint8_t *data = art_make(&toy, &size);
  infc_engine *engine;
  CHECK(!infc_engine_open_memory(data, size, NULL, &engine, NULL, 0));
  infc_pool *pools[3] = {NULL};
  infc_pool_options options = {.struct_size = sizeof options, .threads = 2};
  CHECK(!infc_pool_create(&options, &pools[1], NULL, 0));
  options.threads = 3;
  CHECK(!infc_pool_create(&options, &pools[2], NULL, 0));
  caller callers[CALLERS];
  pthread_t handles[CALLERS];
  for (int i = 0; i < CALLERS; i++) {
    callers[i] = (caller){engine, pools[i % 3], &toy, i, 0};
    pthread_create(&handles[i], NULL, call, &callers[i]);
  }
  for (int i = 0; i < CALLERS; i++) {
    pthread_join(handles[i], NULL);
    CHECK(callers[i].failures == 0, "caller %d: %d failures", i, callers[i].failures);
  }
  for (int i = 1; i < 3; i++)
    infc_pool_destroy(pools[i]);
  infc_engine_close(engine);
  test_free(data);
}

typedef struct rival {
  infc_context *context;
  int ok, busy, other;
} rival;

static void *compete(void *argument) {
  rival *self = argument;
  for (int i = 0; i < 300; i++) {
    infc_status status = infc_run(self->context);
    self->ok += status == INFC_STATUS_OK;
    self->busy += status == INFC_STATUS_BUSY;
    self->other += status != INFC_STATUS_OK && status != INFC_STATUS_BUSY;
  }
  return NULL;
}

static void test_busy(void) {
  size_t size;
  uint8_t *data = art_make(&art_default, &size);
  infc_engine *engine;
  infc_context *context;
  CHECK(!infc_engine_open_memory(data, size, NULL, &engine, NULL, 0));
  CHECK(!infc_context_create(engine, NULL, &context, NULL, 0));
  art_run run = art_bind(context, &art_default, 16);
  rival rivals[2] = {{.context = context}, {.context = context}};
  pthread_t handles[2];
  for (int i = 0; i < 2; i++)
    pthread_create(&handles[i], NULL, compete, &rivals[i]);
  for (int i = 0; i < 2; i++) {
    pthread_join(handles[i], NULL);
    CHECK(rivals[i].other == 0, "%d ok, %d busy", rivals[i].ok, rivals[i].busy);
  }
  CHECK(rivals[0].ok + rivals[1].ok > 0 && art_correct(&run, &art_default, 16));
  infc_context_destroy(context);
  infc_engine_close(engine);
  art_free(&run);
  test_free(data);
}

int main(void) {
  test_callers();
  test_busy();
  return test_result();
}
