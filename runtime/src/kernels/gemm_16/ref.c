// gemm_16: the scalar reference and what all its kernels rely on.
#include "gemm_16.h"

#include "../cast/convert.h"

#include <string.h>

bool infc_gemm_16_validate(const infc_task *task, uint32_t symbol_count) {
  (void)symbol_count;
  const infc_step *step = task->step;
  if (step->word_count != INFC_WORDS_GEMM_16)
    return false;
  const uint32_t *words = task->words, format = words[INFC_W_GEMM_16_FORMAT], sparse = words[INFC_W_GEMM_16_SPARSE];
  const uint32_t has_scales = words[INFC_W_GEMM_16_HAS_SCALES], has_bias = words[INFC_W_GEMM_16_HAS_BIAS];
  const uint32_t has_residual = words[INFC_W_GEMM_16_HAS_RESIDUAL], k = words[INFC_W_GEMM_16_K];
  const uint32_t n = words[INFC_W_GEMM_16_N];
  if (format >= INFC_GEMM_16_COUNT || sparse > 1 || has_scales > 1 || has_bias > 1 ||
      has_residual > INFC_RESIDUAL_FIRST || k == 0 || n == 0)
    return false;
  if (sparse && (format != INFC_GEMM_16_BF16 || k % INFC_16_SPARSE_ROWS))
    return false;
  const uint32_t bias = 2 + has_scales, residual = bias + has_bias, y = residual + (has_residual != 0);
  if (!infc_step_has(step, y, 1, INFC_WORDS_GEMM_16) || step->cols != infc_gemm_panels(n))
    return false;
  const infc_operand *of = task->operands, *b = of + 1;
  return infc_activation_supported(words[INFC_W_GEMM_16_ACTIVATION]) &&
         infc_rows_stride_of(of, step, k, infc_gemm_16_a_type(format)) > 0 && b->dtype == INFC_DTYPE_U8 &&
         b->rows_symbol < 0 && infc_operand_dense(b) &&
         infc_operand_inner(b, 0) ==
             infc_gemm_panels(n) * infc_gemm_16_lines(format, sparse, k) * infc_gemm_16_line(format, sparse) &&
         (!has_scales || infc_is_vector(of + 2, n)) && (!has_bias || infc_is_vector(of + bias, n)) &&
         (!has_residual || infc_rows_stride(of + residual, step, n) > 0) && infc_rows_stride(of + y, step, n) > 0;
}

size_t infc_gemm_16_scratch(const infc_task *task) {
  const uint32_t format = task->words[INFC_W_GEMM_16_FORMAT];
  const int64_t k = task->words[INFC_W_GEMM_16_K];
  if (format == INFC_GEMM_16_F16 || task->words[INFC_W_GEMM_16_SPARSE])
    return 0;
  const int64_t row = infc_gemm_16_wide_row(k) * (int64_t)sizeof(float), rows = task->step->rows;
  const int64_t block = infc_gemm_16_block(k * (int64_t)sizeof(float), INFC_GEMM_16_TILE);
  return (size_t)(infc_gemm_16_panel_scratch(format, k) + (rows < block ? rows : block) * row);
}

static double bf16_at(const void *at) {
  uint16_t bits;
  memcpy(&bits, at, sizeof bits);
  return (double)infc_word_f32((uint32_t)bits << 16);
}
static double f16_at(const void *at) {
  double value;
  infc_load_reals(INFC_DTYPE_F16, at, 1, &value);
  return value;
}

// The kept number i % 2 of its four rows, and the row of a that it meets.
static double sparse_weight(const uint8_t *panel, int64_t column, int64_t i, int64_t *row) {
  static const uint8_t patterns[8][2] = {{0, 1}, {0, 2}, {0, 3}, {1, 2}, {1, 3}, {2, 3}, {0, 0}, {0, 0}};
  const int64_t group = i / 2, at = group % INFC_16_GROUPS;
  const uint8_t *line = panel + group / INFC_16_GROUPS * infc_gemm_16_line(INFC_GEMM_16_BF16, true);
  const uint8_t code = line[column * 4 + at / 2] >> at % 2 * 4 & 7;
  *row = group * 4 + patterns[code][i % 2];
  if (code >= INFC_16_PATTERNS)
    return 0.0;
  return bf16_at(line + INFC_PANEL * 4 * (1 + at) + column * 4 + i % 2 * 2);
}

static double weight(const infc_gemm_16 *g, const uint8_t *panel, int64_t column, int64_t i) {
  switch (g->format) {
  case INFC_GEMM_16_F16:
    return f16_at(panel + (i * INFC_PANEL + column) * 2);
  case INFC_GEMM_16_F8E4M3: {
    const uint16_t x = infc_bf16_of_f8(panel[i / 2 * g->line + column * 2 + i % 2]);
    return bf16_at(&x);
  }
  default:
    return bf16_at(panel + i / 2 * g->line + column * 4 + i % 2 * 2);
  }
}

infc_fault infc_gemm_16__scalar(const infc_task *task, const infc_range *range, infc_worker *worker) {
  (void)worker;
  const infc_gemm_16 g = infc_gemm_16_view(task);
  const int64_t a_size = g.format == INFC_GEMM_16_F16 ? 4 : 2;
  for (int64_t row = range->row0; row < range->row1; row++) {
    const char *a = (const char *)g.a + row * g.lda * a_size;
    for (int64_t col = range->col0 * INFC_PANEL; col < range->col1 * INFC_PANEL && col < g.n; col++) {
      const uint8_t *panel = g.b + col / INFC_PANEL * g.lines * g.line;
      double sum = 0.0;
      for (int64_t i = 0; i < (g.sparse ? g.k / 2 : g.k); i++) {
        int64_t at = i;
        const double w =
            g.sparse ? sparse_weight(panel, col % INFC_PANEL, i, &at) : weight(&g, panel, col % INFC_PANEL, i);
        const char *x = a + at * a_size;
        sum += (a_size == 4 ? (double)*(const float *)(const void *)x : bf16_at(x)) * w;
      }
      const double scaled = g.scales ? sum * (double)g.scales[col] : sum;
      const float x = (float)(scaled + (g.bias ? (double)g.bias[col] : 0.0));
      const float *residual = g.residual ? &g.residual[row * g.ldr + col] : NULL;
      g.y[row * g.ldy + col] = infc_gemm_finish_ref(x, residual, g.residual_first, g.activation);
    }
  }
  return INFC_FAULT_NONE;
}
