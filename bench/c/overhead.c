// What a run costs besides arithmetic: a run of one tiny step, of a hundred, and a barrier. Prints nanoseconds.
#include "artifact.h"
#include "pool.h"

#include <time.h>

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

enum { REPEATS = 2000, RUNS = 50 };

// The least of several means: others share the machine.
static double run_ns(const art_toy *toy, uint32_t threads) {
  size_t size;
  uint8_t *data = art_make(toy, &size);
  infc_engine *engine;
  infc_context *context;
  infc_context_options options = {.struct_size = sizeof options};
  infc_pool_options pool = {.struct_size = sizeof pool, .threads = threads};
  if (infc_engine_open_memory(data, size, NULL, &engine, NULL, 0) ||
      (threads > 1 && infc_pool_create(&pool, &options.pool, NULL, 0)) ||
      infc_context_create(engine, &options, &context, NULL, 0))
    exit(1);
  art_run run = art_bind(context, toy, 4);
  double best = 1e18;
  for (int repeat = 0; repeat < REPEATS; repeat++) {
    double start = now();
    for (int i = 0; i < RUNS; i++)
      if (infc_run(context))
        exit(1);
    double mean = (now() - start) / RUNS;
    best = mean < best ? mean : best;
  }
  infc_context_destroy(context);
  infc_pool_destroy(options.pool);
  infc_engine_close(engine);
  art_free(&run);
  test_free(data);
  return best;
}

enum { BARRIERS = 100, SPIN = 100 };

typedef struct timing {
  infc_pool *pool;
  bool wait;
  double best;
} timing;

// Barriers come between pieces of work, here about a tenth of a microsecond each.
static void work_and_wait(void *argument, uint32_t thread) {
  timing *t = argument;
  for (int repeat = 0; repeat < REPEATS; repeat++) {
    double start = now();
    for (int i = 0; i < BARRIERS; i++) {
      for (volatile int work = 0; work < SPIN; work++)
        ;
      if (t->wait)
        infc_pool_barrier(t->pool, thread);
    }
    double mean = (now() - start) / BARRIERS;
    if (thread == 0 && mean < t->best)
      t->best = mean;
  }
}

static double barrier_ns(infc_pool *pool) {
  timing with = {pool, true, 1e18}, without = {pool, false, 1e18};
  infc_pool_run(pool, work_and_wait, &with);
  infc_pool_run(pool, work_and_wait, &without);
  return with.best - without.best;
}

static void nothing(void *argument, uint32_t thread) {
  (void)argument, (void)thread;
}

static double job_ns(infc_pool *pool) {
  double best = 1e18;
  for (int repeat = 0; repeat < REPEATS; repeat++) {
    double start = now();
    for (int i = 0; i < RUNS; i++)
      infc_pool_run(pool, nothing, NULL);
    double mean = (now() - start) / RUNS;
    best = mean < best ? mean : best;
  }
  return best;
}

int main(void) {
  art_toy toy = art_default;
  uint32_t level = (uint32_t)infc_isa_find(infc_cpu_isa());
  toy.isas[0] = level;
  toy.profiles[1] = 0;
  // The toy has three steps besides the negations.
  double few, many;
  for (uint32_t threads = 1; threads <= 2; threads++) {
    toy.split = threads > 1 ? INFC_SPLIT_ROWS : INFC_SPLIT_SERIAL;
    toy.negations = 0;
    few = run_ns(&toy, threads);
    toy.negations = 97;
    many = run_ns(&toy, threads);
    printf("%u thread(s): run of 3 tiny steps %.0f ns, of 100 %.0f ns, a step %.1f ns\n", threads, few, many,
           (many - few) / 97);
  }
  infc_pool_options options = {.struct_size = sizeof options, .threads = 2};
  infc_pool *pool;
  if (infc_pool_create(&options, &pool, NULL, 0))
    return 1;
  printf("2 threads: barrier %.0f ns, job %.0f ns\n", barrier_ns(pool), job_ns(pool));
  infc_pool_destroy(pool);
  return 0;
}
