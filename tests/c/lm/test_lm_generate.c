// Requests: alone and together, cut short, preempted, guessed ahead; all give the same tokens and text.
#include "model.h"

static const infc_generate_options greedy = {.struct_size = sizeof greedy, .max_new_tokens = 60, .ignore_eos = 1};

typedef struct result {
  int32_t tokens[LM_CONTEXT];
  uint32_t count;
  char text[4 * LM_CONTEXT];
  size_t size;
  infc_finish finish;
  double probability; // logarithm of all tokens'
} result;

static void add(result *r, const infc_event *event) {
  if (event->token >= 0)
    r->tokens[r->count++] = event->token;
  memcpy(r->text + r->size, event->text, event->text_size);
  r->size += event->text_size;
  r->text[r->size] = 0;
  r->finish = event->finish;
  r->probability += (double)event->log_probability;
}

static int on_event(void *user, const infc_event *event) {
  add(user, event);
  return 0;
}

static result generate(infc_lm *lm, const int32_t *prompt, uint32_t count, const infc_generate_options *options) {
  result r = {0};
  CHECK(!infc_generate(lm, prompt, count, options, on_event, &r), "%s", infc_lm_error(lm));
  return r;
}

static bool same(const result *a, const result *b) {
  return a->count == b->count && !memcmp(a->tokens, b->tokens, a->count * 4) && a->finish == b->finish &&
         !strcmp(a->text, b->text);
}

static void whole_text(const result *r, char *out) {
  *out = 0;
  for (uint32_t i = 0; i < r->count; i++)
    lm_text((uint32_t)r->tokens[i], out + strlen(out));
}

// The most likely token, one step after the other.
static void test_greedy(const lm_test *t) {
  test_rng rng = {21};
  int32_t text[140];
  float logits[LM_V];
  char bytes[1000];
  lm_random_tokens(&rng, text, 50);
  const result r = generate(t->lm, text, 50, &greedy);
  CHECK(r.count == 60 && r.finish == INFC_FINISH_LENGTH);
  for (uint32_t i = 50; i < 110; i++) {
    lm_alone(t->engine, text, i, logits);
    text[i] = 0;
    for (int v = 1; v < LM_V; v++)
      text[i] = logits[v] > logits[text[i]] ? v : text[i];
    if (!CHECK(text[i] == r.tokens[i - 50], "token %u", i - 50))
      return;
  }
  whole_text(&r, bytes);
  CHECK(!strcmp(bytes, r.text), "'%s' '%s'", bytes, r.text);
}

static infc_generate_options sampled(uint64_t seed) {
  infc_generate_options options = greedy;
  options.temperature = 1.5f;
  options.top_k = seed % 3 ? 0 : 20;
  options.top_p = seed % 2 ? 0.95f : 0.0f;
  options.repetition_penalty = seed % 4 ? 0.0f : 1.2f;
  options.seed = seed;
  options.log_probabilities = 1;
  return options;
}

// Stop strings: the text ends before the first, whatever tokens it is spread over, and no part of it is shown before.
static void test_stops(const lm_test *t) {
  test_rng rng = {22};
  int32_t prompt[10];
  char bytes[1000];
  uint32_t found = 0;
  for (uint64_t seed = 1; seed < 60; seed++) {
    infc_generate_options options = sampled(seed);
    lm_random_tokens(&rng, prompt, 10);
    const result all = generate(t->lm, prompt, 10, &options);
    whole_text(&all, bytes);
    CHECK(all.size == strlen(bytes) && !memcmp(all.text, bytes, all.size));
    const size_t at = test_random(&rng) % (all.size - 8), size = 1 + test_random(&rng) % 7;
    char stop[8] = "";
    memcpy(stop, bytes + at, size);
    const char *stops[] = {"nowhere to be found", stop};
    options.stop_strings = stops;
    options.stop_string_count = 2;
    const result cut = generate(t->lm, prompt, 10, &options);
    *strstr(bytes, stop) = 0;
    if (CHECK(!strcmp(cut.text, bytes) && cut.finish == INFC_FINISH_STOP, "stop '%s': '%s' is not '%s'", stop, cut.text,
              bytes))
      found++;
  }
  CHECK(found > 50);
}

