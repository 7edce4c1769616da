// matmul: batched product of two run-time tensors. The scalar reference and what all kernels rely on.
#include "matmul.h"

// The operand holds `rows` matrices of `size` elements, `stride` apart: all of them whatever is in use, or one an index
// of the step's run-time extent.
static bool holds_matrices(const infc_operand *operand, const infc_step *step, int64_t stride, int64_t size) {
  if (operand->packing == INFC_PACK_ROW_MAJOR && operand->rows_symbol < 0 && operand->dims[0] == step->rows &&
      operand->row_stride == stride && infc_operand_inner(operand, 1) == size)
    return true;
  if (!infc_operand_dense(operand))
    return false;
  if (operand->rows_symbol >= 0)
    return stride == size && infc_operand_holds_rows(operand, step, size);
  int64_t need;
  return !__builtin_mul_overflow((int64_t)step->rows - 1, stride, &need) &&
         !__builtin_add_overflow(need, size, &need) && need <= infc_operand_inner(operand, 0);
}

// Integers have no alpha.
static bool types_fit(const infc_task *task, float alpha) {
  uint8_t dtype = task->operands[0].dtype;
  if (task->operands[1].dtype != dtype || task->operands[2].dtype != dtype)
    return false;
  return dtype == INFC_DTYPE_F32 || dtype == INFC_DTYPE_F64 ||
         ((dtype == INFC_DTYPE_I32 || dtype == INFC_DTYPE_I64) && alpha == 1.0f);
}

bool infc_matmul_validate(const infc_task *task, uint32_t symbol_count) {
  (void)symbol_count;
  const infc_step *step = task->step;
  if (!infc_step_has(step, 2, 1, INFC_WORDS_MATMUL) || !step->rows)
    return false;
  const infc_matmul p = infc_matmul_view(task);
  int64_t size_a, size_b, size_y;
  if (!p.m || !p.n || !p.k || task->words[INFC_W_MATMUL_TRANS_B] > 1 || __builtin_mul_overflow(p.m, p.k, &size_a) ||
      __builtin_mul_overflow(p.k, p.n, &size_b) || __builtin_mul_overflow(p.m, p.n, &size_y))
    return false;
  const bool by_columns = step->split[0] == INFC_SPLIT_COLS || step->split[1] == INFC_SPLIT_COLS;
  return (!by_columns || step->cols == infc_matmul_panels(p.n)) && types_fit(task, p.alpha) &&
         holds_matrices(&task->operands[0], step, p.stride_a, size_a) &&
         holds_matrices(&task->operands[1], step, p.stride_b, size_b) &&
         infc_operand_holds_rows(&task->operands[2], step, size_y);
}

size_t infc_matmul_scratch(const infc_task *task) {
  (void)task;
  return (size_t)INFC_MATMUL_PANEL * INFC_MATMUL_DEPTH * sizeof(float);
}

infc_fault infc_matmul_f32__scalar(const infc_task *task, const infc_range *range, infc_worker *worker) {
  (void)worker;
  if (task->operands[0].dtype != INFC_DTYPE_F32)
    return infc_matmul_other(task, range);
  const infc_matmul p = infc_matmul_view(task);
  const infc_columns cols = infc_matmul_columns(&p, task, range);
  const int64_t step_k = p.trans_b ? 1 : p.n, step_n = p.trans_b ? p.k : 1;
  for (int64_t e = range->row0; e < range->row1; e++) {
    const float *a = p.a + e * p.stride_a, *b = p.b + e * p.stride_b;
    for (int64_t i = 0; i < p.m; i++) {
      for (int64_t j = cols.first; j < cols.last; j++) {
        double sum = 0.0;
        for (int64_t l = 0; l < p.k; l++)
          sum += (double)a[i * p.k + l] * (double)b[l * step_k + j * step_n];
        p.y[(e * p.m + i) * p.n + j] = (float)sum * p.alpha;
      }
    }
  }
  return INFC_FAULT_NONE;
}
