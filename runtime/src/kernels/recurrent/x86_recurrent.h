// recurrent in f32, written once for both vector widths.
//
// At each step the rows of a group read a block's weights once: the sums of all gates of 16 units stay in registers
// while k passes over the hidden state. Then the gates of all units, from scratch.
#include "recurrent.h"

#include "../gemm/x86_vector.h"

#include <string.h>

#define F(name) INFC_VEC_NAME(name)

enum {
  UNITS = INFC_RECURRENT_UNITS,
  VECTORS = UNITS / LANES,
#if defined(__AVX512F__)
  GROUP = 4, // rows
#else
  GROUP = 1, // the sums of four gates take half of the registers
#endif
};

// What a group of rows has in scratch, each array of `padded` floats a row.
typedef struct state {
  float *h, *c, *sums; // sums: [row][gate][padded]
} state;

static infc_vec activate(infc_vec x, const infc_recurrent_function *f) {
  const infc_vec zero = vec_zero(), one = vec_set(1.0f), alpha = vec_set(f->alpha), beta = vec_set(f->beta);
  switch (f->code) {
  case INFC_RECURRENT_ACTIVATION_RELU:
    return F(relu)(x);
  case INFC_RECURRENT_ACTIVATION_TANH:
    return F(tanh)(x);
  case INFC_RECURRENT_ACTIVATION_SIGMOID:
    return F(sigmoid)(x);
  case INFC_RECURRENT_ACTIVATION_AFFINE:
    return alpha * x + beta;
  case INFC_RECURRENT_ACTIVATION_LEAKY_RELU:
    return vec_if_negative(x, alpha * x, x);
  case INFC_RECURRENT_ACTIVATION_THRESHOLDED_RELU:
    return vec_if_positive(x - alpha, x, zero);
  case INFC_RECURRENT_ACTIVATION_SCALED_TANH:
    return alpha * F(tanh)(beta * x);
  case INFC_RECURRENT_ACTIVATION_HARD_SIGMOID:
    return F(hard_sigmoid)(x, alpha, beta);
  case INFC_RECURRENT_ACTIVATION_ELU:
    return F(elu)(x, alpha);
  case INFC_RECURRENT_ACTIVATION_SOFTSIGN:
    return x / (one + vec_abs(x));
  default:
    return F(softplus)(x);
  }
}

static infc_vec gate(const infc_recurrent *v, infc_vec x, const infc_recurrent_function *f) {
  if (v->clip > 0.0f)
    x = vec_min(vec_set(v->clip), vec_max(vec_set(-v->clip), x));
  return activate(x, f);
}

// sums[row][g] = h W_g for `gates` gates from `first` on, of one block.
INLINE void block_product(const int rows, const int gates, const infc_recurrent *v, const float *weights, int first,
                          const float *h, float *sums) {
  infc_vec acc[GROUP][INFC_RECURRENT_MAX_GATES][VECTORS];
#pragma GCC unroll 4
  for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
    for (int g = 0; g < gates; g++)
#pragma GCC unroll 2
      for (int i = 0; i < VECTORS; i++)
        acc[r][g][i] = vec_zero();
  const float *w = weights + first * UNITS;
  for (int64_t k = 0; k < v->hidden; k++, w += v->gate_count * UNITS)
#pragma GCC unroll 4
    for (int g = 0; g < gates; g++)
#pragma GCC unroll 2
      for (int i = 0; i < VECTORS; i++) {
        const infc_vec b = vec_load(w + g * UNITS + i * LANES);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++)
          acc[r][g][i] = vec_fma(vec_set(h[r * v->padded + k]), b, acc[r][g][i]);
      }
#pragma GCC unroll 4
  for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
    for (int g = 0; g < gates; g++)
#pragma GCC unroll 2
      for (int i = 0; i < VECTORS; i++)
        vec_store(sums + (r * v->gate_count + first + g) * v->padded + i * LANES, acc[r][g][i]);
}

INLINE void product_of(const int rows, const infc_recurrent *v, int64_t row, int first, int gates, const float *h,
                       float *sums) {
  for (int64_t block = 0; block < v->blocks; block++, sums += UNITS) {
    const float *weights = infc_recurrent_weights(v, row, block, 0);
    if (gates == 4)
      block_product(rows, 4, v, weights, first, h, sums);
    else if (gates == 3)
      block_product(rows, 3, v, weights, first, h, sums);
    else if (gates == 2)
      block_product(rows, 2, v, weights, first, h, sums);
    else
      block_product(rows, 1, v, weights, first, h, sums);
  }
}