static void test_stop_tokens(const lm_test *t) {
  int32_t prompt[] = {5, 6, 7};
  infc_generate_options options = sampled(3);
  const result all = generate(t->lm, prompt, 3, &options);
  const int32_t stops[] = {63, all.tokens[7]};
  options.stop_tokens = stops;
  options.stop_token_count = 2;
  const result cut = generate(t->lm, prompt, 3, &options);
  uint32_t first = 0;
  while (all.tokens[first] != stops[0] && all.tokens[first] != stops[1])
    first++;
  CHECK(cut.count == first && cut.finish == INFC_FINISH_STOP);
  // The model's own.
  options = sampled(4);
  options.ignore_eos = 0;
  options.bias = &(infc_logit_bias){LM_STOP, 50.0f};
  options.bias_count = 1;
  const result none = generate(t->lm, prompt, 3, &options);
  CHECK(none.count == 0 && none.finish == INFC_FINISH_STOP && none.size == 0);
}

// Pieces end with whole characters, but for the last; those of a request that is read late, when more is known than is
// asked for, are those of one that is read as it goes.
static void test_characters(const lm_test *t) {
  const infc_logit_bias bias[] = {{1, 6.0f}, {2, 6.0f}};
  uint32_t pieces = 0, split = 0;
  for (uint64_t seed = 1; seed < 20; seed++) {
    infc_generate_options options = sampled(seed);
    options.bias = bias;
    options.bias_count = 2;
    const int32_t prompt[] = {9};
    infc_request *now, *late;
    CHECK(!infc_lm_submit(t->lm, prompt, 1, &options, &late));
    for (uint32_t unfinished = 1; unfinished;)
      CHECK(!infc_lm_advance(t->lm, &unfinished));
    CHECK(!infc_lm_submit(t->lm, prompt, 1, &options, &now));
    for (infc_finish finish = INFC_FINISH_NONE; finish == INFC_FINISH_NONE;) {
      infc_event a = {.struct_size = sizeof a}, b = {.struct_size = sizeof b};
      if (!CHECK(!infc_request_next(now, &a) && infc_request_poll(late, &b) == 1))
        break;
      finish = a.finish;
      pieces += a.text_size > 0;
      CHECK(a.token == b.token && a.text_size == b.text_size && !memcmp(a.text, b.text, a.text_size));
      // What begins a character is shown once it is known that it does not: 0xC3 before another.
      split += !finish && a.text_size && (uint8_t)a.text[a.text_size - 1] == 0xC3 && a.text_size > 1;
    }
    infc_request_destroy(now);
    infc_request_destroy(late);
  }
  CHECK(pieces > 100 && split < pieces / 4, "%u %u", pieces, split);
}

typedef struct mask_use {
  uint32_t calls, last;
} mask_use;

static void odd_only(void *user, const int32_t *tokens, uint32_t count, uint32_t *allowed) {
  mask_use *use = user;
  use->calls++;
  use->last = count ? (uint32_t)tokens[count - 1] : 0;
  for (int i = 0; i < LM_V / 32; i++)
    allowed[i] &= 0xAAAAAAAA;
}

static void nothing(void *user, const int32_t *tokens, uint32_t count, uint32_t *allowed) {
  (void)user, (void)tokens, (void)count;
  memset(allowed, 0, LM_V / 8);
}

static void test_mask(const lm_test *t) {
  int32_t prompt[] = {9, 8};
  mask_use use = {0};
  infc_generate_options options = sampled(8);
  options.mask = odd_only;
  options.mask_user = &use;
  const result r = generate(t->lm, prompt, 2, &options);
  CHECK(r.count == 60 && use.calls == 60 && use.last == (uint32_t)r.tokens[58]);
  for (uint32_t i = 0; i < r.count; i++)
    CHECK(r.tokens[i] % 2 == 1);
  options.mask = nothing;
  const result none = generate(t->lm, prompt, 2, &options);
  CHECK(none.count == 0 && none.finish == INFC_FINISH_NO_TOKEN);
}

enum { REQUESTS = 24, PROMPT = 90 };

