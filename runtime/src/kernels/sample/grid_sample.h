// The loops of grid_sample, which every file of the family compiles for its own instruction set. Along each dimension a
// point has up to four taps: pixels and weights; a pixel outside has place -1.
#ifndef INFC_KERNELS_GRID_SAMPLE_H
#define INFC_KERNELS_GRID_SAMPLE_H

#include "../operand.h"

#include <math.h>
#include <string.h>

typedef struct infc_taps {
  int count;
  int64_t place[4];
  float weight[4];
} infc_taps;

// Mirrored between two ends, as often as it takes.
static inline double infc_reflect(double x, double low, double high) {
  const double width = high - low;
  if (!(width > 0))
    return low;
  const double from = fabs(x - low), turns = floor(from / width), rest = from - turns * width;
  return fmod(turns, 2.0) == 0 ? low + rest : high - rest;
}

static inline int64_t infc_pixel_outside(double x, int64_t size, uint32_t outside, bool align) {
  if (outside == INFC_BORDER_REFLECTION)
    x = align ? infc_reflect(x, 0, (double)size - 1) : infc_reflect(x, -0.5, (double)size - 0.5);
  else if (outside == INFC_BORDER_ZEROS)
    return -1;
  if (!(x > 0)) // NaN too
    return 0;
  return x < (double)size - 1 ? (int64_t)rint(x) : size - 1;
}

static inline int64_t infc_pixel(double x, int64_t size, uint32_t outside, bool align) {
  return x >= 0 && x <= (double)size - 1 ? (int64_t)x : infc_pixel_outside(x, size, outside, align);
}

// Weights of four pixels around a point, `t` after the second (Keys, 1981, a = -0.75).
static inline void infc_cubic(float t, float *weight) {
  const float a = -0.75f, u = 1 - t, s = 1 + t, v = 2 - t;
  weight[0] = ((a * s - 5 * a) * s + 8 * a) * s - 4 * a;
  weight[1] = ((a + 2) * t - (a + 3)) * t * t + 1;
  weight[2] = ((a + 2) * u - (a + 3)) * u * u + 1;
  weight[3] = ((a * v - 5 * a) * v + 8 * a) * v - 4 * a;
}

static inline infc_taps infc_taps_of(float at, int64_t size, uint32_t mode, uint32_t outside, bool align) {
  infc_taps taps = {.count = mode == INFC_SAMPLE_NEAREST ? 1 : mode == INFC_SAMPLE_LINEAR ? 2 : 4, .weight = {1}};
  double x = mode == INFC_SAMPLE_NEAREST ? rint(at) : at;
  const double low = align ? 0 : -0.5, high = (double)size - 1 - low;
  if (!(x >= low && x <= high)) {
    if (outside == INFC_BORDER_BORDER && mode != INFC_SAMPLE_CUBIC) // whose taps stop at the border one by one
      x = x < 0 ? 0 : (double)size - 1;
    else if (outside == INFC_BORDER_REFLECTION)
      x = infc_reflect(x, low, high);
  }
  if (mode == INFC_SAMPLE_NEAREST) {
    taps.place[0] = infc_pixel(x, size, outside, align);
    return taps;
  }
  const double whole = floor(x);
  const float t = (float)(x - whole);
  if (mode == INFC_SAMPLE_LINEAR) {
    taps.weight[0] = 1 - t;
    taps.weight[1] = t;
  } else {
    infc_cubic(t, taps.weight);
  }
  for (int i = 0; i < taps.count; i++)
    taps.place[i] = infc_pixel(whole + i - (mode == INFC_SAMPLE_CUBIC), size, outside, align);
  return taps;
}

static inline __attribute__((always_inline)) infc_fault infc_grid_sample(const infc_task *task,
                                                                         const infc_range *range) {
  const uint32_t *words = task->words, mode = words[INFC_W_GRID_SAMPLE_MODE];
  const uint32_t outside = words[INFC_W_GRID_SAMPLE_OUTSIDE];
  const bool align = words[INFC_W_GRID_SAMPLE_ALIGN];
  const int64_t dims = words[INFC_W_GRID_SAMPLE_DIMS], per_image = words[INFC_W_GRID_SAMPLE_POINTS];
  const int64_t size[3] = {words[INFC_W_GRID_SAMPLE_IN_W], words[INFC_W_GRID_SAMPLE_IN_H],
                           words[INFC_W_GRID_SAMPLE_IN_D]};
  const int64_t channels = infc_operand_inner(&task->operands[0], 1), stride = task->operands[0].row_stride;
  for (int64_t row = range->row0; row < range->row1; row++) {
    const float *point = (const float *)task->ptr[1] + row * dims;
    const float *x = (const float *)task->ptr[0] + row / per_image * size[0] * size[1] * size[2] * stride;
    float *y = (float *)task->ptr[2] + row * channels;
    infc_taps taps[3];
    for (int j = 0; j < 3; j++)
      taps[j] = j < dims ? infc_taps_of(point[j], size[j], mode, outside, align) : (infc_taps){1, {0}, {1}};
    memset(y, 0, (size_t)channels * sizeof *y);
    for (int d = 0; d < taps[2].count; d++)
      for (int h = 0; h < taps[1].count; h++)
        for (int w = 0; w < taps[0].count; w++) {
          const int64_t pd = taps[2].place[d], ph = taps[1].place[h], pw = taps[0].place[w];
          if (pd < 0 || ph < 0 || pw < 0)
            continue;
          const float weight = taps[2].weight[d] * taps[1].weight[h] * taps[0].weight[w];
          const float *pixel = x + ((pd * size[1] + ph) * size[0] + pw) * stride;
          for (int64_t c = 0; c < channels; c++)
            y[c] += weight * pixel[c];
        }
  }
  return INFC_FAULT_NONE;
}

#endif // INFC_KERNELS_GRID_SAMPLE_H
