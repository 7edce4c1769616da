// How sums of products become a result, for the convolutions of bytes.
#ifndef INFC_CONV_I8_REQUANTISE_H
#define INFC_CONV_I8_REQUANTISE_H

#include "../math/ref.h"

#include <math.h>

// v is clamped if there is no activation, else activation(v), which `step` and `shift` bring to steps of the output if
// that is quantised.
typedef struct infc_requantise {
  bool quantised; // y is u8: rounded
  uint32_t activation;
  float step, shift, low, high;
} infc_requantise;

// From the words activation, has_out, step, shift, low and high, which lie together.
enum { INFC_REQUANTISE_WORDS = 6 };
static inline infc_requantise infc_requantise_read(const uint32_t *words) {
  return (infc_requantise){
      .activation = words[0],
      .quantised = words[1],
      .step = infc_word_f32(words[2]),
      .shift = infc_word_f32(words[3]),
      .low = infc_word_f32(words[4]),
      .high = infc_word_f32(words[5]),
  };
}

static inline bool infc_requantise_fits(const uint32_t *words) {
  const infc_requantise r = infc_requantise_read(words);
  return infc_activation_supported(r.activation) && words[1] <= 1 &&
         (!r.quantised || (r.low >= 0.0f && r.low <= r.high && r.high <= 255.0f));
}

static inline float infc_requantise_ref(const infc_requantise *r, float v) {
  if (r->activation != INFC_UNARY_IDENTITY) {
    v = infc_activate_ref(v, r->activation);
    if (r->quantised)
      v = fmaf(v, r->step, r->shift);
  }
  v = v < r->low ? r->low : v; // NaN stays
  return v > r->high ? r->high : v;
}

static inline uint8_t infc_requantise_byte(float v) {
  return isnan(v) ? 0 : (uint8_t)rintf(v);
}

#endif // INFC_CONV_I8_REQUANTISE_H
