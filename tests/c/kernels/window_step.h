// Random sliding windows for tests of conv, depthwise and pool.
#ifndef INFC_TEST_WINDOW_STEP_H
#define INFC_TEST_WINDOW_STEP_H

#include "kernels/conv/window.h"
#include "step.h"

// A window of which each output position may see taps outside the input, even all of them. `up` spreads the input.
static inline infc_window test_window(test_rng *rng, const int64_t up[INFC_AXES]) {
  infc_window w;
  for (int i = 0; i < INFC_AXES; i++) {
    const bool flat = i == 0 && test_random_int(rng, 0, 2);
    w.in[i] = flat ? 1 : test_random_int(rng, 1, 11);
    w.kernel[i] = flat ? 1 : test_random_int(rng, 1, 4);
    w.stride[i] = test_random_int(rng, 1, 3);
    w.dilation[i] = test_random_int(rng, 1, 2);
    w.pad[i] = test_random_int(rng, -1, 3);
    const int64_t room =
        (w.in[i] - 1) * up[i] + w.pad[i] - (w.kernel[i] - 1) * w.dilation[i] + test_random_int(rng, 0, 3);
    w.out[i] = room < 0 ? 1 : room / w.stride[i] + 1;
  }
  return w;
}

static inline const infc_kernel *test_scalar(uint16_t op) {
  for (size_t i = 0; i < infc_kernel_count; i++)
    if (infc_kernels[i].op == op && infc_kernels[i].isa == INFC_ISA_SCALAR)
      return &infc_kernels[i];
  abort();
}

static inline void test_window_words(test_step *t, const infc_window *w) {
  const int64_t *groups[] = {w->in, w->out, w->kernel, w->stride, w->dilation, w->pad};
  for (size_t g = 0; g < sizeof groups / sizeof *groups; g++)
    for (int i = 0; i < INFC_AXES; i++)
      test_word(t, (uint32_t)groups[g][i]);
}

static inline int64_t test_volume(const int64_t sizes[INFC_AXES]) {
  return sizes[0] * sizes[1] * sizes[2];
}

// Floats of `rows` rows, `stride` apart, of which the last has `cols`.
static inline float *test_rows(test_rng *rng, int64_t rows, int64_t cols, int64_t stride) {
  const size_t count = (size_t)((rows - 1) * stride + cols);
  float *data = test_alloc(count * sizeof *data);
  test_fill_random(rng, data, count, -1, 1);
  return data;
}

// Sizes, steps and kernels that make no sense, one word at a time, from the first of the window's on.
static inline void test_spoil_window(const test_step *t, uint16_t op, unsigned first) {
  static const uint32_t values[] = {0, 0x80000000, 0xFFFFFFFF};
  for (unsigned word = first; word < first + INFC_WINDOW_WORDS - INFC_AXES; word++)
    for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
      test_step bad = *t;
      bad.task.operands = bad.operands;
      bad.task.words = bad.words;
      bad.task.step = &bad.step;
      bad.words[word] = values[v];
      CHECK(!test_validate(&bad, op, 0), "word %u = %u", word, values[v]);
    }
}

#endif // INFC_TEST_WINDOW_STEP_H
