// The scheduler: which requests take part in the next step, and what comes of its logits.
#include "request.h"

// A step being put together: its parts, whose they are, and how much more it may have.
typedef struct batch {
  uint32_t parts, tokens, rows;
} batch;

static uint32_t pending(const infc_request *r) {
  return r->count - r->sequence->length;
}

// Adds a part of a request: as many of the tokens that are not in the cache as there is room for, and guesses.
static void add_part(infc_lm *lm, batch *b, infc_request *r) {
  uint32_t count = pending(r);
  r->guesses = count == 1 ? infc_guess(r, b->tokens - 1 < b->rows - 1 ? b->tokens - 1 : b->rows - 1) : 0;
  count += r->guesses;
  count = count < b->tokens ? count : b->tokens;
  const bool whole = count == pending(r) + r->guesses;
  lm->parts[b->parts] = (infc_lm_part){r->sequence, r->tokens + r->sequence->length, count, whole ? 1 + r->guesses : 0};
  lm->owners[b->parts++] = r;
  b->tokens -= count;
  b->rows -= whole ? 1 + r->guesses : 0;
}

// Whether the blocks that a waiting request needs are there.
static bool has_room(const infc_lm *lm, const infc_request *r) {
  for (uint32_t g = 0; g < lm->group_count; g++) {
    const uint32_t tokens = r->count + 1;
    const uint32_t need = infc_blocks_of(tokens) - infc_first_block(lm->windows[g], tokens);
    if (infc_blocks_available(&lm->blocks[g]) < need)
      return false;
  }
  return true;
}

static bool admit(infc_lm *lm, infc_request *r, bool alone) {
  if (!alone && !has_room(lm, r))
    return false;
  r->sequence = infc_sequence_new(lm);
  if (!r->sequence)
    return false;
  const uint32_t reused = infc_prefix_reuse(r->sequence, r->tokens, r->count - 1);
  if (r->started == 0) {
    r->started = infc_lm_now();
    r->stats.cached_tokens = reused;
    r->stats.queue_seconds = r->started - r->submitted;
  }
  return true;
}

// Tokens of prompts that a step may have beside those of requests that generate, so that these wait little longer: by
// what steps have cost of late.
static uint32_t gentle_chunk(const infc_lm *lm) {
  enum { LEAST = 8 };
  const double longer = 1.2; // times a step without prompts
  if (lm->pace.decode == 0 || lm->pace.token == 0)
    return LEAST;
  const double tokens = longer * lm->pace.decode / lm->pace.token;
  return tokens < LEAST ? LEAST : tokens < lm->batched_tokens ? (uint32_t)tokens : lm->batched_tokens;
}

// Follows values, but not one that is far off: the machine has other work.
static void follow(double *mean, double value) {
  const double most = 0.1 * *mean, change = 0.3 * (value - *mean);
  *mean = *mean == 0 ? value : *mean + (change > most ? most : change < -most ? -most : change);
}

// Learns from a step what one without prompts takes, and a prompt's token beside it.
static void learn_pace(infc_lm *lm, uint32_t parts, double seconds) {
  uint32_t prompt = 0, generating = 0;
  for (uint32_t i = 0; i < parts; i++) {
    const bool generates = lm->parts[i].count == 1 + lm->owners[i]->guesses;
    generating += generates;
    prompt += generates ? 0 : lm->parts[i].count;
  }
  const double beside = generating ? seconds - lm->pace.decode : seconds;
  if (prompt == 0)
    follow(&lm->pace.decode, seconds);
  else if (beside > 0)
    follow(&lm->pace.token, beside / prompt);
}

// Those that generate come first, then prompts in order of arrival, waiting ones too if `open`.
static batch plan(infc_lm *lm, bool open) {
  batch b = {.tokens = lm->batched_tokens, .rows = lm->batched_rows};
  bool alone = true;
  for (infc_request *r = lm->requests; r; r = r->next)
    if (r->sequence) {
      alone = false;
      if (pending(r) == 1 && b.tokens && b.rows)
        add_part(lm, &b, r);
    }
  if (b.parts && lm->gentle)
    b.tokens = b.tokens < gentle_chunk(lm) ? b.tokens : gentle_chunk(lm);
  for (infc_request *r = lm->requests; r && b.tokens && b.rows && b.parts < lm->max_sequences; r = r->next) {
    if (r->finish || (r->sequence && pending(r) == 1))
      continue;
    if (!r->sequence && !(open && admit(lm, r, alone)))
      break;
    alone = false;
    add_part(lm, &b, r);
  }
  return b;
}

// Makes room: the latest of several requests gives up what it has. False if there is one alone, which cannot go on.
static bool preempt(infc_lm *lm) {
  infc_request *latest = NULL;
  uint32_t running = 0;
  for (infc_request *r = lm->requests; r; r = r->next)
    if (r->sequence) {
      latest = r;
      running++;
    }
  if (running == 0)
    return false;
  if (running == 1) {
    infc_request_finish(latest, INFC_FINISH_CACHE);
    return true;
  }
  latest->stats.preemptions++;
  infc_request_leave(latest);
  return true;
}

