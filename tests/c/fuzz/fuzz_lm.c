// Coverage-guided: bytes as a sequence of calls on a small language model, with arguments that are right, wrong or
// absent. What sequences hold is known beforehand: a call that fails changes nothing, and logits are those that the
// text has alone; so are a request's tokens. See replay.h for how it runs without libFuzzer.
#include "drive.h"
#include "lm/model.h"
#include "replay.h"

#include <math.h>

enum { SEQUENCES = 4, REQUESTS = 3, MOST_CALLS = 96, MOST_NEW = 48, ALONE = 70, BIASES = 4, PROMPT = 40, TEXT = 512 };

typedef struct text {
  infc_sequence *sequence;
  uint32_t length, longest; // now, and since it was empty
  int32_t tokens[LM_CONTEXT];
} text;

// A request, what it was asked, and what it has said.
typedef struct asked {
  infc_request *request;
  int32_t prompt[PROMPT], tokens[LM_CONTEXT];
  uint32_t prompt_count, count;
  infc_finish finish;
  bool cancelled;
  infc_generate_options options;
  infc_logit_bias bias[BIASES];
  int32_t stops[BIASES];
  const char *strings[BIASES];
  char text[TEXT];
  uint32_t text_size;
} asked;

typedef struct world {
  const uint8_t *at, *end; // bytes left
  infc_lm *lm;
  text texts[SEQUENCES];
  asked requests[REQUESTS];
} world;

static uint8_t take(world *w) {
  return w->at < w->end ? *w->at++ : 0;
}

static text *text_of(world *w) {
  return &w->texts[take(w) % SEQUENCES];
}

// One for all inputs, with a model that computes single texts.
static infc_engine *engine(infc_lm **alone) {
  static infc_engine *opened;
  static infc_lm *single;
  if (!opened) {
    size_t size;
    char why[256] = "";
    const uint8_t *data = lm_make(&lm_default, &size); // mapped as long as the engine
    CHECK(!infc_engine_open_memory(data, size, NULL, &opened, why, sizeof why), "%s", why);
    single = lm_open(opened, &(infc_lm_options){.struct_size = sizeof(infc_lm_options), .no_prefix_cache = 1});
  }
  *alone = single;
  return opened;
}

static void check_logits(const text *t, const float *logits) {
  infc_lm *alone;
  infc_sequence *sequence;
  float wanted[LM_V];
  engine(&alone);
  CHECK(!infc_sequence_create(alone, &sequence));
  CHECK(!infc_lm_step(alone, &(infc_lm_part){sequence, t->tokens, t->length, 1}, 1, wanted, sizeof wanted));
  CHECK(!memcmp(wanted, logits, sizeof wanted), "a text of %u tokens has other logits alone", t->length);
  infc_sequence_destroy(sequence);
}

static void check_texts(const world *w) {
  for (int i = 0; i < SEQUENCES; i++) {
    const text *t = &w->texts[i];
    if (t->sequence)
      CHECK(infc_sequence_length(t->sequence) == t->length &&
                !memcmp(infc_sequence_tokens(t->sequence), t->tokens, t->length * sizeof *t->tokens),
            "a sequence has other tokens than it was given");
  }
}

static void end(text *t) {
  infc_sequence_destroy(t->sequence);
  t->sequence = NULL;
}

static void create(world *w) {
  text *t = text_of(w), *from = text_of(w);
  const bool fork = take(w) % 2 && from->sequence && from != t;
  infc_sequence *made = NULL;
  const infc_status status =
      fork ? infc_sequence_fork(from->sequence, &made) : infc_sequence_create(take(w) != 255 ? w->lm : NULL, &made);
  CHECK(!status == !!made, "a failure gives a sequence");
  if (status)
    return;
  end(t);
  if (fork)
    *t = *from;
  else
    t->length = t->longest = 0;
  t->sequence = made;
}

static void truncate_text(world *w) {
  text *t = text_of(w);
  const uint32_t back = take(w), length = back < 250 ? t->length - back : back; // it may wrap around
  if (!t->sequence)
    return;
  const infc_status status = infc_sequence_truncate(t->sequence, length);
  CHECK(!status || length > t->length || (length && t->longest > LM_WINDOW), "%s", infc_lm_error(w->lm));
  CHECK(status || length <= t->length, "it has more tokens than it had");
  if (!status)
    t->length = length;
  if (!status && !length)
    t->longest = 0;
}

// Texts are often alike, so that the prefix cache knows them.
static void draw_tokens(world *w, const text *t, int32_t *tokens, uint32_t count) {
  const uint8_t kind = take(w);
  for (uint32_t i = 0; i < count; i++)
    tokens[i] = (int32_t)(kind < 200 ? (t->length + i) * 7 % LM_V : take(w) % LM_V);
  if (kind == 199 && count)
    tokens[take(w) % count] = take(w) % 2 ? LM_V : -1;
}

