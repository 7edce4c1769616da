// A quantize_rows step's operands by name, and the arithmetic that all its kernels share: they give the same bits.
#ifndef INFC_QUANTIZE_ROWS_H
#define INFC_QUANTIZE_ROWS_H

#include "../gemm/rows.h"

#include <math.h>

enum { INFC_SHIFT = 128 }; // zero of kind `shifted`

typedef struct infc_quantize_rows {
  const float *x;
  uint8_t *q; // i8 where the kind says so
  float *params;
  int64_t ldx, k, group, groups;
  uint32_t kind;
} infc_quantize_rows;

static inline infc_quantize_rows infc_quantize_rows_view(const infc_task *t) {
  const int64_t k = infc_operand_inner(&t->operands[0], 0) / t->step->rows;
  const int64_t group = t->words[INFC_W_QUANTIZE_ROWS_GROUP] ? t->words[INFC_W_QUANTIZE_ROWS_GROUP] : k;
  return (infc_quantize_rows){
      .x = t->ptr[0],
      .q = t->ptr[1],
      .params = t->ptr[2],
      .ldx = infc_rows_stride(&t->operands[0], t->step, k),
      .k = k,
      .group = group,
      .groups = k / group,
      .kind = t->words[INFC_W_QUANTIZE_ROWS_KIND],
  };
}

// What a group's elements go through: q = round(x * inverse) + zero.
typedef struct infc_grid {
  float scale, inverse;
  int zero;
} infc_grid;

// `spoilt` is 0, or NaN if the group holds NaN or an infinity.
static inline infc_grid infc_grid_of(float low, float high, float spoilt, uint32_t kind) {
  const bool whole = kind == INFC_QUANTIZE_ROWS_ASYMMETRIC;
  float scale = (whole ? (high - low) / 255.0f : (high > -low ? high : -low) / 127.0f) + spoilt;
  scale = scale < 0x1p-126f ? 1.0f : scale;
  const float inverse = scale == scale ? 1.0f / scale : 0.0f, zero = rintf(-low * inverse);
  if (whole)
    return (infc_grid){scale, inverse, zero >= 0.0f && zero <= 255.0f ? (int)zero : 0};
  return (infc_grid){scale, inverse, kind == INFC_QUANTIZE_ROWS_SHIFTED ? INFC_SHIFT : 0};
}

// The least and the largest q.
static inline int infc_grid_low(uint32_t kind) {
  return kind == INFC_QUANTIZE_ROWS_SYMMETRIC ? -127 : kind == INFC_QUANTIZE_ROWS_SHIFTED;
}
static inline int infc_grid_high(uint32_t kind) {
  return kind == INFC_QUANTIZE_ROWS_SYMMETRIC ? 127 : 255;
}

#endif // INFC_QUANTIZE_ROWS_H
