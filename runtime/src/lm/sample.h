// From logits to a token.
#ifndef INFC_LM_SAMPLE_H
#define INFC_LM_SAMPLE_H

#include "../internal.h"

enum { INFC_IN_PROMPT = 1u << 31 }; // of a count

typedef struct infc_sampling {
  float temperature;
  uint32_t top_k;
  float top_p, min_p;
  float repetition, presence, frequency;
  uint64_t seed;
  const infc_logit_bias *bias;
  uint32_t bias_count;
  uint32_t *counts; // by token: how often in the text, and INFC_IN_PROMPT; NULL without penalties
} infc_sampling;

// Memory to sample in, for `vocabulary` tokens.
typedef struct infc_sampler {
  uint32_t vocabulary;
  float *weights; // of candidates
  float *heap;
  int32_t *tokens;   // candidates
  uint32_t *allowed; // bits
} infc_sampler;

// A token from the logits, which are changed; -1 if none is possible. Equal seeds and places give equal noise for each
// token, whoever asks: where two models agree on what is likely they mostly draw the same token.
int32_t infc_sample(const infc_sampler *sampler, const infc_sampling *sampling, const uint32_t *allowed, float *logits,
                    uint32_t place);
// Natural logarithm of a token's probability.
float infc_log_probability(const float *logits, uint32_t vocabulary, int32_t token);

#endif // INFC_LM_SAMPLE_H
