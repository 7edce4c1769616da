// Binding, profiles, shapes, schedules, results and what goes wrong with them.
#include "artifact.h"
#include "context.h"

#include <sys/wait.h>
#include <unistd.h>

static infc_engine *open_toy(const art_toy *toy, uint8_t **data) {
  size_t size;
  char why[256] = "";
  infc_engine *engine = NULL;
  *data = art_make(toy, &size);
  CHECK(!infc_engine_open_memory(*data, size, NULL, &engine, why, sizeof why), "%s", why);
  return engine;
}

static infc_context *new_context(infc_engine *engine, infc_pool *pool) {
  infc_context_options options = {.struct_size = sizeof options, .pool = pool};
  infc_context *context = NULL;
  char why[256] = "";
  CHECK(!infc_context_create(engine, &options, &context, why, sizeof why), "%s", why);
  return context;
}

static void run_batches(const art_toy *toy, infc_pool *pool) {
  uint8_t *data;
  infc_engine *engine = open_toy(toy, &data);
  infc_context *context = new_context(engine, pool);
  for (int64_t batch = 1; batch <= 16; batch += 3) {
    art_run run = art_bind(context, toy, batch);
    infc_status status = infc_run(context);
    if (CHECK(!status, "batch %d: %s", (int)batch, infc_context_error(context)))
      CHECK(art_correct(&run, toy, batch), "batch %d split %d block %u", (int)batch, toy->split, toy->row_block);
    art_free(&run);
  }
  infc_context_destroy(context);
  infc_engine_close(engine);
  test_free(data);
}

// Every way of dividing the work gives the same result.
static void test_schedules(void) {
  for (uint32_t threads = 1; threads <= 5; threads += 2) {
    infc_pool *pool = NULL;
    infc_pool_options options = {.struct_size = sizeof options, .threads = threads};
    CHECK(!infc_pool_create(&options, &pool, NULL, 0));
    for (uint8_t split = INFC_SPLIT_SERIAL; split <= INFC_SPLIT_ROWS; split++)
      for (uint32_t block = 0; block < 4; block++)
        for (uint32_t min_rows = 0; min_rows < 4; min_rows += 3) {
          art_toy toy = art_default;
          toy.split = split;
          toy.barriers = block & 1;
          toy.row_block = block;
          toy.min_rows = min_rows;
          run_batches(&toy, pool);
        }
    infc_pool_destroy(pool);
  }
}

// A barrier ends a chain: what follows may read any row. The toy's own steps would not notice.
static void test_barriers_divide_chains(void) {
  for (int barriers = 0; barriers < 2; barriers++) {
    art_toy toy = art_default;
    toy.barriers = barriers;
    uint8_t *data;
    infc_engine *engine = open_toy(&toy, &data);
    infc_context *context = new_context(engine, NULL);
    const infc_schedule *schedule = &context->plans[0].schedules[0];
    uint32_t steps = context->plans[0].program->header->step_count;
    CHECK(schedule->count == (barriers ? steps : 1), "%u groups of %u steps", schedule->count, steps);
    for (uint32_t i = 0; i < schedule->count; i++)
      CHECK(schedule->groups[i].barrier == (i > 0), "group %u", i);
    infc_context_destroy(context);
    infc_engine_close(engine);
    test_free(data);
  }
}

