// gemm: y = activation(a b + bias) + residual. The scalar reference and what all its kernels rely on.
#include "gemm.h"

bool infc_gemm_validate(const infc_task *task, uint32_t symbol_count) {
  (void)symbol_count;
  const infc_step *step = task->step;
  if (step->word_count != INFC_WORDS_GEMM)
    return false;
  const uint32_t has_bias = task->words[INFC_W_GEMM_HAS_BIAS], residual = task->words[INFC_W_GEMM_HAS_RESIDUAL];
  const bool has_residual = residual;
  if (has_bias > 1 || residual > INFC_RESIDUAL_FIRST ||
      !infc_step_has(step, 2 + has_bias + has_residual, 1, INFC_WORDS_GEMM))
    return false;
  const infc_operand *b = &task->operands[1], *y = &task->operands[2 + has_bias + has_residual];
  if (b->dtype != INFC_DTYPE_F32 || b->packing != INFC_PACK_F32_K1N32 || b->rank != 2 || b->rows_symbol >= 0)
    return false;
  const int64_t k = b->dims[0], n = b->dims[1];
  return infc_activation_supported(task->words[INFC_W_GEMM_ACTIVATION]) && step->cols == infc_gemm_panels(n) &&
         infc_rows_stride(&task->operands[0], step, k) > 0 && infc_rows_stride(y, step, n) > 0 &&
         (!has_bias || infc_is_vector(&task->operands[2], n)) &&
         (!has_residual || infc_rows_stride(&task->operands[2 + has_bias], step, n) > 0);
}

size_t infc_gemm_scratch(const infc_task *task) {
  (void)task;
  return 0;
}

infc_fault infc_gemm_f32__scalar(const infc_task *task, const infc_range *range, infc_worker *worker) {
  (void)worker;
  const infc_gemm g = infc_gemm_view(task);
  for (int64_t row = range->row0; row < range->row1; row++) {
    for (int64_t col = range->col0 * INFC_PANEL; col < range->col1 * INFC_PANEL && col < g.n; col++) {
      const float *a = g.a + row * g.lda, *b = g.b + col / INFC_PANEL * g.k * INFC_PANEL + col % INFC_PANEL;
      double sum = g.bias ? (double)g.bias[col] : 0.0;
      for (int64_t i = 0; i < g.k; i++)
        sum += (double)a[i] * (double)b[i * INFC_PANEL];
      const float *residual = g.residual ? &g.residual[row * g.ldr + col] : NULL;
      g.y[row * g.ldy + col] = infc_gemm_finish_ref((float)sum, residual, g.residual_first, g.activation);
    }
  }
  return INFC_FAULT_NONE;
}
