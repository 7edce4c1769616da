// What a clumsy program does: it forks, binds while a run is in flight, waits twice, closes in any order; and engines
// that write an output into an input's memory, bound rightly and wrongly.
#include "gpu_test.h"

#include <sys/wait.h>
#include <unistd.h>

static uint8_t *data;
static size_t size;

static bool says(infc_context *context, infc_status status, infc_status wanted, const char *words) {
  return CHECK(status == wanted && strstr(infc_context_error(context), words), "status %d: %s", status,
               infc_context_error(context));
}

// Everything fails that would call the driver, and the end of things calls nothing.
static void in_child(infc_engine *engine, infc_context *idle, infc_context *running) {
  float x[4 * 8] = {0};
  says(idle, infc_run(idle), INFC_STATUS_DEVICE, "fork()");
  says(running, infc_context_wait(running), INFC_STATUS_DEVICE, "fork()");
  says(running, infc_context_bind_input(running, ART_X, x, (int64_t[]){4, 8}, 2), INFC_STATUS_DEVICE, "fork()");
  says(running, infc_run_async(running, NULL), INFC_STATUS_DEVICE, "fork()");
  infc_context *context = NULL;
  char why[512] = "";
  CHECK(infc_context_create(engine, NULL, &context, why, sizeof why) == INFC_STATUS_DEVICE && strstr(why, "fork()") &&
            !context,
        "%s", why);
  infc_engine_options options = {.struct_size = sizeof options, .device = "cuda"};
  infc_engine *another = NULL;
  CHECK(infc_engine_open_memory(data, size, &options, &another, why, sizeof why) == INFC_STATUS_DEVICE &&
            strstr(why, "fork()"),
        "%s", why);
  options.device = NULL; // by itself it takes the CPU
  CHECK(!infc_engine_open_memory(data, size, &options, &another, why, sizeof why), "%s", why);
  CHECK(!strcmp(infc_engine_device(another), "cpu") && strstr(infc_engine_note(another), "fork()"));
  infc_engine_close(another);
  infc_engine_close(engine);
  infc_context_destroy(running);
  infc_context_destroy(idle);
  CHECK(!fake_problem(), "%s", fake_problem());
}

static void test_fork(void) {
  fake_reset();
  infc_engine *engine = gpu_open(data, size, NULL);
  infc_context *idle = gpu_context(engine), *running = gpu_context(engine);
  art_run runs[] = {art_bind(idle, &art_default, 5), art_bind(running, &art_default, 16)};
  CHECK(!infc_run(idle) && !infc_run_async(running, NULL));
  pid_t child = fork();
  if (child == 0) {
    in_child(engine, idle, running);
    _exit(test_failures ? 1 : 0);
  }
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %#x",
        (unsigned)status);
  // The parent does not notice.
  CHECK(!infc_context_wait(running) && art_correct(&runs[1], &art_default, 16));
  CHECK(!infc_run(idle) && art_correct(&runs[0], &art_default, 5));
  infc_engine_close(engine);
  infc_context_destroy(running);
  infc_context_destroy(idle);
  art_free(&runs[0]);
  art_free(&runs[1]);
  gpu_check_clean("fork");
}

static void test_order_of_calls(void) {
  fake_reset();
  infc_engine *engine = gpu_open(data, size, NULL);
  infc_context *context = gpu_context(engine);
  infc_engine_close(engine); // the context keeps it
  says(context, infc_run_async(context, NULL), INFC_STATUS_NOT_BOUND, "'x'");
  CHECK(!infc_context_wait(context), "nothing is in flight");
  art_run run = art_bind(context, &art_default, 7);
  CHECK(!infc_run_async(context, NULL) && !infc_run_async(context, NULL));
  CHECK(!infc_context_wait(context) && !infc_context_wait(context) && art_correct(&run, &art_default, 7));
  // What is refused changes nothing, in flight or not.
  CHECK(!infc_run_async(context, NULL));
  says(context, infc_context_bind_input(context, ART_X, run.x, NULL, 2), INFC_STATUS_INVALID_ARGUMENT, "dims");
  says(context, infc_context_bind_input_device(context, ART_X, 257, (int64_t[]){7, 8}, 2), INFC_STATUS_INVALID_ARGUMENT,
       "aligned");
  says(context, infc_context_bind_output_device(context, ART_OUTPUTS, 256, 4), INFC_STATUS_INVALID_ARGUMENT, "output");
  CHECK(!infc_run(context) && art_correct(&run, &art_default, 7));
  // Memory that is nobody's: the driver refuses, and after another bind all is well.
  CHECK(!infc_context_bind_output_device(context, ART_Y, 4096, 4096));
  says(context, infc_run(context), INFC_STATUS_BAD_SHAPE, "'y'"); // 7 is no profile's
  CHECK(infc_context_bind_output(context, ART_Y, run.y, 7 * 8 * 4) == INFC_STATUS_OK);
  CHECK(!infc_run(context) && art_correct(&run, &art_default, 7));
  CHECK(infc_run(NULL) == INFC_STATUS_INVALID_ARGUMENT && infc_run_async(NULL, NULL) == INFC_STATUS_INVALID_ARGUMENT &&
        infc_context_wait(NULL) == INFC_STATUS_INVALID_ARGUMENT);
  CHECK(infc_context_set_timing(context, 1) == INFC_STATUS_OK && infc_context_step_count(context) == 0);
  infc_context_destroy(context);
  infc_context_destroy(NULL);
  infc_engine_close(NULL);
  art_free(&run);
  gpu_check_clean("order of calls");
}

