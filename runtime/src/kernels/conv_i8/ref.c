// conv_i8: a convolution of bytes whose sums are exact. The scalar reference and what all its kernels rely on.
#include "conv_i8.h"

static bool residual_fits(const infc_operand *residual, const infc_step *step, int64_t n, uint32_t kind) {
  return kind == 0 ||
         infc_rows_stride_of(residual, step, n, kind == INFC_RESIDUAL_U8 ? INFC_DTYPE_U8 : INFC_DTYPE_F32) > 0;
}

static bool weights_fit(const infc_operand *b, const infc_step *step, int64_t k, int64_t groups, int64_t columns) {
  int64_t panels;
  return b->dtype == INFC_DTYPE_I8 && b->rows_symbol < 0 && infc_operand_dense(b) &&
         !__builtin_mul_overflow(groups, infc_gemm_panels(columns), &panels) && step->cols == panels &&
         infc_operand_inner(b, 0) == panels * infc_i8_lines(k) * INFC_I8_LINE;
}

bool infc_conv_i8_validate(const infc_task *task, uint32_t symbol_count) {
  (void)symbol_count;
  const infc_step *step = task->step;
  const uint32_t *words = task->words;
  if (step->word_count != INFC_WORDS_CONV_I8 || step->rows_symbol >= 0)
    return false;
  const uint32_t residual = words[INFC_W_CONV_I8_HAS_RESIDUAL];
  if (residual > INFC_RESIDUAL_U8 || !infc_step_has(step, 5 + (residual != 0), 1, INFC_WORDS_CONV_I8))
    return false;
  const infc_operand *of = task->operands, *y = &of[5 + (residual != 0)];
  const int64_t groups = words[INFC_W_CONV_I8_GROUPS], n = y->dims[1];
  const uint8_t type = words[INFC_W_CONV_I8_HAS_OUT] ? INFC_DTYPE_U8 : INFC_DTYPE_F32;
  if (of->dtype != INFC_DTYPE_U8 || y->dtype != type || groups < 1 || n % groups || of->dims[1] % groups ||
      words[INFC_W_CONV_I8_ZERO] > 255)
    return false;
  const infc_window w = infc_window_read(words + INFC_W_CONV_I8_IN_D);
  const int64_t pixels = infc_window_pixels(&w, step->rows), channels = of->dims[1] / groups;
  int64_t k;
  return pixels > 0 && !__builtin_mul_overflow(infc_window_taps(&w), channels, &k) && k <= INFC_I8_MAX_K &&
         infc_requantise_fits(words + INFC_W_CONV_I8_ACTIVATION) && infc_pixel_stride(of, pixels, of->dims[1]) > 0 &&
         infc_pixel_stride(y, step->rows, n) > 0 && weights_fit(of + 1, step, k, groups, n / groups) &&
         infc_is_vector(of + 2, n) && of[3].dtype == INFC_DTYPE_I32 && of[3].rows_symbol < 0 &&
         infc_operand_dense(of + 3) && infc_operand_inner(of + 3, 0) == n && infc_is_vector(of + 4, n) &&
         residual_fits(of + 5, step, n, residual);
}

size_t infc_conv_i8_scratch(const infc_task *task) {
  const infc_conv_i8 c = infc_conv_i8_view(task);
  const infc_conv_i8_plan p = infc_conv_i8_plan_of(&c);
  return p.gathered + p.zeros + p.pointers * sizeof(uint8_t *);
}

// The sum of products of one pixel and one column of b: the taps outside the input read `zero`.
static int64_t dot_product(const infc_conv_i8 *c, const infc_pixel *p, int64_t group, const int8_t *b) {
  const infc_window *w = &c->window;
  int64_t sum = 0, i = 0, tap[INFC_AXES];
  for (tap[0] = 0; tap[0] < w->kernel[0]; tap[0]++)
    for (tap[1] = 0; tap[1] < w->kernel[1]; tap[1]++)
      for (tap[2] = 0; tap[2] < w->kernel[2]; tap[2]++) {
        bool inside = true;
        for (int axis = 0; axis < INFC_AXES; axis++) {
          const int64_t q = p->at[axis] * w->stride[axis] - w->pad[axis] + tap[axis] * w->dilation[axis];
          inside = inside && q >= 0 && q < w->in[axis];
        }
        const uint8_t *x = inside ? c->x + infc_tap_pixel(w, p, tap) * c->ldx + group * c->channels : NULL;
        for (int64_t j = 0; j < c->channels; j++, i++)
          sum += (x ? x[j] : c->zero) * b[i / INFC_I8_DEPTH * INFC_I8_LINE + i % INFC_I8_DEPTH];
      }
  return sum;
}

infc_fault infc_conv_i8__scalar(const infc_task *task, const infc_range *range, infc_worker *worker) {
  (void)worker;
  const infc_conv_i8 c = infc_conv_i8_view(task);
  const int64_t panels = infc_gemm_panels(c.columns);
  for (int64_t row = range->row0; row < range->row1; row++) {
    const infc_pixel pixel = infc_pixel_of(&c.window, row);
    for (int64_t panel = range->col0; panel < range->col1; panel++) {
      const int64_t group = panel / panels, first = panel % panels * INFC_PANEL;
      for (int64_t i = 0; i < INFC_PANEL && first + i < c.columns; i++) {
        const int64_t column = group * c.columns + first + i;
        const int8_t *b = c.b + panel * c.lines * INFC_I8_LINE + i * INFC_I8_DEPTH;
        const int64_t sum = dot_product(&c, &pixel, group, b) + c.offsets[column];
        float v = fmaf((float)(int32_t)(uint32_t)sum, c.scales[column], c.bias[column]);
        if (c.residual)
          v = fmaf(c.residual[row * c.ldr + column], c.residual_scale, v);
        if (c.residual_q)
          v = fmaf((float)c.residual_q[row * c.ldr + column], c.residual_scale, v);
        v = infc_requantise_ref(&c.out, v);
        if (c.out.quantised)
          c.yq[row * c.ldy + column] = infc_requantise_byte(v);
        else
          c.y[row * c.ldy + column] = v;
      }
    }
  }
  return INFC_FAULT_NONE;
}
