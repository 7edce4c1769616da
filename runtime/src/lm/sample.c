#include "sample.h"

#include <math.h>

// ---- Functions of one float that the compiler can vectorise; relative error below 2^-21

static inline float from_bits(int32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static inline int32_t to_bits(float value) {
  int32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

// e^x for x <= 0; 0 below -87.
static inline float exp_negative(float x) {
  const float t = (x > -87.0f ? x : -87.0f) * 1.44269504f;
  const int32_t n = (int32_t)(t - 0.5f);
  const float f = (t - (float)n) * 0.693147181f; // in [-ln 2 / 2, ln 2 / 2]
  const float p =
      1.0f +
      f * (1.0f + f * (0.5f + f * (0.166666667f + f * (0.0416666679f + f * (8.3333333e-3f + f * 1.3888889e-3f)))));
  return x > -87.0f ? p * from_bits((n + 127) << 23) : 0.0f;
}

// ln x for normal x > 0.
static inline float log_positive(float x) {
  const int32_t shifted = to_bits(x) - 0x3F3504F3; // of sqrt(1/2)
  const int32_t n = shifted >> 23;
  const float m = from_bits((shifted & 0x7FFFFF) + 0x3F3504F3) - 1.0f;
  const float s = m / (2.0f + m), z = s * s; // ln(1 + m) = 2 artanh(s)
  return (float)n * 0.693147181f +
         2.0f * s * (1.0f + z * (0.333333333f + z * (0.2f + z * (0.142857143f + z * 0.111111111f))));
}

// ---- Noise

static inline uint32_t mix(uint32_t x) {
  x = (x ^ x >> 16) * 0x7FEB352Du;
  x = (x ^ x >> 15) * 0x846CA68Bu;
  return x ^ x >> 16;
}

static uint64_t mix_wide(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
  x = (x ^ x >> 27) * 0x94D049BB133111EBu;
  return x ^ x >> 31;
}

// A number of exponential distribution; fine near 0, where it decides for tokens of little probability.
static inline float exponential(uint32_t low, uint32_t high, uint32_t token) {
  const uint32_t x = mix(mix(token + low) ^ high);
  const float u = ((float)(x >> 1) + 0.5f) * 0x1p-31f;
  const float near = u + u * u * (0.5f + u * 0.333333333f);
  const float rest = 1.0f - u;
  return u < 0x1p-8f ? near : -log_positive(rest < 0x1p-25f ? 0x1p-25f : rest);
}

// ---- Logits

static void penalise(const infc_sampling *s, float *logits, uint32_t vocabulary) {
  const float divisor = s->repetition ? s->repetition : 1.0f;
  for (uint32_t i = 0; i < vocabulary; i++) {
    const uint32_t count = s->counts[i] & ~INFC_IN_PROMPT;
    if (s->counts[i])
      logits[i] = logits[i] > 0.0f ? logits[i] / divisor : logits[i] * divisor;
    if (count)
      logits[i] -= s->presence + s->frequency * (float)count;
  }
}

static void forbid(const uint32_t *allowed, float *logits, uint32_t vocabulary) {
  for (uint32_t i = 0; i < vocabulary; i++)
    logits[i] = allowed[i / 32] >> i % 32 & 1 ? logits[i] : -INFINITY;
}

// NaN is never the greatest.
static float greatest(const float *values, uint32_t count) {
  float best[16];
  for (int l = 0; l < 16; l++)
    best[l] = -INFINITY;
  uint32_t i = 0;
  for (; i + 16 <= count; i += 16)
    for (int l = 0; l < 16; l++)
      best[l] = values[i + (uint32_t)l] > best[l] ? values[i + (uint32_t)l] : best[l];
  for (; i < count; i++)
    best[0] = values[i] > best[0] ? values[i] : best[0];
  for (int l = 1; l < 16; l++)
    best[0] = best[l] > best[0] ? best[l] : best[0];
  return best[0];
}

static int32_t first_of(const float *values, uint32_t count, float value) {
  for (uint32_t i = 0; i < count; i++)
    if (values[i] == value)
      return (int32_t)i;
  return -1;
}

// ---- Candidates

static void sift_down(float *heap, uint32_t count, float value) {
  uint32_t at = 0;
  for (uint32_t child; (child = 2 * at + 1) < count; at = child) {
    child += child + 1 < count && heap[child + 1] < heap[child];
    if (heap[child] >= value)
      break;
    heap[at] = heap[child];
  }
  heap[at] = value;
}

// The k-th greatest of the logits; -inf if there are fewer. `heap` holds k, the least first.
static float kth_greatest(const float *logits, uint32_t count, uint32_t k, float *heap) {
  for (uint32_t i = 0; i < k; i++)
    heap[i] = -INFINITY;
  for (uint32_t i = 0; i < count; i++)
    if (logits[i] > heap[0])
      sift_down(heap, k, logits[i]);
  return heap[0];
}

// Those with a logit of at least `least`, with weights relative to the most likely one.
static uint32_t collect(const infc_sampler *sampler, const float *logits, float most, float least, float scale) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < sampler->vocabulary; i++) {
    sampler->tokens[count] = (int32_t)i;
    sampler->weights[count] = logits[i];
    count += logits[i] >= least && logits[i] > -INFINITY;
  }
  for (uint32_t i = 0; i < count; i++)
    sampler->weights[i] = exp_negative((sampler->weights[i] - most) * scale);
  return count;
}

