// All memory of a model comes from the caller's allocator and goes back, none is taken while tokens are made, each
// allocation may fail; and sequences that are saved come back, but no others do.
#include "budget.h"
#include "model.h"

static int count_tokens(void *user, const infc_event *event) {
  budget *b = ((void **)user)[0];
  int *made = ((void **)user)[1];
  if (*made < 0)
    *made = b->made;
  CHECK(event->finish || b->made == *made, "%d allocations while tokens are made", b->made - *made);
  return 0;
}

static infc_status life(const uint8_t *data, size_t size, budget *b, char *why, size_t why_size) {
  const infc_allocator allocator = {limited_alloc, limited_free, b};
  const infc_engine_options engine_options = {.struct_size = sizeof engine_options, .allocator = &allocator};
  infc_lm_options options = {.struct_size = sizeof options, .allocator = &allocator, .max_sequences = 3};
  infc_generate_options wanted = {.struct_size = sizeof wanted,
                                  .max_new_tokens = 80,
                                  .ignore_eos = 1,
                                  .temperature = 1,
                                  .top_p = 0.9f,
                                  .repetition_penalty = 1.1f,
                                  .stop_strings = (const char *[]){"not there"},
                                  .stop_string_count = 1,
                                  .prompt_lookup = 1,
                                  .log_probabilities = 1};
  infc_engine *engine = NULL;
  infc_lm *lm = NULL;
  int32_t prompt[40];
  int made = -1;
  for (int i = 0; i < 40; i++)
    prompt[i] = i % 9;
  infc_status status = infc_engine_open_memory(data, size, &engine_options, &engine, why, why_size);
  if (!status)
    status = infc_lm_create(engine, &options, &lm, why, why_size);
  if (!status) {
    status = infc_generate(lm, prompt, 40, &wanted, count_tokens, (void *[]){b, &made});
    snprintf(why, why_size, "%s", infc_lm_error(lm));
  }
  infc_request *left;
  if (!status) {
    status = infc_lm_submit(lm, prompt, 40, &wanted, &left); // goes with the model
    snprintf(why, why_size, "%s", infc_lm_error(lm));
  }
  if (!status)
    CHECK(!infc_lm_advance(lm, NULL), "%s", infc_lm_error(lm));
  infc_lm_destroy(lm);
  infc_engine_close(engine);
  CHECK(b->live == 0, "%d allocations not freed", b->live);
  return status;
}

static void test_allocations(void) {
  size_t size;
  uint8_t *data = lm_make(&lm_default, &size);
  char why[256];
  int failing = 0;
  for (; failing < 100; failing++) {
    budget b = {.left = failing};
    why[0] = 0;
    const infc_status status = life(data, size, &b, why, sizeof why);
    if (!status)
      break;
    CHECK(status == INFC_STATUS_OUT_OF_MEMORY && strstr(why, "out of memory"), "allocation %d: status %d, %s", failing,
          status, why);
  }
  CHECK(failing >= 6 && failing < 100, "%d allocations", failing);
  test_free(data);
}

static void test_limits(const infc_engine *engine) {
  infc_lm_options options = {.struct_size = sizeof options, .cache_bytes = 1};
  infc_lm *lm;
  char why[256];
  CHECK(infc_lm_create((infc_engine *)engine, &options, &lm, why, sizeof why) == INFC_STATUS_INVALID_ARGUMENT &&
            strstr(why, "hold no block"),
        "%s", why);
  options.cache_bytes = 100000;
  lm = lm_open(engine, &options);
  infc_lm_info info = {.struct_size = sizeof info};
  CHECK(!infc_lm_get_info(lm, &info) && info.cache_bytes <= 100000 && info.cache_bytes > 80000 &&
            info.cache_tokens % 32 == 0,
        "%llu bytes", (unsigned long long)info.cache_bytes);
  infc_lm_destroy(lm);
  options = (infc_lm_options){.struct_size = sizeof options, .cache_tokens = UINT64_MAX};
  CHECK(infc_lm_create((infc_engine *)engine, &options, &lm, why, sizeof why) == INFC_STATUS_OUT_OF_MEMORY, "%s", why);
  options = (infc_lm_options){.struct_size = sizeof options, .max_sequences = UINT32_MAX};
  CHECK(infc_lm_create((infc_engine *)engine, &options, &lm, why, sizeof why) == INFC_STATUS_INVALID_ARGUMENT, "%s",
        why);
}

