// A gemm_i8 step's operands by name.
#ifndef INFC_GEMM_I8_H
#define INFC_GEMM_I8_H

#include "../gemm/gemm.h"

// Sparse weights: of each 4 rows a column has two that count. Units of 32 rows are five lines, a dword a column in
// each: codes, and values of four steps of 8 rows. Byte 2 * h + i of step j is kept weight i of the step's half h; its
// place among the half's four is at bits 2 * j of the codes' byte.
enum {
  INFC_I8_UNIT = 32,
  INFC_I8_UNIT_LINES = 5,
  INFC_I8_DEPTH = 4,                         // rows of b that lie together for a column
  INFC_I8_LINE = INFC_PANEL * INFC_I8_DEPTH, // bytes of a panel for so many rows
  INFC_I8_MAX_K = 65536,                     // 255 * 128 times this is less than 2^31: sums are exact
};

typedef struct infc_gemm_i8 {
  const uint8_t *a;
  const float *params; // of row r at r * params_step
  const int8_t *b;
  const float *scales;
  const int32_t *sums;
  const float *bias, *residual, *out; // may be NULL
  bool residual_first;
  float *y;    // where `out` is NULL
  uint8_t *yq; // else
  int64_t lda, params_step, ldr, ldy;
  int64_t n, k, lines; // lines: groups of INFC_I8_DEPTH rows of b, the last filled up
  uint32_t activation;
  bool sparse;
} infc_gemm_i8;

static inline int64_t infc_i8_lines(int64_t k) {
  return (k + INFC_I8_DEPTH - 1) / INFC_I8_DEPTH;
}

static inline int64_t infc_i8_panel_bytes(int64_t k, bool sparse) {
  return (sparse ? k / INFC_I8_UNIT * INFC_I8_UNIT_LINES : infc_i8_lines(k)) * INFC_I8_LINE;
}

static inline infc_gemm_i8 infc_gemm_i8_view(const infc_task *t) {
  const uint32_t *words = t->words;
  const bool has_bias = words[INFC_W_GEMM_I8_HAS_BIAS], has_residual = words[INFC_W_GEMM_I8_HAS_RESIDUAL];
  const bool has_out = words[INFC_W_GEMM_I8_HAS_OUT];
  const int residual = 5 + has_bias, out = residual + has_residual, y = out + has_out;
  const int64_t n = infc_operand_inner(&t->operands[3], 0), k = words[INFC_W_GEMM_I8_K];
  return (infc_gemm_i8){
      .a = t->ptr[0],
      .params = t->ptr[1],
      .b = t->ptr[2],
      .scales = t->ptr[3],
      .sums = t->ptr[4],
      .bias = has_bias ? t->ptr[5] : NULL,
      .residual = has_residual ? t->ptr[residual] : NULL,
      .out = has_out ? t->ptr[out] : NULL,
      .residual_first = words[INFC_W_GEMM_I8_HAS_RESIDUAL] == INFC_RESIDUAL_FIRST,
      .y = t->ptr[y],
      .yq = t->ptr[y],
      .lda = infc_rows_stride_of(&t->operands[0], t->step, k, INFC_DTYPE_U8),
      .params_step = words[INFC_W_GEMM_I8_DYNAMIC] ? 2 : 0,
      .ldr = has_residual ? infc_rows_stride(&t->operands[residual], t->step, n) : 0,
      .ldy = infc_rows_stride_of(&t->operands[y], t->step, n, has_out ? INFC_DTYPE_U8 : INFC_DTYPE_F32),
      .n = n,
      .k = k,
      .lines = infc_i8_lines(k),
      .activation = words[INFC_W_GEMM_I8_ACTIVATION],
      .sparse = words[INFC_W_GEMM_I8_SPARSE],
  };
}

// A zero point kept as a float: any value is safe.
static inline int32_t infc_zero_point(float zero) {
  return zero >= 0.0f && zero <= 255.0f ? (int32_t)zero : 0;
}

#endif // INFC_GEMM_I8_H
