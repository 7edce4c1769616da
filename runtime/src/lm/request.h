// A request: a prompt, what has been made of it, and how it wants to be continued.
#ifndef INFC_LM_REQUEST_H
#define INFC_LM_REQUEST_H

#include "lm.h"
#include "sample.h"
#include "text.h"

enum {
  INFC_GUESSES = 7, // most tokens that speculation proposes at once
};

// What speculation has cost and brought of late.
typedef struct infc_speculation {
  bool lookup;
  uint32_t length;        // guesses at once
  uint32_t pause;         // steps without guesses that are left
  uint32_t waits;         // how long the next pause is
  double plain, guessing; // seconds of a step; 0: not known
  double gained;          // tokens of a step with guesses
} infc_speculation;

struct infc_request {
  infc_lm *lm;
  infc_request *next;      // in order of arrival
  infc_sequence *sequence; // NULL: waiting
  atomic_bool cancelled;
  infc_finish finish;
  int32_t *tokens;               // prompt, text, and room for guesses
  uint32_t prompt, count, limit; // tokens of the prompt; of both; most
  uint32_t read;                 // tokens that the caller has been given
  bool ended;                    // the caller knows
  float *log_probabilities;      // of the text; or NULL
  infc_sampling sampling;
  infc_text text;
  bool ignore_eos;
  const int32_t *stops;
  uint32_t stop_count;
  void (*mask)(void *user, const int32_t *tokens, uint32_t count, uint32_t *allowed);
  void *mask_user;
  infc_speculation speculation;
  uint32_t guesses; // of the step in progress
  infc_lm *draft;   // or NULL
  infc_sequence *draft_sequence;
  uint32_t draft_agreed; // its tokens up to here are the request's
  infc_generation_stats stats;
  double submitted, started, first; // seconds
};

double infc_lm_now(void);

// Takes a sampled token; sets `finish` if it was the last.
void infc_request_take(infc_request *request, int32_t token, float log_probability);
void infc_request_finish(infc_request *request, infc_finish finish);
// Gives up the sequence: its blocks, and its place among those that are computed.
void infc_request_leave(infc_request *request);

// ---- schedule.c

infc_status infc_lm_make_step(infc_lm *lm);

// ---- speculate.c

// Puts guesses behind the request's tokens, at most `room`; how many.
uint32_t infc_guess(infc_request *request, uint32_t room);
// What came of a step: seconds that it took, and tokens that it gave.
void infc_guess_learn(infc_request *request, double seconds, uint32_t tokens);

#endif // INFC_LM_REQUEST_H
