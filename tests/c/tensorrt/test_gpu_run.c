// What a GPU engine computes is what the CPU engine computes: all profiles and sizes, memory of the host and of the
// device, the caller's streams.
#include "gpu_test.h"

typedef struct device {
  CUcontext context;
  CUstream stream;
} device;

static device device_open(void) {
  device d;
  CHECK(!driver_init(0) && !driver_primary_retain(&d.context, 0) && !driver_context_push(d.context) &&
        !driver_stream_create(&d.stream, CU_STREAM_NON_BLOCKING));
  return d;
}

static void device_close(device *d) {
  CUcontext popped;
  CHECK(!driver_stream_destroy(d->stream) && !driver_context_pop(&popped) && popped == d->context &&
        !driver_primary_release(0));
}

static CUdeviceptr to_device(const device *d, const void *data, size_t size) {
  CUdeviceptr memory;
  CHECK(!driver_memory_alloc(&memory, size) && !driver_copy_in(memory, data, size, d->stream) &&
        !driver_stream_synchronize(d->stream));
  return memory;
}

static void from_device(const device *d, CUdeviceptr memory, void *data, size_t size) {
  CHECK(!driver_copy_out(data, memory, size, d->stream) && !driver_stream_synchronize(d->stream));
}

static void check_sizes(const art_toy *toy, const art_plan *plans, uint32_t plan_count, const char *name) {
  fake_reset();
  size_t size;
  uint8_t *data = art_make_gpu(toy, plans, plan_count, &size);
  infc_engine *engine = gpu_open(data, size, "cuda");
  CHECK(!strcmp(infc_engine_device(engine), "cuda:0") && !*infc_engine_isa(engine) && !*infc_engine_note(engine));
  infc_context *context = gpu_context(engine);
  CHECK(infc_context_memory(context) > 0 && infc_context_step_count(context) == 0);
  for (int round = 0; round < 2; round++)
    for (int64_t batch = 16; batch >= 1; batch -= round ? 3 : 1) {
      if (toy->policy == INFC_DIM_EXACT && batch != 4 && batch != 16)
        continue;
      art_run run = art_bind(context, toy, batch);
      if (CHECK(!infc_run(context), "%s: batch %d: %s", name, (int)batch, infc_context_error(context)))
        CHECK(art_correct(&run, toy, batch), "%s: batch %d", name, (int)batch);
      art_free(&run);
    }
  infc_context_destroy(context);
  infc_engine_close(engine);
  test_free(data);
  gpu_check_clean(name);
}

static void test_sizes(void) {
  check_sizes(&art_default, &art_plan_default, 1, "one plan");
  art_toy exact = art_default;
  exact.policy = INFC_DIM_EXACT;
  check_sizes(&exact, &art_plan_default, 1, "exact");
  art_toy alone = art_default;
  alone.isa_count = 0;
  check_sizes(&alone, &art_plan_default, 1, "no programs");
  // A plan a profile, and each set of SMs its own: only those of SM 89 compute the toy.
  art_toy wrong = art_default;
  wrong.negations = 2;
  art_plan plans[4] = {art_plan_default, art_plan_default, art_plan_default, art_plan_default};
  for (uint32_t i = 0; i < 4; i++) {
    plans[i].sms[0] = i % 2 ? 89 : 86;
    plans[i].sms[1] = i % 2 ? 120 : 0;
    plans[i].profiles[0] = i / 2;
    plans[i].profile_count = 1;
    plans[i].engine = i % 2 ? NULL : &wrong;
  }
  wrong.profiles[1] = 0;
  check_sizes(&art_default, plans, 4, "a plan a profile");
  // Of two plans for a device the first is taken.
  wrong.profiles[1] = art_default.profiles[1];
  art_plan twice[2] = {art_plan_default, art_plan_default};
  twice[1].engine = &wrong;
  check_sizes(&art_default, twice, 2, "two plans");
  art_toy larger_first = art_default;
  larger_first.profiles[0] = 16;
  larger_first.profiles[1] = 4;
  check_sizes(&larger_first, &art_plan_default, 1, "larger first");
  // Optimisation profiles in another order than the artifact's.
  art_plan turned = art_plan_default;
  turned.profiles[0] = 1;
  turned.profiles[1] = 0;
  check_sizes(&art_default, &turned, 1, "turned");
}

