// conv: y = activation(convolution + bias) + residual. The scalar reference and what all its kernels rely on.
#include "conv.h"

static bool up_fits(const uint32_t *words) {
  for (int i = 0; i < INFC_AXES; i++)
    if (words[INFC_W_CONV_UP_D + i] < 1 || words[INFC_W_CONV_UP_D + i] > INT32_MAX)
      return false;
  return true;
}

// taps * channels rows, and whole panels for each of several groups.
static bool weights_fit(const infc_operand *b, const infc_step *step, int64_t k, int64_t groups, int64_t columns) {
  int64_t panels;
  return b->dtype == INFC_DTYPE_F32 && b->packing == INFC_PACK_F32_K1N32 && b->rank == 2 && b->rows_symbol < 0 &&
         b->dims[0] == k && !__builtin_mul_overflow(groups, infc_gemm_panels(columns), &panels) &&
         infc_gemm_panels(b->dims[1]) == panels && step->cols == panels;
}

bool infc_conv_validate(const infc_task *task, uint32_t symbol_count) {
  (void)symbol_count;
  const infc_step *step = task->step;
  const uint32_t *words = task->words;
  if (step->word_count != INFC_WORDS_CONV || step->rows_symbol >= 0)
    return false;
  const uint32_t has_bias = words[INFC_W_CONV_HAS_BIAS], residual = words[INFC_W_CONV_HAS_RESIDUAL];
  const bool has_residual = residual;
  if (has_bias > 1 || residual > INFC_RESIDUAL_FIRST ||
      !infc_step_has(step, 2 + has_bias + has_residual, 1, INFC_WORDS_CONV))
    return false;
  const infc_operand *x = &task->operands[0], *y = &task->operands[2 + has_bias + has_residual];
  const int64_t groups = words[INFC_W_CONV_GROUPS], n = y->dims[1];
  if (x->dtype != INFC_DTYPE_F32 || y->dtype != INFC_DTYPE_F32 || groups < 1 || n % groups || x->dims[1] % groups)
    return false;
  const infc_window w = infc_window_read(words + INFC_W_CONV_IN_D);
  const int64_t pixels = infc_window_pixels(&w, step->rows), channels = x->dims[1] / groups;
  int64_t k;
  return pixels > 0 && !__builtin_mul_overflow(infc_window_taps(&w), channels, &k) && up_fits(words) &&
         infc_activation_supported(words[INFC_W_CONV_ACTIVATION]) && infc_pixel_stride(x, pixels, x->dims[1]) > 0 &&
         infc_pixel_stride(y, step->rows, n) > 0 && weights_fit(&task->operands[1], step, k, groups, n / groups) &&
         (!has_bias || infc_is_vector(&task->operands[2], n)) &&
         (!has_residual || infc_rows_stride(&task->operands[2 + has_bias], step, n) > 0);
}

// b is there with taps * channels rows, and a block's rows are few unless both are.
size_t infc_conv_scratch(const infc_task *task) {
  const infc_conv c = infc_conv_view(task);
  const infc_conv_plan p = infc_conv_plan_of(&c);
  return (p.zeros + p.gathered + 32) * sizeof(float) + p.pointers * sizeof(float *);
}

// Where tap (i, j, l) of a pixel reads, or NULL outside the input.
static const float *tap_source(const infc_conv *c, const infc_pixel *p, const int64_t tap[INFC_AXES]) {
  int64_t at = p->image;
  for (int i = 0; i < INFC_AXES; i++) {
    const int64_t q = p->at[i] * c->window.stride[i] - c->window.pad[i] + tap[i] * c->window.dilation[i];
    if (q < 0 || q % c->up[i] || q / c->up[i] >= c->window.in[i])
      return NULL;
    at = at * c->window.in[i] + q / c->up[i];
  }
  return c->x + at * c->ldx;
}

infc_fault infc_conv_f32__scalar(const infc_task *task, const infc_range *range, infc_worker *worker) {
  (void)worker;
  const infc_conv c = infc_conv_view(task);
  const int64_t *kernel = c.window.kernel, panels = infc_gemm_panels(c.columns), k = c.taps * c.channels;
  for (int64_t row = range->row0; row < range->row1; row++) {
    const infc_pixel pixel = infc_pixel_of(&c.window, row);
    for (int64_t panel = range->col0; panel < range->col1; panel++) {
      const int64_t group = panel / panels, first = panel % panels * INFC_PANEL;
      for (int64_t i = 0; i < INFC_PANEL && first + i < c.columns; i++) {
        const int64_t column = group * c.columns + first + i;
        const float *b = c.b + panel * k * INFC_PANEL + i;
        double sum = c.bias ? (double)c.bias[column] : 0.0;
        int64_t tap[INFC_AXES];
        for (tap[0] = 0; tap[0] < kernel[0]; tap[0]++)
          for (tap[1] = 0; tap[1] < kernel[1]; tap[1]++)
            for (tap[2] = 0; tap[2] < kernel[2]; tap[2]++, b += c.channels * INFC_PANEL) {
              const float *x = tap_source(&c, &pixel, tap);
              for (int64_t j = 0; x && j < c.channels; j++)
                sum += (double)x[group * c.channels + j] * (double)b[j * INFC_PANEL];
            }
        const float *residual = c.residual ? &c.residual[row * c.ldr + column] : NULL;
        c.y[row * c.ldy + column] = infc_gemm_finish_ref((float)sum, residual, c.residual_first, c.activation);
      }
    }
  }
  return INFC_FAULT_NONE;
}