static void reuse(world *w) {
  text *t = text_of(w);
  int32_t tokens[LM_CONTEXT];
  const uint32_t count = take(w) * 2;
  uint32_t reused = 0;
  draw_tokens(w, &(text){0}, tokens, count);
  const infc_status status = infc_sequence_reuse(t->sequence, take(w) % 16 ? tokens : NULL, count, &reused);
  CHECK(status ? !reused : reused <= count, "more is reused than was asked for");
  if (!status && t->sequence) {
    memcpy(t->tokens, tokens, reused * sizeof *tokens);
    t->length = t->longest = reused;
  }
}

// Mostly some of those that are there.
static uint32_t choose(world *w, text **which) {
  const uint8_t bits = take(w);
  uint32_t count = 0;
  for (int i = 0; i < SEQUENCES; i++)
    if (bits >> i & 1 && w->texts[i].sequence)
      which[count++] = &w->texts[i];
  if (bits > 250)
    which[count++] = text_of(w);
  return count;
}

static void step(world *w) {
  infc_lm_part parts[SEQUENCES + 1] = {0};
  text *which[SEQUENCES + 1];
  static int32_t tokens[SEQUENCES + 1][MOST_NEW];
  static float logits[(SEQUENCES + 1) * (MOST_NEW + 1) * LM_V];
  const uint32_t count = choose(w, which);
  uint32_t rows = 0;
  for (uint32_t i = 0; i < count; i++) {
    const uint8_t bits = take(w);
    const uint32_t added = bits == 255 ? 0 : bits % 2 ? 1 : 1 + take(w) % (MOST_NEW - 1);
    draw_tokens(w, which[i], tokens[i], added);
    parts[i] = (infc_lm_part){which[i]->sequence, bits == 254 ? NULL : tokens[i], added,
                              bits < 150 ? added > 0 : take(w) % (bits < 250 ? added + 1 : MOST_NEW + 1)};
    rows += parts[i].logit_rows;
  }
  size_t size = rows * LM_V * sizeof *logits;
  const uint8_t bits = take(w);
  size = bits == 1 ? size - 1 : size;
  const infc_status status = infc_lm_step(w->lm, parts, count, bits == 2 ? NULL : logits, size);
  if (status)
    return;
  const float *row = logits;
  for (uint32_t i = 0; i < count; i++) {
    text *t = which[i];
    memcpy(t->tokens + t->length, tokens[i], parts[i].count * sizeof **tokens);
    t->length += parts[i].count;
    t->longest = t->length > t->longest ? t->length : t->longest;
    row += (size_t)parts[i].logit_rows * LM_V;
    if (parts[i].logit_rows && t->length <= ALONE && bits % 4 == 0)
      check_logits(t, row - LM_V);
  }
}

// A sequence that is saved, perhaps damaged, and restored into another. What is damaged is refused, or its tokens are
// whole and its blocks hold anything: it is used and ended here, for nobody knows its logits.
static void restore(world *w) {
  text *from = text_of(w), *to = text_of(w);
  const size_t size = infc_sequence_save_size(from->sequence), given = take(w) == 255 ? take(w) : size;
  uint8_t *memory = test_alloc(size);
  CHECK(from->sequence || !size, "nothing takes %zu bytes", size);
  const infc_status saved = infc_sequence_save(from->sequence, memory, given < size ? given : size);
  CHECK(saved || from->sequence, "nothing is saved");
  const uint8_t changes = take(w) % 4;
  for (int i = 0; i < changes && size; i++)
    memory[(take(w) % 8 ? take(w) : take(w) * 256u + take(w)) % size] = take(w);
  if (!saved && to != from && to->sequence) {
    const infc_status status =
        infc_sequence_restore(to->sequence, memory, take(w) == 255 ? size - take(w) % size : size);
    if (!status && changes) {
      static float logits[LM_V];
      infc_lm_step(w->lm, &(infc_lm_part){to->sequence, (int32_t[]){3}, 1, 1}, 1, logits, sizeof logits);
      end(to);
    } else if (!status) {
      infc_sequence *sequence = to->sequence;
      CHECK(!to->length, "tokens are replaced");
      *to = *from;
      to->sequence = sequence;
    }
  }
  test_free(memory);
}

// ---- Requests

// Another one for each text, of `user`'s kind.
static void allow(void *user, const int32_t *tokens, uint32_t count, uint32_t *allowed) {
  const uint32_t kind = user ? *(const uint32_t *)user : 0; // options may end before it
  for (uint32_t t = 0; t < LM_V; t++)
    if ((t * 7 + count + (uint32_t)tokens[count - 1]) % (kind + 1) == 0)
      allowed[t / 32] &= ~(1u << t % 32);
}