// Many requests that come and go: each as it is alone, and everything is given back.
static void test_together(const infc_engine *engine, const infc_lm_options *options, bool speculate, infc_lm *draft) {
  infc_lm *alone = lm_open(engine, NULL), *lm = lm_open(engine, options);
  test_rng rng = {31};
  static int32_t prompts[REQUESTS][PROMPT];
  static result expected[REQUESTS], got[REQUESTS];
  infc_request *requests[REQUESTS] = {0};
  infc_generate_options wanted[REQUESTS];
  uint32_t sizes[REQUESTS], preempted = 0, guessed = 0, accepted = 0;
  memset(got, 0, sizeof got);
  for (uint32_t i = 0; i < REQUESTS; i++) {
    sizes[i] = (uint32_t)(1 + test_random(&rng) % PROMPT);
    lm_random_tokens(&rng, prompts[i], sizes[i]);
    if (i % 3 == 1)
      memcpy(prompts[i], prompts[i - 1], sizes[i] * 4);
    wanted[i] = i % 2 ? sampled(i) : greedy;
    wanted[i].max_new_tokens = (uint32_t)(1 + test_random(&rng) % 60);
    expected[i] = generate(alone, prompts[i], sizes[i], &wanted[i]);
    wanted[i].prompt_lookup = speculate;
    wanted[i].draft = draft;
  }
  for (uint32_t step = 0, made = 0, unfinished = 1; made < REQUESTS || unfinished; step++) {
    while (made < REQUESTS && test_random(&rng) % 3) {
      CHECK(!infc_lm_submit(lm, prompts[made], sizes[made], &wanted[made], &requests[made]), "%s", infc_lm_error(lm));
      made++;
    }
    CHECK(!infc_lm_advance(lm, &unfinished), "%s", infc_lm_error(lm));
    for (uint32_t i = 0; i < made; i++) {
      infc_event event = {.struct_size = sizeof event};
      while (!got[i].finish && test_random(&rng) % 4 && infc_request_poll(requests[i], &event))
        add(&got[i], &event);
    }
    if (!CHECK(step < 20000))
      break;
  }
  for (uint32_t i = 0; i < REQUESTS; i++) {
    infc_event event = {.struct_size = sizeof event};
    while (!got[i].finish && !infc_request_next(requests[i], &event))
      add(&got[i], &event);
    CHECK(same(&expected[i], &got[i]), "request %u: %u tokens of %u", i, got[i].count, expected[i].count);
    CHECK(expected[i].probability - got[i].probability < 1e-3 && got[i].probability - expected[i].probability < 1e-3);
    infc_generation_stats stats = {.struct_size = sizeof stats};
    CHECK(!infc_request_stats(requests[i], &stats) && stats.new_tokens == got[i].count);
    preempted += stats.preemptions;
    guessed += stats.guessed;
    accepted += stats.accepted;
    infc_request_destroy(requests[i]);
  }
  infc_lm_info info = {.struct_size = sizeof info};
  CHECK(!infc_lm_get_info(lm, &info) && info.sequences == 0 && info.free_tokens == info.cache_tokens);
  if (options->cache_tokens < 400)
    CHECK(preempted > 0, "nothing was preempted");
  if (speculate || draft)
    CHECK(accepted > 0, "%u of %u guesses were right", accepted, guessed);
  infc_lm_destroy(lm);
  infc_lm_destroy(alone);
}

static int cancel_after_five(void *user, const infc_event *event) {
  add(user, event);
  return ((result *)user)->count == 5;
}

static void test_cancel(const lm_test *t) {
  int32_t prompt[] = {1, 2, 3};
  result r = {0};
  CHECK(!infc_generate(t->lm, prompt, 3, &greedy, cancel_after_five, &r));
  CHECK(r.count == 5 && r.finish == INFC_FINISH_CANCELLED);
  infc_request *request;
  CHECK(!infc_lm_submit(t->lm, prompt, 3, &greedy, &request));
  infc_request_cancel(request);
  infc_event event = {.struct_size = sizeof event};
  for (int i = 0; i < 3; i++)
    CHECK(!infc_request_next(request, &event) && event.token == -1 && event.finish == INFC_FINISH_CANCELLED);
  infc_request_destroy(request);
}

