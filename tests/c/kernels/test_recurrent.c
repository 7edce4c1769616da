// recurrent: every kernel against the scalar reference, cut into rows in any way; lengths out of range; steps that do
// not fit.
#include "step.h"

#include <math.h>

enum { MAX_OUTPUTS = 3 };

typedef struct trial {
  test_step s;
  void *memory[INFC_MAX_OPERANDS];
  float *want[MAX_OUTPUTS];
  int64_t sizes[INFC_MAX_OPERANDS];
  bool bad_length;
} trial;

static float *floats(trial *t, test_rng *rng, bool output, int64_t rows, int64_t cols) {
  const int at = t->s.step.input_count + t->s.step.output_count;
  float *data = t->memory[at] = test_alloc((size_t)(rows * cols) * sizeof *data);
  t->sizes[at] = rows * cols;
  for (int64_t i = 0; i < rows * cols; i++)
    data[i] = test_random_float(rng, -1, 1);
  test_operand(&t->s, output, data, INFC_DTYPE_F32, rows, cols, cols);
  return data;
}

static void lengths(trial *t, test_rng *rng, int64_t batch, int64_t seq) {
  int32_t *data = t->memory[t->s.step.input_count] = test_alloc((size_t)batch * sizeof *data);
  for (int64_t b = 0; b < batch; b++) {
    data[b] = (int32_t)test_random_int(rng, 0, seq);
    if (test_random(rng) % 16 == 0) {
      data[b] = test_random(rng) % 2 ? -1 : (int32_t)seq + 1;
      t->bad_length = true;
    }
  }
  test_operand(&t->s, false, data, INFC_DTYPE_I32, batch, 0, 1);
}

static void make(trial *t, test_rng *rng) {
  const uint32_t kind = (uint32_t)(test_random(rng) % INFC_RECURRENT_COUNT);
  const int64_t gates = kind == INFC_RECURRENT_LSTM ? 4 : kind == INFC_RECURRENT_GRU ? 3 : 1;
  const int64_t seq = test_random_int(rng, 1, 4), batch = test_random_int(rng, 1, 6),
                hidden = test_random_int(rng, 1, 40);
  const int64_t directions = test_random_int(rng, 1, 2), rows = directions * batch;
  const int64_t blocks = (hidden + INFC_RECURRENT_UNITS - 1) / INFC_RECURRENT_UNITS;
  uint32_t has[8];
  for (int i = 0; i < 8; i++)
    has[i] = test_random(rng) % 2;
  if (kind != INFC_RECURRENT_LSTM)
    has[3] = has[4] = has[7] = 0;
  test_step_init(&t->s, rows, 1);
  floats(t, rng, false, seq * batch, directions * gates * hidden);
  floats(t, rng, false, directions * blocks * hidden, gates * INFC_RECURRENT_UNITS);
  if (has[0])
    floats(t, rng, false, directions, hidden);
  if (has[1])
    lengths(t, rng, batch, seq);
  if (has[2])
    floats(t, rng, false, rows, hidden);
  if (has[3])
    floats(t, rng, false, rows, hidden);
  if (has[4])
    floats(t, rng, false, directions, 3 * hidden);
  if (has[5])
    floats(t, rng, true, seq * rows, hidden);
  for (int i = 6; i < 8; i++)
    if (has[i])
      floats(t, rng, true, rows, hidden);
  const uint32_t words[] = {kind,
                            (uint32_t)seq,
                            (uint32_t)batch,
                            (uint32_t)hidden,
                            (uint32_t)(test_random(rng) % 4),
                            (uint32_t)(test_random(rng) % 2),
                            (uint32_t)(test_random(rng) % 2)};
  for (size_t i = 0; i < sizeof words / sizeof *words; i++)
    test_word(&t->s, words[i]);
  test_word(&t->s, test_float_word(test_random(rng) % 2 ? 0.0f : 0.7f));
  for (int i = 0; i < 8; i++)
    test_word(&t->s, has[i]);
  for (int i = 0; i < 6; i++) {
    test_word(&t->s, (uint32_t)(test_random(rng) % INFC_RECURRENT_ACTIVATION_COUNT));
    test_word(&t->s, test_float_word(test_random_float(rng, 0.1f, 0.9f)));
    test_word(&t->s, test_float_word(test_random_float(rng, 0.1f, 0.9f)));
  }
}