// Mostly what people choose.
static float take_number(world *w, float most) {
  static const float odd[] = {-1.0f, NAN, INFINITY, -INFINITY, 1e-30f, 1e30f};
  const uint8_t byte = take(w);
  return byte < 250 ? most * (float)byte / 250.0f : odd[byte - 250];
}

static void take_options(world *w, asked *a) {
  static const char *const strings[] = {"a", "bc.", "\xC3\xA9", "", NULL, "zz"};
  static uint32_t masks[] = {0, 1, 2, 3};
  const uint8_t bits = take(w), more = take(w);
  a->options = (infc_generate_options){
      .struct_size = sizeof a->options, .max_new_tokens = take(w) % 40, .ignore_eos = bits & 1, .seed = take(w)};
  infc_generate_options *o = &a->options;
  o->temperature = bits & 2 ? take_number(w, 2) : 0;
  o->top_k = bits & 4 ? take(w) % 70 : 0;
  o->top_p = bits & 8 ? take_number(w, 1) : 0;
  o->min_p = bits & 16 ? take_number(w, 1) : 0;
  o->repetition_penalty = bits & 32 ? take_number(w, 2) : 0;
  o->presence_penalty = bits & 32 ? take_number(w, 2) : 0;
  o->frequency_penalty = bits & 32 ? take_number(w, 2) : 0;
  o->log_probabilities = bits >> 6 & 1;
  o->prompt_lookup = bits >> 7;
  o->bias_count = more & 1 ? take(w) % BIASES + 1 : 0;
  o->stop_token_count = more & 2 ? take(w) % BIASES : 0;
  o->stop_string_count = more & 4 ? take(w) % BIASES : 0;
  for (int i = 0; i < BIASES; i++) {
    a->bias[i] = (infc_logit_bias){(int32_t)(take(w) % (LM_V + 1)), take_number(w, 20)};
    a->stops[i] = (int32_t)take(w) - 8;
    a->strings[i] = strings[take(w) % 128 < 120 ? i % 3 : i % 6];
  }
  o->bias = more & 8 && take(w) == 7 ? NULL : a->bias;
  o->stop_tokens = a->stops;
  o->stop_strings = a->strings;
  o->mask = more & 16 ? allow : NULL;
  o->mask_user = &masks[take(w) % 4];
  if (more == 255)
    o->struct_size = take(w) % (sizeof *o / sizeof(void *) + 1) * sizeof(void *);
}

static asked *request_of(world *w) {
  return &w->requests[take(w) % REQUESTS];
}

static void drop(asked *a) {
  infc_request_destroy(a->request);
  a->request = NULL;
}

static void submit(world *w) {
  asked *a = request_of(w);
  drop(a);
  *a = (asked){.prompt_count = take(w) % PROMPT};
  draw_tokens(w, &(text){0}, a->prompt, a->prompt_count);
  take_options(w, a);
  const bool none = take(w) > 250;
  if (none)
    a->options = (infc_generate_options){.struct_size = sizeof a->options};
  const infc_status status =
      infc_lm_submit(take(w) != 255 ? w->lm : NULL, a->prompt, a->prompt_count, none ? NULL : &a->options, &a->request);
  CHECK(!status == !!a->request, "a failure gives a request");
}

static void listen(asked *a, const infc_event *event) {
  CHECK(event->finish == INFC_FINISH_NONE || event->token < 0, "a token that is the end");
  CHECK(a->finish == INFC_FINISH_NONE || event->finish == a->finish, "an end after the end");
  if (event->token >= 0 && CHECK(a->count < LM_CONTEXT && event->token < LM_V, "token %d", event->token))
    a->tokens[a->count++] = event->token;
  const size_t size = a->finish ? 0 : event->text_size;
  if (size <= TEXT - a->text_size) {
    memcpy(a->text + a->text_size, event->text, size);
    a->text_size += (uint32_t)size;
  }
  a->finish = event->finish;
}

static int listen_alone(void *user, const infc_event *event) {
  listen(user, event);
  return 0;
}

// The same request, with nothing else to compute, says the same.
static void check_request(const asked *a) {
  static asked other;
  infc_lm *alone;
  engine(&alone);
  other = *a;
  other.count = other.text_size = 0;
  other.finish = INFC_FINISH_NONE;
  CHECK(!infc_generate(alone, a->prompt, a->prompt_count, &a->options, listen_alone, &other), "%s",
        infc_lm_error(alone));
  CHECK(other.count >= a->count && !memcmp(other.tokens, a->tokens, a->count * sizeof *a->tokens),
        "a request has other tokens alone");
  if (a->cancelled || a->finish == INFC_FINISH_CACHE)
    return;
  CHECK(other.finish == a->finish && other.text_size == a->text_size && !memcmp(other.text, a->text, a->text_size),
        "a request ends otherwise alone: %d, not %d", other.finish, a->finish);
}

