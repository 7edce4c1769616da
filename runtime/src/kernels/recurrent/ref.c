// recurrent: RNN, GRU and LSTM after the product of their inputs. The scalar reference and what all kernels rely on.
#include "recurrent.h"

#include "../math/ref.h"

#include <string.h>

static float activate(float x, const infc_recurrent_function *f) {
  switch (f->code) {
  case INFC_RECURRENT_ACTIVATION_RELU:
    return infc_relu_ref(x);
  case INFC_RECURRENT_ACTIVATION_TANH:
    return infc_tanh_ref(x);
  case INFC_RECURRENT_ACTIVATION_SIGMOID:
    return infc_sigmoid_ref(x);
  case INFC_RECURRENT_ACTIVATION_AFFINE:
    return f->alpha * x + f->beta;
  case INFC_RECURRENT_ACTIVATION_LEAKY_RELU:
    return x < 0.0f ? f->alpha * x : x;
  case INFC_RECURRENT_ACTIVATION_THRESHOLDED_RELU:
    return x > f->alpha ? x : 0.0f;
  case INFC_RECURRENT_ACTIVATION_SCALED_TANH:
    return f->alpha * infc_tanh_ref(f->beta * x);
  case INFC_RECURRENT_ACTIVATION_HARD_SIGMOID:
    return infc_hard_sigmoid_ref(x, f->alpha, f->beta);
  case INFC_RECURRENT_ACTIVATION_ELU:
    return x < 0.0f ? (float)(f->alpha * expm1(x)) : x;
  case INFC_RECURRENT_ACTIVATION_SOFTSIGN:
    return x / (1.0f + fabsf(x));
  default:
    return infc_softplus_ref(x);
  }
}

// The function of what is clipped first.
static float gate(const infc_recurrent *v, float x, const infc_recurrent_function *f) {
  if (v->clip > 0.0f) {
    x = x < -v->clip ? -v->clip : x;
    x = x > v->clip ? v->clip : x;
  }
  return activate(x, f);
}

// sum over k of h[k] * weight from k to gate g of unit j
static double product(const infc_recurrent *v, int64_t row, const float *h, int64_t g, int64_t j) {
  double sum = 0.0;
  for (int64_t k = 0; k < v->hidden; k++)
    sum += (double)h[k] * (double)infc_recurrent_weights(v, row, j / INFC_RECURRENT_UNITS,
                                                         k)[g * INFC_RECURRENT_UNITS + j % INFC_RECURRENT_UNITS];
  return sum;
}

// One step in scratch: h and c are the state, `next` the new hidden one, `reset` what a GRU keeps of the old.
typedef struct state {
  float *h, *c, *next, *reset;
} state;

static void step_rnn(const infc_recurrent *v, int64_t row, const float *x, const state *s) {
  const infc_recurrent_function *f = v->functions[row / v->batch];
  for (int64_t j = 0; j < v->hidden; j++)
    s->next[j] = gate(v, (float)((double)x[j] + product(v, row, s->h, 0, j)), &f[0]);
}

static void step_gru(const infc_recurrent *v, int64_t row, const float *x, const state *s) {
  const infc_recurrent_function *f = v->functions[row / v->batch];
  const float *bias = v->bias ? v->bias + row / v->batch * v->hidden : NULL;
  const int64_t n = v->hidden;
  for (int64_t j = 0; j < n; j++) {
    const float r = gate(v, (float)((double)x[n + j] + product(v, row, s->h, 1, j)), &f[0]);
    s->reset[j] = bias ? r : r * s->h[j];
  }
  for (int64_t j = 0; j < n; j++) {
    const float z = gate(v, (float)((double)x[j] + product(v, row, s->h, 0, j)), &f[0]);
    const double inner =
        bias ? (double)s->reset[j] * (product(v, row, s->h, 2, j) + (double)bias[j]) : product(v, row, s->reset, 2, j);
    const float h = gate(v, (float)((double)x[2 * n + j] + inner), &f[1]);
    s->next[j] = (1.0f - z) * h + z * s->h[j];
  }
}

static void step_lstm(const infc_recurrent *v, int64_t row, const float *x, const state *s) {
  const infc_recurrent_function *f = v->functions[row / v->batch];
  const int64_t n = v->hidden;
  const float *p = v->peephole ? v->peephole + row / v->batch * 3 * n : NULL; // of the gates i, o, f
  for (int64_t j = 0; j < n; j++) {
    const float c = s->c[j];
    double sums[4];
    for (int64_t g = 0; g < 4; g++)
      sums[g] = (double)x[g * n + j] + product(v, row, s->h, g, j);
    const float i = gate(v, (float)(sums[0] + (p ? (double)p[j] * c : 0.0)), &f[0]);
    const float forget =
        v->input_forget ? 1.0f - i : gate(v, (float)(sums[2] + (p ? (double)p[2 * n + j] * c : 0.0)), &f[0]);
    s->c[j] = forget * c + i * gate(v, (float)sums[3], &f[1]);
    const float o = gate(v, (float)(sums[1] + (p ? (double)p[n + j] * s->c[j] : 0.0)), &f[0]);
    s->next[j] = o * activate(s->c[j], &f[2]);
  }
}