static void test_shapes(void) {
  uint8_t *data;
  infc_engine *engine = open_toy(&art_default, &data);
  infc_context *context = new_context(engine, NULL);
  CHECK(infc_run(context) == INFC_STATUS_NOT_BOUND);
  CHECK(strstr(infc_context_error(context), "'x'"));
  art_run run = art_bind(context, &art_default, 4);
  int64_t dims[INFC_MAX_DIMS];
  uint32_t rank;
  CHECK(!infc_context_output_dims(context, ART_S, dims, &rank) && rank == 2 && dims[0] == 4 && dims[1] == 8);
  CHECK(!infc_run(context));
  CHECK(infc_context_bind_input(context, ART_X, run.x, (int64_t[]){4, 7}, 2) == INFC_STATUS_BAD_SHAPE);
  CHECK(infc_context_bind_input(context, ART_X, run.x, (int64_t[]){4}, 1) == INFC_STATUS_BAD_SHAPE);
  CHECK(infc_context_bind_input(context, ART_X, run.x, (int64_t[]){0, 8}, 2) == INFC_STATUS_BAD_SHAPE);
  CHECK(infc_context_bind_input(context, ART_X, run.x, (int64_t[]){-4, 8}, 2) == INFC_STATUS_BAD_SHAPE);
  CHECK(infc_context_bind_input(context, ART_INPUTS, run.x, (int64_t[]){4, 8}, 2) == INFC_STATUS_INVALID_ARGUMENT);
  CHECK(infc_context_bind_input(context, ART_X, run.x, NULL, 2) == INFC_STATUS_INVALID_ARGUMENT &&
        strstr(infc_context_error(context), "'x': dims is NULL"));
  CHECK(infc_context_output_dims(context, ART_OUTPUTS, dims, &rank) == INFC_STATUS_INVALID_ARGUMENT &&
        strstr(infc_context_error(context), "no output 3"));
  CHECK(infc_context_bind_input(context, ART_X, (char *)run.x + 1, (int64_t[]){4, 8}, 2) ==
        INFC_STATUS_INVALID_ARGUMENT);
  CHECK(!infc_run(context), "a failed bind leaves the former one: %s", infc_context_error(context));
  CHECK(!infc_context_bind_input(context, ART_IDS, run.ids, (int64_t[]){3}, 1));
  CHECK(infc_run(context) == INFC_STATUS_BAD_SHAPE && strstr(infc_context_error(context), "'ids': batch is 3"), "%s",
        infc_context_error(context));
  CHECK(!infc_context_bind_input(context, ART_IDS, run.ids, (int64_t[]){17}, 1));
  CHECK(!infc_context_bind_input(context, ART_X, run.x, (int64_t[]){17, 8}, 2));
  CHECK(infc_run(context) == INFC_STATUS_BAD_SHAPE);
  CHECK(!strcmp(infc_context_error(context), "input 'x': no profile fits batch=17; the artifact has batch=4; batch=16"),
        "%s", infc_context_error(context));
  CHECK(!infc_context_bind_input(context, ART_IDS, run.ids, (int64_t[]){4}, 1));
  CHECK(!infc_context_bind_input(context, ART_X, run.x, (int64_t[]){4, 8}, 2));
  CHECK(!infc_context_bind_output(context, ART_Y, run.y, 4 * 8 * 4 - 1));
  CHECK(infc_run(context) == INFC_STATUS_BAD_SHAPE &&
        strstr(infc_context_error(context), "output 'y' needs 128 bytes"));
  CHECK(!infc_context_bind_output(context, ART_Y, NULL, 0));
  CHECK(infc_run(context) == INFC_STATUS_NOT_BOUND && strstr(infc_context_error(context), "output 'y'"));
  infc_context_destroy(context);
  infc_engine_close(engine);
  art_free(&run);
  test_free(data);
}

static void test_exact_dimensions(void) {
  art_toy toy = art_default;
  toy.policy = INFC_DIM_EXACT;
  uint8_t *data;
  infc_engine *engine = open_toy(&toy, &data);
  infc_context *context = new_context(engine, NULL);
  for (int64_t batch = 1; batch <= 17; batch++) {
    art_run run = art_bind(context, &toy, batch);
    bool fits = batch == 4 || batch == 16;
    CHECK(infc_run(context) == (fits ? INFC_STATUS_OK : INFC_STATUS_BAD_SHAPE), "batch %d", (int)batch);
    CHECK(!fits || art_correct(&run, &toy, batch));
    art_free(&run);
  }
  CHECK(strstr(infc_context_error(context),
               "no profile fits batch=17 (batch must be exactly a profile's); the artifact has"),
        "%s", infc_context_error(context));
  infc_context_destroy(context);
  infc_engine_close(engine);
  test_free(data);
}

static void test_values(void) {
  uint8_t *data;
  infc_engine *engine = open_toy(&art_default, &data);
  infc_context *context = new_context(engine, NULL);
  art_run run = art_bind(context, &art_default, 5);
  CHECK(!infc_run(context));
  run.ids[3] = ART_IDS_MAX + 1;
  CHECK(infc_run(context) == INFC_STATUS_BAD_VALUE);
  CHECK(!strcmp(infc_context_error(context), "input 'ids': the value at flat index 3 is 10, outside 0 to 9"), "%s",
        infc_context_error(context));
  run.ids[3] = -1;
  CHECK(infc_run(context) == INFC_STATUS_BAD_VALUE);
  run.ids[3] = INT32_MIN;
  CHECK(infc_run(context) == INFC_STATUS_BAD_VALUE);
  run.ids[3] = ART_IDS_MAX;
  CHECK(!infc_run(context) && !*infc_context_error(context));
  // A bound optional input takes the fill's place, and gives it back.
  float bias[8] = {0};
  CHECK(!infc_context_bind_input(context, ART_BIAS, bias, (int64_t[]){8}, 1) && !infc_run(context) && run.y[1] == -1);
  CHECK(!infc_context_bind_input(context, ART_BIAS, NULL, NULL, 0) && !infc_run(context) &&
        art_correct(&run, &art_default, 5));
  infc_context_destroy(context);
  infc_engine_close(engine);
  art_free(&run);
  test_free(data);
}

