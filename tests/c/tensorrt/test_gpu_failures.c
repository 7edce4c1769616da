// Each call of the driver and of TensorRT fails in turn, and each allocation: a status, a line that names the call,
// nothing left behind, and whoever goes on gets right results.
#include "gpu_test.h"

#include <ctype.h>

static size_t size;
static uint8_t *data;

// Counts down to an allocation that fails; -1: none.
typedef struct budget {
  int left, live;
} budget;

static void *limited_alloc(void *user, size_t bytes, size_t alignment) {
  budget *b = user;
  void *memory;
  if (b->left-- == 0 || posix_memalign(&memory, alignment, bytes))
    return NULL;
  memset(memory, 0xCD, bytes);
  b->live++;
  return memory;
}

static void limited_free(void *user, void *memory) {
  ((budget *)user)->live--;
  free(memory);
}

typedef struct failure {
  infc_status status; // the first
  char why[512];
  bool fell_back;
  bool in_use; // it came before the end of the context, where there is nobody to tell
} failure;

static void note(failure *f, infc_status status, const char *why) {
  if (status && !f->status) {
    f->status = status;
    snprintf(f->why, sizeof f->why, "%s", why);
  }
}

// A run, and once again if it failed: a failure does not stay.
static void run(failure *f, infc_context *context, const art_run *run, int64_t batch, bool async) {
  infc_status status = async ? infc_run_async(context, NULL) : infc_run(context);
  note(f, status, infc_context_error(context));
  if (async && !status) {
    status = infc_context_wait(context);
    note(f, status, infc_context_error(context));
  }
  if (status)
    CHECK(!infc_run(context), "again: %s", infc_context_error(context));
  CHECK(art_correct(run, &art_default, batch), "wrong after: %s", f->why);
}

static art_run bind(failure *f, infc_context *context, int64_t batch) {
  // A failed wait for a run in flight may show here, once.
  infc_status status = infc_context_wait(context);
  note(f, status, infc_context_error(context));
  return art_bind(context, &art_default, batch);
}

static void use(failure *f, infc_context *context) {
  art_run small = bind(f, context, 4), large, middle;
  run(f, context, &small, 4, false);
  run(f, context, &small, 4, true);
  large = bind(f, context, 16);
  run(f, context, &large, 16, true);
  middle = bind(f, context, 9);
  run(f, context, &middle, 9, false);
  note(f, infc_run_async(context, NULL), infc_context_error(context)); // in flight when the context goes
  f->in_use = fake_failed();
  infc_context_destroy(context);
  art_free(&small);
  art_free(&large);
  art_free(&middle);
}

static failure life(const char *device, budget *b) {
  infc_allocator allocator = {limited_alloc, limited_free, b};
  infc_engine_options engine_options = {
      .struct_size = sizeof engine_options, .allocator = &allocator, .device = device};
  infc_context_options context_options = {.struct_size = sizeof context_options, .allocator = &allocator};
  infc_engine *engine = NULL;
  infc_context *context = NULL;
  failure f = {0};
  char why[512] = "";
  note(&f, infc_engine_open_memory(data, size, &engine_options, &engine, why, sizeof why), why);
  if (!f.status && !strcmp(infc_engine_device(engine), "cpu")) {
    f.fell_back = true;
    snprintf(f.why, sizeof f.why, "%s", infc_engine_note(engine));
  } else if (!f.status) {
    infc_status status = infc_context_create(engine, &context_options, &context, why, sizeof why);
    note(&f, status, why);
    if (status) // the engine is as it was
      CHECK(!infc_context_create(engine, &context_options, &context, why, sizeof why), "again: %s", why);
    use(&f, context);
  }
  infc_engine_close(engine);
  CHECK(!b->live, "%d allocations are left", b->live);
  return f;
}

// Their failure at the end of something is nobody's concern.
static bool may_be_ignored(const char *call) {
  const char *parts[] = {"Destroy", "Free", "Release", "PopCurrent", "GetErrorName", "GetErrorString"};
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
    if (strstr(call, parts[i]))
      return true;
  return false;
}

