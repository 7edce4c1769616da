#include "tokens.h"

#include <string.h>

// ---- pack_tokens ----

infc_pack infc_pack_open(const infc_task *task, const infc_worker *worker) {
  const uint32_t *words = task->words;
  bool has_mask = words[INFC_W_PACK_TOKENS_HAS_MASK];
  const infc_operand *outputs = task->operands + has_mask;
  void *const *ptr = task->ptr + has_mask;
  int64_t batch = outputs[3].dims[0], seq = outputs[0].dims[0] / batch;
  return (infc_pack){
      .mask = has_mask ? task->ptr[0] : NULL,
      .dtype = task->operands[0].dtype,
      .keep_first = words[INFC_W_PACK_TOKENS_KEEP_FIRST],
      .batch = infc_symbol_within(worker, words[INFC_W_PACK_TOKENS_BATCH_SYMBOL], batch),
      .seq = infc_symbol_within(worker, words[INFC_W_PACK_TOKENS_SEQ_SYMBOL], seq),
      .index = ptr[0],
      .column = ptr[1],
      .offsets = ptr[2],
      .key_start = ptr[3],
  };
}

void infc_pack_close(const infc_pack *pack, const infc_task *task, infc_worker *worker, int64_t rows) {
  pack->offsets[pack->batch] = (int32_t)rows;
  worker->symbols[task->words[INFC_W_PACK_TOKENS_TOKENS_SYMBOL]] = rows;
}

static inline bool mask_at(const infc_pack *pack, int64_t at) {
  switch (pack->dtype) {
  case INFC_DTYPE_I64:
    return ((const int64_t *)pack->mask)[at] != 0;
  case INFC_DTYPE_I32:
    return ((const int32_t *)pack->mask)[at] != 0;
  case INFC_DTYPE_F32:
    return ((const float *)pack->mask)[at] != 0;
  default:
    return ((const uint8_t *)pack->mask)[at] != 0;
  }
}

infc_fault infc_pack_tokens_any__scalar(const infc_task *task, const infc_range *range, infc_worker *worker) {
  (void)range;
  infc_pack pack = infc_pack_open(task, worker);
  int32_t rows = 0; // never ahead of the position: writes stay in bounds
  for (int64_t b = 0; b < pack.batch; b++) {
    pack.offsets[b] = pack.key_start[b] = rows;
    for (int64_t s = 0; s < pack.seq; s++) {
      bool key = !pack.mask || mask_at(&pack, b * pack.seq + s);
      bool kept = s == 0 && pack.keep_first && !key;
      pack.index[rows] = (int32_t)(b * pack.seq + s);
      pack.column[rows] = (int32_t)s;
      pack.key_start[b] += kept;
      rows += key | kept;
    }
  }
  infc_pack_close(&pack, task, worker, rows);
  return INFC_FAULT_NONE;
}

static bool is_i32_vector(const infc_operand *operand, uint32_t length) {
  return operand->dtype == INFC_DTYPE_I32 && operand->rank == 1 && infc_operand_dense(operand) &&
         operand->dims[0] == length;
}

static bool symbol_is_none_or(const infc_operand *operand, uint32_t symbol) {
  return operand->rows_symbol < 0 || (uint32_t)operand->rows_symbol == symbol;
}

bool infc_pack_tokens_validate(const infc_task *task, uint32_t symbol_count) {
  const infc_step *step = task->step;
  const uint32_t *words = task->words;
  if (step->word_count != INFC_WORDS_PACK_TOKENS)
    return false;
  uint32_t has_mask = words[INFC_W_PACK_TOKENS_HAS_MASK], batch_symbol = words[INFC_W_PACK_TOKENS_BATCH_SYMBOL],
           seq_symbol = words[INFC_W_PACK_TOKENS_SEQ_SYMBOL], tokens_symbol = words[INFC_W_PACK_TOKENS_TOKENS_SYMBOL];
  if (has_mask > 1 || words[INFC_W_PACK_TOKENS_KEEP_FIRST] > 1 || !infc_step_is_serial(step) ||
      !infc_step_has(step, has_mask, 4, INFC_WORDS_PACK_TOKENS) || batch_symbol >= symbol_count ||
      seq_symbol >= symbol_count || tokens_symbol >= symbol_count || tokens_symbol == batch_symbol ||
      tokens_symbol == seq_symbol)
    return false;
  const infc_operand *index = task->operands + has_mask, *column = index + 1, *offsets = index + 2,
                     *key_start = index + 3;
  uint32_t tokens = index->dims[0], batch = key_start->dims[0];
  if (tokens > INT32_MAX || batch >= tokens + 1u || tokens % batch || !is_i32_vector(index, tokens) ||
      !is_i32_vector(column, tokens) || !is_i32_vector(key_start, batch) || !is_i32_vector(offsets, batch + 1) ||
      index->rows_symbol != (int32_t)tokens_symbol || column->rows_symbol != (int32_t)tokens_symbol ||
      offsets->rows_symbol >= 0 || !symbol_is_none_or(key_start, batch_symbol))
    return false;
  if (!has_mask)
    return true;
  const infc_operand *mask = task->operands;
  return (mask->dtype == INFC_DTYPE_I32 || mask->dtype == INFC_DTYPE_I64 || mask->dtype == INFC_DTYPE_BOOL ||
          mask->dtype == INFC_DTYPE_U8 || mask->dtype == INFC_DTYPE_F32) &&
         mask->rank == 2 && infc_operand_dense(mask) && mask->dims[0] == batch && mask->dims[1] == tokens / batch &&
         symbol_is_none_or(mask, batch_symbol);
}

