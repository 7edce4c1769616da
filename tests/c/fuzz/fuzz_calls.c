// Coverage-guided: bytes as a sequence of calls of the C API, with arguments that are right, wrong or absent, in any
// order that the header allows, on the CPU and on the fake GPU. See replay.h for how it runs without libFuzzer.
#include "drive.h"
#include "replay.h"
#include "tensorrt/gpu_test.h"

enum { ENGINES = 2, CONTEXTS = 3, ROOM = 4096, DEVICE_BUFFERS = 4, MOST_CALLS = 256 };

typedef struct world {
  const uint8_t *at, *end; // bytes left
  infc_engine *engines[ENGINES];
  infc_context *contexts[CONTEXTS];
  infc_pool *pool;
  CUdeviceptr device[DEVICE_BUFFERS]; // of ROOM bytes
  _Alignas(64) uint8_t in[ROOM], out[CONTEXTS][INFC_MAX_DIMS][ROOM / 4];
} world;

static uint8_t take(world *w) {
  return w->at < w->end ? *w->at++ : 0;
}

// Mostly small; at times as large as they come.
static int64_t take_size(world *w) {
  static const int64_t odd[] = {0, -1, 1ll << 31, 1ll << 40, INT64_MAX, INT64_MIN, UINT32_MAX, 1000};
  uint8_t byte = take(w);
  return byte < 200 ? byte % 24 : odd[byte % 8];
}

static const char *take_name(world *w) {
  static const char *const names[] = {"x",   "mask",    "y",    "",       "input_ids", "\xff\xfe",
                                      "cpu", "cuda:99", "auto", "scalar", "cuda"};
  return names[take(w) % 11];
}

static infc_engine *engine_of(world *w) {
  return w->engines[take(w) % ENGINES];
}

static infc_context *context_of(world *w) {
  return w->contexts[take(w) % CONTEXTS];
}

// Whatever happened, texts end within their buffer and nothing is returned through `out` on failure.
static void check_failure(infc_status status, const void *out, const char *why, size_t size) {
  CHECK(infc_status_string(status) && memchr(why, 0, size), "text without an end");
  CHECK(!status || !out, "a failure gives an object");
}

// The toy for the CPU, or for both.
static const uint8_t *artifact(bool gpu, size_t *size) {
  static uint8_t *made[2];
  static size_t sizes[2];
  if (!made[gpu])
    made[gpu] =
        gpu ? art_make_gpu(&art_default, &art_plan_default, 1, &sizes[gpu]) : art_make(&art_default, &sizes[gpu]);
  *size = sizes[gpu];
  return made[gpu];
}

static void open_engine(world *w) {
  size_t size;
  infc_engine **slot = &w->engines[take(w) % ENGINES];
  infc_engine_options options = {.struct_size = sizeof options};
  char why[64] = "";
  uint8_t bits = take(w);
  const uint8_t *data = artifact(bits & 128, &size);
  infc_allocator allocator = {capped_alloc, capped_free, NULL};
  options.allocator = bits & 1 ? &allocator : NULL;
  options.device = bits & 2 ? take_name(w) : "cpu";
  options.isa = bits & 4 ? take_name(w) : NULL;
  if (bits & 8)
    options.struct_size = take(w) % (sizeof options / sizeof(void *) + 1) * sizeof(void *); // as an older caller's
  infc_engine *engine = NULL;
  infc_status status = infc_engine_open_memory(bits & 16 ? NULL : data, bits & 32 ? size - take(w) : size,
                                               bits & 64 ? NULL : &options, &engine, why, sizeof why);
  check_failure(status, engine, why, sizeof why);
  infc_engine_close(*slot); // contexts keep it alive
  *slot = engine;
}

static void open_file(world *w) {
  infc_engine *engine = NULL;
  char why[64] = "";
  infc_status status = infc_engine_open(take(w) % 2 ? "/dev/null" : take_name(w), NULL, &engine, why, sizeof why);
  check_failure(status, engine, why, sizeof why);
  infc_engine_close(engine);
}

