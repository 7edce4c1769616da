// gemm_grouped: the scalar reference and what all its kernels rely on.
#include "gemm_grouped.h"

#include <string.h>

bool infc_gemm_grouped_validate(const infc_task *task, uint32_t symbol_count) {
  (void)symbol_count;
  const infc_step *step = task->step;
  if (step->word_count != INFC_WORDS_GEMM_GROUPED)
    return false;
  const uint32_t *words = task->words;
  const uint32_t has_bias = words[INFC_W_GEMM_GROUPED_HAS_BIAS], bits = words[INFC_W_GEMM_GROUPED_BITS];
  const uint32_t has_residual = words[INFC_W_GEMM_GROUPED_HAS_RESIDUAL], sparse = words[INFC_W_GEMM_GROUPED_SPARSE];
  const uint32_t group = words[INFC_W_GEMM_GROUPED_GROUP], residual = 3 + has_bias;
  const uint32_t zeros = words[INFC_W_GEMM_GROUPED_ZEROS];
  const int64_t k = words[INFC_W_GEMM_GROUPED_K], n = words[INFC_W_GEMM_GROUPED_N];
  if (has_bias > 1 || has_residual > INFC_RESIDUAL_FIRST || words[INFC_W_GEMM_GROUPED_WIDE] > 1 ||
      zeros >= INFC_GROUPED_ZEROS_COUNT || sparse > 1 || (bits != 4 && (bits != 8 || sparse)) ||
      (zeros == INFC_GROUPED_ZEROS_SIXTEENTHS && (bits != 4 || sparse)) ||
      (group != 32 && group != 64 && group != 128) || k <= 0 || k > INFC_GROUPED_MAX_K || k % group || n <= 0 ||
      !infc_step_has(step, residual + (has_residual != 0), 1, INFC_WORDS_GEMM_GROUPED))
    return false;
  const infc_operand *of = task->operands, *b = of + 2;
  const int64_t scale_bytes = INFC_PANEL * (words[INFC_W_GEMM_GROUPED_WIDE] ? 4 : 2);
  const int64_t group_bytes = scale_bytes + (zeros == INFC_GROUPED_ZEROS_NONE ? 0 : INFC_PANEL) +
                              infc_grouped_lines(group, bits, sparse) * INFC_GROUPED_LINE; // less than 2^15
  return infc_activation_supported(words[INFC_W_GEMM_GROUPED_ACTIVATION]) && step->cols == infc_gemm_panels(n) &&
         infc_rows_stride_of(of, step, k, INFC_DTYPE_I8) > 0 && of[1].dtype == INFC_DTYPE_F32 &&
         infc_operand_holds_rows(of + 1, step, 2 * (k / group)) && b->dtype == INFC_DTYPE_U8 && b->rows_symbol < 0 &&
         infc_operand_dense(b) && infc_operand_inner(b, 0) == infc_gemm_panels(n) * (k / group) * group_bytes &&
         (!has_bias || infc_is_vector(of + 3, n)) && (!has_residual || infc_rows_stride(of + residual, step, n) > 0) &&
         infc_rows_stride(of + residual + (has_residual != 0), step, n) > 0;
}

static size_t block_bytes(int64_t rows, int64_t row_bytes) {
  const int64_t block = infc_grouped_block(row_bytes);
  return (size_t)(row_bytes * (rows < block ? rows : block));
}

// Kernels have numbers of 8 bits of the rows, or of 16 where weights have 8.
size_t infc_gemm_grouped_scratch(const infc_task *task) {
  const int64_t k = task->words[INFC_W_GEMM_GROUPED_K], groups = k / task->words[INFC_W_GEMM_GROUPED_GROUP];
  const size_t narrow = block_bytes(task->step->rows, infc_grouped_row(k, groups));
  const size_t wide = block_bytes(task->step->rows, infc_grouped_row(2 * k, groups));
  return task->words[INFC_W_GEMM_GROUPED_BITS] == 8 && wide > narrow ? wide : narrow;
}