static void use_request(world *w) {
  asked *a = request_of(w);
  infc_event event = {.struct_size = sizeof event};
  infc_generation_stats stats = {.struct_size = sizeof stats};
  uint32_t unfinished = 0;
  const uint8_t kind = take(w) % 8;
  if (kind == 0) {
    CHECK(infc_lm_advance(w->lm, take(w) % 8 ? &unfinished : NULL) <= INFC_STATUS_CACHE_FULL);
    CHECK(unfinished <= REQUESTS, "%u requests are not finished", unfinished);
  } else if (kind == 1 && a->request) {
    infc_request_cancel(a->request);
    a->cancelled = true;
  } else if (kind == 2 && take(w) % 8 == 0) {
    drop(a);
  } else if (kind == 3) {
    CHECK(infc_request_stats(a->request, &stats) || stats.accepted <= stats.guessed, "more is right than was said");
  } else if (kind < 6) {
    if (infc_request_poll(a->request, take(w) != 255 ? &event : NULL))
      listen(a, &event);
  } else {
    const bool ended = a->finish;
    for (int i = take(w) % 8; i >= 0 && a->request && !infc_request_next(a->request, &event); i--)
      listen(a, &event);
    if (a->finish && !ended && take(w) % 2)
      check_request(a);
  }
}

static void ask(world *w) {
  infc_lm_info info = {.struct_size = take(w) % 8 ? sizeof info : take(w)};
  const infc_status status = infc_lm_get_info(w->lm, take(w) % 16 ? &info : NULL);
  CHECK(status || info.struct_size < sizeof info || info.free_tokens <= info.cache_tokens,
        "more is free than there is");
  size_t size;
  const char *told = infc_lm_token_text(w->lm, (int32_t)take(w) - 8, &size);
  CHECK(told && size <= 3, "a text of %zu bytes", size);
  CHECK(infc_lm_error(w->lm) && memchr(infc_lm_error(w->lm), 0, 4096), "text without an end");
}

static void one_call(world *w) {
  switch (take(w) % 14) {
  case 8:
  case 9:
    submit(w);
    break;
  case 10:
  case 11:
  case 12:
  case 13:
    use_request(w);
    break;
  case 0:
    create(w);
    break;
  case 1:
    truncate_text(w);
    break;
  case 2:
    if (take(w) % 4)
      reuse(w);
    else
      restore(w);
    break;
  case 3:
    if (take(w) % 2)
      create(w);
    else if (take(w) % 4 == 0)
      end(text_of(w));
    break;
  case 4:
    ask(w);
    break;
  default:
    step(w);
  }
}

static bool fuzz_change(uint8_t *data, size_t size, test_rng *rng) {
  (void)data;
  (void)size;
  (void)rng;
  return false;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  world w = {.at = data, .end = data + size};
  infc_lm *alone;
  infc_allocator allocator = {capped_alloc, capped_free, NULL};
  const uint8_t bits = take(&w);
  const size_t whole = take(&w) % (sizeof(infc_lm_options) / sizeof(void *) + 1) * sizeof(void *);
  infc_lm_options options = {.struct_size = bits & 1 ? whole : sizeof options, // an older caller's
                             .allocator = bits & 2 ? &allocator : NULL,
                             .cache_tokens = bits & 4 ? take(&w) * 4 : 160,
                             .cache_bytes = bits & 8 ? (uint64_t)take(&w) << take(&w) % 64 : 0,
                             .max_sequences = bits & 16 ? take(&w) : SEQUENCES - 1,
                             .no_prefix_cache = bits & 32};
  char why[64] = "";
  const infc_status status = infc_lm_create(bits == 255 ? NULL : engine(&alone), &options, &w.lm, why, sizeof why);
  CHECK(memchr(why, 0, sizeof why) && !status == !!w.lm, "a failure gives a model");
  for (int i = 0; i < MOST_CALLS && w.lm && w.at < w.end; i++) {
    one_call(&w);
    check_texts(&w);
  }
  for (int i = 0; i < SEQUENCES && w.lm; i++)
    end(&w.texts[i]);
  for (int i = 0; i < REQUESTS && w.lm; i++)
    drop(&w.requests[i]);
  infc_lm_info info = {.struct_size = sizeof info};
  CHECK(!w.lm || (!infc_lm_get_info(w.lm, &info) && info.sequences == 0 && info.free_tokens == info.cache_tokens),
        "blocks are lost: %llu of %llu free", (unsigned long long)info.free_tokens,
        (unsigned long long)info.cache_tokens);
  infc_lm_destroy(w.lm);
  return fuzz_result();
}
