// Steps: chunks, batches, forks, windows, the prefix cache and a full cache give what a text alone in one step gives.
#include "model.h"

static void step(infc_lm *lm, infc_sequence *sequence, const int32_t *tokens, uint32_t count, float *logits) {
  CHECK(!infc_lm_step(lm, &(infc_lm_part){sequence, tokens, count, logits != NULL}, 1, logits, LM_V * 4), "%s",
        infc_lm_error(lm));
}

// A context of the engine without a cache of the caller's computes the same for a text that begins.
static void test_plain_context(const lm_test *t) {
  test_rng rng = {3};
  int32_t tokens[20];
  int64_t ids[20], positions[20], rows[] = {19, 3}, n = 20, two = 2;
  float logits[2 * LM_V], alone[LM_V];
  lm_random_tokens(&rng, tokens, 20);
  for (int i = 0; i < 20; i++) {
    ids[i] = tokens[i];
    positions[i] = i;
  }
  infc_context *context;
  CHECK(!infc_context_create(t->engine, NULL, &context, NULL, 0));
  CHECK(!infc_context_bind_input(context, LM_IDS, ids, &n, 1) &&
        !infc_context_bind_input(context, LM_POSITIONS, positions, &n, 1) &&
        !infc_context_bind_input(context, LM_ROWS, rows, &two, 1) &&
        !infc_context_bind_output(context, 0, logits, sizeof logits));
  for (int again = 0; again < 2; again++) {
    CHECK(!infc_run(context), "%s", infc_context_error(context));
    lm_alone(t->engine, tokens, 20, alone);
    CHECK(!memcmp(alone, logits, sizeof alone));
    lm_alone(t->engine, tokens, 4, alone);
    CHECK(!memcmp(alone, logits + LM_V, sizeof alone));
  }
  infc_context_destroy(context);
}

static void test_chunks(const lm_test *t) {
  test_rng rng = {11};
  int32_t tokens[200];
  float alone[LM_V], logits[LM_V];
  lm_random_tokens(&rng, tokens, 200);
  lm_alone(t->engine, tokens, 200, alone);
  for (uint32_t chunk = 1; chunk <= 200; chunk += chunk < 40 ? 3 : 37) {
    infc_sequence *sequence;
    CHECK(!infc_sequence_create(t->lm, &sequence));
    for (uint32_t at = 0; at < 200; at += chunk)
      step(t->lm, sequence, tokens + at, at + chunk < 200 ? chunk : 200 - at, logits);
    CHECK(!memcmp(alone, logits, sizeof alone), "chunks of %u", chunk);
    CHECK(infc_sequence_length(sequence) == 200 && !memcmp(infc_sequence_tokens(sequence), tokens, sizeof tokens));
    infc_sequence_destroy(sequence);
  }
}

// All rows' logits in one step that takes several runs.
static void test_all_rows(const lm_test *t) {
  enum { N = 77 };
  test_rng rng = {12};
  int32_t tokens[N];
  float *logits = test_alloc(N * LM_V * 4), alone[LM_V];
  lm_random_tokens(&rng, tokens, N);
  infc_sequence *sequence;
  CHECK(!infc_sequence_create(t->lm, &sequence));
  CHECK(!infc_lm_step(t->lm, &(infc_lm_part){sequence, tokens, N, N}, 1, logits, N * LM_V * 4));
  for (uint32_t i = 0; i < N; i += 7) {
    lm_alone(t->engine, tokens, i + 1, alone);
    CHECK(!memcmp(alone, logits + i * LM_V, sizeof alone), "row %u", i);
  }
  infc_sequence_destroy(sequence);
  test_free(logits);
}

enum { MANY = 6, LONGEST = 300 };

typedef struct text {
  infc_sequence *sequence;
  int32_t tokens[LONGEST];
  uint32_t length, longest; // the latter since it began
} text;