static void step(infc_lm *lm, infc_sequence *sequence, const int32_t *tokens, uint32_t count, float *logits) {
  CHECK(!infc_lm_step(lm, &(infc_lm_part){sequence, tokens, count, 1}, 1, logits, LM_V * 4), "%s", infc_lm_error(lm));
}

// Damaged data is refused, or is a sequence of that length that can be continued with nonsense.
static void try_damaged(infc_lm *lm, infc_sequence *to, uint8_t *saved, size_t size) {
  float logits[LM_V];
  int32_t token = 1;
  if (infc_sequence_restore(to, saved, size))
    CHECK(infc_sequence_length(to) == 0);
  else if (infc_sequence_length(to) < LM_CONTEXT)
    step(lm, to, &token, 1, logits);
  CHECK(!infc_sequence_truncate(to, 0));
}

static void test_save(const lm_test *t, const infc_engine *other) {
  test_rng rng = {51};
  int32_t tokens[LM_CONTEXT];
  float logits[LM_V], alone[LM_V];
  infc_sequence *a, *b;
  lm_random_tokens(&rng, tokens, LM_CONTEXT);
  infc_lm *second = lm_open(t->engine, NULL), *foreign = lm_open(other, NULL);
  CHECK(!infc_sequence_create(t->lm, &a) && !infc_sequence_create(second, &b));
  for (uint32_t length = 0; length < 400; length += length < 70 ? 23 : 111) {
    CHECK(!infc_sequence_truncate(a, 0));
    if (length)
      step(t->lm, a, tokens, length, logits);
    const size_t size = infc_sequence_save_size(a);
    uint8_t *saved = test_alloc(size);
    CHECK(infc_sequence_save(a, saved, size - 1) == INFC_STATUS_BAD_SHAPE);
    CHECK(!infc_sequence_save(a, saved, size), "%s", infc_lm_error(t->lm));
    CHECK(!infc_sequence_restore(b, saved, size), "%s", infc_lm_error(second));
    CHECK(length == 0 || infc_sequence_restore(b, saved, size) == INFC_STATUS_INVALID_ARGUMENT);
    CHECK(infc_sequence_length(b) == length && !memcmp(infc_sequence_tokens(b), tokens, length * 4));
    step(second, b, tokens + length, 9, logits);
    lm_alone(t->engine, tokens, length + 9, alone);
    CHECK(!memcmp(alone, logits, sizeof alone), "saved at %u", length);
    CHECK(!infc_sequence_truncate(b, 0));
    infc_sequence *c;
    CHECK(!infc_sequence_create(foreign, &c) && infc_sequence_restore(c, saved, size) == INFC_STATUS_INCOMPATIBLE, "%s",
          infc_lm_error(foreign));
    infc_sequence_destroy(c);
    for (int i = 0; i < 300; i++) {
      const size_t at = test_random(&rng) % (i % 2 ? size : 64);
      const uint8_t was = saved[at];
      saved[at] ^= (uint8_t)(1u << test_random(&rng) % 8);
      try_damaged(second, b, saved, i % 7 ? size : test_random(&rng) % size);
      saved[at] = was;
    }
    test_free(saved);
  }
  infc_lm_destroy(second);
  infc_lm_destroy(foreign);
}

int main(void) {
  test_allocations();
  const infc_lm_options options = {.struct_size = sizeof options, .max_sequences = 2};
  lm_test t = lm_begin(&lm_default, &options);
  lm_model other = lm_default;
  other.seed = 8;
  lm_test second = lm_begin(&other, &options);
  test_limits(t.engine);
  test_save(&t, second.engine);
  lm_end(&second);
  lm_end(&t);
  return test_result();
}
