// The caller's allocator: all memory comes from it and goes back, and each allocation may fail.
#include "artifact.h"
#include "budget.h"

// Opens, runs with timing, closes; the status of the first failure. Nothing may stay behind.
static infc_status life(const uint8_t *data, size_t size, budget *b, char *why, size_t why_size) {
  infc_allocator allocator = {limited_alloc, limited_free, b};
  infc_engine_options engine_options = {.struct_size = sizeof engine_options, .allocator = &allocator};
  infc_pool_options pool_options = {.struct_size = sizeof pool_options, .threads = 2, .allocator = &allocator};
  infc_context_options context_options = {.struct_size = sizeof context_options, .allocator = &allocator};
  infc_engine *engine = NULL;
  infc_context *context = NULL;
  infc_status status = infc_engine_open_memory(data, size, &engine_options, &engine, why, why_size);
  if (!status)
    status = infc_pool_create(&pool_options, &context_options.pool, why, why_size);
  if (!status)
    status = infc_context_create(engine, &context_options, &context, why, why_size);
  if (!status) {
    art_run run = art_bind(context, &art_default, 9);
    int before = b->made;
    CHECK(!infc_run(context) && art_correct(&run, &art_default, 9) && b->made == before, "a run allocates nothing");
    status = infc_context_set_timing(context, 1);
    snprintf(why, why_size, "%s", infc_context_error(context));
    CHECK(!infc_run(context) && art_correct(&run, &art_default, 9), "%s", infc_context_error(context));
    art_free(&run);
  }
  infc_context_destroy(context);
  infc_pool_destroy(context_options.pool);
  infc_engine_close(engine);
  CHECK(b->live == 0, "%d allocations not freed", b->live);
  return status;
}

int main(void) {
  size_t size;
  uint8_t *data = art_make(&art_default, &size);
  char why[256];
  int failing = 0;
  for (;; failing++) {
    budget b = {.left = failing};
    why[0] = 0;
    infc_status status = life(data, size, &b, why, sizeof why);
    if (status == INFC_STATUS_OK)
      break;
    CHECK(status == INFC_STATUS_OUT_OF_MEMORY && strstr(why, "out of memory"), "allocation %d: status %d, %s", failing,
          status, why);
    if (failing > 100)
      break;
  }
  CHECK(failing >= 7 && failing < 100, "%d allocations", failing);
  // An arena that no machine has.
  ((infc_program_header *)(data + art_section(data, INFC_SECTION_PROGRAM, 0)->offset))->arena_size = 1ull << 60;
  art_seal(data, size);
  infc_engine *engine;
  infc_context *context;
  CHECK(!infc_engine_open_memory(data, size, NULL, &engine, why, sizeof why), "%s", why);
  budget none = {.left = 0};
  infc_allocator allocator = {limited_alloc, limited_free, &none};
  infc_context_options options = {.struct_size = sizeof options, .allocator = &allocator};
  CHECK(infc_context_create(engine, &options, &context, why, sizeof why) == INFC_STATUS_OUT_OF_MEMORY);
  infc_engine_close(engine);
  test_free(data);
  return test_result();
}