enum { BUCKETS = 1024 }; // of weights, by their leading bits

static uint32_t bucket_of(float weight) {
  const int32_t at = (127 << 3) - (to_bits(weight) >> 20); // eight an octave, the greatest first
  return at < 0 ? 0 : at < BUCKETS ? (uint32_t)at : BUCKETS - 1;
}

// The least weight of the nucleus: those that, from the greatest on, together first have `share` of the whole.
static float nucleus(const float *weights, uint32_t count, float share, float *heap) {
  double sums[BUCKETS] = {0}, total = 0, sum = 0;
  for (uint32_t i = 0; i < count; i++) {
    sums[bucket_of(weights[i])] += (double)weights[i];
    total += (double)weights[i];
  }
  uint32_t bucket = 0, size = 0;
  while ((sum += sums[bucket]) < (double)share * total && bucket + 1 < BUCKETS)
    bucket++;
  // Of the last bucket the least go, as long as what stays is enough.
  for (uint32_t i = 0; i < count; i++)
    size += bucket_of(weights[i]) == bucket;
  for (uint32_t i = 0; i < size; i++)
    heap[i] = -1.0f;
  for (uint32_t i = 0; i < count; i++)
    if (bucket_of(weights[i]) == bucket)
      sift_down(heap, size, weights[i]);
  while (size > 1 && sum - (double)heap[0] >= (double)share * total) {
    sum -= (double)heap[0];
    size--;
    sift_down(heap, size, heap[size]);
  }
  return size ? heap[0] : 0.0f;
}

int32_t infc_sample(const infc_sampler *sampler, const infc_sampling *s, const uint32_t *allowed, float *logits,
                    uint32_t place) {
  const uint32_t vocabulary = sampler->vocabulary;
  if (s->counts)
    penalise(s, logits, vocabulary);
  for (uint32_t i = 0; i < s->bias_count; i++)
    logits[s->bias[i].token] += s->bias[i].bias;
  if (allowed)
    forbid(allowed, logits, vocabulary);
  const float most = greatest(logits, vocabulary);
  if (most == -INFINITY)
    return -1;
  if (s->temperature == 0.0f || most == INFINITY)
    return first_of(logits, vocabulary, most);
  const float scale = 1.0f / s->temperature;
  float least =
      s->top_k && s->top_k < vocabulary ? kth_greatest(logits, vocabulary, s->top_k, sampler->heap) : -INFINITY;
  uint32_t count = collect(sampler, logits, most, least, scale);
  float lightest = s->min_p;
  if (s->top_p > 0.0f && s->top_p < 1.0f) {
    const float edge = nucleus(sampler->weights, count, s->top_p, sampler->heap);
    lightest = edge > lightest ? edge : lightest;
  }
  // The race: each arrives after an exponential time divided by its weight; the first wins.
  const uint64_t key = mix_wide(s->seed ^ mix_wide(place));
  const uint32_t low = (uint32_t)key, high = (uint32_t)(key >> 32);
  for (uint32_t i = 0; i < count; i++) {
    const float weight = sampler->weights[i];
    const float speed = weight / exponential(low, high, (uint32_t)sampler->tokens[i]);
    sampler->weights[i] = weight >= lightest ? speed : -1.0f;
  }
  const int32_t winner = first_of(sampler->weights, count, greatest(sampler->weights, count));
  return winner < 0 ? -1 : sampler->tokens[winner];
}

float infc_log_probability(const float *logits, uint32_t vocabulary, int32_t token) {
  const float most = greatest(logits, vocabulary);
  double total = 0;
  for (uint32_t i = 0; i < vocabulary; i++)
    total += (double)exp_negative(logits[i] - most);
  return logits[token] - most - (float)log(total);
}
