/* Runs an engine from C: opens it, binds inputs of its largest profile, prints outputs and latency.
 *
 *   main ENGINE [THREADS]     reads a file
 *   embedded [THREADS]        built with -DEMBEDDED: the engine is linked in, an object made by `infc embed --symbol
 * model`
 */
#include <infc/infc.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define RUNS 50

#ifdef EMBEDDED
extern const unsigned char model_start[];
extern const unsigned long model_size;
#endif

static void check(infc_status status, const char *what, const char *why) {
  if (status == INFC_STATUS_OK)
    return;
  fprintf(stderr, "%s: %s: %s\n", what, infc_status_string(status), why);
  exit(1);
}

static double milliseconds(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec * 1e3 + (double)time.tv_nsec * 1e-6;
}

static size_t element_size(infc_dtype dtype) {
  switch (dtype) {
  case INFC_U8:
  case INFC_I8:
  case INFC_BOOL:
    return 1;
  case INFC_U16:
  case INFC_I16:
  case INFC_F16:
  case INFC_BF16:
    return 2;
  case INFC_I64:
  case INFC_F64:
    return 8;
  default:
    return 4;
  }
}

/* Integers are 1 where that is in range, so that a mask takes every position; everything else is 0. */
static void *make_values(const infc_tensor_info *info, size_t count) {
  size_t size = element_size(info->dtype);
  unsigned char *values = calloc(count, size);
  int integer =
      info->dtype != INFC_F32 && info->dtype != INFC_F16 && info->dtype != INFC_BF16 && info->dtype != INFC_F64;
  if (!values)
    exit(1);
  for (size_t i = 0; integer && i < count && (!info->has_range || info->range_max >= 1); i++)
    values[i * size] = 1; /* little-endian */
  return values;
}

static void bind_inputs(const infc_engine *engine, infc_context *context) {
  for (uint32_t i = 0; i < infc_engine_input_count(engine); i++) {
    infc_tensor_info info = {.struct_size = sizeof info};
    int64_t dims[INFC_MAX_DIMS];
    size_t count = 1;
    check(infc_engine_input(engine, i, &info), "input", "");
    for (int32_t d = 0; d < info.rank; d++) {
      dims[d] = info.dims[d].symbol < 0 ? info.dims[d].max
                                        : infc_engine_profile_size(engine, infc_engine_profile_count(engine) - 1,
                                                                   (uint32_t)info.dims[d].symbol);
      count *= (size_t)dims[d];
    }
    check(infc_context_bind_input(context, i, make_values(&info, count), dims, (uint32_t)info.rank), info.name,
          infc_context_error(context));
  }
}

static void *bind_output(const infc_engine *engine, infc_context *context, uint32_t index) {
  infc_tensor_info info = {.struct_size = sizeof info};
  int64_t dims[INFC_MAX_DIMS];
  uint32_t rank;
  check(infc_engine_output(engine, index, &info), "output", "");
  check(infc_context_output_dims(context, index, dims, &rank), info.name, infc_context_error(context));
  size_t size = element_size(info.dtype);
  for (uint32_t d = 0; d < rank; d++)
    size *= (size_t)dims[d];
  void *data = malloc(size);
  check(infc_context_bind_output(context, index, data, size), info.name, infc_context_error(context));
  return data;
}

int main(int argc, char **argv) {
  char why[256] = "";
  double start = milliseconds();
  infc_engine *engine;
#ifdef EMBEDDED
  int next = 1;
  check(infc_engine_open_memory(model_start, model_size, NULL, &engine, why, sizeof why), "the embedded engine", why);
#else
  int next = 2;
  if (argc < 2) {
    fprintf(stderr, "usage: %s ENGINE [THREADS]\n", argv[0]);
    return 2;
  }
  check(infc_engine_open(argv[1], NULL, &engine, why, sizeof why), argv[1], why);
#endif
  infc_pool_options pool_options = {.struct_size = sizeof pool_options};
  if (argc > next)
    pool_options.threads = (uint32_t)strtoul(argv[next], NULL, 10);
  infc_context_options options = {.struct_size = sizeof options};
  check(infc_pool_create(&pool_options, &options.pool, why, sizeof why), "threads", why);
  infc_context *context;
  check(infc_context_create(engine, &options, &context, why, sizeof why), "context", why);

  bind_inputs(engine, context);
  uint32_t outputs = infc_engine_output_count(engine);
  void **data = calloc(outputs, sizeof *data);
  for (uint32_t i = 0; i < outputs; i++)
    data[i] = bind_output(engine, context, i);
  check(infc_run(context), "run", infc_context_error(context));
  double first = milliseconds() - start, least = first;
  for (int i = 0; i < RUNS; i++) {
    double before = milliseconds();
    check(infc_run(context), "run", infc_context_error(context));
    double took = milliseconds() - before;
    least = took < least ? took : least;
  }
  printf("%s, %u threads: first output after %.2f ms, then %.2f ms a run\n", infc_engine_isa(engine),
         infc_pool_threads(options.pool), first, least);
  for (uint32_t i = 0; i < outputs; i++) {
    infc_tensor_info info = {.struct_size = sizeof info};
    infc_engine_output(engine, i, &info);
    printf("%s:", info.name);
    for (int k = 0; info.dtype == INFC_F32 && k < 4; k++)
      printf(" %.5f", ((const float *)data[i])[k]);
    puts(" ...");
  }
  /* Input buffers and outputs end with the process. */
  infc_context_destroy(context);
  infc_pool_destroy(options.pool);
  infc_engine_close(engine);
  return 0;
}