static bool is_line(const char *text) {
  for (const char *c = text; *c; c++)
    if (!isprint((unsigned char)*c))
      return false;
  return *text;
}

static void fail_call(const char *call, uint64_t occurrence, int result, const char *device) {
  budget b = {-1, 0};
  char what[128];
  snprintf(what, sizeof what, "%s, call %d, result %d", call, (int)occurrence, result);
  fake_reset();
  fake_fail(call, occurrence, result);
  failure f = life(device, &b);
  bool noticed = f.status || f.fell_back;
  CHECK(fake_failed(), "%s: was not made", what);
  CHECK(noticed || !f.in_use || may_be_ignored(call), "%s: ignored", what);
  CHECK(!noticed || (is_line(f.why) && strstr(f.why, call)), "%s: '%s'", what, f.why);
  CHECK(!f.status || f.status == INFC_STATUS_OUT_OF_MEMORY || f.status == INFC_STATUS_DEVICE ||
            f.status == INFC_STATUS_INCOMPATIBLE || f.status == INFC_STATUS_BAD_ARTIFACT,
        "%s: status %d", what, f.status);
  gpu_check_clean(what);
  CHECK(fake_depth() == 0 || strstr(call, "Pop"), "%s: a context stays current", what);
}

// Names and counts of a life in which nothing fails.
typedef struct census {
  const char *call;
  uint64_t count;
} census;

static uint32_t count_calls(census *calls) {
  budget b = {-1, 0};
  fake_reset();
  failure f = life("cuda", &b);
  CHECK(!f.status, "%s", f.why);
  gpu_check_clean("nothing fails");
  uint32_t count = 0;
  while (count < 128 && (calls[count].call = fake_called(count, &calls[count].count)))
    count++;
  return count;
}

static void test_calls(void) {
  census calls[128];
  uint32_t count = count_calls(calls), made = 0;
  for (uint32_t i = 0; i < count; i++) {
    bool driver = !strncmp(calls[i].call, "cu", 2);
    int results[] = {driver ? CUDA_ERROR_UNKNOWN : 1, driver ? CUDA_ERROR_OUT_OF_MEMORY : 3};
    for (uint64_t n = 1; n <= calls[i].count; n++, made++)
      for (int r = 0; r < 2; r++) {
        fail_call(calls[i].call, n, results[r], "cuda");
        fail_call(calls[i].call, n, results[r], NULL);
      }
  }
  CHECK(made > 60, "%u calls", made);
}

static void test_allocations(void) {
  int failing = 0;
  for (;; failing++) {
    budget b = {failing, 0};
    fake_reset();
    failure f = life("cuda", &b);
    gpu_check_clean("an allocation fails");
    if (!f.status)
      break;
    if (!CHECK(f.status == INFC_STATUS_OUT_OF_MEMORY && strstr(f.why, "out of memory"), "allocation %d: %s", failing,
               f.why) ||
        failing > 100)
      break;
  }
  CHECK(failing >= 5, "%d allocations", failing);
}

// Without words for an error its number is told.
static void test_speechless(void) {
  const char *speech[] = {"cuGetErrorName", "cuGetErrorString"};
  for (int i = 0; i < 2; i++) {
    budget b = {-1, 0};
    fake_reset();
    fake_configure("memory=1000000");
    fake_fail(speech[i], 1, CUDA_ERROR_INVALID_VALUE);
    fake_configure("memory=100");
    failure f = life("cuda", &b);
    CHECK(f.status == INFC_STATUS_OUT_OF_MEMORY && is_line(f.why), "%d %s", f.status, f.why);
    gpu_check_clean(speech[i]);
  }
  fake_configure("");
}

int main(void) {
  art_toy toy = art_default;
  toy.isas[0] = INFC_ISA_SCALAR;
  data = art_make_gpu(&toy, &art_plan_default, 1, &size);
  test_calls();
  test_allocations();
  test_speechless();
  fake_configure("async=1,delay=50");
  test_calls();
  test_free(data);
  return test_result();
}
