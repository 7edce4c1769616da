// Requests: from the caller's options to tokens and text that are handed out.
#include "request.h"

#include <float.h>
#include <math.h>
#include <time.h>

double infc_lm_now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static infc_status check_options(infc_lm *lm, const infc_generate_options *o) {
  const infc_error error = infc_lm_error_buffer(lm);
  const struct {
    const char *name;
    float value, least, most;
  } limits[] = {
      {"temperature", o->temperature, 0, FLT_MAX},
      {"top_p", o->top_p, 0, FLT_MAX}, // 1 and more: all tokens
      {"min_p", o->min_p, 0, 1},       // more would leave no token
      {"repetition_penalty", o->repetition_penalty, 0, FLT_MAX},
      {"presence_penalty", o->presence_penalty, -FLT_MAX, FLT_MAX},
      {"frequency_penalty", o->frequency_penalty, -FLT_MAX, FLT_MAX},
  };
  for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
    if (!(limits[i].value >= limits[i].least && limits[i].value <= limits[i].most))
      return infc_fail(error, INFC_STATUS_INVALID_ARGUMENT, "%s is %g, not from %g to %g", limits[i].name,
                       (double)limits[i].value, (double)limits[i].least, (double)limits[i].most);
  if ((o->bias_count && !o->bias) || (o->stop_token_count && !o->stop_tokens) ||
      (o->stop_string_count && !o->stop_strings))
    return infc_fail(error, INFC_STATUS_INVALID_ARGUMENT, "an array of the options is NULL");
  for (uint32_t i = 0; i < o->bias_count; i++)
    if (o->bias[i].token < 0 || (uint32_t)o->bias[i].token >= lm->vocabulary)
      return infc_fail(error, INFC_STATUS_BAD_VALUE, "a bias of token %d, of %u", o->bias[i].token, lm->vocabulary);
    else if (isnan(o->bias[i].bias))
      return infc_fail(error, INFC_STATUS_BAD_VALUE, "the bias of token %d is NaN", o->bias[i].token);
  for (uint32_t i = 0; i < o->stop_string_count; i++)
    if (!o->stop_strings[i] || !*o->stop_strings[i])
      return infc_fail(error, INFC_STATUS_INVALID_ARGUMENT, "stop string %u is empty", i);
  if (o->draft && (o->draft == lm || o->draft->vocabulary != lm->vocabulary))
    return infc_fail(error, INFC_STATUS_INVALID_ARGUMENT, "the draft is a model of its own with a vocabulary of %u",
                     lm->vocabulary);
  return INFC_STATUS_OK;
}

static infc_status check_prompt(infc_lm *lm, const int32_t *prompt, uint32_t count) {
  const infc_error error = infc_lm_error_buffer(lm);
  if (!prompt || count == 0)
    return infc_fail(error, INFC_STATUS_INVALID_ARGUMENT, "the prompt is empty");
  if (count > lm->limit)
    return infc_fail(error, INFC_STATUS_BAD_SHAPE, "the prompt has %u tokens, the context %u", count, lm->limit);
  for (uint32_t g = 0; g < lm->group_count; g++) {
    const uint64_t held = (uint64_t)lm->blocks[g].count * INFC_CACHE_TOKENS;
    if (!lm->windows[g] && count > held)
      return infc_fail(error, INFC_STATUS_BAD_SHAPE, "the prompt has %u tokens, the cache holds %llu", count,
                       (unsigned long long)held);
  }
  for (uint32_t i = 0; i < count; i++)
    if (prompt[i] < 0 || (uint32_t)prompt[i] >= lm->vocabulary)
      return infc_fail(error, INFC_STATUS_BAD_VALUE, "token %d at %u of the prompt is not one of %u", prompt[i], i,
                       lm->vocabulary);
  return INFC_STATUS_OK;
}

static bool has_penalty(const infc_generate_options *o) {
  return (o->repetition_penalty != 0.0f && o->repetition_penalty != 1.0f) || o->presence_penalty != 0.0f ||
         o->frequency_penalty != 0.0f;
}