size_t infc_pack_tokens_scratch(const infc_task *task) {
  (void)task;
  return 0;
}

// ---- gather_rows and scatter_rows ----

// Positions of the rectangle [batch, seq, ...] in the caller's dimensions.
static int64_t positions(const infc_operand *rectangle, const uint32_t *words, const infc_worker *worker) {
  return infc_symbol_within(worker, words[INFC_W_GATHER_ROWS_BATCH_SYMBOL], rectangle->dims[0]) *
         infc_symbol_within(worker, words[INFC_W_GATHER_ROWS_SEQ_SYMBOL], rectangle->dims[1]);
}
_Static_assert((int)INFC_W_GATHER_ROWS_BATCH_SYMBOL == (int)INFC_W_SCATTER_ROWS_BATCH_SYMBOL &&
                   (int)INFC_W_GATHER_ROWS_SEQ_SYMBOL == (int)INFC_W_SCATTER_ROWS_SEQ_SYMBOL,
               "one reading of both operators' words");

static size_t position_bytes(const infc_operand *rectangle) {
  return (size_t)infc_operand_inner(rectangle, 2) * infc_element_size(rectangle->dtype);
}

infc_fault infc_gather_rows_any__scalar(const infc_task *task, const infc_range *range, infc_worker *worker) {
  int64_t limit = positions(&task->operands[0], task->words, worker);
  size_t bytes = position_bytes(&task->operands[0]);
  const char *x = task->ptr[0];
  char *y = task->ptr[2];
  infc_fault fault = INFC_FAULT_NONE;
  int64_t row = range->row0, from = row < range->row1 ? infc_read_index(task->ptr[1], INFC_DTYPE_I32, row) : 0;
  while (row < range->row1) {
    bool inside = from >= 0 && from < limit;
    int64_t run = 1, next = 0; // rows that lie one after the other in x
    while (row + run < range->row1) {
      next = infc_read_index(task->ptr[1], INFC_DTYPE_I32, row + run);
      if (next != from + run || next >= limit || !inside)
        break;
      run++;
    }
    if (inside) {
      memmove(y + (size_t)row * bytes, x + (size_t)from * bytes, (size_t)run * bytes);
    } else {
      memset(y + (size_t)row * bytes, 0, bytes);
      fault = INFC_FAULT_INDEX;
    }
    row += run;
    from = next;
  }
  return fault;
}

infc_fault infc_scatter_rows_any__scalar(const infc_task *task, const infc_range *range, infc_worker *worker) {
  int64_t limit = positions(&task->operands[2], task->words, worker);
  size_t bytes = position_bytes(&task->operands[2]);
  const char *x = task->ptr[0];
  char *y = task->ptr[2];
  if (range->rows == 0 && worker->thread == 0)
    memset(y, 0, (size_t)limit * bytes);
  if (range->row0 >= range->row1)
    return INFC_FAULT_NONE;
  infc_fault fault = INFC_FAULT_NONE;
  int64_t done = 0; // positions before this one are written
  if (range->row0 > 0) {
    done = infc_read_index(task->ptr[1], INFC_DTYPE_I32, range->row0 - 1) + 1;
    if (done < 0 || done > limit)
      return INFC_FAULT_INDEX;
  }
  for (int64_t row = range->row0; row < range->row1; row++) {
    int64_t to = infc_read_index(task->ptr[1], INFC_DTYPE_I32, row);
    if (to < done || to >= limit) {
      fault = INFC_FAULT_INDEX;
      continue;
    }
    if (to > done)
      memset(y + (size_t)done * bytes, 0, (size_t)(to - done) * bytes);
    memmove(y + (size_t)to * bytes, x + (size_t)row * bytes, bytes);
    done = to + 1;
  }
  if (range->row1 >= range->rows)
    memset(y + (size_t)done * bytes, 0, (size_t)(limit - done) * bytes);
  return fault;
}