// All integer types, at the ends of their ranges.
static void test_find_outside(void) {
  int64_t wide[] = {INT64_MIN, -1, 0, INT64_MAX};
  CHECK(infc_find_outside(INFC_DTYPE_I64, wide, 4, INT64_MIN, INT64_MAX) == -1);
  CHECK(infc_find_outside(INFC_DTYPE_I64, wide, 4, -1, INT64_MAX) == 0);
  CHECK(infc_find_outside(INFC_DTYPE_I64, wide, 4, INT64_MIN, 0) == 3);
  uint8_t bytes[] = {0, 1, 255};
  CHECK(infc_find_outside(INFC_DTYPE_BOOL, bytes, 3, 0, 1) == 2 &&
        infc_find_outside(INFC_DTYPE_U8, bytes, 3, 0, 255) == -1);
  CHECK(infc_find_outside(INFC_DTYPE_I8, bytes, 3, 0, 1) == 2 &&
        infc_find_outside(INFC_DTYPE_I8, bytes, 3, -1, 1) == -1);
  int16_t shorts[] = {-32768, 32767};
  CHECK(infc_find_outside(INFC_DTYPE_I16, shorts, 2, -32768, 32766) == 1 &&
        infc_find_outside(INFC_DTYPE_U16, shorts, 2, 0, 32767) == 0);
  int32_t ints[] = {INT32_MIN, INT32_MAX};
  CHECK(infc_find_outside(INFC_DTYPE_I32, ints, 2, INT32_MIN, INT32_MAX) == -1);
  CHECK(infc_find_outside(INFC_DTYPE_I32, ints, 0, 1, 1) == -1);
}

static void test_timing(void) {
  uint8_t *data;
  infc_pool *pool;
  infc_pool_options options = {.struct_size = sizeof options, .threads = 2};
  CHECK(!infc_pool_create(&options, &pool, NULL, 0));
  infc_engine *engine = open_toy(&art_default, &data);
  infc_context *context = new_context(engine, pool);
  art_run run = art_bind(context, &art_default, 16);
  size_t before = infc_context_memory(context);
  CHECK(!infc_context_set_timing(context, 1) && infc_context_memory(context) > before);
  for (int i = 0; i < 3; i++)
    CHECK(!infc_run(context) && art_correct(&run, &art_default, 16));
  CHECK(infc_context_step_count(context) == 6);
  for (uint32_t step = 0; step < infc_context_step_count(context); step++) {
    infc_step_time time = {.struct_size = sizeof time};
    CHECK(!infc_context_step_time(context, step, &time) && time.calls == 3 && time.seconds > 0 && time.seconds < 1);
    CHECK(!strcmp(time.name, (const char *[]){"add", "negate", "negate", "negate", "square", "copy ids"}[step]));
    CHECK(!strcmp(time.kernel, step ? "infc_unary__scalar" : "infc_binary_any__scalar"));
  }
  infc_step_time time = {.struct_size = sizeof time};
  CHECK(infc_context_step_time(context, 6, &time) == INFC_STATUS_INVALID_ARGUMENT);
  CHECK(!infc_context_set_timing(context, 0) && !infc_run(context));
  CHECK(!infc_context_step_time(context, 0, &time) && time.calls == 3);
  infc_context_destroy(context);
  infc_engine_close(engine);
  infc_pool_destroy(pool);
  art_free(&run);
  test_free(data);
}

typedef struct traced {
  uint32_t count;
  float values[8][16 * 8];
  infc_traced last;
} traced;

static void keep_traced(void *user, const infc_traced *value) {
  traced *kept = user;
  CHECK(kept->count < 8 && value->dims[0] * value->dims[1] <= 16 * 8 && value->row_stride == value->dims[1]);
  memcpy(kept->values[kept->count], value->data, (size_t)(value->dims[0] * value->dims[1]) * sizeof(float));
  kept->last = *value;
  kept->count++;
}