// Sequences that come, grow, fork, are cut and go at random; each step's logits are those of the text alone.
static void test_random_life(const lm_test *t, uint64_t seed, uint32_t rounds) {
  test_rng rng = {seed};
  text texts[MANY] = {0};
  float *logits = test_alloc(MANY * LM_V * 4), alone[LM_V];
  int32_t common[100];
  lm_random_tokens(&rng, common, 100);
  for (uint32_t round = 0; round < rounds; round++) {
    infc_lm_part parts[MANY];
    uint32_t count = 0, which[MANY];
    for (uint32_t i = 0; i < MANY; i++) {
      text *x = &texts[i], *other = &texts[test_random(&rng) % MANY];
      const uint32_t kind = (uint32_t)(test_random(&rng) % 16);
      if (x->sequence && (kind == 0 || x->length > LONGEST - 64)) {
        infc_sequence_destroy(x->sequence);
        x->sequence = NULL;
      } else if (x->sequence && kind == 1 && x->length > 70) {
        const uint32_t most = x->length + 64 - x->longest, back = (uint32_t)(test_random(&rng) % (most + 1));
        CHECK(!infc_sequence_truncate(x->sequence, x->length - back), "%s", infc_lm_error(t->lm));
        x->length -= back;
      } else if (!x->sequence && kind < 4 && other->sequence && other != x) {
        CHECK(!infc_sequence_fork(other->sequence, &x->sequence));
        memcpy(x->tokens, other->tokens, sizeof x->tokens);
        x->length = other->length;
        x->longest = other->longest;
      } else if (!x->sequence) {
        CHECK(!infc_sequence_create(t->lm, &x->sequence));
        uint32_t begin = (uint32_t)(test_random(&rng) % 100), reused;
        memcpy(x->tokens, common, sizeof common);
        CHECK(!infc_sequence_reuse(x->sequence, common, begin, &reused) && reused <= begin);
        x->length = x->longest = reused;
      }
      if (!x->sequence || kind > 11)
        continue;
      const uint32_t n = (uint32_t)(1 + test_random(&rng) % (kind < 8 ? 2 : 60));
      if (x->length < 100 && test_random(&rng) % 2)
        memcpy(x->tokens + x->length, common + x->length, (100 - x->length) * 4); // so that texts are alike
      else
        lm_random_tokens(&rng, x->tokens + x->length, n);
      parts[count] = (infc_lm_part){x->sequence, x->tokens + x->length, n, 1};
      which[count++] = i;
    }
    if (!count)
      continue;
    const infc_status status = infc_lm_step(t->lm, parts, count, logits, MANY * LM_V * 4);
    if (status == INFC_STATUS_CACHE_FULL)
      continue;
    CHECK(!status, "%s", infc_lm_error(t->lm));
    for (uint32_t i = 0; i < count; i++) {
      text *x = &texts[which[i]];
      x->length += parts[i].count;
      x->longest = x->length > x->longest ? x->length : x->longest;
      CHECK(infc_sequence_length(x->sequence) == x->length);
      CHECK(!memcmp(infc_sequence_tokens(x->sequence), x->tokens, x->length * 4));
      lm_alone(t->engine, x->tokens, x->length, alone);
      if (!CHECK(!memcmp(alone, logits + i * LM_V, sizeof alone), "seed %llu round %u text %u of %u",
                 (unsigned long long)seed, round, which[i], x->length))
        exit(1);
    }
  }
  for (uint32_t i = 0; i < MANY; i++)
    infc_sequence_destroy(texts[i].sequence);
  infc_lm_info info = {.struct_size = sizeof info};
  CHECK(!infc_lm_get_info(t->lm, &info) && info.sequences == 0 && info.free_tokens == info.cache_tokens,
        "%llu of %llu free", (unsigned long long)info.free_tokens, (unsigned long long)info.cache_tokens);
  test_free(logits);
}

static void test_full(void) {
  const infc_lm_options options = {.struct_size = sizeof options, .cache_tokens = 128, .max_sequences = 3};
  lm_test t = lm_begin(&lm_default, &options);
  test_rng rng = {5};
  int32_t tokens[200];
  float logits[LM_V], alone[LM_V];
  infc_sequence *a, *b, *c, *d;
  lm_random_tokens(&rng, tokens, 200);
  CHECK(!infc_sequence_create(t.lm, &a) && !infc_sequence_create(t.lm, &b) && !infc_sequence_create(t.lm, &c));
  CHECK(infc_sequence_create(t.lm, &d) == INFC_STATUS_CACHE_FULL);
  step(t.lm, a, tokens, 65, logits); // three of four blocks
  const infc_lm_part parts[] = {{a, tokens + 65, 1, 1}, {b, tokens, 33, 0}};
  CHECK(infc_lm_step(t.lm, parts, 2, logits, sizeof logits) == INFC_STATUS_CACHE_FULL, "%s", infc_lm_error(t.lm));
  CHECK(infc_sequence_length(a) == 65 && infc_sequence_length(b) == 0);
  step(t.lm, a, tokens + 65, 1, logits);
  lm_alone(t.engine, tokens, 66, alone);
  CHECK(!memcmp(alone, logits, sizeof alone));
  // What is left of b serves c, and an ended sequence's blocks serve others.
  step(t.lm, b, tokens + 100, 32, NULL);
  CHECK(infc_lm_step(t.lm, &(infc_lm_part){c, tokens, 1, 0}, 1, NULL, 0) == INFC_STATUS_CACHE_FULL);
  infc_sequence_destroy(b);
  step(t.lm, c, tokens + 3, 2, logits);
  lm_alone(t.engine, tokens + 3, 2, alone);
  CHECK(!memcmp(alone, logits, sizeof alone));
  lm_end(&t);
}

