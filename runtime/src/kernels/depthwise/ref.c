// depthwise: a convolution of as many groups as channels. The scalar reference and what all its kernels rely on.
#include "depthwise.h"

#include "../math/ref.h"

bool infc_depthwise_validate(const infc_task *task, uint32_t symbol_count) {
  (void)symbol_count;
  const infc_step *step = task->step;
  if (step->word_count != INFC_WORDS_DEPTHWISE || step->rows_symbol >= 0 || !infc_step_has_no_cols(step))
    return false;
  const uint32_t has_bias = task->words[INFC_W_DEPTHWISE_HAS_BIAS];
  if (has_bias > 1 || !infc_step_has(step, 2 + has_bias, 1, INFC_WORDS_DEPTHWISE))
    return false;
  const infc_operand *x = &task->operands[0], *y = &task->operands[2 + has_bias];
  const infc_window w = infc_window_read(task->words + INFC_W_DEPTHWISE_IN_D);
  const int64_t channels = x->dims[1], pixels = infc_window_pixels(&w, step->rows);
  int64_t weights;
  return pixels > 0 && x->dtype == INFC_DTYPE_F32 && y->dtype == INFC_DTYPE_F32 &&
         infc_activation_supported(task->words[INFC_W_DEPTHWISE_ACTIVATION]) &&
         infc_pixel_stride(x, pixels, channels) > 0 && infc_pixel_stride(y, step->rows, channels) > 0 &&
         !__builtin_mul_overflow(infc_window_taps(&w), channels, &weights) &&
         infc_is_vector(&task->operands[1], weights) && (!has_bias || infc_is_vector(&task->operands[2], channels));
}

size_t infc_depthwise_scratch(const infc_task *task) {
  (void)task;
  return 0;
}

infc_fault infc_depthwise_f32__scalar(const infc_task *task, const infc_range *range, infc_worker *worker) {
  (void)worker;
  const infc_depthwise d = infc_depthwise_view(task);
  const infc_window *w = &d.window;
  for (int64_t row = range->row0; row < range->row1; row++) {
    const infc_pixel p = infc_pixel_of(w, row);
    infc_taps t[INFC_AXES];
    for (int i = 0; i < INFC_AXES; i++)
      t[i] = infc_taps_inside(w, i, p.at[i]);
    for (int64_t c = 0; c < d.channels; c++) {
      double sum = d.bias ? (double)d.bias[c] : 0.0;
      for (int64_t i = t[0].first; i < t[0].end; i++)
        for (int64_t j = t[1].first; j < t[1].end; j++)
          for (int64_t l = t[2].first; l < t[2].end; l++) {
            const int64_t tap[INFC_AXES] = {i, j, l};
            const float *x = d.x + infc_tap_pixel(w, &p, tap) * d.ldx;
            sum += (double)x[c] * (double)d.w[((i * w->kernel[1] + j) * w->kernel[2] + l) * d.channels + c];
          }
      d.y[row * d.ldy + c] = infc_activate_ref((float)sum, d.activation);
    }
  }
  return INFC_FAULT_NONE;
}
