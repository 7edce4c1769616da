// Coverage-guided: bytes as an artifact, opened from memory and run. See replay.h for how it runs without libFuzzer.
//
// Checksums are set anew, or nothing behind them would be reached.
#include "drive.h"
#include "replay.h"

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
  if (!infc_engine_open_memory(copy, size, &options, &engine, why, sizeof why)) {
    infc_engine_verify(engine, why, sizeof why);
    run_once(engine, &allocator, &rng);
    infc_engine_close(engine);
  }
  test_free(copy);
  return 0;
}
