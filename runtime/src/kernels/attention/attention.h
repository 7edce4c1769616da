// An attention step's operands by name, and the sequences it is made of.
#ifndef INFC_ATTENTION_H
#define INFC_ATTENTION_H

#include "../gemm/rows.h"

typedef struct infc_attention {
  const float *q, *k, *v;
  const int32_t *offsets, *key_start; // NULL: dense
  const void *bias;                   // NULL: none; f32 or bool
  bool bias_is_bool;
  float *y;
  int64_t ldq, ldk, ldv, ldy;
  int64_t heads, group; // group: query heads that share a head of keys and values
  int64_t head_dim, v_dim;
  int64_t batch, q_len, kv_len;
  int64_t rows, key_rows; // in use
  int64_t bias_b, bias_h, bias_q;
  float scale;
  bool causal;
} infc_attention;

// Rows of the operand and elements between them, if it is rows of `inner` floats. `rows` is a bound if rows_symbol is
// set.
static inline bool infc_key_rows(const infc_operand *operand, int64_t inner, int64_t *rows, int64_t *stride) {
  if (operand->dtype != INFC_DTYPE_F32 || operand->packing != INFC_PACK_ROW_MAJOR)
    return false;
  if (operand->rank == 2 && operand->dims[1] == inner) {
    *rows = operand->dims[0];
    *stride = operand->row_stride;
    return *stride >= inner;
  }
  const bool led = operand->rows_symbol >= 0;
  const int64_t elements = infc_operand_inner(operand, led);
  *rows = led ? operand->dims[0] : elements / inner;
  *stride = inner;
  return infc_operand_dense(operand) && (led ? elements == inner : elements > 0 && elements % inner == 0);
}

static inline infc_attention infc_attention_view(const infc_task *t, const infc_range *range,
                                                 const infc_worker *worker) {
  const uint32_t *w = t->words;
  const int segments = w[INFC_W_ATTENTION_HAS_SEGMENTS] ? 3 : 0, bias = segments ? 5 : 3;
  const bool has_bias = w[INFC_W_ATTENTION_HAS_BIAS];
  const int y = bias + has_bias;
  infc_attention a = {
      .q = t->ptr[0],
      .k = t->ptr[1],
      .v = t->ptr[2],
      .offsets = segments ? t->ptr[3] : NULL,
      .key_start = segments ? t->ptr[4] : NULL,
      .bias = has_bias ? t->ptr[bias] : NULL,
      .bias_is_bool = has_bias && t->operands[bias].dtype == INFC_DTYPE_BOOL,
      .y = t->ptr[y],
      .heads = w[INFC_W_ATTENTION_HEADS],
      .group = w[INFC_W_ATTENTION_HEADS] / w[INFC_W_ATTENTION_KV_HEADS],
      .head_dim = w[INFC_W_ATTENTION_HEAD_DIM],
      .v_dim = w[INFC_W_ATTENTION_V_DIM],
      .batch = w[INFC_W_ATTENTION_BATCH],
      .q_len = w[INFC_W_ATTENTION_Q_LEN],
      .kv_len = w[INFC_W_ATTENTION_KV_LEN],
      .rows = range->rows,
      .bias_b = w[INFC_W_ATTENTION_BIAS_B],
      .bias_h = w[INFC_W_ATTENTION_BIAS_H],
      .bias_q = w[INFC_W_ATTENTION_BIAS_Q],
      .scale = infc_word_f32(w[INFC_W_ATTENTION_SCALE]),
      .causal = w[INFC_W_ATTENTION_CAUSAL],
  };
  const int64_t kv_heads = w[INFC_W_ATTENTION_KV_HEADS];
  a.ldq = infc_rows_stride(&t->operands[0], t->step, a.heads * a.head_dim);
  a.ldy = infc_rows_stride(&t->operands[y], t->step, a.heads * a.v_dim);
  infc_key_rows(&t->operands[2], kv_heads * a.v_dim, &a.key_rows, &a.ldv);
  infc_key_rows(&t->operands[1], kv_heads * a.head_dim, &a.key_rows, &a.ldk);
  if (t->operands[1].rows_symbol >= 0 && range->rows < a.key_rows)
    a.key_rows = range->rows;
  const int32_t symbol = (int32_t)w[INFC_W_ATTENTION_BATCH_SYMBOL];
  if (symbol >= 0 && worker->symbols[symbol] < a.batch)
    a.batch = worker->symbols[symbol];
  return a;
}

typedef struct infc_sequence {
  int64_t index;
  int64_t row0, rows; // queries
  int64_t key0, keys;
} infc_sequence;

static inline int64_t infc_clamp(int64_t x, int64_t low, int64_t high) {
  return x < low ? low : x > high ? high : x;
}

// Sequence b, its rows within the operands whatever offsets and key_start hold. A bias bounds its lengths too.
static inline infc_sequence infc_attention_sequence(const infc_attention *a, int64_t b) {
  infc_sequence s = {b, b * a->q_len, a->q_len, b * a->kv_len, a->kv_len};
  if (a->offsets) {
    s.row0 = infc_clamp(infc_read_index(a->offsets, INFC_DTYPE_I32, b), 0, a->rows);
    const int64_t end = infc_clamp(infc_read_index(a->offsets, INFC_DTYPE_I32, b + 1), s.row0, a->rows);
    s.rows = end - s.row0;
    s.key0 = infc_clamp(infc_read_index(a->key_start, INFC_DTYPE_I32, b), 0, end);
    s.keys = end - s.key0;
    if (a->bias) {
      s.rows = infc_clamp(a->q_len, 0, s.rows);
      s.keys = infc_clamp(a->kv_len, 0, s.keys);
    }
  }
  s.rows = infc_clamp(a->rows - s.row0, 0, s.rows);
  s.keys = infc_clamp(a->key_rows - s.key0, 0, s.keys);
  return s;
}

// Elements from the start of the bias to that of query 0 and key 0.
static inline int64_t infc_attention_bias_at(const infc_attention *a, const infc_sequence *s, int64_t head) {
  return s->index * a->bias_b + head * a->bias_h;
}

#endif // INFC_ATTENTION_H