// A new size or address is captured anew once; going on with the same is not.
static void test_rebinding(void) {
  fake_reset();
  size_t size;
  uint8_t *data = art_make_gpu(&art_default, &art_plan_default, 1, &size);
  infc_engine *engine = gpu_open(data, size, NULL);
  infc_context *context = gpu_context(engine);
  art_run small = art_bind(context, &art_default, 3), large;
  CHECK(!infc_run(context) && art_correct(&small, &art_default, 3));
  large = art_bind(context, &art_default, 16);
  CHECK(!infc_run(context) && art_correct(&large, &art_default, 16));
  // Values change without a bind.
  for (int i = 0; i < 16 * 8; i++)
    large.x[i] = (float)(i * i);
  CHECK(!infc_run(context) && art_correct(&large, &art_default, 16));
  // An optional input is bound and unbound again.
  float bias[8] = {0, 1, 2, 3, 4, 5, 6, 7};
  CHECK(!infc_context_bind_input(context, ART_BIAS, bias, (int64_t[]){8}, 1) && !infc_run(context));
  CHECK(large.y[11] == -(large.x[11] + 3), "%g", (double)large.y[11]);
  CHECK(!infc_context_bind_input(context, ART_BIAS, NULL, NULL, 0) && !infc_run(context) &&
        art_correct(&large, &art_default, 16));
  // A refused run leaves the context as it was.
  large.ids[3] = ART_IDS_MAX + 1;
  CHECK(infc_run(context) == INFC_STATUS_BAD_VALUE && strstr(infc_context_error(context), "flat index 3"));
  large.ids[3] = 3;
  CHECK(!infc_run(context) && art_correct(&large, &art_default, 16));
  CHECK(!infc_context_bind_output(context, ART_S, NULL, 0) && infc_run(context) == INFC_STATUS_NOT_BOUND);
  CHECK(!infc_context_bind_output(context, ART_S, large.s, 16 * 8 * 4) && !infc_run(context));
  infc_context_destroy(context);
  infc_engine_close(engine);
  art_free(&small);
  art_free(&large);
  test_free(data);
  gpu_check_clean("rebinding");
}

static void bind_device(infc_context *context, uint32_t index, CUdeviceptr memory, int64_t batch, bool output) {
  infc_status status =
      output ? infc_context_bind_output_device(context, index, memory, (size_t)batch * (index == ART_T ? 4 : 32))
             : infc_context_bind_input_device(context, index, memory,
                                              index == ART_BIAS ? (int64_t[]){8} : (int64_t[]){batch, 8},
                                              index == ART_X ? 2 : 1);
  CHECK(!status, "%s", infc_context_error(context));
}

// Every subset of the tensors in device memory; the caller's stream and the context's own.
static void test_device_memory(void) {
  fake_reset();
  size_t size;
  uint8_t *data = art_make_gpu(&art_default, &art_plan_default, 1, &size);
  device d = device_open();
  infc_engine *engine = gpu_open(data, size, "cuda:0");
  infc_context *context = gpu_context(engine);
  for (int subset = 0; subset < 64; subset++) {
    int64_t batch = subset % 3 ? 16 : 4;
    size_t bytes = (size_t)batch * 32;
    art_run run = art_bind(context, &art_default, batch);
    float bias[8];
    for (int i = 0; i < 8; i++)
      bias[i] = ART_BIAS_FILL;
    const void *inputs[] = {run.x, bias, run.ids};
    void *outputs[] = {run.y, run.s, run.t};
    size_t sizes[] = {bytes, bytes, (size_t)batch * 4}, input_sizes[] = {bytes, sizeof bias, (size_t)batch * 4};
    CUdeviceptr memory[6] = {0};
    for (uint32_t i = 0; i < 6; i++)
      if (subset >> i & 1) {
        memory[i] = i < 3 ? to_device(&d, inputs[i], input_sizes[i]) : to_device(&d, outputs[i - 3], sizes[i - 3]);
        bind_device(context, i % 3, memory[i], batch, i >= 3);
      }
    CUstream stream = subset % 2 ? d.stream : NULL;
    CHECK(!infc_run_async(context, stream), "%s", infc_context_error(context));
    memset(run.x, 0, bytes); // inputs of the host were read
    CHECK(!infc_context_wait(context), "%s", infc_context_error(context));
    for (uint32_t i = 0; i < 3; i++)
      if (memory[i + 3])
        from_device(&d, memory[i + 3], outputs[i], sizes[i]);
    for (size_t i = 0; i < bytes / 4; i++)
      run.x[i] = (float)i;
    CHECK(art_correct(&run, &art_default, batch), "subset %d", subset);
    for (uint32_t i = 0; i < 6; i++)
      CHECK(!memory[i] || !driver_memory_free(memory[i]));
    CHECK(!infc_context_bind_input(context, ART_BIAS, NULL, NULL, 0));
    art_free(&run);
  }
  CHECK(fake_depth() == 1 && fake_device() == 0);
  infc_context_destroy(context);
  infc_engine_close(engine);
  CHECK(fake_depth() == 1, "the caller's context is as it was");
  device_close(&d);
  test_free(data);
  gpu_check_clean("device memory");
}

