// In the steady state a run is one launch of a graph: nothing is allocated, captured or copied besides.
#include "gpu_test.h"

#include <malloc.h>

#ifdef __SANITIZE_THREAD__
enum { RUNS = 1000 };
#else
enum { RUNS = 10000 };
#endif

// Calls that a run may make, and how many there may be in one.
static const struct {
  const char *call;
  uint64_t most;
} allowed[] = {
    {"cuGraphLaunch", 1},       {"cuCtxPushCurrent_v2", 2}, {"cuCtxPopCurrent_v2", 2},
    {"cuStreamSynchronize", 1}, {"cuEventRecord", 1},       {"cuEventSynchronize", 1},
};

static void check_calls(const char *what, const uint64_t *before) {
  const char *call;
  uint64_t count;
  for (uint32_t i = 0; (call = fake_called(i, &count)); i++) {
    uint64_t most = 0;
    for (size_t j = 0; j < sizeof allowed / sizeof *allowed; j++)
      most = strcmp(call, allowed[j].call) ? most : allowed[j].most * RUNS;
    uint64_t made = count - before[i];
    bool launch = !strcmp(call, "cuGraphLaunch");
    CHECK(launch ? made == RUNS : made <= most, "%s: %llu calls of %s", what, (unsigned long long)made, call);
  }
}

#if !defined __SANITIZE_ADDRESS__ && !defined __SANITIZE_THREAD__
static size_t allocated(void) {
  return mallinfo2().uordblks;
}
#else
static size_t allocated(void) {
  return 0;
}
#endif

static void run_steadily(infc_context *context, bool async, int64_t batch) {
  char what[64];
  snprintf(what, sizeof what, "batch %d%s", (int)batch, async ? ", async" : "");
  art_run run = art_bind(context, &art_default, batch);
  CHECK(!infc_run(context) && art_correct(&run, &art_default, batch), "%s", infc_context_error(context));
  uint64_t before[128] = {0};
  for (uint32_t i = 0; i < 128 && fake_called(i, &before[i]); i++)
    ;
  uint32_t live = fake_live();
  size_t bytes = allocated();
  int wrong = 0;
  for (int i = 0; i < RUNS; i++) {
    run.x[i % (batch * 8)] = (float)i;
    if (async)
      wrong += infc_run_async(context, NULL) || infc_context_wait(context);
    else
      wrong += infc_run(context) != INFC_STATUS_OK;
    wrong += i % 100 == 0 && !art_correct(&run, &art_default, batch);
  }
  CHECK(!wrong, "%s: %d runs went wrong: %s", what, wrong, infc_context_error(context));
  check_calls(what, before);
  CHECK(fake_live() == live && allocated() == bytes, "%s: %u objects, %zu bytes more", what, fake_live() - live,
        allocated() - bytes);
  art_free(&run);
}

// Counts, and forbids while `closed`.
typedef struct book {
  int live;
  bool closed;
} book;

static void *booked_alloc(void *user, size_t size, size_t alignment) {
  book *b = user;
  void *memory;
  CHECK(!b->closed, "a run allocates");
  b->live++;
  return posix_memalign(&memory, alignment, size) ? NULL : memory;
}

static void booked_free(void *user, void *memory) {
  book *b = user;
  CHECK(!b->closed, "a run frees");
  b->live--;
  free(memory);
}

int main(void) {
  size_t size;
  uint8_t *data = art_make_gpu(&art_default, &art_plan_default, 1, &size);
  book b = {0, false};
  infc_allocator allocator = {booked_alloc, booked_free, &b};
  infc_engine_options engine_options = {.struct_size = sizeof engine_options, .allocator = &allocator};
  infc_context_options options = {.struct_size = sizeof options, .allocator = &allocator};
  infc_engine *engine;
  infc_context *context;
  char why[512] = "";
  CHECK(!infc_engine_open_memory(data, size, &engine_options, &engine, why, sizeof why), "%s", why);
  CHECK(!strcmp(infc_engine_device(engine), "cuda:0"), "%s", infc_engine_note(engine));
  CHECK(!infc_context_create(engine, &options, &context, why, sizeof why), "%s", why);
  b.closed = true;
  run_steadily(context, false, 4);
  run_steadily(context, true, 16);
  run_steadily(context, false, 7);
  b.closed = false;
  infc_context_destroy(context);
  infc_engine_close(engine);
  CHECK(b.live == 0, "%d allocations", b.live);
  test_free(data);
  gpu_check_clean("steady");
  return test_result();
}
