#include "../operand.h"

#include <math.h>
#include <string.h>

// A sample between two pixels of one dimension; weight 0 for both outside of the image.
typedef struct infc_between {
  int64_t low, high;
  float low_weight, high_weight;
} infc_between;

static infc_between between(float at, int64_t size) {
  if (!(at >= -1 && at <= (float)size))
    return (infc_between){0};
  at = at > 0 ? at : 0;
  const int64_t low = (int64_t)at;
  if (low >= size - 1)
    return (infc_between){size - 1, size - 1, 1, 0};
  const float t = at - (float)low;
  return (infc_between){low, low + 1, 1 - t, t};
}

// The bins of a region along one dimension.
typedef struct infc_bins {
  float start, width;
  int64_t samples; // a bin
} infc_bins;

// More samples than that tell nothing new, and a region may be as large as a float.
#define MAX_SAMPLES 1024

static infc_bins bins_of(float start, float end, float scale, bool half_pixel, int64_t out, int64_t ratio) {
  const float shift = half_pixel ? 0.5f : 0;
  const float first = start * scale - shift, length = end * scale - shift - first;
  const float width = (half_pixel || length > 1 ? length : 1) / (float)out, pixels = ceilf(width);
  const int64_t samples = ratio > 0 ? ratio : pixels > 1 ? pixels < MAX_SAMPLES ? (int64_t)pixels : MAX_SAMPLES : 1;
  return (infc_bins){first, width, samples};
}

static float sample_at(const infc_bins *bins, int64_t bin, int64_t sample) {
  return bins->start + ((float)bin + ((float)sample + 0.5f) / (float)bins->samples) * bins->width;
}

// The channels of one bin. What two weights of 0 leave are zeros; the maximum is over weighted pixels, as ONNX defines
// it.
static void align(const float *x, int64_t stride, int64_t channels, int64_t h, int64_t w, const infc_bins *rows,
                  const infc_bins *columns, int64_t bin_h, int64_t bin_w, bool max, float *y) {
  bool first = true;
  memset(y, 0, (size_t)channels * sizeof *y);
  for (int64_t i = 0; i < rows->samples; i++)
    for (int64_t j = 0; j < columns->samples; j++, first = false) {
      const infc_between v = between(sample_at(rows, bin_h, i), h), u = between(sample_at(columns, bin_w, j), w);
      const float *low = x + v.low * w * stride, *high = x + v.high * w * stride;
      const float w00 = v.low_weight * u.low_weight, w01 = v.low_weight * u.high_weight;
      const float w10 = v.high_weight * u.low_weight, w11 = v.high_weight * u.high_weight;
      for (int64_t c = 0; c < channels; c++) {
        const float a = w00 * low[u.low * stride + c], b = w01 * low[u.high * stride + c];
        const float d = w10 * high[u.low * stride + c], e = w11 * high[u.high * stride + c];
        if (max) {
          const float most = fmaxf(fmaxf(a, b), fmaxf(d, e));
          y[c] = first || most > y[c] ? most : y[c];
        } else {
          y[c] += a + b + d + e;
        }
      }
    }
  for (int64_t c = 0; c < channels && !max; c++)
    y[c] /= (float)(rows->samples * columns->samples);
}

infc_fault infc_roi_align_f32__scalar(const infc_task *task, const infc_range *range, infc_worker *worker) {
  (void)worker;
  const uint32_t *words = task->words;
  const int64_t h = words[INFC_W_ROI_ALIGN_IN_H], w = words[INFC_W_ROI_ALIGN_IN_W];
  const int64_t out_h = words[INFC_W_ROI_ALIGN_OUT_H], out_w = words[INFC_W_ROI_ALIGN_OUT_W];
  const int64_t ratio = words[INFC_W_ROI_ALIGN_RATIO], stride = task->operands[0].row_stride;
  const int64_t channels = infc_operand_inner(&task->operands[0], 1), images = task->operands[0].dims[0] / (h * w);
  const float scale = infc_word_f32(words[INFC_W_ROI_ALIGN_SCALE]);
  const bool half = words[INFC_W_ROI_ALIGN_HALF_PIXEL];
  infc_fault fault = INFC_FAULT_NONE;
  for (int64_t row = range->row0; row < range->row1; row++) {
    const int64_t region = row / (out_h * out_w), bin_h = row / out_w % out_h, bin_w = row % out_w;
    const int64_t image = infc_read_index(task->ptr[2], task->operands[2].dtype, region);
    const float *roi = (const float *)task->ptr[1] + region * 4;
    float *y = (float *)task->ptr[3] + row * channels;
    if (image < 0 || image >= images) {
      memset(y, 0, (size_t)channels * sizeof *y);
      fault = INFC_FAULT_INDEX;
      continue;
    }
    const infc_bins rows = bins_of(roi[1], roi[3], scale, half, out_h, ratio);
    const infc_bins columns = bins_of(roi[0], roi[2], scale, half, out_w, ratio);
    align((const float *)task->ptr[0] + image * h * w * stride, stride, channels, h, w, &rows, &columns, bin_h, bin_w,
          words[INFC_W_ROI_ALIGN_MAX], y);
  }
  return fault;
}

bool infc_roi_align_validate(const infc_task *task, uint32_t symbol_count) {
  (void)symbol_count;
  const infc_step *step = task->step;
  if (!infc_step_has(step, 3, 1, INFC_WORDS_ROI_ALIGN) || !infc_step_has_no_cols(step) || step->rows_symbol >= 0)
    return false;
  const infc_operand *x = &task->operands[0], *rois = &task->operands[1], *images = &task->operands[2];
  const infc_operand *y = &task->operands[3];
  const uint32_t *words = task->words;
  int64_t pixels, bins;
  if (__builtin_mul_overflow((int64_t)words[INFC_W_ROI_ALIGN_IN_H], (int64_t)words[INFC_W_ROI_ALIGN_IN_W], &pixels) ||
      __builtin_mul_overflow((int64_t)words[INFC_W_ROI_ALIGN_OUT_H], (int64_t)words[INFC_W_ROI_ALIGN_OUT_W], &bins) ||
      pixels == 0 || bins == 0 || step->rows % bins)
    return false;
  const int64_t regions = step->rows / bins;
  return words[INFC_W_ROI_ALIGN_RATIO] <= MAX_SAMPLES && x->dtype == INFC_DTYPE_F32 &&
         x->packing == INFC_PACK_ROW_MAJOR && x->rows_symbol < 0 && x->dims[0] % pixels == 0 &&
         rois->dtype == INFC_DTYPE_F32 && rois->rows_symbol < 0 && infc_operand_dense(rois) &&
         infc_operand_inner(rois, 0) == 4 * regions && infc_operand_is_index(images) && images->rows_symbol < 0 &&
         infc_operand_dense(images) && infc_operand_inner(images, 0) == regions && y->dtype == INFC_DTYPE_F32 &&
         infc_operand_holds_rows(y, step, infc_operand_inner(x, 1));
}

size_t infc_roi_align_scratch(const infc_task *task) {
  (void)task;
  return 0;
}
