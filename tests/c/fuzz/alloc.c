// Lets every allocation of artifacts fail in turn: alloc ARTIFACT...
//
// Opens each, makes a pool and a context, runs with times on and closes, until no allocation is left to fail. Each
// failure must be named as one of memory; nothing may stay allocated, and a run may allocate nothing.
#include "budget.h"
#include "drive.h"
#include "load.h"

enum { MOST = 1000 };

// The status of the first failure, and its text in `why`.
static infc_status life(const uint8_t *data, size_t size, budget *b, char *why, size_t why_size) {
  infc_allocator allocator = {limited_alloc, limited_free, b};
  infc_engine_options engine_options = {.struct_size = sizeof engine_options, .allocator = &allocator, .device = "cpu"};
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
    status = infc_context_set_timing(context, 1);
    snprintf(why, why_size, "%s", infc_context_error(context));
    test_rng rng = {1};
    int before = b->made;
    infc_status ran = bind_and_run(engine, context, &rng);
    CHECK(ran == INFC_STATUS_OK || ran == INFC_STATUS_BAD_VALUE, "status %d, %s", ran, infc_context_error(context));
    CHECK(b->made == before, "a run allocates");
  }
  infc_context_destroy(context);
  infc_pool_destroy(context_options.pool);
  infc_engine_close(engine);
  CHECK(b->live == 0, "%d allocations not freed", b->live);
  return status;
}

int main(int argc, char **argv) {
  int failed = 0;
  for (int i = 1; i < argc; i++) {
    size_t size;
    uint8_t *data = load_file(argv[i], &size);
    infc_status status = INFC_STATUS_OUT_OF_MEMORY;
    int failing = 0;
    for (; status && failing < MOST; failing++) {
      budget b = {.left = failing, .most = MAX_MEMORY};
      char why[256] = "";
      status = life(data, size, &b, why, sizeof why);
      if (status && !CHECK(status == INFC_STATUS_OUT_OF_MEMORY && strstr(why, "out of memory"),
                           "%s, allocation %d: status %d, %s", argv[i], failing, status, why))
        break;
    }
    CHECK(!status && failing > 5, "%s: %d allocations", argv[i], failing);
    failed += failing - 1;
    test_free(data);
  }
  printf("%d artifacts, %d allocations failed\n", argc - 1, failed);
  return test_result();
}
