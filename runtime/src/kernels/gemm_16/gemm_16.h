// A gemm_16 step's operands by name, and where weights lie in their panels.
#ifndef INFC_GEMM_16_H
#define INFC_GEMM_16_H

#include "../gemm/gemm.h"

// Weights are stored in lines, each of some rows of b for the 32 columns of a panel; zeros beyond K and N.
//   bf16     pairs of rows: a column's two numbers are one dword
//   f16      single rows
//   f8e4m3   pairs of rows: a column's two bytes lie together. 0x7F and 0xFF read as 480 and -480, not as NaN
//   sparse   32 rows of bf16 of which each 4 have 2 that count: 32 dwords of codes, then for each 4 rows a dword a
//   column of
//            the two kept numbers. Bits 4 * i to 4 * i + 2 of a column's code say which they are of rows 4 * i to 4 * i
//            + 3, in the order 01 02 03 12 13 23; bit 4 * i + 3 is i % 2
enum {
  INFC_16_SPARSE_ROWS = 32,
  INFC_16_GROUPS = 8, // of a line of sparse weights
  INFC_16_PATTERNS = 6,
  INFC_GEMM_16_TILE = 12, // rows at most
  INFC_GEMM_16_BLOCK_BYTES = 320 * 1024,
};

typedef struct infc_gemm_16 {
  const void *a; // bf16, f32 for weights in f16
  const uint8_t *b;
  const float *scales, *bias, *residual; // may be NULL
  bool residual_first;
  float *y;
  int64_t lda, ldr, ldy;
  int64_t n, k, lines, line; // lines of a panel and the bytes of one
  uint32_t format, activation;
  bool sparse;
} infc_gemm_16;

static inline uint8_t infc_gemm_16_a_type(uint32_t format) {
  return format == INFC_GEMM_16_F16 ? INFC_DTYPE_F32 : INFC_DTYPE_BF16;
}
// Rows of b in a line.
static inline int64_t infc_gemm_16_depth(uint32_t format, bool sparse) {
  return sparse ? INFC_16_SPARSE_ROWS : format == INFC_GEMM_16_F16 ? 1 : 2;
}
static inline int64_t infc_gemm_16_line(uint32_t format, bool sparse) {
  return sparse ? INFC_PANEL * 4 * (1 + INFC_16_GROUPS) : format == INFC_GEMM_16_BF16 ? INFC_PANEL * 4 : INFC_PANEL * 2;
}
static inline int64_t infc_gemm_16_lines(uint32_t format, bool sparse, int64_t k) {
  const int64_t depth = infc_gemm_16_depth(format, sparse);
  return (k + depth - 1) / depth;
}

// Rows of a block, of which tiles have so many at most.
static inline int64_t infc_gemm_16_block(int64_t row_bytes, int64_t tile) {
  const int64_t fit = INFC_GEMM_16_BLOCK_BYTES / row_bytes;
  return fit > tile ? fit : tile;
}

// What kernels without products of bf16 have in their scratch memory: bytes of a panel of f8e4m3 as bf16, then a block
// of rows of so many floats.
static inline int64_t infc_gemm_16_wide_row(int64_t k) {
  return (k + 1) / 2 * 2;
}
static inline int64_t infc_gemm_16_panel_scratch(uint32_t format, int64_t k) {
  return format != INFC_GEMM_16_F8E4M3
             ? 0
             : infc_gemm_16_lines(format, false, k) * infc_gemm_16_line(INFC_GEMM_16_BF16, false);
}

static inline infc_gemm_16 infc_gemm_16_view(const infc_task *t) {
  const uint32_t *words = t->words, format = words[INFC_W_GEMM_16_FORMAT];
  const bool has_scales = words[INFC_W_GEMM_16_HAS_SCALES], has_bias = words[INFC_W_GEMM_16_HAS_BIAS];
  const bool has_residual = words[INFC_W_GEMM_16_HAS_RESIDUAL], sparse = words[INFC_W_GEMM_16_SPARSE];
  const int bias = 2 + has_scales, residual = bias + has_bias, y = residual + has_residual;
  const int64_t n = words[INFC_W_GEMM_16_N], k = words[INFC_W_GEMM_16_K];
  return (infc_gemm_16){
      .a = t->ptr[0],
      .b = t->ptr[1],
      .scales = has_scales ? t->ptr[2] : NULL,
      .bias = has_bias ? t->ptr[bias] : NULL,
      .residual = has_residual ? t->ptr[residual] : NULL,
      .residual_first = words[INFC_W_GEMM_16_HAS_RESIDUAL] == INFC_RESIDUAL_FIRST,
      .y = t->ptr[y],
      .lda = infc_rows_stride_of(&t->operands[0], t->step, k, infc_gemm_16_a_type(format)),
      .ldr = has_residual ? infc_rows_stride(&t->operands[residual], t->step, n) : 0,
      .ldy = infc_rows_stride(&t->operands[y], t->step, n),
      .n = n,
      .k = k,
      .lines = infc_gemm_16_lines(format, sparse, k),
      .line = infc_gemm_16_line(format, sparse),
      .format = format,
      .activation = words[INFC_W_GEMM_16_ACTIVATION],
      .sparse = sparse,
  };
}

// The bf16 of an f8e4m3's bits.
static inline uint16_t infc_bf16_of_f8(uint8_t x) {
  // 1/512 of a number below 8 has no more bits than a bf16.
  static const uint16_t small[8] = {0, 0x3B00, 0x3B80, 0x3BC0, 0x3C00, 0x3C20, 0x3C40, 0x3C60};
  const uint16_t magnitude = x & 0x7F, sign = (uint16_t)((x & 0x80) << 8);
  return (uint16_t)(sign | (magnitude < 8 ? small[magnitude] : (uint16_t)((magnitude << 4) + ((127 - 7) << 7))));
}

#endif // INFC_GEMM_16_H