// A cache that one request alone outgrows.
static void test_too_small(const infc_engine *engine) {
  infc_lm *lm = lm_open(engine, &(infc_lm_options){.struct_size = sizeof(infc_lm_options), .cache_tokens = 64});
  int32_t prompt[] = {1, 2, 3};
  infc_generate_options options = greedy;
  options.max_new_tokens = 100;
  const result r = generate(lm, prompt, 3, &options);
  CHECK(r.finish == INFC_FINISH_CACHE && r.count == 62, "%u tokens", r.count); // the last one is not in the cache
  const result again = generate(lm, prompt, 3, &greedy);
  CHECK(again.finish == INFC_FINISH_LENGTH && again.count == 60);
  infc_lm_destroy(lm);
}

static void test_context_end(const lm_test *t) {
  int32_t prompt[LM_CONTEXT];
  test_rng rng = {41};
  lm_random_tokens(&rng, prompt, LM_CONTEXT);
  infc_generate_options options = greedy;
  options.max_new_tokens = 0;
  const result r = generate(t->lm, prompt, LM_CONTEXT - 3, &options);
  CHECK(r.count == 3 && r.finish == INFC_FINISH_LENGTH);
  const result none = generate(t->lm, prompt, LM_CONTEXT, &options);
  CHECK(none.count == 0 && none.finish == INFC_FINISH_LENGTH);
}

static void test_misuse(const lm_test *t) {
  infc_request *request;
  int32_t prompt[] = {1, LM_V};
  infc_generate_options options = greedy;
  CHECK(infc_lm_submit(t->lm, prompt, 0, &options, &request) == INFC_STATUS_INVALID_ARGUMENT);
  CHECK(infc_lm_submit(t->lm, prompt, 2, &options, &request) == INFC_STATUS_BAD_VALUE);
  options.temperature = -1.0f;
  CHECK(infc_lm_submit(t->lm, prompt, 1, &options, &request) == INFC_STATUS_INVALID_ARGUMENT);
  options = greedy;
  options.bias = &(infc_logit_bias){LM_V, 0};
  options.bias_count = 1;
  CHECK(infc_lm_submit(t->lm, prompt, 1, &options, &request) == INFC_STATUS_BAD_VALUE);
  options = greedy;
  options.stop_strings = (const char *[]){""};
  options.stop_string_count = 1;
  CHECK(infc_lm_submit(t->lm, prompt, 1, &options, &request) == INFC_STATUS_INVALID_ARGUMENT);
  options = greedy;
  options.draft = t->lm;
  CHECK(infc_lm_submit(t->lm, prompt, 1, &options, &request) == INFC_STATUS_INVALID_ARGUMENT, "%s",
        infc_lm_error(t->lm));
  uint32_t unfinished = 7;
  CHECK(!infc_lm_advance(t->lm, &unfinished) && unfinished == 0);
}

int main(void) {
  const infc_lm_options options = {.struct_size = sizeof options, .cache_tokens = 2000, .max_sequences = 8};
  lm_test t = lm_begin(&lm_default, &options);
  test_greedy(&t);
  test_stops(&t);
  test_stop_tokens(&t);
  test_characters(&t);
  test_mask(&t);
  test_cancel(&t);
  test_too_small(t.engine);
  test_context_end(&t);
  test_misuse(&t);
  infc_lm_options few = options;
  few.max_batched_tokens = 20;
  test_together(t.engine, &options, false, NULL);
  test_together(t.engine, &few, true, NULL);
  few.cache_tokens = 256;
  test_together(t.engine, &few, false, NULL);
  test_together(t.engine, &few, true, NULL);
  // A draft of the same weights, which is mostly right, and one of others, which is not.
  infc_lm *draft = lm_open(t.engine, &options);
  test_together(t.engine, &few, false, draft);
  infc_lm_destroy(draft);
  lm_model other = lm_default;
  other.seed = 8;
  lm_test second = lm_begin(&other, &options);
  test_together(t.engine, &options, true, second.lm);
  lm_end(&second);
  lm_end(&t);
  return test_result();
}
