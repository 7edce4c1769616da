// Coverage-guided: bytes as an artifact, opened from memory and run. See replay.h for how it runs without libFuzzer.
//
// Checksums are set anew, or nothing behind them would be reached.
#include "drive.h"
#include "mutations.h"
#include "replay.h"

#include <sys/mman.h>
#include <unistd.h>

static infc_status run_once(infc_engine *engine, const infc_allocator *allocator, test_rng *rng) {
  infc_context_options options = {.struct_size = sizeof options, .allocator = allocator};
  infc_context *context;
  infc_status status = infc_context_create(engine, &options, &context, NULL, 0);
  if (!status) {
    status = bind_and_run(engine, context, rng);
    infc_context_destroy(context);
  }
  return status;
}

// As a program opens one: from a file, which is mapped. Its path is of a file without a name.
static infc_status open_file(const uint8_t *data, size_t size, const infc_engine_options *options, infc_engine **out,
                             char *why, size_t why_size) {
  char path[64];
  int file = memfd_create("artifact", 0);
  snprintf(path, sizeof path, "/proc/self/fd/%d", file);
  infc_status status = INFC_STATUS_IO;
  if (file >= 0 && write(file, data, size) == (ssize_t)size)
    status = infc_engine_open(path, options, out, why, why_size);
  close(file);
  return status;
}

// Mostly with knowledge of the format.
static bool fuzz_change(uint8_t *data, size_t size, test_rng *rng) {
  static subject s;
  s.data = data;
  s.size = size;
  s.change_count = 0;
  if (test_random(rng) % 4 == 0 || !has_sections(&s))
    return false;
  mutate(&s, rng);
  return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const char *const isas[] = {NULL, "scalar", "x86-64-v3", "x86-64-v4"};
  infc_allocator allocator = {capped_alloc, capped_free, NULL};
  infc_engine_options options = {.struct_size = sizeof options, .allocator = &allocator, .device = "cpu"};
  uint8_t *copy = test_alloc(size);
  if (size)
    memcpy(copy, data, size);
  if (size >= sizeof(infc_header))
    art_seal(copy, size);
  test_rng rng = {infc_crc32(data, size) | 1ull << 32};
  options.isa = isas[test_random(&rng) % 4];
  infc_engine *engine;
  char why[256];
  infc_status status = test_random(&rng) % 8 ? infc_engine_open_memory(copy, size, &options, &engine, why, sizeof why)
                                             : open_file(copy, size, &options, &engine, why, sizeof why);
  if (!status) {
    infc_engine_verify(engine, why, sizeof why);
    run_once(engine, &allocator, &rng);
    step_lm(engine, &allocator, &rng);
    infc_engine_close(engine);
  }
  test_free(copy);
  return fuzz_result();
}