// Everything of a request in one block; first to learn the size.
static infc_request *lay_out(infc_carve *carve, const infc_lm *lm, const infc_generate_options *o, uint32_t prompt,
                             uint32_t limit) {
  infc_request plan = {.prompt = prompt, .limit = limit, .text = {.language = lm->language, .kept = 3}};
  size_t strings = 0;
  for (uint32_t i = 0; i < o->stop_string_count; i++) {
    const size_t size = strlen(o->stop_strings[i]);
    strings += size + 1;
    plan.text.kept = size - 1 > plan.text.kept ? (uint32_t)size - 1 : plan.text.kept;
  }
  const uint64_t room = (uint64_t)plan.text.kept + lm->language->longest;
  infc_request *request = infc_carve_take(carve, 1, sizeof *request);
  plan.tokens = infc_carve_take(carve, (uint64_t)limit + INFC_GUESSES + 1, sizeof *plan.tokens);
  plan.log_probabilities = infc_carve_take(carve, o->log_probabilities ? limit - prompt : 0, sizeof(float));
  plan.sampling.counts = infc_carve_take(carve, has_penalty(o) ? lm->vocabulary : 0, sizeof(uint32_t));
  infc_logit_bias *bias = infc_carve_take(carve, o->bias_count, sizeof *bias);
  int32_t *stops = infc_carve_take(carve, o->stop_token_count, sizeof *stops);
  plan.text.stops = infc_carve_take(carve, o->stop_string_count, sizeof *plan.text.stops);
  char *texts = infc_carve_take(carve, strings, 1);
  plan.text.tail = infc_carve_take(carve, room, 1);
  plan.text.piece = infc_carve_take(carve, room, 1);
  if (!carve->base)
    return NULL;
  for (uint32_t i = 0; i < o->stop_string_count; i++) {
    plan.text.stops[i] = strcpy(texts, o->stop_strings[i]);
    texts += strlen(texts) + 1;
  }
  if (o->bias_count)
    memcpy(bias, o->bias, o->bias_count * sizeof *bias);
  if (o->stop_token_count)
    memcpy(stops, o->stop_tokens, o->stop_token_count * sizeof *stops);
  plan.sampling.bias = bias;
  plan.stops = stops;
  *request = plan;
  return request;
}

static void set_options(infc_request *r, const infc_generate_options *o) {
  r->log_probabilities = o->log_probabilities ? r->log_probabilities : NULL;
  r->ignore_eos = o->ignore_eos;
  r->stop_count = o->stop_token_count;
  r->text.stop_count = o->stop_string_count;
  r->mask = o->mask;
  r->mask_user = o->mask_user;
  r->speculation.lookup = o->prompt_lookup;
  r->draft = o->draft;
  r->sampling = (infc_sampling){.temperature = o->temperature,
                                .top_k = o->top_k,
                                .top_p = o->top_p,
                                .min_p = o->min_p,
                                .repetition = o->repetition_penalty,
                                .presence = o->presence_penalty,
                                .frequency = o->frequency_penalty,
                                .seed = o->seed,
                                .bias = r->sampling.bias,
                                .bias_count = o->bias_count,
                                .counts = has_penalty(o) ? r->sampling.counts : NULL};
}

static void set_prompt(infc_request *r, const int32_t *prompt) {
  memcpy(r->tokens, prompt, r->prompt * sizeof *prompt);
  r->count = r->read = r->text.token = r->prompt; // the text begins after the prompt
  if (r->sampling.counts) {
    memset(r->sampling.counts, 0, r->lm->vocabulary * sizeof *r->sampling.counts);
    for (uint32_t i = 0; i < r->prompt; i++)
      r->sampling.counts[prompt[i]] = INFC_IN_PROMPT;
  }
  r->stats.prompt_tokens = r->prompt;
  r->submitted = infc_lm_now();
}

static infc_status submit(infc_lm *lm, const int32_t *prompt, uint32_t count, const infc_generate_options *options,
                          infc_request **out) {
  infc_generate_options ours;
  infc_status status = infc_options_copy(&ours, sizeof ours, options, infc_lm_error_buffer(lm));
  if (!status)
    status = check_options(lm, &ours);
  if (!status)
    status = check_prompt(lm, prompt, count);
  if (status)
    return status;
  const uint32_t room = lm->limit - count;
  const uint32_t limit = count + (ours.max_new_tokens && ours.max_new_tokens < room ? ours.max_new_tokens : room);
  infc_carve carve = {0};
  lay_out(&carve, lm, &ours, count, limit);
  void *memory = carve.overflow ? NULL : infc_alloc(&lm->allocator, carve.used);
  if (!memory)
    return infc_fail(infc_lm_error_buffer(lm), INFC_STATUS_OUT_OF_MEMORY, "out of memory for a request");
  carve = (infc_carve){.base = memory};
  infc_request *request = lay_out(&carve, lm, &ours, count, limit);
  request->lm = lm;
  set_options(request, &ours);
  set_prompt(request, prompt);
  infc_request **last = &lm->requests;
  while (*last)
    last = &(*last)->next;
  *last = request;
  if (limit == count) // the context has room for nothing
    infc_request_finish(request, INFC_FINISH_LENGTH);
  *out = request;
  return INFC_STATUS_OK;
}

infc_status infc_lm_submit(infc_lm *lm, const int32_t *prompt, uint32_t count, const infc_generate_options *options,
                           infc_request **out) {
  if (!lm || !out)
    return INFC_STATUS_INVALID_ARGUMENT;
  if (!infc_lm_acquire(lm))
    return INFC_STATUS_BUSY;
  return infc_lm_release(lm, submit(lm, prompt, count, options, out));
}

