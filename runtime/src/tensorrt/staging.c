#include "staging.h"

#include "dtype.h"

#include <string.h>

size_t infc_staging_bytes(const infc_gpu_tensor *tensor) {
  size_t bytes = infc_dtype_size(tensor->dtype);
  for (uint32_t d = 0; d < tensor->rank; d++)
    bytes *= (size_t)tensor->dims[d];
  return bytes;
}

// A box of `used` elements within one of `full`: `count` runs of `run` bytes that lie in one piece in both.
typedef struct box {
  uint32_t rank; // of the dimensions that runs vary in
  const int64_t *used, *full;
  size_t run, pitch; // bytes; from one run's start to the next along the last dimension, in the full tensor
  size_t count;
} box;

// Trailing dimensions used in full, and the last one that is not, are one run.
static box box_of(const infc_gpu_tensor *tensor, const int64_t *used) {
  box b = {.rank = tensor->rank, .used = used, .full = tensor->dims, .run = infc_dtype_size(tensor->dtype), .count = 1};
  while (b.rank > 0 && used[b.rank - 1] == tensor->dims[b.rank - 1])
    b.run *= (size_t)used[--b.rank];
  b.pitch = b.run;
  if (b.rank > 0) {
    b.rank--;
    b.pitch *= (size_t)tensor->dims[b.rank];
    b.run *= (size_t)used[b.rank];
  }
  for (uint32_t d = 0; d < b.rank; d++)
    b.count *= (size_t)used[d];
  return b;
}

// Bytes from the full tensor's start to a run.
static size_t run_offset(const box *b, size_t run) {
  size_t offset = 0, stride = b->pitch;
  for (uint32_t d = b->rank; d-- > 0;) {
    offset += run % (size_t)b->used[d] * stride;
    run /= (size_t)b->used[d];
    stride *= (size_t)b->full[d];
  }
  return offset;
}

void infc_staging_fill(const infc_gpu_tensor *tensor, const infc_gpu_binding *binding, bool changed, uint8_t *staging) {
  box b = box_of(tensor, binding->dims);
  if (changed && b.run * b.count < infc_staging_bytes(tensor))
    memset(staging, 0, infc_staging_bytes(tensor));
  if (!binding->memory) {
    size_t elements = b.run / infc_dtype_size(tensor->dtype);
    for (size_t i = 0; changed && i < b.count; i++)
      infc_dtype_fill(tensor->dtype, tensor->fill, staging + run_offset(&b, i), elements);
    return;
  }
  const uint8_t *from = (const uint8_t *)(uintptr_t)binding->memory;
  for (size_t i = 0; i < b.count; i++)
    memcpy(staging + run_offset(&b, i), from + i * b.run, b.run);
}

void infc_staging_read(const infc_gpu_tensor *tensor, const infc_gpu_binding *binding, const uint8_t *staging) {
  box b = box_of(tensor, binding->dims);
  uint8_t *to = (uint8_t *)(uintptr_t)binding->memory;
  for (size_t i = 0; i < b.count; i++)
    memcpy(to + i * b.run, staging + run_offset(&b, i), b.run);
}
