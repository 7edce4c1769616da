// pool: maximum, average and Lp norm over windows. The scalar reference and what all its kernels rely on.
#include "pooling.h"

#include <math.h>

static bool type_fits(uint32_t kind, uint8_t dtype) {
  switch (dtype) {
  case INFC_DTYPE_F32:
    return true;
  case INFC_DTYPE_F64:
  case INFC_DTYPE_U8:
  case INFC_DTYPE_I8:
    return kind == INFC_POOL_MAX;
  default:
    return false;
  }
}

bool infc_pool_validate(const infc_task *task, uint32_t symbol_count) {
  (void)symbol_count;
  const infc_step *step = task->step;
  const uint32_t *words = task->words;
  if (step->word_count != INFC_WORDS_POOL || step->rows_symbol >= 0 || !infc_step_has_no_cols(step))
    return false;
  const uint32_t has_argmax = words[INFC_W_POOL_HAS_ARGMAX], kind = words[INFC_W_POOL_KIND];
  if (has_argmax > 1 || words[INFC_W_POOL_COUNT_PAD] > 1 || words[INFC_W_POOL_BY_COLUMN] > 1 ||
      kind >= INFC_POOL_COUNT || (has_argmax && kind != INFC_POOL_MAX) ||
      !infc_step_has(step, 1, 1 + has_argmax, INFC_WORDS_POOL))
    return false;
  const infc_operand *x = &task->operands[0], *y = &task->operands[1], *argmax = &task->operands[2];
  const infc_window w = infc_window_read(words + INFC_W_POOL_IN_D);
  const int64_t channels = x->dims[1], pixels = infc_window_pixels(&w, step->rows);
  return pixels > 0 && x->dtype == y->dtype && type_fits(kind, x->dtype) &&
         infc_pixel_stride(x, pixels, channels) > 0 && infc_pixel_stride(y, step->rows, channels) > 0 &&
         (!has_argmax ||
          (argmax->dtype == INFC_DTYPE_I64 && infc_pixel_stride(argmax, step->rows, channels) == channels));
}

size_t infc_pool_scratch(const infc_task *task) {
  (void)task;
  return 0;
}

static double element(const infc_pooling *p, uint8_t dtype, int64_t at) {
  switch (dtype) {
  case INFC_DTYPE_F32:
    return (double)((const float *)p->x)[at];
  case INFC_DTYPE_F64:
    return ((const double *)p->x)[at];
  case INFC_DTYPE_U8:
    return ((const uint8_t *)p->x)[at];
  default:
    return ((const int8_t *)p->x)[at];
  }
}

static void set_element(const infc_pooling *p, uint8_t dtype, int64_t at, double value) {
  switch (dtype) {
  case INFC_DTYPE_F32:
    ((float *)p->y)[at] = (float)value;
    break;
  case INFC_DTYPE_F64:
    ((double *)p->y)[at] = value;
    break;
  case INFC_DTYPE_U8:
    ((uint8_t *)p->y)[at] = (uint8_t)(value < 0 ? 0 : value);
    break;
  default:
    ((int8_t *)p->y)[at] = (int8_t)(value < INT8_MIN ? INT8_MIN : value);
  }
}

// The place of a pixel of the input in its image, channels outermost.
static int64_t place(const infc_pooling *p, int64_t pixel, int64_t channel) {
  const int64_t *in = p->window.in, count = in[0] * in[1] * in[2], image = pixel / count;
  int64_t at = pixel % count;
  if (p->by_column) {
    const int64_t w = at % in[2], h = at / in[2] % in[1], d = at / in[2] / in[1];
    at = (w * in[1] + h) * in[0] + d;
  }
  return (image * p->channels + channel) * count + at;
}

// NaN wins over any maximum. A window without a tap has maximum -inf and sum 0.
static void pool_one(const infc_pooling *p, uint8_t dtype, const infc_pixel *pixel, const infc_pool_taps *t,
                     int64_t row, int64_t channel) {
  double result = p->kind == INFC_POOL_MAX ? -INFINITY : 0;
  int64_t best = -1;
  int64_t tap[INFC_AXES];
  for (tap[0] = t->axis[0].first; tap[0] < t->axis[0].end; tap[0]++)
    for (tap[1] = t->axis[1].first; tap[1] < t->axis[1].end; tap[1]++)
      for (tap[2] = t->axis[2].first; tap[2] < t->axis[2].end; tap[2]++) {
        const int64_t at = infc_tap_pixel(&p->window, pixel, tap);
        const double v = element(p, dtype, at * p->ldx + channel);
        if (p->kind == INFC_POOL_AVERAGE) {
          result += v;
        } else if (p->kind == INFC_POOL_LP) {
          result += pow(fabs(v), (double)p->p);
        } else if (best < 0 || v > result || (v != v && result == result)) {
          result = v;
          best = at;
        }
      }
  if (p->kind == INFC_POOL_AVERAGE)
    result /= t->divisor;
  else if (p->kind == INFC_POOL_LP)
    result = pow(result, 1.0 / (double)p->p);
  set_element(p, dtype, row * p->ldy + channel, result);
  if (p->argmax)
    p->argmax[row * p->channels + channel] = best < 0 ? 0 : place(p, best, channel);
}

infc_fault infc_pool__scalar(const infc_task *task, const infc_range *range, infc_worker *worker) {
  (void)worker;
  const infc_pooling p = infc_pooling_view(task);
  for (int64_t row = range->row0; row < range->row1; row++) {
    const infc_pixel pixel = infc_pixel_of(&p.window, row);
    const infc_pool_taps taps = infc_pool_taps_of(&p, &pixel);
    for (int64_t c = 0; c < p.channels; c++)
      pool_one(&p, task->operands[0].dtype, &pixel, &taps, row, c);
  }
  return INFC_FAULT_NONE;
}