static void ask_engine(world *w) {
  infc_engine *engine = engine_of(w);
  if (!engine)
    return;
  infc_tensor_info info = {.struct_size = sizeof info};
  const void *data = NULL;
  size_t size = 0;
  char why[64] = "";
  uint32_t index = (uint32_t)take_size(w);
  switch (take(w) % 8) {
  case 0:
    if (!infc_engine_input(engine, index, take(w) % 8 ? &info : NULL))
      CHECK(infc_engine_find_input(engine, info.name) >= 0, "an input is not found by its name");
    break;
  case 1:
    if (!infc_engine_output(engine, index, &info))
      CHECK(infc_engine_find_output(engine, info.name) >= 0, "an output is not found by its name");
    break;
  case 2:
    infc_engine_find_input(engine, take_name(w));
    break;
  case 3:
    infc_engine_find_output(engine, take_name(w));
    break;
  case 4:
    infc_engine_profile_size(engine, index, (uint32_t)take_size(w));
    break;
  case 5:
    if (index < infc_engine_symbol_count(engine))
      CHECK(infc_engine_symbol(engine, index) != NULL, "a dimension has no name");
    break;
  case 6:
    if (!infc_engine_section(engine, (infc_section_kind)index, &data, &size) && data)
      infc_crc32(data, size);
    break;
  default:
    infc_engine_verify(engine, why, sizeof why);
    CHECK(infc_engine_isa(engine) && infc_engine_device(engine) && infc_engine_note(engine), "no text");
    CHECK(infc_version() && infc_cpu_isa(), "no text");
  }
}

static void create_context(world *w) {
  infc_engine *engine = engine_of(w);
  infc_context **slot = &w->contexts[take(w) % CONTEXTS];
  infc_context_options options = {.struct_size = sizeof options};
  uint8_t bits = take(w);
  infc_allocator allocator = {capped_alloc, capped_free, NULL};
  options.pool = bits & 1 ? w->pool : NULL;
  options.allocator = bits & 4 ? &allocator : NULL;
  infc_context *context = NULL;
  char why[64] = "";
  infc_status status = infc_context_create(engine, bits & 2 ? NULL : &options, &context, why, sizeof why);
  check_failure(status, context, why, sizeof why);
  infc_context_destroy(*slot);
  *slot = context;
}

static void create_pool(world *w) {
  infc_allocator allocator = {capped_alloc, capped_free, NULL};
  infc_pool_options options = {
      .struct_size = sizeof options, .threads = take(w) % 4, .spin_us = take(w), .allocator = &allocator};
  for (int i = 0; i < CONTEXTS; i++) { // none may use it any more
    infc_context_destroy(w->contexts[i]);
    w->contexts[i] = NULL;
  }
  infc_pool_destroy(w->pool);
  w->pool = NULL;
  if (!infc_pool_create(&options, &w->pool, NULL, 0))
    CHECK(infc_pool_threads(w->pool) >= 1, "a pool without threads");
}

// Sizes are the caller's to get right: what is bound has them, or is refused.
static void bind_input(world *w) {
  infc_context *context = context_of(w);
  int64_t dims[INFC_MAX_DIMS];
  uint32_t index = (uint32_t)take_size(w), rank = take(w) % (INFC_MAX_DIMS + 1);
  double elements = 1;
  for (uint32_t d = 0; d < rank; d++) {
    dims[d] = take_size(w);
    elements *= dims[d] > 0 ? (double)dims[d] : 1;
  }
  if (context && elements * sizeof(int64_t) <= ROOM)
    infc_context_bind_input(context, index, take(w) % 16 ? w->in : NULL, take(w) % 16 ? dims : NULL, rank);
}

static void bind_output(world *w) {
  uint8_t slot = take(w) % CONTEXTS;
  uint32_t index = (uint32_t)take_size(w);
  if (w->contexts[slot])
    infc_context_bind_output(w->contexts[slot], index, take(w) % 16 ? w->out[slot][index % INFC_MAX_DIMS] : NULL,
                             take(w) % 8 ? ROOM / 4 : take(w));
}

// One buffer may serve several tensors.
static void bind_device(world *w) {
  infc_context *context = context_of(w);
  uint8_t bits = take(w), rank = take(w) % 3;
  uint32_t index = bits / 32;
  uint64_t memory = take(w) % 16 ? w->device[bits % DEVICE_BUFFERS] : (uint64_t)take_size(w);
  int64_t dims[] = {take(w) % 17, take(w) % 9};
  if (context && bits & 4)
    infc_context_bind_output_device(context, index, memory, take(w) % 8 ? ROOM / 4 : take(w));
  else if (context)
    infc_context_bind_input_device(context, index, memory, dims, rank);
}

