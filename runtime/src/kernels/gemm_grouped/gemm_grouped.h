// A gemm_grouped step's operands by name, and where the parts of b lie.
//
// A panel of 32 columns is one stream, a group of `group` elements along K after the other:
//   32 scales f16, or f32 where wide;  32 zeros u8 where there are such;  the weights, column c having a dword of each:
//   8 bits   a line for each 4 of K: byte i is weight i
//   4 bits   a line for each 8 of K: the low nibble of byte i is weight i, the high one weight i + 4
//   sparse   of each 4 weights along K at most two are kept. Three lines for each 32 of K: codes and twice values. Byte
//            2 * h + i of step j (8 of K) is kept weight i of the step's half h: its place among the half's four is at
//            bits 2 * j of the codes' byte, its value in the byte of values j / 2, in the low nibble where j is even
#ifndef INFC_GEMM_GROUPED_H
#define INFC_GEMM_GROUPED_H

#include "../gemm/gemm.h"

enum {
  INFC_GROUPED_LINE = INFC_PANEL * 4, // bytes: a dword for each column
  INFC_GROUPED_UNIT = 32,             // of K: groups are so long, or two or four times
  INFC_GROUPED_MAX_K = 1 << 20,
  INFC_GROUPED_TILE = 12, // rows at most
  INFC_GROUPED_BLOCK_BYTES = 320 * 1024,
};

typedef struct infc_gemm_grouped {
  const int8_t *a;
  const float *params; // of row r at r * 2 * groups
  const uint8_t *b;
  const float *bias, *residual; // may be NULL
  bool residual_first;
  float *y;
  int64_t lda, ldr, ldy;
  int64_t n, k, group, groups;
  int64_t scale_bytes, zero_bytes, group_bytes; // of a panel's group
  int64_t zero;                                 // where b has none
  bool sixteenths;                              // which zeros count
  uint32_t bits, activation;
  bool sparse;
} infc_gemm_grouped;

// Rows of a block, of which the x86 kernels have a copy: bytes of one, and how many there are at most.
static inline int64_t infc_grouped_row(int64_t k, int64_t groups) {
  return k + 8 * groups;
}
static inline int64_t infc_grouped_block(int64_t row_bytes) {
  const int64_t fit = INFC_GROUPED_BLOCK_BYTES / row_bytes;
  return fit > INFC_GROUPED_TILE ? fit : INFC_GROUPED_TILE;
}

static inline int64_t infc_grouped_lines(int64_t group, uint32_t bits, bool sparse) {
  return sparse ? group / INFC_GROUPED_UNIT * 3 : group * bits / 32;
}

static inline infc_gemm_grouped infc_gemm_grouped_view(const infc_task *t) {
  const uint32_t *words = t->words;
  const bool has_bias = words[INFC_W_GEMM_GROUPED_HAS_BIAS], has_residual = words[INFC_W_GEMM_GROUPED_HAS_RESIDUAL];
  const int residual = 3 + has_bias, y = residual + has_residual;
  const uint32_t bits = words[INFC_W_GEMM_GROUPED_BITS];
  const bool sparse = words[INFC_W_GEMM_GROUPED_SPARSE];
  const int64_t n = words[INFC_W_GEMM_GROUPED_N], k = words[INFC_W_GEMM_GROUPED_K];
  const int64_t group = words[INFC_W_GEMM_GROUPED_GROUP];
  const int64_t scale_bytes = INFC_PANEL * (words[INFC_W_GEMM_GROUPED_WIDE] ? 4 : 2);
  const uint32_t zeros = words[INFC_W_GEMM_GROUPED_ZEROS];
  const int64_t zero_bytes = zeros == INFC_GROUPED_ZEROS_NONE ? 0 : INFC_PANEL;
  return (infc_gemm_grouped){
      .a = t->ptr[0],
      .params = t->ptr[1],
      .b = t->ptr[2],
      .bias = has_bias ? t->ptr[3] : NULL,
      .residual = has_residual ? t->ptr[residual] : NULL,
      .residual_first = words[INFC_W_GEMM_GROUPED_HAS_RESIDUAL] == INFC_RESIDUAL_FIRST,
      .y = t->ptr[y],
      .lda = infc_rows_stride_of(&t->operands[0], t->step, k, INFC_DTYPE_I8),
      .ldr = has_residual ? infc_rows_stride(&t->operands[residual], t->step, n) : 0,
      .ldy = infc_rows_stride(&t->operands[y], t->step, n),
      .n = n,
      .k = k,
      .group = group,
      .groups = k / group,
      .scale_bytes = scale_bytes,
      .zero_bytes = zero_bytes,
      .group_bytes = scale_bytes + zero_bytes + infc_grouped_lines(group, bits, sparse) * INFC_GROUPED_LINE,
      .zero = bits == 4 ? 8 : 128,
      .sixteenths = zeros == INFC_GROUPED_ZEROS_SIXTEENTHS,
      .bits = bits,
      .activation = words[INFC_W_GEMM_GROUPED_ACTIVATION],
      .sparse = sparse,
  };
}

#endif // INFC_GEMM_GROUPED_H