// A run takes its turn on the caller's stream: behind what fills its inputs, before what reads its outputs.
static void test_order_on_a_stream(void) {
  fake_reset();
  size_t size;
  uint8_t *data = art_make_gpu(&art_default, &art_plan_default, 1, &size);
  device d = device_open();
  infc_engine *engine = gpu_open(data, size, "cuda");
  infc_context *context = gpu_context(engine);
  art_run run = art_bind(context, &art_default, 16);
  static const float stale[16 * 8];
  CUdeviceptr x = to_device(&d, stale, sizeof stale), y = to_device(&d, stale, sizeof stale);
  bind_device(context, ART_X, x, 16, false);
  bind_device(context, ART_Y, y, 16, true);
  for (int i = 0; i < 5; i++) {
    run.x[5] = (float)i;
    for (int slow = 0; slow < 8; slow++)
      CHECK(!driver_copy_in(x, slow == 7 ? run.x : stale, 16 * 32, d.stream));
    CHECK(!infc_run_async(context, d.stream) && !driver_copy_out(run.y, y, 16 * 32, d.stream) &&
          !driver_stream_synchronize(d.stream));
    CHECK(run.y[5] == -(float)(i + 2), "round %d: %g", i, (double)run.y[5]);
  }
  CHECK(!infc_context_wait(context) && art_correct(&run, &art_default, 16));
  infc_context_destroy(context);
  infc_engine_close(engine);
  CHECK(!driver_memory_free(x) && !driver_memory_free(y));
  device_close(&d);
  art_free(&run);
  test_free(data);
  gpu_check_clean("order");
}

static void test_refused(void) {
  fake_reset();
  size_t size;
  uint8_t *data = art_make_gpu(&art_default, &art_plan_default, 1, &size);
  device d = device_open();
  infc_engine *engine = gpu_open(data, size, "cuda");
  infc_context *context = gpu_context(engine);
  CUdeviceptr memory = to_device(&d, (float[16 * 8]){0}, 16 * 32);
  CHECK(infc_context_bind_input_device(context, 9, memory, (int64_t[]){4, 8}, 2) == INFC_STATUS_INVALID_ARGUMENT);
  CHECK(infc_context_bind_input_device(context, ART_X, memory, (int64_t[]){4, 7}, 2) == INFC_STATUS_BAD_SHAPE);
  // Nothing is padded in the caller's memory.
  art_run run = art_bind(context, &art_default, 3);
  infc_status status = infc_context_bind_input_device(context, ART_X, memory, (int64_t[]){3, 8}, 2);
  if (!status)
    status = infc_run(context);
  CHECK(status == INFC_STATUS_BAD_SHAPE && strstr(infc_context_error(context), "'x'"), "%d %s", status,
        infc_context_error(context));
  CHECK(!infc_context_bind_input(context, ART_X, run.x, (int64_t[]){3, 8}, 2) && !infc_run(context) &&
        art_correct(&run, &art_default, 3));
  CHECK(!infc_context_bind_output_device(context, ART_Y, memory, 16 * 32));
  CHECK(infc_run(context) == INFC_STATUS_BAD_SHAPE, "%s", infc_context_error(context));
  infc_context_destroy(context);
  infc_engine_close(engine);
  // On the CPU there is no device memory and nothing in flight.
  engine = gpu_open(data, size, "cpu");
  context = gpu_context(engine);
  CHECK(!strcmp(infc_engine_device(engine), "cpu"));
  CHECK(infc_context_bind_input_device(context, ART_X, memory, (int64_t[]){4, 8}, 2) == INFC_STATUS_INVALID_ARGUMENT);
  CHECK(infc_context_bind_output_device(context, ART_Y, memory, 16 * 32) == INFC_STATUS_INVALID_ARGUMENT);
  CHECK(infc_run_async(context, NULL) == INFC_STATUS_INVALID_ARGUMENT && *infc_context_error(context));
  CHECK(infc_context_wait(context) == INFC_STATUS_INVALID_ARGUMENT);
  infc_context_destroy(context);
  infc_engine_close(engine);
  CHECK(!driver_memory_free(memory));
  device_close(&d);
  art_free(&run);
  test_free(data);
  gpu_check_clean("refused");
}