static int32_t sample(infc_lm *lm, infc_request *r, float *logits) {
  if (r->mask) {
    memset(lm->sampler.allowed, 0xFF, (lm->vocabulary + 31) / 32 * sizeof *lm->sampler.allowed);
    r->mask(r->mask_user, r->tokens, r->count, lm->sampler.allowed);
  }
  return infc_sample(&lm->sampler, &r->sampling, r->mask ? lm->sampler.allowed : NULL, logits, r->count);
}

// The tokens that a part's rows of logits give: one, and one for each guess that was right. A wrong guess and what
// follows it are taken out of the sequence again.
static void take_tokens(infc_lm *lm, infc_request *r, float *logits) {
  const uint32_t guesses = r->guesses;
  for (uint32_t i = 0; i <= guesses && !r->finish; i++, logits += lm->vocabulary) {
    const int32_t guess = r->tokens[r->count];
    // The probability is of the logits as they were; which token it is of is known later, so they are kept.
    if (r->log_probabilities)
      memcpy(lm->no_logits, logits, lm->vocabulary * sizeof *logits);
    const int32_t token = sample(lm, r, logits);
    const float log_probability =
        r->log_probabilities && token >= 0 ? infc_log_probability(lm->no_logits, lm->vocabulary, token) : 0.0f;
    infc_request_take(r, token, log_probability);
    if (i < guesses && token != guess)
      break;
    r->stats.accepted += i < guesses;
  }
  if (r->sequence && r->sequence->length >= r->count)
    infc_sequence_cut(r->sequence, r->count - 1);
}

static void finish_part(infc_lm *lm, uint32_t part, float *logits, double started, double computed) {
  infc_request *r = lm->owners[part];
  const uint32_t before = r->count;
  if (lm->parts[part].logit_rows)
    take_tokens(lm, r, logits);
  const double now = infc_lm_now();
  if (before == r->prompt && lm->parts[part].logit_rows && !r->first) {
    r->first = now;
    r->stats.prefill_seconds = now - r->started;
  } else if (r->first) {
    r->stats.decode_seconds = now - r->first;
  }
  if (before > r->prompt && lm->parts[part].logit_rows == 1 + r->guesses)
    infc_guess_learn(r, computed - started, r->count - before);
}

static void cancel(infc_lm *lm) {
  for (infc_request *r = lm->requests; r; r = r->next)
    if (!r->finish && atomic_load_explicit(&r->cancelled, memory_order_relaxed))
      infc_request_finish(r, INFC_FINISH_CANCELLED);
}

// Nothing runs: because there is nothing to do, or because the caller's own sequences are all that there may be.
static infc_status waiting(infc_lm *lm) {
  for (const infc_request *r = lm->requests; r; r = r->next)
    if (!r->finish)
      return infc_fail(infc_lm_error_buffer(lm), INFC_STATUS_CACHE_FULL,
                       "a request waits for one of the %u sequences, which are all in use: max_sequences",
                       lm->max_sequences);
  return INFC_STATUS_OK;
}

infc_status infc_lm_make_step(infc_lm *lm) {
  cancel(lm);
  infc_status status = INFC_STATUS_OK;
  batch b;
  const double started = infc_lm_now();
  do {
    b = plan(lm, !status); // what was preempted does not come back at once
    if (b.parts == 0)
      return status ? INFC_STATUS_OK : waiting(lm);
    status = infc_lm_run_step(lm, lm->parts, b.parts, lm->logits,
                              (size_t)lm->batched_rows * lm->vocabulary * sizeof *lm->logits);
  } while (status == INFC_STATUS_CACHE_FULL && preempt(lm));
  const double computed = infc_lm_now();
  if (!status)
    learn_pace(lm, b.parts, computed - started);
  float *logits = lm->logits;
  for (uint32_t i = 0; i < b.parts; i++) {
    if (status)
      infc_request_finish(lm->owners[i], INFC_FINISH_FAILED);
    else
      finish_part(lm, i, logits, started, computed);
    logits += (size_t)lm->parts[i].logit_rows * lm->vocabulary;
  }
  const double sampled = infc_lm_now() - computed;
  for (uint32_t i = 0; i < b.parts; i++)
    lm->owners[i]->stats.sample_seconds += sampled / b.parts;
  return status;
}

infc_status infc_lm_advance(infc_lm *lm, uint32_t *unfinished) {
  if (!lm)
    return INFC_STATUS_INVALID_ARGUMENT;
  if (!infc_lm_acquire(lm))
    return INFC_STATUS_BUSY;
  const infc_status status = infc_lm_make_step(lm);
  if (unfinished) {
    *unfinished = 0;
    for (const infc_request *r = lm->requests; r; r = r->next)
      *unfinished += !r->finish;
  }
  return infc_lm_release(lm, status);
}
