// A sliding window over up to three dimensions, as conv, depthwise and pool step it over pixels whose channels are
// innermost.
#ifndef INFC_CONV_WINDOW_H
#define INFC_CONV_WINDOW_H

#include "../operand.h"

enum { INFC_AXES = 3 }; // d, h, w

// In the order of the words. `pad` is signed.
typedef struct infc_window {
  int64_t in[INFC_AXES], out[INFC_AXES], kernel[INFC_AXES], stride[INFC_AXES], dilation[INFC_AXES], pad[INFC_AXES];
} infc_window;

enum { INFC_WINDOW_WORDS = 6 * INFC_AXES };

static inline infc_window infc_window_read(const uint32_t *words) {
  infc_window w;
  for (int i = 0; i < INFC_AXES; i++) {
    w.in[i] = words[i];
    w.out[i] = words[INFC_AXES + i];
    w.kernel[i] = words[2 * INFC_AXES + i];
    w.stride[i] = words[3 * INFC_AXES + i];
    w.dilation[i] = words[4 * INFC_AXES + i];
    w.pad[i] = (int32_t)words[5 * INFC_AXES + i];
  }
  return w;
}

// The product of three sizes, each from 1 to INT32_MAX, or -1.
static inline int64_t infc_window_product(const int64_t *sizes) {
  int64_t product = 1;
  for (int i = 0; i < INFC_AXES; i++)
    if (sizes[i] < 1 || sizes[i] > INT32_MAX || __builtin_mul_overflow(product, sizes[i], &product))
      return -1;
  return product;
}

static inline int64_t infc_window_taps(const infc_window *w) {
  return w->kernel[0] * w->kernel[1] * w->kernel[2];
}

// Pixels of the input that belong to `rows` pixels of the output, or -1 if the window makes no sense.
static inline int64_t infc_window_pixels(const infc_window *w, int64_t rows) {
  const int64_t in = infc_window_product(w->in), out = infc_window_product(w->out);
  int64_t pixels;
  if (in < 0 || out < 0 || infc_window_product(w->kernel) < 0 || infc_window_product(w->stride) < 0 ||
      infc_window_product(w->dilation) < 0 || rows % out || __builtin_mul_overflow(rows / out, in, &pixels))
    return -1;
  return pixels;
}

// Elements from one pixel to the next of a matrix of `pixels` times `channels` floats, or -1.
static inline int64_t infc_pixel_stride(const infc_operand *x, int64_t pixels, int64_t channels) {
  const bool fits = x->packing == INFC_PACK_ROW_MAJOR && x->rank == 2 && x->rows_symbol < 0 && pixels > 0 &&
                    x->dims[0] == pixels && x->dims[1] == channels && x->row_stride >= channels;
  return fits ? (int64_t)x->row_stride : -1;
}

// A pixel of the output.
typedef struct infc_pixel {
  int64_t image, at[INFC_AXES];
} infc_pixel;

static inline infc_pixel infc_pixel_of(const infc_window *w, int64_t row) {
  infc_pixel p;
  for (int i = INFC_AXES - 1; i >= 0; i--) {
    p.at[i] = row % w->out[i];
    row /= w->out[i];
  }
  p.image = row;
  return p;
}

// The taps of one dimension that lie in the input, for output position `o`: from `first` on, below `end`.
typedef struct infc_taps {
  int64_t first, end;
} infc_taps;

static inline infc_taps infc_taps_inside(const infc_window *w, int axis, int64_t o) {
  const int64_t start = o * w->stride[axis] - w->pad[axis], dilation = w->dilation[axis],
                last = w->in[axis] - 1 - start;
  infc_taps t = {start < 0 ? (dilation - 1 - start) / dilation : 0, last < 0 ? 0 : last / dilation + 1};
  t.end = t.end < w->kernel[axis] ? t.end : w->kernel[axis];
  t.first = t.first < t.end ? t.first : t.end;
  return t;
}

// Positions between two taps that lie in the input: where dilation is larger than that, there is one.
static inline int64_t infc_tap_step(const infc_window *w, int axis) {
  return w->dilation[axis] < w->in[axis] ? w->dilation[axis] : 0;
}

// The pixel of the input that a tap inside it reads.
static inline int64_t infc_tap_pixel(const infc_window *w, const infc_pixel *p, const int64_t tap[INFC_AXES]) {
  int64_t at = p->image;
  for (int i = 0; i < INFC_AXES; i++)
    at = at * w->in[i] + p->at[i] * w->stride[i] - w->pad[i] + tap[i] * w->dilation[i];
  return at;
}

#endif // INFC_CONV_WINDOW_H
