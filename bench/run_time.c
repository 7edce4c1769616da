// Runs an artifact over and over on zeros, prints the median and the least nanoseconds of a run. Each figure is the
// mean of a burst of runs, so that reading the clock does not count. Usage: run_time ARTIFACT THREADS
#include <infc/infc.h>

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { BURSTS = 200, RUNS = 500 };

static double now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void require(infc_status status, const char *why) {
  if (status) {
    fprintf(stderr, "%s: %s\n", infc_status_string(status), why);
    exit(1);
  }
}

// Memory for a tensor at its largest; freed by the end of the process.
static void *zeros(const infc_tensor_info *info, int64_t *dims, size_t *bytes) {
  *bytes = 8; // the widest element
  for (int32_t d = 0; d < info->rank; d++) {
    dims[d] = info->dims[d].max;
    *bytes *= (size_t)dims[d];
  }
  return calloc(1, *bytes);
}

static int ascending(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

int main(int argc, char **argv) {
  if (argc != 3)
    return 2;
  char why[256] = "";
  infc_engine *engine;
  infc_pool *pool;
  infc_context *context;
  infc_pool_options pool_options = {.struct_size = sizeof pool_options, .threads = (uint32_t)atoi(argv[2])};
  infc_context_options options = {.struct_size = sizeof options};
  require(infc_engine_open(argv[1], NULL, &engine, why, sizeof why), why);
  require(infc_pool_create(&pool_options, &pool, why, sizeof why), why);
  options.pool = pool;
  require(infc_context_create(engine, &options, &context, why, sizeof why), why);
  infc_tensor_info info = {.struct_size = sizeof info};
  int64_t dims[INFC_MAX_DIMS];
  size_t bytes;
  for (uint32_t i = 0; i < infc_engine_input_count(engine); i++) {
    require(infc_engine_input(engine, i, &info), "input");
    void *data = zeros(&info, dims, &bytes);
    require(infc_context_bind_input(context, i, data, dims, (uint32_t)info.rank), infc_context_error(context));
  }
  for (uint32_t i = 0; i < infc_engine_output_count(engine); i++) {
    require(infc_engine_output(engine, i, &info), "output");
    void *data = zeros(&info, dims, &bytes);
    require(infc_context_bind_output(context, i, data, bytes), infc_context_error(context));
  }
  double times[BURSTS];
  for (int b = 0; b < BURSTS; b++) {
    double start = now_ns();
    for (int r = 0; r < RUNS; r++)
      require(infc_run(context), infc_context_error(context));
    times[b] = (now_ns() - start) / RUNS;
  }
  qsort(times, BURSTS, sizeof *times, ascending);
  printf("%.1f %.1f\n", times[BURSTS / 2], times[0]);
  infc_context_destroy(context);
  infc_pool_destroy(pool);
  infc_engine_close(engine);
  return 0;
}
