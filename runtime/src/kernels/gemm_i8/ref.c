// gemm_i8: the scalar reference and what all its kernels rely on.
#include "gemm_i8.h"

#include <math.h>

bool infc_gemm_i8_validate(const infc_task *task, uint32_t symbol_count) {
  (void)symbol_count;
  const infc_step *step = task->step;
  if (step->word_count != INFC_WORDS_GEMM_I8)
    return false;
  const uint32_t *words = task->words, has_bias = words[INFC_W_GEMM_I8_HAS_BIAS], k = words[INFC_W_GEMM_I8_K];
  const uint32_t has_residual = words[INFC_W_GEMM_I8_HAS_RESIDUAL], has_out = words[INFC_W_GEMM_I8_HAS_OUT];
  const uint32_t dynamic = words[INFC_W_GEMM_I8_DYNAMIC], residual = 5 + has_bias;
  const uint32_t sparse = words[INFC_W_GEMM_I8_SPARSE];
  if (has_bias > 1 || has_residual > INFC_RESIDUAL_FIRST || has_out > 1 || dynamic > 1 || sparse > 1 || k == 0 ||
      (sparse && k % INFC_I8_UNIT) || k > INFC_I8_MAX_K ||
      !infc_step_has(step, residual + (has_residual != 0) + has_out, 1, INFC_WORDS_GEMM_I8))
    return false;
  const uint32_t out = residual + (has_residual != 0);
  const infc_operand *of = task->operands, *params = of + 1, *b = of + 2, *scales = of + 3, *sums = of + 4;
  const int64_t n = infc_operand_inner(scales, 0);
  if (n <= 0 || !infc_is_vector(scales, n) || step->cols != infc_gemm_panels(n))
    return false;
  return infc_activation_supported(words[INFC_W_GEMM_I8_ACTIVATION]) &&
         infc_rows_stride_of(of, step, k, INFC_DTYPE_U8) > 0 && params->dtype == INFC_DTYPE_F32 &&
         (dynamic ? infc_operand_holds_rows(params, step, 2) : infc_is_vector(params, 2)) &&
         b->dtype == INFC_DTYPE_I8 && b->rows_symbol < 0 && infc_operand_dense(b) &&
         infc_operand_inner(b, 0) == infc_gemm_panels(n) * infc_i8_panel_bytes(k, sparse) &&
         sums->dtype == INFC_DTYPE_I32 && sums->rows_symbol < 0 && infc_operand_dense(sums) &&
         infc_operand_inner(sums, 0) == n && (!has_bias || infc_is_vector(of + 5, n)) &&
         (!has_residual || infc_rows_stride(of + residual, step, n) > 0) && (!has_out || infc_is_vector(of + out, 2)) &&
         infc_rows_stride_of(of + out + has_out, step, n, has_out ? INFC_DTYPE_U8 : INFC_DTYPE_F32) > 0;
}

size_t infc_gemm_i8_scratch(const infc_task *task) {
  (void)task;
  return 0;
}

static uint8_t quantized(float y, const float *out) {
  const float q = rintf(y * (1.0f / out[0])) + (float)infc_zero_point(out[1]);
  return q >= 0.0f ? (uint8_t)(q < 255.0f ? q : 255.0f) : 0; // NaN gives 0
}

// Weight i of a column, whose dword of the panel's first line is at b.
static int weight_at(const infc_gemm_i8 *g, const int8_t *b, int64_t i) {
  if (!g->sparse)
    return b[i / INFC_I8_DEPTH * INFC_I8_LINE + i % INFC_I8_DEPTH];
  const int64_t step = i % INFC_I8_UNIT / 8, first = i % 8 / 4 * 2;
  const int8_t *codes = b + i / INFC_I8_UNIT * INFC_I8_UNIT_LINES * INFC_I8_LINE;
  int sum = 0;
  for (int64_t at = first; at < first + 2; at++)
    if (((uint8_t)codes[at] >> 2 * step & 3) == i % 4)
      sum += codes[(1 + step) * INFC_I8_LINE + at];
  return sum;
}

infc_fault infc_gemm_i8__scalar(const infc_task *task, const infc_range *range, infc_worker *worker) {
  (void)worker;
  const infc_gemm_i8 g = infc_gemm_i8_view(task);
  for (int64_t row = range->row0; row < range->row1; row++) {
    const uint8_t *a = g.a + row * g.lda;
    const float *params = g.params + row * g.params_step;
    for (int64_t col = range->col0 * INFC_PANEL; col < range->col1 * INFC_PANEL && col < g.n; col++) {
      const int8_t *b = g.b + col / INFC_PANEL * infc_i8_panel_bytes(g.k, g.sparse) + col % INFC_PANEL * INFC_I8_DEPTH;
      int64_t sum = -(int64_t)infc_zero_point(params[1]) * g.sums[col];
      for (int64_t i = 0; i < g.k; i++)
        sum += a[i] * weight_at(&g, b, i);
      const float x = (float)(int32_t)(uint32_t)sum * g.scales[col] * params[0] + (g.bias ? g.bias[col] : 0.0f);
      const float *residual = g.residual ? &g.residual[row * g.ldr + col] : NULL;
      const float y = infc_gemm_finish_ref(x, residual, g.residual_first, g.activation);
      if (g.out)
        g.yq[row * g.ldy + col] = quantized(y, g.out);
      else
        g.y[row * g.ldy + col] = y;
    }
  }
  return INFC_FAULT_NONE;
}
