// Guesses at the tokens that come next, which the model checks in one step. What the model then draws is what it would
// have drawn without them: a guess is right if it is that very token. A draft model draws with the same noise (see
// sample.h), so that it mostly draws the same token where the two agree on what is likely.
//
// Drawing with shared noise: M. Daliri, C. Musco, A. T. Suresh, "Coupling without communication and drafter-invariant
// speculative decoding", 2024.
#include "request.h"

enum {
  LONGEST_MATCH = 3, // tokens that are looked up, at first
  FIRST_GUESSES = 4,
  FIRST_PAUSE = 8, // steps without guesses, where they do not pay
  LONGEST_PAUSE = 256,
};

// What followed the last place where the last `size` tokens stood before; 0 if nowhere.
static uint32_t look_up(const infc_request *r, uint32_t size) {
  const int32_t *end = r->tokens + r->count - size;
  for (uint32_t at = r->count - size; at-- > 0;)
    if (r->tokens[at] == *end && !memcmp(r->tokens + at, end, size * sizeof *end))
      return at + size;
  return 0;
}

static uint32_t guess_by_lookup(infc_request *r, uint32_t most) {
  uint32_t found = 0;
  for (uint32_t size = LONGEST_MATCH; size > 0 && !found; size--)
    found = r->count > size ? look_up(r, size) : 0;
  for (uint32_t i = 0; found && i < most; i++)
    r->tokens[r->count + i] = r->tokens[found + i]; // which may be guesses themselves
  return found ? most : 0;
}

// The draft's sequence, cut back to where it agrees with the request; NULL if there is none to be had.
static infc_sequence *draft_sequence(infc_request *r) {
  if (!r->draft_sequence)
    r->draft_sequence = infc_sequence_new(r->draft);
  infc_sequence *sequence = r->draft_sequence;
  if (!sequence)
    return NULL;
  uint32_t agreed = r->draft_agreed;
  while (agreed < sequence->length && agreed + 1 < r->count && sequence->tokens[agreed] == r->tokens[agreed])
    agreed++;
  if (agreed < sequence->length && !infc_sequence_cut(sequence, agreed)) {
    infc_sequence_clear(sequence);
    agreed = 0;
  }
  r->draft_agreed = agreed;
  return sequence;
}

// Token after token; none while the draft still reads the prompt, a run of it at a time.
static uint32_t guess_by_draft(infc_request *r, uint32_t most) {
  infc_lm *draft = r->draft;
  infc_sequence *sequence = draft_sequence(r);
  uint32_t made = 0;
  while (sequence && made < most) {
    const uint32_t length = sequence->length, behind = r->count + made - length;
    const bool reads = behind > draft->max_tokens;
    const infc_lm_part part = {sequence, r->tokens + length, reads ? draft->max_tokens : behind, !reads};
    if (infc_lm_run_step(draft, &part, 1, draft->logits, draft->vocabulary * sizeof *draft->logits) || reads)
      break;
    const int32_t token = infc_sample(&draft->sampler, &r->sampling, NULL, draft->logits, r->count + made);
    if (token < 0)
      break;
    r->tokens[r->count + made++] = token;
  }
  return made;
}

uint32_t infc_guess(infc_request *r, uint32_t room) {
  infc_speculation *s = &r->speculation;
  if (!(s->lookup || r->draft) || s->plain == 0 || s->pause) {
    s->pause -= s->pause > 0;
    return 0;
  }
  const uint32_t left = r->limit - r->count - 1; // the step itself gives one more
  s->length = s->length ? s->length : FIRST_GUESSES;
  uint32_t most = room < s->length ? room : s->length;
  most = most < left ? most : left;
  uint32_t made = most && s->lookup ? guess_by_lookup(r, most) : 0;
  if (!made && most && r->draft && infc_lm_acquire(r->draft)) {
    made = guess_by_draft(r, most);
    infc_lm_release(r->draft, INFC_STATUS_OK);
  }
  r->stats.guessed += made;
  return made;
}

static void average(double *mean, double value) {
  *mean = *mean == 0 ? value : *mean + 0.2 * (value - *mean);
}

void infc_guess_learn(infc_request *r, double seconds, uint32_t tokens) {
  infc_speculation *s = &r->speculation;
  if (r->guesses == 0) {
    average(&s->plain, seconds);
    return;
  }
  const bool all = tokens > r->guesses;
  s->length = all ? (s->length + 2 < INFC_GUESSES ? s->length + 2 : INFC_GUESSES) : s->length > 1 ? s->length - 1 : 1;
  average(&s->guessing, seconds);
  average(&s->gained, tokens);
  if (s->gained * s->plain >= s->guessing) {
    s->waits = FIRST_PAUSE;
    return;
  }
  s->pause = s->waits ? s->waits : FIRST_PAUSE;
  s->waits = s->pause * 2 < LONGEST_PAUSE ? s->pause * 2 : LONGEST_PAUSE;
  s->gained = s->guessing = 0;
}