static infc_fault run_row(const infc_recurrent *v, int64_t row, const state *s) {
  infc_fault fault = INFC_FAULT_NONE;
  const size_t bytes = (size_t)v->hidden * sizeof(float);
  const int64_t length = infc_recurrent_length(v, row, &fault);
  const bool backwards = v->reverse >> row / v->batch & 1;
  for (int64_t j = 0; j < v->hidden; j++) {
    s->h[j] = v->h ? v->h[row * v->hidden + j] : 0.0f;
    s->c[j] = v->c ? v->c[row * v->hidden + j] : 0.0f;
  }
  for (int64_t i = 0; i < length; i++) {
    const int64_t t = backwards ? length - 1 - i : i;
    const float *x = infc_recurrent_input(v, row, t);
    if (v->kind == INFC_RECURRENT_LSTM)
      step_lstm(v, row, x, s);
    else if (v->kind == INFC_RECURRENT_GRU)
      step_gru(v, row, x, s);
    else
      step_rnn(v, row, x, s);
    memcpy(s->h, s->next, bytes);
    if (v->y)
      memcpy(infc_recurrent_output(v, row, t), s->h, bytes);
  }
  for (int64_t t = length; v->y && t < v->seq; t++)
    memset(infc_recurrent_output(v, row, t), 0, bytes);
  if (v->y_h)
    memcpy(v->y_h + row * v->hidden, s->h, bytes);
  if (v->y_c)
    memcpy(v->y_c + row * v->hidden, s->c, bytes);
  return fault;
}

infc_fault infc_recurrent_f32__scalar(const infc_task *task, const infc_range *range, infc_worker *worker) {
  const infc_recurrent v = infc_recurrent_view(task);
  float *scratch = worker->scratch;
  const state s = {scratch, scratch + v.padded, scratch + 2 * v.padded, scratch + 3 * v.padded};
  infc_fault fault = INFC_FAULT_NONE;
  for (int64_t row = range->row0; row < range->row1; row++)
    fault |= run_row(&v, row, &s);
  return fault;
}

// A dense operand of so many elements whose extent is known now.
static bool holds(const infc_operand *operand, uint8_t dtype, int64_t elements) {
  return operand->dtype == dtype && operand->rows_symbol < 0 && infc_operand_dense(operand) &&
         infc_operand_inner(operand, 0) == elements;
}

bool infc_recurrent_validate(const infc_task *task, uint32_t symbol_count) {
  (void)symbol_count;
  const infc_step *step = task->step;
  const uint32_t *w = task->words;
  if (step->word_count != INFC_WORDS_RECURRENT)
    return false;
  uint32_t counts[2] = {2, 0};
  for (int i = INFC_W_RECURRENT_HAS_BIAS; i <= INFC_W_RECURRENT_HAS_Y_C; i++) {
    if (w[i] > 1)
      return false;
    counts[i >= INFC_W_RECURRENT_HAS_Y] += w[i];
  }
  if (w[INFC_W_RECURRENT_KIND] != INFC_RECURRENT_LSTM &&
      (w[INFC_W_RECURRENT_HAS_C] || w[INFC_W_RECURRENT_HAS_PEEPHOLE] || w[INFC_W_RECURRENT_HAS_Y_C]))
    return false; // only an LSTM has a cell
  for (int i = 0; i < 6; i++)
    if (w[INFC_W_RECURRENT_FUNCTION_F0 + 3 * i] >= INFC_RECURRENT_ACTIVATION_COUNT)
      return false;
  const int64_t seq = w[INFC_W_RECURRENT_SEQ], batch = w[INFC_W_RECURRENT_BATCH], hidden = w[INFC_W_RECURRENT_HIDDEN];
  if (!infc_step_has(step, counts[0], counts[1], INFC_WORDS_RECURRENT) || !infc_step_has_no_cols(step) ||
      step->rows_symbol >= 0 || w[INFC_W_RECURRENT_KIND] >= INFC_RECURRENT_COUNT || seq == 0 || seq > INT32_MAX ||
      batch == 0 || batch > INT32_MAX || hidden == 0 || hidden > INT32_MAX / 64 || w[INFC_W_RECURRENT_REVERSE] > 3 ||
      w[INFC_W_RECURRENT_BY_BATCH] > 1 || w[INFC_W_RECURRENT_INPUT_FORGET] > 1 ||
      (step->rows != batch && step->rows != 2 * batch))
    return false;
  const int64_t rows = step->rows, directions = rows / batch, gates = infc_recurrent_gates(w[INFC_W_RECURRENT_KIND]);
  const int64_t units = infc_recurrent_blocks(hidden) * INFC_RECURRENT_UNITS;
  int64_t states, all, weights;
  if (__builtin_mul_overflow(rows, hidden, &states) || __builtin_mul_overflow(states, seq * 4, &all) ||
      __builtin_mul_overflow(units * gates * directions, hidden, &weights))
    return false;
  const int64_t sizes[] = {directions * hidden,     batch,        states, states,
                           directions * 3 * hidden, states * seq, states, states};
  const infc_operand *operand = task->operands;
  if (!holds(operand, INFC_DTYPE_F32, states * seq * gates) || !holds(operand + 1, INFC_DTYPE_F32, weights))
    return false;
  operand += 2;
  for (int i = INFC_W_RECURRENT_HAS_BIAS; i <= INFC_W_RECURRENT_HAS_Y_C; i++)
    if (w[i] && !holds(operand++, i == INFC_W_RECURRENT_HAS_LENS ? INFC_DTYPE_I32 : INFC_DTYPE_F32,
                       sizes[i - INFC_W_RECURRENT_HAS_BIAS]))
      return false;
  return true;
}

// h, c and the gates of as many rows as a kernel takes at once.
size_t infc_recurrent_scratch(const infc_task *task) {
  enum { ROWS = 4 };
  const size_t units =
      (size_t)infc_recurrent_blocks(task->words[INFC_W_RECURRENT_HIDDEN]) * INFC_RECURRENT_UNITS * sizeof(float);
  return ROWS * (2 + INFC_RECURRENT_MAX_GATES) * units;
}