// Whole values after each step, however the work is divided and whatever memory is used again.
static void test_trace(void) {
  infc_pool *pool;
  infc_pool_options options = {.struct_size = sizeof options, .threads = 2};
  CHECK(!infc_pool_create(&options, &pool, NULL, 0));
  for (uint32_t block = 0; block < 4; block++) {
    uint8_t *data;
    art_toy toy = art_default;
    toy.row_block = block;
    infc_engine *engine = open_toy(&toy, &data);
    infc_context *context = new_context(engine, pool);
    art_run run = art_bind(context, &toy, 7);
    traced kept = {0};
    CHECK(!infc_context_set_trace(context, keep_traced, &kept));
    CHECK(!infc_run(context) && art_correct(&run, &toy, 7));
    CHECK(kept.count == 3 && kept.last.step == 2 && kept.last.output == 0 && kept.last.dtype == INFC_F32);
    CHECK(kept.last.rank == 2 && kept.last.dims[0] == 7 && kept.last.dims[1] == 8);
    CHECK(!strcmp(kept.last.name, "negate") && !strcmp(kept.last.kernel, "infc_unary__scalar"));
    for (int i = 0; i < 7 * 8; i++)
      CHECK(kept.values[1][i] == -kept.values[0][i] && kept.values[2][i] == kept.values[0][i]);
    CHECK(!infc_context_set_trace(context, NULL, NULL) && !infc_run(context) && kept.count == 3);
    CHECK(art_correct(&run, &toy, 7));
    infc_context_destroy(context);
    infc_engine_close(engine);
    art_free(&run);
    test_free(data);
  }
  CHECK(infc_context_set_trace(NULL, keep_traced, NULL) == INFC_STATUS_INVALID_ARGUMENT);
  infc_pool_destroy(pool);
}

#ifndef __SANITIZE_THREAD__
// In a child the pool's threads are missing: a status, no hang.
static void test_fork(void) {
  uint8_t *data;
  infc_pool *pool;
  infc_pool_options options = {.struct_size = sizeof options, .threads = 2};
  CHECK(!infc_pool_create(&options, &pool, NULL, 0));
  infc_engine *engine = open_toy(&art_default, &data);
  infc_context *context = new_context(engine, pool);
  art_run run = art_bind(context, &art_default, 16);
  CHECK(!infc_run(context));
  pid_t child = fork();
  if (child == 0) {
    alarm(20);
    infc_context *other = NULL;
    infc_context_options with_pool = {.struct_size = sizeof with_pool, .pool = pool};
    bool refused = infc_run(context) == INFC_STATUS_INVALID_ARGUMENT && strstr(infc_context_error(context), "fork") &&
                   infc_context_create(engine, &with_pool, &other, NULL, 0) == INFC_STATUS_INVALID_ARGUMENT;
    infc_pool *own;
    refused = refused && !infc_pool_create(&options, &own, NULL, 0);
    art_run again = art_bind(other = new_context(engine, own), &art_default, 16);
    bool runs = !infc_run(other) && art_correct(&again, &art_default, 16);
    infc_context_destroy(other);
    infc_pool_destroy(own);
    infc_pool_destroy(pool);
    _exit(refused && runs ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %d", status);
  CHECK(!infc_run(context), "the parent goes on");
  infc_context_destroy(context);
  infc_engine_close(engine);
  infc_pool_destroy(pool);
  art_free(&run);
  test_free(data);
}

#endif

// A context outlives the caller's handle on its engine.
static void test_engine_closed_first(void) {
  uint8_t *data;
  infc_engine *engine = open_toy(&art_default, &data);
  infc_context *context = new_context(engine, NULL);
  infc_engine_close(engine);
  art_run run = art_bind(context, &art_default, 2);
  CHECK(!infc_run(context) && art_correct(&run, &art_default, 2));
  infc_context_destroy(context);
  art_free(&run);
  test_free(data);
}

int main(void) {
  test_schedules();
  test_barriers_divide_chains();
  test_shapes();
  test_exact_dimensions();
  test_values();
  test_find_outside();
  test_timing();
  test_trace();
#ifndef __SANITIZE_THREAD__ // which forbids threads after a fork
  test_fork();
#endif
  test_engine_closed_first();
  return test_result();
}