// Rows of one direction.
static void product(const infc_recurrent *v, int rows, int64_t row, int first, int gates, const float *h, float *sums) {
#if defined(__AVX512F__)
  if (rows == 4)
    product_of(4, v, row, first, gates, h, sums);
  else if (rows == 3)
    product_of(3, v, row, first, gates, h, sums);
  else if (rows == 2)
    product_of(2, v, row, first, gates, h, sums);
  else
#endif
    product_of(1, v, row, first, gates, h, sums);
  (void)rows;
}

// The lanes of x from unit j on that exist; others are zero.
INLINE infc_vec load_units(const infc_recurrent *v, const float *x, int64_t j) {
  return v->hidden - j >= LANES ? vec_load(x + j) : vec_load_first(x + j, v->hidden - j, vec_zero());
}

static void step_rnn(const infc_recurrent *v, const infc_recurrent_function *f, const float *x, float *h,
                     const float *sums) {
  for (int64_t j = 0; j < v->hidden; j += LANES)
    vec_store(h + j, gate(v, load_units(v, x, j) + vec_load(sums + j), &f[0]));
}

// Where the reset is applied before the product: r * h, in place of r's sums.
static void step_reset(const infc_recurrent *v, const infc_recurrent_function *f, const float *x, const float *h,
                       float *sums) {
  float *r = sums + v->padded;
  for (int64_t j = 0; j < v->hidden; j += LANES)
    vec_store(r + j, gate(v, load_units(v, x + v->hidden, j) + vec_load(r + j), &f[0]) * vec_load(h + j));
}

static void step_gru(const infc_recurrent *v, const infc_recurrent_function *f, const float *bias, const float *x,
                     float *h, const float *sums) {
  const int64_t n = v->hidden;
  const infc_vec one = vec_set(1.0f);
  for (int64_t j = 0; j < n; j += LANES) {
    const infc_vec z = gate(v, load_units(v, x, j) + vec_load(sums + j), &f[0]);
    infc_vec inner = vec_load(sums + 2 * v->padded + j);
    if (bias) {
      const infc_vec r = gate(v, load_units(v, x + n, j) + vec_load(sums + v->padded + j), &f[0]);
      inner = r * (inner + load_units(v, bias, j));
    }
    const infc_vec next = gate(v, load_units(v, x + 2 * n, j) + inner, &f[1]);
    vec_store(h + j, (one - z) * next + z * vec_load(h + j));
  }
}

static void step_lstm(const infc_recurrent *v, const infc_recurrent_function *f, const float *p, const float *x,
                      const state *s, int64_t r) {
  const int64_t n = v->hidden;
  float *h = s->h + r * v->padded, *c = s->c + r * v->padded;
  const float *sums = s->sums + r * v->gate_count * v->padded;
  for (int64_t j = 0; j < n; j += LANES) {
    const infc_vec old = vec_load(c + j);
    infc_vec i = load_units(v, x, j) + vec_load(sums + j);
    infc_vec o = load_units(v, x + n, j) + vec_load(sums + v->padded + j);
    infc_vec forget = load_units(v, x + 2 * n, j) + vec_load(sums + 2 * v->padded + j);
    const infc_vec update = gate(v, load_units(v, x + 3 * n, j) + vec_load(sums + 3 * v->padded + j), &f[1]);
    if (p) {
      i = vec_fma(load_units(v, p, j), old, i);
      forget = vec_fma(load_units(v, p + 2 * n, j), old, forget);
    }
    i = gate(v, i, &f[0]);
    if (v->input_forget)
      forget = vec_set(1.0f) - i;
    else
      forget = gate(v, forget, &f[0]);
    const infc_vec cell = vec_fma(forget, old, i * update);
    if (p)
      o = vec_fma(load_units(v, p + n, j), cell, o);
    vec_store(c + j, cell);
    vec_store(h + j, gate(v, o, &f[0]) * activate(cell, &f[2]));
  }
}

