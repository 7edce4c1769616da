#ifndef INFC_KERNELS_EMBED_SUM_H
#define INFC_KERNELS_EMBED_SUM_H

#include "../../dtype.h"
#include "../cast/convert.h"

#define INFC_EMBED_SUM_MAX ((INFC_MAX_OPERANDS - 1) / 2)

// A row of a table of f32, bf16 or f16.
typedef struct infc_table_row {
  const uint8_t *at;
  uint8_t dtype;
} infc_table_row;

static inline float infc_table_number(infc_table_row row, int64_t i) {
  double number;
  infc_load_reals(row.dtype, row.at + i * (int64_t)infc_dtype_size(row.dtype), 1, &number);
  return (float)number;
}

// The table rows to add for output row `row`, -1 the last of a table; false if an id lies outside its table.
static inline bool infc_embed_sum_rows(const infc_task *task, uint32_t count, int64_t row, infc_table_row *rows) {
  for (uint32_t i = 0; i < count; i++) {
    const infc_operand *table = &task->operands[2 * i + 1];
    int64_t id = infc_read_index(task->ptr[2 * i], task->operands[2 * i].dtype, row);
    if (id < 0)
      id += table->dims[0];
    if (id < 0 || id >= table->dims[0])
      return false;
    rows[i].at =
        (const uint8_t *)task->ptr[2 * i + 1] + id * table->row_stride * (int64_t)infc_dtype_size(table->dtype);
    rows[i].dtype = table->dtype;
  }
  return true;
}

// y[0..n) = sum of `count` rows.
typedef void (*infc_embed_sum_add)(const infc_table_row *rows, uint32_t count, float *y, int64_t n);

// Table rows lie anywhere in memory: the start of each is asked for some rows ahead, the rest is left to the hardware,
// which notices the stream.
enum { INFC_EMBED_SUM_AHEAD = 8, INFC_EMBED_SUM_START = 256, INFC_EMBED_SUM_LINE = 64 }; // rows, bytes

static inline __attribute__((always_inline)) void infc_embed_sum_prefetch(const infc_task *task, uint32_t count,
                                                                          int64_t row, int64_t n) {
  infc_table_row rows[INFC_EMBED_SUM_MAX];
  if (!infc_embed_sum_rows(task, count, row, rows))
    return;
  for (uint32_t k = 0; k < count; k++) {
    const int64_t bytes = n * (int64_t)infc_dtype_size(rows[k].dtype);
    for (int64_t i = 0; i < bytes && i < INFC_EMBED_SUM_START; i += INFC_EMBED_SUM_LINE)
      __builtin_prefetch(rows[k].at + i);
  }
}

// The operator, given how rows are added.
static inline __attribute__((always_inline)) infc_fault infc_embed_sum_run(const infc_task *task,
                                                                           const infc_range *range,
                                                                           infc_embed_sum_add add) {
  uint32_t count = task->words[INFC_W_EMBED_SUM_COUNT];
  int64_t n = task->operands[1].row_stride;
  float *y = (float *)task->ptr[2 * count] + range->row0 * n;
  infc_fault fault = INFC_FAULT_NONE;
  for (int64_t row = range->row0; row < range->row0 + INFC_EMBED_SUM_AHEAD && row < range->row1; row++)
    infc_embed_sum_prefetch(task, count, row, n);
  for (int64_t row = range->row0; row < range->row1; row++, y += n) {
    infc_table_row rows[INFC_EMBED_SUM_MAX];
    if (row + INFC_EMBED_SUM_AHEAD < range->row1)
      infc_embed_sum_prefetch(task, count, row + INFC_EMBED_SUM_AHEAD, n);
    if (infc_embed_sum_rows(task, count, row, rows)) {
      add(rows, count, y, n);
      continue;
    }
    for (int64_t i = 0; i < n; i++)
      y[i] = 0;
    fault = INFC_FAULT_INDEX;
  }
  return fault;
}

#endif // INFC_KERNELS_EMBED_SUM_H
