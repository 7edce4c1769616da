// Guesses at the tokens that come next, which the model checks in one step.
#include "request.h"

enum {
  LONGEST_MATCH = 3, // tokens that are looked up, at first
  FIRST_PAUSE = 8,   // steps without guesses, where they do not pay
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

uint32_t infc_guess(infc_request *r, uint32_t room) {
  infc_speculation *s = &r->speculation;
  if (!s->lookup || s->pause) {
    s->pause -= s->pause > 0;
    return 0;
  }
  const uint32_t left = r->limit - r->count; // the step itself gives one of them
  uint32_t most = room < INFC_GUESSES ? room : INFC_GUESSES, found = 0;
  most = most < left - 1 ? most : left - 1;
  for (uint32_t size = LONGEST_MATCH; size > 0 && !found && most; size--)
    found = r->count > size ? look_up(r, size) : 0;
  if (!found)
    return 0;
  for (uint32_t i = 0; i < most; i++)
    r->tokens[r->count + i] = r->tokens[found + i]; // which may be guesses themselves
  r->stats.guessed += most;
  return most;
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
  average(&s->guessing, seconds);
  average(&s->gained, tokens);
  if (s->plain == 0 || s->gained * s->plain >= s->guessing) {
    s->waits = FIRST_PAUSE;
    return;
  }
  s->pause = s->waits ? s->waits : FIRST_PAUSE;
  s->waits = s->pause * 2 < LONGEST_PAUSE ? s->pause * 2 : LONGEST_PAUSE;
  s->gained = s->guessing = 0;
}