static void test_misuse(const lm_test *t) {
  infc_sequence *a;
  float logits[LM_V];
  int32_t good[] = {1, 2}, bad[] = {1, LM_V};
  CHECK(!infc_sequence_create(t->lm, &a));
  const infc_lm_part twice[] = {{a, good, 2, 0}, {a, good, 2, 0}};
  CHECK(infc_lm_step(t->lm, twice, 2, NULL, 0) == INFC_STATUS_INVALID_ARGUMENT, "%s", infc_lm_error(t->lm));
  CHECK(infc_lm_step(t->lm, &(infc_lm_part){a, bad, 2, 0}, 1, NULL, 0) == INFC_STATUS_BAD_VALUE);
  CHECK(infc_lm_step(t->lm, &(infc_lm_part){a, good, 2, 3}, 1, NULL, 0) == INFC_STATUS_INVALID_ARGUMENT);
  CHECK(infc_lm_step(t->lm, &(infc_lm_part){a, good, 0, 0}, 1, NULL, 0) == INFC_STATUS_INVALID_ARGUMENT);
  CHECK(infc_lm_step(t->lm, &(infc_lm_part){a, good, 2, 1}, 1, logits, sizeof logits - 1) == INFC_STATUS_BAD_SHAPE);
  CHECK(infc_lm_step(t->lm, &(infc_lm_part){a, good, 2, 1}, 1, NULL, sizeof logits) == INFC_STATUS_INVALID_ARGUMENT);
  CHECK(strstr(infc_lm_error(t->lm), "logits is NULL"));
  CHECK(infc_sequence_save(a, NULL, 1) == INFC_STATUS_INVALID_ARGUMENT);
  CHECK(!strcmp(infc_lm_error(t->lm), "memory is NULL"));
  CHECK(infc_lm_step(t->lm, twice, 0, NULL, 0) == INFC_STATUS_INVALID_ARGUMENT);
  CHECK(infc_sequence_truncate(a, 1) == INFC_STATUS_INVALID_ARGUMENT);
  CHECK(infc_sequence_length(a) == 0);
  int32_t *many = calloc(LM_CONTEXT + 1, sizeof *many);
  CHECK(infc_lm_step(t->lm, &(infc_lm_part){a, many, LM_CONTEXT + 1, 0}, 1, NULL, 0) == INFC_STATUS_BAD_SHAPE);
  free(many);
  infc_sequence_destroy(a);
}

int main(void) {
  infc_pool *pool;
  CHECK(
      !infc_pool_create(&(infc_pool_options){.struct_size = sizeof(infc_pool_options), .threads = 2}, &pool, NULL, 0));
  const infc_lm_options options = {
      .struct_size = sizeof options, .pool = pool, .cache_tokens = 1500, .max_sequences = 8};
  lm_test t = lm_begin(&lm_default, &options);
  test_plain_context(&t);
  test_chunks(&t);
  test_all_rows(&t);
  test_misuse(&t);
  for (uint64_t seed = 1; seed <= 3; seed++)
    test_random_life(&t, seed, 60);
  lm_end(&t);
  const infc_lm_options tight = {.struct_size = sizeof tight, .cache_tokens = 420, .max_sequences = 7};
  lm_model windows = lm_default;
  windows.windows[0] = 70; // no layer sees all
  t = lm_begin(&windows, &tight);
  for (uint64_t seed = 11; seed <= 13; seed++)
    test_random_life(&t, seed, 60);
  lm_end(&t);
  test_full();
  infc_pool_destroy(pool);
  return test_result();
}