// What making a context enqueues is done before it is used, on whatever stream.
static void test_first_run(void) {
  fake_reset();
  size_t size;
  uint8_t *data = art_make_gpu(&art_default, &art_plan_default, 1, &size);
  device d = device_open();
  infc_engine *engine = gpu_open(data, size, "cuda");
  infc_context *context = gpu_context(engine);
  art_run run = art_bind(context, &art_default, 16);
  CHECK(!infc_run_async(context, d.stream) && !infc_context_wait(context), "%s", infc_context_error(context));
  CHECK(art_correct(&run, &art_default, 16));
  infc_context_destroy(context);
  infc_engine_close(engine);
  device_close(&d);
  art_free(&run);
  test_free(data);
  gpu_check_clean("first run");
}

// Runs that nobody waits for: another run, a bind and the context's end wait for them.
static void test_in_flight(void) {
  fake_reset();
  size_t size;
  uint8_t *data = art_make_gpu(&art_default, &art_plan_default, 1, &size);
  device d = device_open();
  infc_engine *engine = gpu_open(data, size, "cuda");
  infc_context *context = gpu_context(engine);
  art_run run = art_bind(context, &art_default, 11), other;
  CHECK(!infc_context_wait(context), "nothing to wait for");
  for (int i = 0; i < 20; i++) {
    run.x[0] = (float)i;
    CHECK(!infc_run_async(context, i % 2 ? d.stream : NULL), "%s", infc_context_error(context));
  }
  CHECK(!infc_context_wait(context) && art_correct(&run, &art_default, 11));
  // The next run comes after the last one, whose outputs are written then.
  for (int i = 1; i < 10; i++) {
    run.x[1] = (float)i;
    CHECK(!infc_run_async(context, NULL));
    CHECK(run.y[1] == (i == 1 ? -3 : -(float)(i + 1)), "run %d: %g", i, (double)run.y[1]);
  }
  CHECK(!infc_context_wait(context) && run.y[1] == -11);
  CHECK(!infc_run_async(context, NULL));
  other = art_bind(context, &art_default, 16);
  CHECK(art_correct(&run, &art_default, 11), "a bind waits");
  CHECK(!infc_run(context) && art_correct(&other, &art_default, 16));
  CHECK(!infc_run_async(context, d.stream));
  infc_context_destroy(context);
  infc_engine_close(engine);
  device_close(&d);
  art_free(&run);
  art_free(&other);
  test_free(data);
  gpu_check_clean("in flight");
}

// On the second of two GPUs, while the caller works on the first; another engine on that.
static void test_two_devices(void) {
  fake_reset();
  size_t size;
  uint8_t *data = art_make_gpu(&art_default, &art_plan_default, 1, &size);
  device d = device_open();
  infc_engine *engines[] = {gpu_open(data, size, "cuda:1"), gpu_open(data, size, "cuda:0")};
  CHECK(!strcmp(infc_engine_device(engines[0]), "cuda:1") && fake_device() == 0);
  infc_context *contexts[] = {gpu_context(engines[0]), gpu_context(engines[1])};
  for (int i = 0; i < 6; i++) {
    art_run run = art_bind(contexts[i % 2], &art_default, 3 + 4 * (i / 2));
    CHECK(!infc_run(contexts[i % 2]) && art_correct(&run, &art_default, 3 + 4 * (i / 2)), "%s",
          infc_context_error(contexts[i % 2]));
    CHECK(fake_depth() == 1 && fake_device() == 0);
    art_free(&run);
  }
  for (int i = 0; i < 2; i++) {
    infc_engine_close(engines[i]);
    infc_context_destroy(contexts[i]);
  }
  device_close(&d);
  test_free(data);
  gpu_check_clean("two devices");
}

int main(void) {
  const char *settings[] = {"", "async=1,delay=100"};
  for (int i = 0; i < 2; i++) {
    fake_configure(settings[i]);
    test_sizes();
    test_rebinding();
    test_device_memory();
    test_order_on_a_stream();
    test_refused();
    test_in_flight();
  }
  fake_configure("async=1,delay=3000");
  test_first_run();
  fake_configure("devices=2,sm=89+86,async=1");
  test_two_devices();
  return test_result();
}
