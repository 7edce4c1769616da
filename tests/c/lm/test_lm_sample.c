// Sampling: which tokens are possible, and how often each comes.
#include "model.h"

#include "lm/sample.h"

#include <math.h>

enum { V = 70 };

static infc_sampler make_sampler(void) {
  return (infc_sampler){.vocabulary = V,
                        .weights = test_alloc(V * 4),
                        .heap = test_alloc(V * 4),
                        .tokens = test_alloc(V * 4),
                        .allowed = test_alloc((V + 31) / 32 * 4)};
}

static void free_sampler(infc_sampler *s) {
  test_free(s->weights);
  test_free(s->heap);
  test_free(s->tokens);
  test_free(s->allowed);
}

typedef struct entry {
  double p;
  int token;
} entry;

static int by_probability(const void *a, const void *b) {
  const double x = ((const entry *)a)->p, y = ((const entry *)b)->p;
  return x < y ? 1 : x > y ? -1 : 0;
}

// What the options leave of a distribution, the plain way: sort and sum.
static void expected(const infc_sampling *s, const float *logits, double *p) {
  entry sorted[V];
  double total = 0, kept = 0, sum = 0;
  for (int i = 0; i < V; i++)
    sorted[i] = (entry){exp((double)logits[i] / (double)s->temperature), i};
  qsort(sorted, V, sizeof *sorted, by_probability);
  const int k = s->top_k && s->top_k < V ? (int)s->top_k : V;
  for (int i = 0; i < V; i++)
    p[i] = 0;
  for (int i = 0; i < k; i++)
    total += sorted[i].p;
  for (int i = 0; i < k; i++) {
    const bool nucleus = s->top_p == 0 || sum < (double)s->top_p * total;
    if (nucleus && sorted[i].p >= (double)s->min_p * sorted[0].p)
      p[sorted[i].token] = sorted[i].p;
    sum += sorted[i].p;
  }
  for (int i = 0; i < V; i++)
    kept += p[i];
  for (int i = 0; i < V; i++)
    p[i] /= kept;
}

static void test_distribution(infc_sampler *sampler, infc_sampling s, uint64_t seed) {
  enum { DRAWS = 60000 };
  test_rng rng = {seed};
  float logits[V], copy[V];
  double p[V], statistic = 0;
  uint32_t drawn[V] = {0}, degrees = 0;
  test_fill_random(&rng, logits, V, -3.0f, 3.0f);
  expected(&s, logits, p);
  for (uint32_t i = 0; i < DRAWS; i++) {
    memcpy(copy, logits, sizeof copy);
    s.seed = seed;
    const int32_t token = infc_sample(sampler, &s, NULL, copy, i);
    if (CHECK(token >= 0 && token < V))
      drawn[token]++;
  }
  double rest = 0, rest_drawn = 0;
  for (int i = 0; i < V; i++) {
    const double mean = p[i] * DRAWS;
    if (p[i] == 0) {
      CHECK(drawn[i] == 0, "token %d should not be possible", i);
    } else if (mean < 10) {
      rest += mean;
      rest_drawn += drawn[i];
    } else {
      statistic += (drawn[i] - mean) * (drawn[i] - mean) / mean;
      degrees++;
    }
  }
  if (rest >= 10)
    statistic += (rest_drawn - rest) * (rest_drawn - rest) / rest;
  // Five standard deviations of chi-squared.
  CHECK(statistic < degrees + 5 * sqrt(2.0 * degrees) + 5, "seed %llu: chi-squared %g of %u", (unsigned long long)seed,
        statistic, degrees);
}

// A token that is drawn once in 100,000 times must be drawn that often.
static void test_tail(infc_sampler *sampler) {
  enum { DRAWS = 2000000 };
  const infc_sampling s = {.temperature = 1.0f, .seed = 5};
  uint32_t rare = 0;
  for (uint32_t i = 0; i < DRAWS; i++) {
    float logits[V];
    for (int t = 0; t < V; t++)
      logits[t] = t == 3 ? logf(1e-5f) : t == 8 ? 0.0f : -INFINITY;
    rare += infc_sample(sampler, &s, NULL, logits, i) == 3;
  }
  CHECK(rare > 4 && rare < 45, "%u of 20", rare);
}

static void test_greedy(infc_sampler *sampler) {
  infc_sampling s = {0};
  float logits[V];
  for (int i = 0; i < V; i++)
    logits[i] = (float)(i % 7);
  CHECK(infc_sample(sampler, &s, NULL, logits, 0) == 6);
  logits[2] = NAN;
  logits[66] = INFINITY;
  CHECK(infc_sample(sampler, &s, NULL, logits, 0) == 66);
  s.temperature = 0.7f;
  CHECK(infc_sample(sampler, &s, NULL, logits, 0) == 66);
  for (int i = 0; i < V; i++)
    logits[i] = NAN;
  CHECK(infc_sample(sampler, &s, NULL, logits, 0) == -1);
  s = (infc_sampling){.bias = &(infc_logit_bias){9, 100.0f}, .bias_count = 1};
  memset(logits, 0, sizeof logits);
  CHECK(infc_sample(sampler, &s, NULL, logits, 0) == 9);
  memset(sampler->allowed, 0, (V + 31) / 32 * 4);
  CHECK(infc_sample(sampler, &s, sampler->allowed, logits, 0) == -1);
  memset(logits, 0, sizeof logits);
  sampler->allowed[1] = 1u << 5;
  CHECK(infc_sample(sampler, &s, sampler->allowed, logits, 0) == 37);
}

static void test_penalties(infc_sampler *sampler) {
  uint32_t counts[V] = {[4] = INFC_IN_PROMPT, [5] = 2};
  float logits[V] = {[3] = 0.9f, [4] = 1.2f, [5] = -1.0f};
  infc_sampling s = {.repetition = 2.0f, .presence = 0.25f, .frequency = 0.5f, .counts = counts};
  CHECK(infc_sample(sampler, &s, NULL, logits, 0) == 3);
  CHECK(logits[4] == 0.6f && logits[5] == -2.0f - 0.25f - 1.0f && logits[3] == 0.9f && logits[0] == 0.0f);
}

static void test_log_probability(void) {
  float logits[V];
  double total = 0;
  test_rng rng = {77};
  test_fill_random(&rng, logits, V, -20.0f, 20.0f);
  for (int i = 0; i < V; i++)
    total += exp((double)logits[i]);
  for (int i = 0; i < V; i++)
    CHECK(fabs(logits[i] - log(total) - (double)infc_log_probability(logits, V, i)) < 1e-5);
}

int main(void) {
  infc_sampler sampler = make_sampler();
  const infc_sampling cases[] = {{.temperature = 1.0f},
                                 {.temperature = 0.5f},
                                 {.temperature = 1.7f, .top_k = 10},
                                 {.temperature = 1.0f, .top_p = 0.7f},
                                 {.temperature = 1.0f, .min_p = 0.05f},
                                 {.temperature = 2.0f, .top_k = 40, .top_p = 0.9f, .min_p = 0.01f},
                                 {.temperature = 0.01f},
                                 {.temperature = 1.0f, .top_k = 1},
                                 {.temperature = 1.0f, .top_p = 1e-6f},
                                 {.temperature = 1.0f, .top_k = V, .top_p = 1.0f}};
  for (uint64_t i = 0; i < sizeof cases / sizeof *cases; i++)
    test_distribution(&sampler, cases[i], 100 + i);
  test_tail(&sampler);
  test_greedy(&sampler);
  test_penalties(&sampler);
  test_log_probability();
  free_sampler(&sampler);
  return test_result();
}
