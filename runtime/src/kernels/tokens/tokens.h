#ifndef INFC_KERNELS_TOKENS_H
#define INFC_KERNELS_TOKENS_H

#include "../operand.h"

// A run-time scalar, held to the bound its buffers are planned for.
static inline int64_t infc_symbol_within(const infc_worker *worker, uint32_t symbol, int64_t bound) {
  int64_t value = worker->symbols[symbol];
  return value < 0 ? 0 : value > bound ? bound : value;
}

// What pack_tokens works on.
typedef struct infc_pack {
  const void *mask; // NULL: every position is a row
  uint8_t dtype;    // of the mask
  bool keep_first;
  int64_t batch, seq; // the caller's
  int32_t *index, *column, *offsets, *key_start;
} infc_pack;

infc_pack infc_pack_open(const infc_task *task, const infc_worker *worker);
// Writes offsets' last entry and the symbol.
void infc_pack_close(const infc_pack *pack, const infc_task *task, infc_worker *worker, int64_t rows);

// Folds `rows` rows of n floats into y[n].
typedef void (*infc_segment_fold)(const float *x, int64_t rows, int64_t n, float *y);

typedef struct infc_segment_folds {
  infc_segment_fold sum, max; // over one row or more
} infc_segment_folds;

infc_fault infc_segment_reduce_run(const infc_task *task, const infc_range *range, const infc_worker *worker,
                                   const infc_segment_folds *folds);

#endif // INFC_KERNELS_TOKENS_H