// States grow with activations that have no bound, and what is small next to them is a difference of large terms: what
// counts is the size of the largest.
static float tolerance(const float *want, int64_t count) {
  float largest = 1.0f;
  for (int64_t i = 0; i < count; i++)
    largest = isfinite(want[i]) ? fmaxf(largest, fabsf(want[i])) : largest;
  return 1e-4f * (1.0f + largest);
}

static void check_kernels(trial *t) {
  const int inputs = t->s.step.input_count, outputs = t->s.step.output_count;
  const infc_fault fault = t->bad_length ? INFC_FAULT_INDEX : INFC_FAULT_NONE;
  for (size_t k = 0; k < infc_kernel_count; k++) {
    const infc_kernel *kernel = &infc_kernels[k];
    if (kernel->op != INFC_OP_RECURRENT || !test_supported(kernel))
      continue;
    for (int parts = 1; parts <= 3; parts++) {
      for (int o = 0; o < outputs; o++)
        memset(t->memory[inputs + o], 0xEE, (size_t)t->sizes[inputs + o] * sizeof(float));
      CHECK(test_run(&t->s, kernel, parts, 1, NULL) == fault, "%s", kernel->name);
      for (int o = 0; o < outputs; o++) {
        const float *got = t->memory[inputs + o];
        if (kernel->isa == INFC_ISA_SCALAR && parts == 1)
          memcpy(t->want[o], got, (size_t)t->sizes[inputs + o] * sizeof(float));
        const float allowed = tolerance(t->want[o], t->sizes[inputs + o]);
        for (int64_t i = 0; i < t->sizes[inputs + o]; i++)
          if (!CHECK(test_close(got[i], t->want[o][i], allowed), "%s, kind %u: output %d at %lld is %g, not %g",
                     kernel->name, t->s.words[0], o, (long long)i, (double)got[i], (double)t->want[o][i]))
            break;
      }
    }
  }
}

static void check_refusals(trial *t) {
  static const int sizes[] = {INFC_W_RECURRENT_SEQ, INFC_W_RECURRENT_BATCH, INFC_W_RECURRENT_HIDDEN};
  for (int i = 0; i < 3; i++)
    for (int way = 0; way < 3; way++) {
      uint32_t *word = &t->s.words[sizes[i]], before = *word;
      *word = way == 0 ? before + 1 : way == 1 ? 0 : UINT32_MAX;
      CHECK(!test_validate(&t->s, INFC_OP_RECURRENT, 0), "word %d is %u", sizes[i], *word);
      *word = before;
    }
  for (int i = INFC_W_RECURRENT_HAS_BIAS; i <= INFC_W_RECURRENT_HAS_Y_C; i++) {
    t->s.words[i] ^= 1;
    CHECK(!test_validate(&t->s, INFC_OP_RECURRENT, 0), "operand of word %d", i);
    t->s.words[i] ^= 1;
  }
  t->s.words[INFC_W_RECURRENT_FUNCTION_H1] = INFC_RECURRENT_ACTIVATION_COUNT;
  CHECK(!test_validate(&t->s, INFC_OP_RECURRENT, 0), "unknown function");
}

int main(void) {
  test_rng rng = {11};
  for (int round = 0; round < 300; round++) {
    trial t = {0};
    make(&t, &rng);
    for (int o = 0; o < t.s.step.output_count; o++)
      t.want[o] = test_alloc((size_t)t.sizes[t.s.step.input_count + o] * sizeof(float));
    CHECK(test_validate(&t.s, INFC_OP_RECURRENT, 0), "valid");
    check_kernels(&t);
    check_refusals(&t);
    for (int i = 0; i < INFC_MAX_OPERANDS; i++)
      if (t.memory[i])
        test_free(t.memory[i]);
    for (int o = 0; o < t.s.step.output_count; o++)
      test_free(t.want[o]);
  }
  return test_result();
}