static float half_to_float(uint16_t half) {
  const uint32_t sign = (uint32_t)(half >> 15) << 31, exponent = half >> 10 & 31, fraction = half & 1023;
  if (exponent == 0) {
    const float value = (float)fraction * 0x1p-24f;
    return sign ? -value : value;
  }
  return infc_word_f32(sign | (exponent == 31 ? 255u : exponent + 112) << 23 | fraction << 13);
}

// Weight i of a group, `dwords` being its column's in the first line, less the zero.
static int weight_at(const infc_gemm_grouped *g, const uint8_t *dwords, int64_t i, int zero) {
  if (g->bits == 8)
    return dwords[i / 4 * INFC_GROUPED_LINE + i % 4] - zero;
  if (!g->sparse)
    return (dwords[i / 8 * INFC_GROUPED_LINE + i % 4] >> (i % 8 >= 4 ? 4 : 0) & 15) - zero;
  const int64_t j = i % INFC_GROUPED_UNIT / 8, first = i % 8 / 4 * 2;
  const uint8_t *codes = dwords + i / INFC_GROUPED_UNIT * 3 * INFC_GROUPED_LINE;
  const uint8_t *values = codes + (1 + j / 2) * INFC_GROUPED_LINE;
  int sum = 0;
  for (int64_t at = first; at < first + 2; at++)
    if ((codes[at] >> 2 * j & 3) == i % 4)
      sum += (values[at] >> (j % 2 ? 4 : 0) & 15) - zero;
  return sum;
}

// A column's of 32 scales, f32 or f16.
static double scale_at(const infc_gemm_grouped *g, const uint8_t *scales, int64_t column) {
  if (g->scale_bytes == 4 * INFC_PANEL) {
    float scale;
    memcpy(&scale, scales + 4 * column, sizeof scale);
    return (double)scale;
  }
  uint16_t half;
  memcpy(&half, scales + 2 * column, sizeof half);
  return (double)half_to_float(half);
}

// Of a column; params: of the row and the group.
static double group_sum(const infc_gemm_grouped *g, const int8_t *a, const float *params, const uint8_t *b,
                        int64_t column) {
  const uint8_t *zeros = b + g->scale_bytes, *dwords = zeros + g->zero_bytes + 4 * column;
  const int zero = g->sixteenths ? 0 : g->zero_bytes ? zeros[column] : (int)g->zero;
  int sum = 0;
  for (int64_t i = 0; i < g->group; i++)
    sum += a[i] * weight_at(g, dwords, i, zero);
  const double fine = g->sixteenths ? (double)params[1] * zeros[column] / 16 : 0;
  return (double)params[0] * ((double)sum - fine) * scale_at(g, b, column);
}

infc_fault infc_gemm_grouped__scalar(const infc_task *task, const infc_range *range, infc_worker *worker) {
  (void)worker;
  const infc_gemm_grouped g = infc_gemm_grouped_view(task);
  for (int64_t row = range->row0; row < range->row1; row++) {
    const float *params = g.params + row * 2 * g.groups;
    for (int64_t col = range->col0 * INFC_PANEL; col < range->col1 * INFC_PANEL && col < g.n; col++) {
      const uint8_t *panel = g.b + col / INFC_PANEL * g.groups * g.group_bytes;
      double sum = g.bias ? (double)g.bias[col] : 0.0;
      for (int64_t i = 0; i < g.groups; i++)
        sum +=
            group_sum(&g, g.a + row * g.lda + i * g.group, params + 2 * i, panel + i * g.group_bytes, col % INFC_PANEL);
      const float *residual = g.residual ? &g.residual[row * g.ldr + col] : NULL;
      g.y[row * g.ldy + col] = infc_gemm_finish_ref((float)sum, residual, g.residual_first, g.activation);
    }
  }
  return INFC_FAULT_NONE;
}