// The plan writes y into x, as an engine does that updates a cache.
static const art_plan *in_place(void) {
  static art_plan plan;
  plan = art_plan_default;
  plan.alias_input = 1 + ART_X;
  plan.alias_output = 1 + ART_INPUTS + ART_Y;
  return &plan;
}

static void test_in_place(void) {
  fake_reset();
  size_t bytes;
  uint8_t *artifact = art_make_gpu(&art_default, in_place(), 1, &bytes);
  infc_engine *engine = gpu_open(artifact, bytes, "cuda");
  infc_context *context = gpu_context(engine);
  // In host memory it is like any other: the input is left as it was.
  for (int64_t batch = 16; batch > 0; batch -= 3) {
    art_run run = art_bind(context, &art_default, batch);
    CHECK(!infc_run(context) && !infc_run(context) && art_correct(&run, &art_default, batch), "batch %d", (int)batch);
    art_free(&run);
  }
  // In the device's it is one: a run goes on where the last one ended.
  CUcontext primary, popped;
  CUstream stream;
  CUdeviceptr cache, other;
  CHECK(!driver_primary_retain(&primary, 0) && !driver_context_push(primary) && !driver_stream_create(&stream, 1) &&
        !driver_memory_alloc(&cache, 16 * 32) && !driver_memory_alloc(&other, 16 * 32));
  art_run run = art_bind(context, &art_default, 16);
  const int64_t dims[] = {16, 8};
  CHECK(!driver_copy_in(cache, run.x, 16 * 32, stream) && !driver_stream_synchronize(stream));
  CHECK(!infc_context_bind_input_device(context, ART_X, cache, dims, 2));
  const char *advice = "the engine writes 'y' into the memory of 'x'";
  says(context, infc_run(context), INFC_STATUS_INVALID_ARGUMENT, advice); // the other is the host's
  CHECK(!infc_context_bind_output_device(context, ART_Y, other, 16 * 32));
  says(context, infc_run(context), INFC_STATUS_INVALID_ARGUMENT, advice);
  CHECK(!infc_context_bind_input(context, ART_X, run.x, dims, 2));
  says(context, infc_run(context), INFC_STATUS_INVALID_ARGUMENT, advice);
  CHECK(!infc_context_bind_input_device(context, ART_X, cache, dims, 2) &&
        !infc_context_bind_output_device(context, ART_Y, cache, 16 * 32));
  for (int i = 0; i < 3; i++)
    CHECK(!infc_run_async(context, i ? stream : NULL) && !infc_context_wait(context), "%s",
          infc_context_error(context));
  CHECK(!driver_copy_out(run.y, cache, 16 * 32, stream) && !driver_stream_synchronize(stream));
  CHECK(art_correct(&run, &art_default, 16), "negated and moved by 2 three times is once");
  infc_context_destroy(context);
  infc_engine_close(engine);
  CHECK(!driver_memory_free(cache) && !driver_memory_free(other) && !driver_stream_destroy(stream) &&
        !driver_context_pop(&popped) && !driver_primary_release(0));
  art_free(&run);
  test_free(artifact);
  gpu_check_clean("in place");
}

static void refuse_plan(const art_toy *toy, const art_plan *plans, uint32_t count, const char *words) {
  fake_reset();
  size_t bytes;
  uint8_t *artifact = art_make_gpu(toy, plans, count, &bytes);
  infc_engine_options options = {.struct_size = sizeof options, .device = "cuda"};
  infc_engine *engine = NULL;
  infc_context *context = NULL;
  char why[512] = "";
  infc_status status = infc_engine_open_memory(artifact, bytes, &options, &engine, why, sizeof why);
  if (!status)
    status = infc_context_create(engine, NULL, &context, why, sizeof why);
  CHECK(status == INFC_STATUS_BAD_ARTIFACT && strstr(why, words), "status %d: %s", status, why);
  infc_engine_close(engine);
  test_free(artifact);
  gpu_check_clean(words);
}

static void test_wrong_plans(void) {
  art_plan plan = *in_place();
  plan.alias_input = 1 + ART_BIAS;
  refuse_plan(&art_default, &plan, 1, "writes in another input's memory y"); // of another shape
  // Two plans, one of which writes in place.
  art_plan plans[2] = {*in_place(), art_plan_default};
  for (uint32_t i = 0; i < 2; i++) {
    plans[i].profiles[0] = i;
    plans[i].profile_count = 1;
  }
  refuse_plan(&art_default, plans, 2, "writes in another input's memory y");
}

int main(void) {
  data = art_make_gpu(&art_default, &art_plan_default, 1, &size);
  const char *settings[] = {"", "async=1,delay=100"};
  for (int i = 0; i < 2; i++) {
    fake_configure(settings[i]);
    test_fork();
    test_order_of_calls();
    test_in_place();
    test_wrong_plans();
  }
  test_free(data);
  return test_result();
}