void infc_request_leave(infc_request *request) {
  if (request->sequence)
    infc_sequence_end(request->sequence);
  request->sequence = NULL;
  if (request->draft_sequence && infc_lm_acquire(request->draft)) {
    infc_sequence_end(request->draft_sequence);
    infc_lm_release(request->draft, INFC_STATUS_OK);
    request->draft_sequence = NULL;
    request->draft_agreed = 0;
  }
}

void infc_request_finish(infc_request *request, infc_finish finish) {
  request->finish = finish;
  infc_text_end(&request->text);
  infc_request_leave(request);
}

static bool is_stop(const infc_request *r, int32_t token) {
  const infc_language *language = r->lm->language;
  for (uint32_t i = 0; !r->ignore_eos && i < language->header->stop_count; i++)
    if (language->stops[i] == (uint32_t)token)
      return true;
  for (uint32_t i = 0; i < r->stop_count; i++)
    if (r->stops[i] == token)
      return true;
  return false;
}

void infc_request_take(infc_request *r, int32_t token, float log_probability) {
  if (token < 0 || is_stop(r, token)) {
    infc_request_finish(r, token < 0 ? INFC_FINISH_NO_TOKEN : INFC_FINISH_STOP);
    return;
  }
  if (r->log_probabilities)
    r->log_probabilities[r->count - r->prompt] = log_probability;
  if (r->sampling.counts)
    r->sampling.counts[token]++;
  r->tokens[r->count++] = token;
  r->stats.new_tokens++;
  if (infc_text_add(&r->text, token))
    infc_request_finish(r, INFC_FINISH_STOP);
  else if (r->count == r->limit)
    infc_request_finish(r, INFC_FINISH_LENGTH);
}

// The next token, or the end, if it is there.
static bool poll(infc_request *r, infc_event *event) {
  infc_event ours = {.token = -1};
  if (r->read < r->count) {
    ours.token = r->tokens[r->read];
    ours.log_probability = r->log_probabilities ? r->log_probabilities[r->read - r->prompt] : 0.0f;
    r->read++;
  } else if (r->finish == INFC_FINISH_NONE) {
    return false;
  } else {
    ours.finish = r->finish;
  }
  ours.text = r->text.piece;
  ours.text_size = infc_text_show(&r->text, r->tokens, r->read);
  return infc_result_copy(event, &ours, sizeof ours);
}

int infc_request_poll(infc_request *request, infc_event *event) {
  return request && event && poll(request, event);
}

infc_status infc_request_next(infc_request *request, infc_event *event) {
  if (!request || !event || event->struct_size < sizeof event->struct_size)
    return INFC_STATUS_INVALID_ARGUMENT;
  if (poll(request, event))
    return INFC_STATUS_OK;
  if (!infc_lm_acquire(request->lm))
    return INFC_STATUS_BUSY;
  infc_status status = INFC_STATUS_OK;
  while (!status && !poll(request, event))
    status = infc_lm_make_step(request->lm);
  return infc_lm_release(request->lm, status);
}

void infc_request_cancel(infc_request *request) {
  atomic_store_explicit(&request->cancelled, true, memory_order_relaxed);
}

void infc_request_destroy(infc_request *request) {
  if (!request || !infc_lm_acquire(request->lm))
    return;
  infc_lm *lm = request->lm;
  infc_request_leave(request);
  infc_request **link = &lm->requests;
  while (*link != request)
    link = &(*link)->next;
  *link = request->next;
  infc_free(&lm->allocator, request);
  infc_lm_release(lm, INFC_STATUS_OK);
}

infc_status infc_request_stats(const infc_request *request, infc_generation_stats *stats) {
  if (!request || !stats || !infc_result_copy(stats, &request->stats, sizeof request->stats))
    return INFC_STATUS_INVALID_ARGUMENT;
  return INFC_STATUS_OK;
}

infc_status infc_generate(infc_lm *lm, const int32_t *prompt, uint32_t count, const infc_generate_options *options,
                          int (*on_event)(void *user, const infc_event *event), void *user) {
  infc_request *request;
  infc_status status = on_event ? infc_lm_submit(lm, prompt, count, options, &request) : INFC_STATUS_INVALID_ARGUMENT;
  if (status)
    return status;
  infc_event event = {.struct_size = sizeof event};
  do {
    status = infc_request_next(request, &event);
    if (!status && on_event(user, &event))
      infc_request_cancel(request);
  } while (!status && event.finish == INFC_FINISH_NONE);
  infc_request_destroy(request);
  return status;
}

const char *infc_lm_token_text(const infc_lm *lm, int32_t token, size_t *size) {
  uint32_t bytes;
  const char *text = infc_token_text(lm->language, token, &bytes);
  *size = bytes;
  return text;
}
