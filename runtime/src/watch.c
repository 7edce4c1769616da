// Counting, and the calls that tell what was counted.
#include "watch.h"
#include "context.h"

#include <string.h>

enum { BLOCK = 4096 }; // values counted in 32 bits

static uint64_t count_f32(const float *x, int64_t n, float low, float high) {
  uint32_t beyond = 0;
  for (int64_t i = 0; i < n; i++)
    beyond += !((x[i] >= low) & (x[i] <= high));
  return beyond;
}

static uint64_t count_u8(const uint8_t *x, int64_t n, float low, float high) {
  // Bytes are compared as such: 256 and -1 lie beyond all of them.
  const int least = low <= 0 ? 0 : low <= 255 ? (int)low + ((float)(int)low < low) : 256;
  const int most = high >= 255 ? 255 : high >= 0 ? (int)high : -1;
  uint32_t beyond = 0;
  for (int64_t i = 0; i < n; i++)
    beyond += (x[i] < least) | (x[i] > most);
  return beyond;
}

static void note_extremes(const float *x, int64_t n, const infc_watch_place *place, infc_watch_count *count) {
  for (int64_t i = 0; i < n; i++) {
    if (x[i] < place->low && x[i] < count->least)
      count->least = x[i];
    if (x[i] > place->high && x[i] > count->greatest)
      count->greatest = x[i];
  }
}

static void count_values(const infc_watch_place *place, uint8_t dtype, const void *values, int64_t n,
                         infc_watch_count *count) {
  for (int64_t first = 0; first < n; first += BLOCK) {
    const int64_t size = n - first < BLOCK ? n - first : BLOCK;
    const float *floats = (const float *)values + (dtype == INFC_DTYPE_F32 ? first : 0);
    const uint64_t beyond = dtype == INFC_DTYPE_F32
                                ? count_f32(floats, size, place->low, place->high)
                                : count_u8((const uint8_t *)values + first, size, place->low, place->high);
    if (beyond && dtype == INFC_DTYPE_F32)
      note_extremes(floats, size, place, count);
    count->beyond += beyond;
  }
  count->values += (uint64_t)n;
}

static int64_t within(int64_t row, int64_t rows) {
  return row < 0 ? 0 : row < rows ? row : rows;
}

void infc_watch_step(const infc_watch_place *place, const infc_task *task, const infc_range *range, bool by_rows,
                     const infc_worker *worker, infc_watch_count *count) {
  const infc_operand *operand = &task->operands[place->operand];
  const int64_t bound = operand->dims[0];
  int64_t rows = operand->rows_symbol < 0 ? bound : within(worker->symbols[operand->rows_symbol], bound);
  int64_t first = 0;
  if (by_rows && place->by_row) {
    first = within(range->row0, rows);
    rows = within(range->row1, rows);
  } else if (worker->thread || range->row0) { // thread 0 counts all, before its first rows
    return;
  }
  int64_t inner = 1;
  for (uint32_t d = 1; d < operand->rank; d++)
    inner *= operand->dims[d];
  const size_t pitch = operand->row_stride * infc_dtype_size(operand->dtype);
  const uint8_t *values = task->ptr[place->operand];
  if (operand->row_stride == inner && first < rows) {
    count_values(place, operand->dtype, values + (size_t)first * pitch, (rows - first) * inner, count);
    return;
  }
  for (int64_t row = first; row < rows; row++)
    count_values(place, operand->dtype, values + (size_t)row * pitch, inner, count);
}

uint32_t infc_context_drift_count(const infc_context *context) {
  return context && !context->gpu ? infc_watch_layers(&context->engine->watch) : 0;
}

infc_status infc_context_drift(const infc_context *context, uint32_t layer, infc_drift *out) {
  if (!out || layer >= infc_context_drift_count(context))
    return INFC_STATUS_INVALID_ARGUMENT;
  const infc_watch *watch = &context->engine->watch;
  const infc_watch_layer *known = &watch->layers[layer];
  infc_drift ours = {
      .name = watch->strings + known->name,
      .low = known->low,
      .high = known->high,
      .expected = known->beyond,
      .least = known->low,
      .greatest = known->high,
      .runs = context->watched_runs,
  };
  for (uint32_t thread = 0; thread < context->threads; thread++) {
    const infc_watch_count *count = context->watch_counts + (size_t)thread * context->watch_stride + layer;
    ours.values += count->values;
    ours.beyond += count->beyond;
    ours.least = count->least < ours.least ? count->least : ours.least;
    ours.greatest = count->greatest > ours.greatest ? count->greatest : ours.greatest;
  }
  return infc_result_copy(out, &ours, sizeof ours) ? INFC_STATUS_OK : INFC_STATUS_INVALID_ARGUMENT;
}

infc_status infc_context_set_watch(infc_context *context, uint32_t every) {
  if (!context)
    return INFC_STATUS_INVALID_ARGUMENT;
  if (atomic_exchange_explicit(&context->busy, true, memory_order_acquire))
    return INFC_STATUS_BUSY;
  if (context->watch_counts)
    memset(context->watch_counts, 0, (size_t)context->threads * context->watch_stride * sizeof *context->watch_counts);
  context->watch_every = context->watch_counts ? every : 0;
  context->watch_wait = 0;
  context->watched_runs = 0;
  atomic_store_explicit(&context->busy, false, memory_order_release);
  return INFC_STATUS_OK;
}
