// attention: y = softmax(scale * q k^T + bias) v for every sequence and head. The scalar reference and what all kernels
// rely on.
#include "attention.h"
#include "scratch.h"

#include <math.h>

static bool is_index_vector(const infc_operand *operand, int64_t n, int32_t symbol) {
  return operand->dtype == INFC_DTYPE_I32 && operand->rank == 1 && infc_operand_dense(operand) &&
         operand->dims[0] == n && (operand->rows_symbol < 0 || operand->rows_symbol == symbol);
}

static bool bias_in_bounds(const infc_task *task, const infc_operand *bias) {
  const uint32_t *w = task->words;
  const int64_t elements = infc_operand_inner(bias, 0);
  const uint32_t sizes[3] = {w[INFC_W_ATTENTION_BATCH], w[INFC_W_ATTENTION_HEADS], w[INFC_W_ATTENTION_Q_LEN]};
  const uint32_t strides[3] = {w[INFC_W_ATTENTION_BIAS_B], w[INFC_W_ATTENTION_BIAS_H], w[INFC_W_ATTENTION_BIAS_Q]};
  int64_t last = (int64_t)w[INFC_W_ATTENTION_KV_LEN] - 1, part;
  for (int i = 0; i < 3; i++)
    if (__builtin_mul_overflow((int64_t)sizes[i] - 1, (int64_t)strides[i], &part) ||
        __builtin_add_overflow(last, part, &last))
      return false;
  return (bias->dtype == INFC_DTYPE_F32 || bias->dtype == INFC_DTYPE_BOOL) && bias->rows_symbol < 0 &&
         infc_operand_dense(bias) && last < elements;
}

bool infc_attention_validate(const infc_task *task, uint32_t symbol_count) {
  const infc_step *step = task->step;
  const uint32_t *w = task->words;
  if (step->word_count != INFC_WORDS_ATTENTION)
    return false;
  const uint32_t segments = w[INFC_W_ATTENTION_HAS_SEGMENTS], has_bias = w[INFC_W_ATTENTION_HAS_BIAS];
  if (segments > 1 || has_bias > 1 || w[INFC_W_ATTENTION_CAUSAL] > 1 ||
      !infc_step_has(step, 3 + 2 * segments + has_bias, 1, INFC_WORDS_ATTENTION))
    return false;
  const int64_t heads = w[INFC_W_ATTENTION_HEADS], kv_heads = w[INFC_W_ATTENTION_KV_HEADS];
  const int64_t head_dim = w[INFC_W_ATTENTION_HEAD_DIM], v_dim = w[INFC_W_ATTENTION_V_DIM];
  const int64_t batch = w[INFC_W_ATTENTION_BATCH], q_len = w[INFC_W_ATTENTION_Q_LEN],
                kv_len = w[INFC_W_ATTENTION_KV_LEN];
  const int32_t batch_symbol = (int32_t)w[INFC_W_ATTENTION_BATCH_SYMBOL];
  if (!heads || !kv_heads || heads % kv_heads || !head_dim || !v_dim || !batch || step->cols != heads ||
      batch_symbol < -1 || batch_symbol >= (int64_t)symbol_count)
    return false;
  // Below 2^31, so that products of a dimension and the number of heads fit an operand's.
  if (heads > INT32_MAX || head_dim > INT32_MAX || v_dim > INT32_MAX)
    return false;
  const infc_operand *o = task->operands, *bias = o + 3 + 2 * segments, *y = bias + has_bias;
  int64_t key_rows, value_rows, stride;
  if (infc_rows_stride(&o[0], step, heads * head_dim) < 0 || infc_rows_stride(y, step, heads * v_dim) < 0 ||
      !infc_key_rows(&o[1], kv_heads * head_dim, &key_rows, &stride) ||
      !infc_key_rows(&o[2], kv_heads * v_dim, &value_rows, &stride) || key_rows != value_rows ||
      o[1].rows_symbol != o[2].rows_symbol || (o[1].rows_symbol >= 0 && o[1].rows_symbol != step->rows_symbol))
    return false;
  if (has_bias && (!q_len || !kv_len || !bias_in_bounds(task, bias)))
    return false;
  if (segments)
    return o[1].rows_symbol == step->rows_symbol && key_rows == step->rows && is_index_vector(&o[3], batch + 1, -1) &&
           is_index_vector(&o[4], batch, batch_symbol);
  return q_len && kv_len && step->rows % q_len == 0 && step->rows / q_len == batch && key_rows / kv_len >= batch;
}

size_t infc_attention_scratch(const infc_task *task) {
  const int64_t head_dim = task->words[INFC_W_ATTENTION_HEAD_DIM], v_dim = task->words[INFC_W_ATTENTION_V_DIM];
  const int64_t rows = infc_attention_padded(head_dim) + infc_attention_padded(v_dim) + INFC_ATTENTION_KEYS;
  return (size_t)rows * INFC_ATTENTION_QUERIES * sizeof(float); // more than v_dim doubles
}

// Score of query i and key j, -infinity where the key takes no part.
static float score(const infc_attention *a, const infc_sequence *s, int64_t head, int64_t i, int64_t j) {
  const float *q = a->q + (s->row0 + i) * a->ldq + head * a->head_dim;
  const float *k = a->k + (s->key0 + j) * a->ldk + head / a->group * a->head_dim;
  double sum = 0.0;
  for (int64_t d = 0; d < a->head_dim; d++)
    sum += (double)q[d] * (double)k[d];
  const float x = (float)(sum * (double)a->scale);
  if (a->causal && j > i + s->keys - s->rows)
    return -INFINITY;
  if (!a->bias)
    return x;
  const int64_t at = infc_attention_bias_at(a, s, head) + i * a->bias_q + j;
  if (a->bias_is_bool)
    return ((const uint8_t *)a->bias)[at] ? x : -INFINITY;
  return x + ((const float *)a->bias)[at];
}

static void query(const infc_attention *a, const infc_sequence *s, int64_t head, int64_t i, double *sums) {
  float top = -INFINITY;
  for (int64_t j = 0; j < s->keys; j++) {
    const float x = score(a, s, head, i, j);
    top = x > top ? x : top;
  }
  if (top == -INFINITY)
    top = 0.0f;
  double total = 0.0;
  for (int64_t c = 0; c < a->v_dim; c++)
    sums[c] = 0.0;
  for (int64_t j = 0; j < s->keys; j++) {
    const double p = exp((double)(score(a, s, head, i, j) - top));
    const float *v = a->v + (s->key0 + j) * a->ldv + head / a->group * a->v_dim;
    total += p;
    for (int64_t c = 0; c < a->v_dim; c++)
      sums[c] += p * (double)v[c];
  }
  for (int64_t c = 0; c < a->v_dim; c++)
    a->y[(s->row0 + i) * a->ldy + head * a->v_dim + c] = total == 0.0 ? 0.0f : (float)(sums[c] / total);
}

infc_fault infc_attention_f32__scalar(const infc_task *task, const infc_range *range, infc_worker *worker) {
  const infc_attention a = infc_attention_view(task, range, worker);
  for (int64_t b = 0; b < a.batch; b++) {
    const infc_sequence s = infc_attention_sequence(&a, b);
    const int64_t first = infc_clamp(range->row0 - s.row0, 0, s.rows),
                  last = infc_clamp(range->row1 - s.row0, 0, s.rows);
    for (int64_t head = range->col0; head < range->col1; head++)
      for (int64_t i = first; i < last; i++)
        query(&a, &s, head, i, worker->scratch);
  }
  return INFC_FAULT_NONE;
}