static uint64_t traced_sum;

// Reads what a traced step wrote: rows are dense, row_stride elements apart.
static void traced(void *user, const infc_traced *value) {
  uint64_t *sum = user;
  CHECK(value->name && value->kernel && value->rank <= INFC_MAX_DIMS, "a step that is none");
  if (value->rank > 0 && value->dims[0] > 0 && value->data)
    *sum += *(const uint8_t *)value->data;
}

static void watch(infc_context *context, uint32_t index) {
  infc_drift drift = {.struct_size = sizeof drift};
  CHECK(infc_context_memory(context) > 0, "a context without memory");
  infc_context_set_watch(context, index);
  if (!infc_context_drift(context, index, &drift))
    CHECK(index < infc_context_drift_count(context) && drift.beyond <= drift.values, "a layer that is none");
}

static void use_context(world *w) {
  infc_context *context = context_of(w);
  infc_step_time time = {.struct_size = sizeof time};
  int64_t dims[INFC_MAX_DIMS];
  uint32_t rank, index = (uint32_t)take_size(w);
  uint8_t kind = take(w) % 8;
  if (!context)
    return;
  if (kind == 0)
    infc_context_output_dims(context, index, dims, &rank);
  else if (kind == 1)
    infc_context_set_timing(context, take(w) % 2);
  else if (kind == 2 && !infc_context_step_time(context, index, &time))
    CHECK(index < infc_context_step_count(context) && time.name && time.kernel, "a step that is none");
  else if (kind == 3)
    infc_context_set_trace(context, take(w) % 2 ? traced : NULL, &traced_sum);
  else if (kind < 6)
    infc_run_async(context, NULL);
  else if (kind == 6)
    infc_context_wait(context);
  else
    watch(context, index);
  CHECK(infc_context_error(context) != NULL, "no text");
}

static void one_call(world *w) {
  switch (take(w) % 12) {
  case 0:
    open_engine(w);
    break;
  case 1:
    ask_engine(w);
    break;
  case 2:
    create_context(w);
    break;
  case 3:
    if (take(w) % 4 == 0)
      create_pool(w);
    break;
  case 4:
  case 5:
    bind_input(w);
    break;
  case 6:
    bind_output(w);
    break;
  case 7:
    infc_run(context_of(w));
    break;
  case 8:
  case 9:
    use_context(w);
    break;
  case 10:
    bind_device(w);
    break;
  default:
    if (take(w) % 8 == 0)
      open_file(w);
  }
}

// What a caller has who uses the GPU beside infc.
static void open_device(world *w) {
  CUcontext context;
  CHECK(!driver_init(0) && !driver_primary_retain(&context, 0) && !driver_context_push(context), "no fake GPU");
  for (int i = 0; i < DEVICE_BUFFERS; i++)
    CHECK(!driver_memory_alloc(&w->device[i], ROOM), "no memory on the fake GPU");
}

static void close_device(world *w) {
  CUcontext context;
  for (int i = 0; i < DEVICE_BUFFERS; i++)
    CHECK(!driver_memory_free(w->device[i]), "not freed on the fake GPU");
  CHECK(!driver_context_pop(&context) && !driver_primary_release(0), "another context than the caller's");
}

static bool fuzz_change(uint8_t *data, size_t size, test_rng *rng) {
  (void)data;
  (void)size;
  (void)rng;
  return false;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  world w = {.at = data, .end = data + size};
  open_device(&w);
  open_engine(&w);
  create_context(&w);
  for (int i = 0; i < MOST_CALLS && w.at < w.end; i++)
    one_call(&w);
  for (int i = 0; i < CONTEXTS; i++)
    infc_context_destroy(w.contexts[i]);
  for (int i = 0; i < ENGINES; i++)
    infc_engine_close(w.engines[i]);
  infc_pool_destroy(w.pool);
  close_device(&w);
  gpu_check_clean("after the calls");
  fake_reset();
  return fuzz_result();
}