// `rectangle` is [batch, seq, ...], `packed` [rows, ...] of the same type, `index` [rows].
static bool rows_validate(const infc_task *task, uint32_t symbol_count, const infc_operand *rectangle,
                          const infc_operand *packed, const infc_operand *index) {
  const uint32_t *words = task->words;
  uint32_t batch_symbol = words[INFC_W_GATHER_ROWS_BATCH_SYMBOL];
  return infc_step_has_no_cols(task->step) && batch_symbol < symbol_count &&
         words[INFC_W_GATHER_ROWS_SEQ_SYMBOL] < symbol_count && rectangle->dtype == packed->dtype &&
         rectangle->rank >= 2 && infc_operand_dense(rectangle) && symbol_is_none_or(rectangle, batch_symbol) &&
         index->dtype == INFC_DTYPE_I32 && infc_operand_holds_rows(index, task->step, 1) &&
         infc_operand_holds_rows(packed, task->step, infc_operand_inner(rectangle, 2));
}

bool infc_gather_rows_validate(const infc_task *task, uint32_t symbol_count) {
  const infc_operand *o = task->operands;
  return infc_step_has(task->step, 2, 1, INFC_WORDS_GATHER_ROWS) &&
         rows_validate(task, symbol_count, &o[0], &o[2], &o[1]);
}

bool infc_scatter_rows_validate(const infc_task *task, uint32_t symbol_count) {
  const infc_operand *o = task->operands;
  return infc_step_has(task->step, 2, 1, INFC_WORDS_SCATTER_ROWS) &&
         rows_validate(task, symbol_count, &o[2], &o[0], &o[1]);
}

size_t infc_gather_rows_scratch(const infc_task *task) {
  (void)task;
  return 0;
}

size_t infc_scatter_rows_scratch(const infc_task *task) {
  (void)task;
  return 0;
}

// ---- sum_until ----

// What the elements from `from` up to `to` add: themselves, or one each that is not `value`.
static int64_t added(const infc_task *task, int64_t from, int64_t to) {
  uint64_t sum = 0;
  int32_t value = (int32_t)task->words[INFC_W_SUM_UNTIL_VALUE];
  for (int64_t i = from; i < to; i++) {
    int64_t element = infc_read_index(task->ptr[0], task->operands[0].dtype, i);
    sum += task->words[INFC_W_SUM_UNTIL_COUNTS] ? (uint64_t)(element != value) : (uint64_t)element;
  }
  return (int64_t)sum;
}

infc_fault infc_sum_until_any__scalar(const infc_task *task, const infc_range *range, infc_worker *worker) {
  int64_t limit = positions(&task->operands[0], task->words, worker);
  int64_t *y = task->ptr[3];
  infc_fault fault = INFC_FAULT_NONE;
  int64_t start = -1, done = 0, sum = 0; // the elements from start up to done make up sum
  for (int64_t row = range->row0; row < range->row1; row++) {
    int64_t last = infc_read_index(task->ptr[1], INFC_DTYPE_I32, row);
    int64_t first = last - infc_read_index(task->ptr[2], INFC_DTYPE_I32, row);
    if (first < 0 || first > last || last >= limit) {
      fault = INFC_FAULT_INDEX;
      y[row] = 0;
      start = -1;
      continue;
    }
    bool goes_on = first == start && last >= done;
    sum = goes_on ? sum + added(task, done, last + 1) : added(task, first, last + 1);
    start = first;
    done = last + 1;
    y[row] = sum;
  }
  return fault;
}
_Static_assert((int)INFC_W_GATHER_ROWS_BATCH_SYMBOL == (int)INFC_W_SUM_UNTIL_BATCH_SYMBOL &&
                   (int)INFC_W_GATHER_ROWS_SEQ_SYMBOL == (int)INFC_W_SUM_UNTIL_SEQ_SYMBOL,
               "one reading of both operators' words");

bool infc_sum_until_validate(const infc_task *task, uint32_t symbol_count) {
  const infc_operand *o = task->operands;
  uint32_t batch_symbol = task->words[INFC_W_SUM_UNTIL_BATCH_SYMBOL];
  return infc_step_has(task->step, 3, 1, INFC_WORDS_SUM_UNTIL) && infc_step_has_no_cols(task->step) &&
         batch_symbol < symbol_count && task->words[INFC_W_SUM_UNTIL_SEQ_SYMBOL] < symbol_count &&
         infc_operand_is_index(&o[0]) && o[0].rank == 2 && infc_operand_dense(&o[0]) &&
         symbol_is_none_or(&o[0], batch_symbol) && o[1].dtype == INFC_DTYPE_I32 && o[2].dtype == INFC_DTYPE_I32 &&
         o[3].dtype == INFC_DTYPE_I64 && infc_operand_holds_rows(&o[1], task->step, 1) &&
         infc_operand_holds_rows(&o[2], task->step, 1) && infc_operand_holds_rows(&o[3], task->step, 1);
}

size_t infc_sum_until_scratch(const infc_task *task) {
  (void)task;
  return 0;
}
