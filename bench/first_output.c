// Opens an artifact, runs it once on ones, prints: milliseconds from main to the first output, of a second run, peak
// memory in KiB, bytes of the context. Usage: first_output ARTIFACT THREADS BATCH SEQ
#include <infc/infc.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static long peak_kib(void) {
  char line[256];
  long kib = 0;
  FILE *status = fopen("/proc/self/status", "r");
  while (status && fgets(line, sizeof line, status))
    if (sscanf(line, "VmHWM: %ld", &kib) == 1)
      break;
  if (status)
    fclose(status);
  return kib;
}

static void require(infc_status status, const char *why) {
  if (status) {
    fprintf(stderr, "%s: %s\n", infc_status_string(status), why);
    exit(1);
  }
}

int main(int argc, char **argv) {
  double start = now_ms();
  if (argc != 5)
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
  int64_t dims[2] = {atoi(argv[3]), atoi(argv[4])};
  int64_t *ones = malloc((size_t)(dims[0] * dims[1]) * sizeof *ones);
  for (int64_t i = 0; i < dims[0] * dims[1]; i++)
    ones[i] = 1;
  for (uint32_t i = 0; i < infc_engine_input_count(engine); i++)
    require(infc_context_bind_input(context, i, ones, dims, 2), infc_context_error(context));
  for (uint32_t i = 0; i < infc_engine_output_count(engine); i++) {
    int64_t shape[INFC_MAX_DIMS];
    uint32_t rank;
    size_t size = sizeof(float);
    require(infc_context_output_dims(context, i, shape, &rank), infc_context_error(context));
    for (uint32_t d = 0; d < rank; d++)
      size *= (size_t)shape[d];
    require(infc_context_bind_output(context, i, malloc(size), size), infc_context_error(context));
  }
  require(infc_run(context), infc_context_error(context));
  double first = now_ms();
  require(infc_run(context), infc_context_error(context));
  printf("%.3f %.3f %ld %zu\n", first - start, now_ms() - first, peak_kib(), infc_context_memory(context));
  infc_context_destroy(context);
  infc_pool_destroy(pool);
  infc_engine_close(engine);
  return 0;
}