// One step of `rows` rows from `row` on, whose inputs are x[r].
static void step(const infc_recurrent *v, int64_t row, int rows, const float *const *x, const state *s) {
  const int64_t d = row / v->batch;
  const infc_recurrent_function *f = v->functions[d];
  const bool reset_first = v->kind == INFC_RECURRENT_GRU && !v->bias;
  const int64_t stride = v->gate_count * v->padded;
  product(v, rows, row, 0, reset_first ? 2 : (int)v->gate_count, s->h, s->sums);
  if (reset_first) {
    // Products want rows `padded` apart: the resets lie so from here on.
    for (int r = 0; r < rows; r++)
      step_reset(v, f, x[r], s->h + r * v->padded, s->sums + r * stride);
    for (int r = 0; r < rows; r++)
      memcpy(s->c + r * v->padded, s->sums + r * stride + v->padded, (size_t)v->padded * sizeof(float));
    product(v, rows, row, 2, 1, s->c, s->sums);
  }
  for (int r = 0; r < rows; r++) {
    float *h = s->h + r * v->padded;
    const float *sums = s->sums + r * stride;
    if (v->kind == INFC_RECURRENT_LSTM)
      step_lstm(v, f, v->peephole ? v->peephole + d * 3 * v->hidden : NULL, x[r], s, r);
    else if (v->kind == INFC_RECURRENT_GRU)
      step_gru(v, f, v->bias ? v->bias + d * v->hidden : NULL, x[r], h, sums);
    else
      step_rnn(v, f, x[r], h, sums);
  }
}

static void start(const infc_recurrent *v, int64_t row, const float *from, float *to) {
  if (from)
    memcpy(to, from + row * v->hidden, (size_t)v->hidden * sizeof(float));
}

// Rows of one direction, all through their sequences; a row that has ended goes on idly and keeps its results.
static infc_fault run_group(const infc_recurrent *v, int64_t row, int rows, const state *s) {
  const size_t bytes = (size_t)v->hidden * sizeof(float);
  const bool backwards = v->reverse >> row / v->batch & 1;
  infc_fault fault = INFC_FAULT_NONE;
  int64_t lengths[GROUP] = {0}, longest = 0;
  memset(s->h, 0, (size_t)(rows * v->padded) * sizeof(float));
  memset(s->c, 0, (size_t)(rows * v->padded) * sizeof(float));
  for (int r = 0; r < rows; r++) {
    lengths[r] = infc_recurrent_length(v, row + r, &fault);
    longest = lengths[r] > longest ? lengths[r] : longest;
    start(v, row + r, v->h, s->h + r * v->padded);
    start(v, row + r, v->c, s->c + r * v->padded);
  }
  for (int64_t i = 0; i <= longest; i++) {
    const float *x[GROUP] = {NULL};
    for (int r = 0; r < rows; r++) {
      if (i == lengths[r]) {
        if (v->y_h)
          memcpy(v->y_h + (row + r) * v->hidden, s->h + r * v->padded, bytes);
        if (v->y_c)
          memcpy(v->y_c + (row + r) * v->hidden, s->c + r * v->padded, bytes);
      }
      const int64_t at = i < lengths[r] ? i : lengths[r] ? lengths[r] - 1 : 0;
      x[r] = infc_recurrent_input(v, row + r, backwards && lengths[r] ? lengths[r] - 1 - at : at);
    }
    if (i == longest)
      break;
    step(v, row, rows, x, s);
    for (int r = 0; r < rows && v->y; r++)
      if (i < lengths[r])
        memcpy(infc_recurrent_output(v, row + r, backwards ? lengths[r] - 1 - i : i), s->h + r * v->padded, bytes);
  }
  for (int r = 0; r < rows; r++)
    for (int64_t t = lengths[r]; v->y && t < v->seq; t++)
      memset(infc_recurrent_output(v, row + r, t), 0, bytes);
  return fault;
}

static infc_fault recurrent_run(const infc_task *task, const infc_range *range, infc_worker *worker) {
  const infc_recurrent v = infc_recurrent_view(task);
  float *scratch = worker->scratch;
  const state s = {scratch, scratch + GROUP * v.padded, scratch + 2 * GROUP * v.padded};
  infc_fault fault = INFC_FAULT_NONE;
  for (int64_t row = range->row0, end; row < range->row1; row = end) {
    const int64_t direction_end = (row / v.batch + 1) * v.batch;
    end = row + GROUP < range->row1 ? row + GROUP : range->row1;
    end = end < direction_end ? end : direction_end;
    fault |= run_group(&v, row, (int)(end - row), &s);
  }
  return fault;
}
