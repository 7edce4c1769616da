// Padding and cutting against the plain definition, element by element.
#include "tensorrt/staging.c"
#include "test.h"

enum { MAX_BYTES = 8 * 5 * 5 * 5 * 5 };

static const uint32_t dtypes[] = {INFC_DTYPE_U8,  INFC_DTYPE_F16, INFC_DTYPE_I32, INFC_DTYPE_F32,
                                  INFC_DTYPE_I64, INFC_DTYPE_F64, INFC_DTYPE_BOOL};

// Index in the dense tensor of the dimensions in use of an element of the full one, or -1.
static int64_t used_index(const infc_gpu_tensor *tensor, const int64_t *used, int64_t full) {
  int64_t index = 0, stride = 1;
  for (uint32_t d = tensor->rank; d-- > 0;) {
    int64_t at = full % tensor->dims[d];
    if (at >= used[d])
      return -1;
    index += at * stride;
    stride *= used[d];
    full /= tensor->dims[d];
  }
  return index;
}

static void check_fill(const infc_gpu_tensor *tensor, const infc_gpu_binding *binding, const uint8_t *staging) {
  static const uint8_t zero[8];
  size_t size = infc_dtype_size(tensor->dtype), count = infc_staging_bytes(tensor) / size;
  const uint8_t *data = (const uint8_t *)(uintptr_t)binding->memory;
  uint8_t fill[8];
  infc_dtype_fill(tensor->dtype, tensor->fill, fill, 1);
  for (size_t i = 0; i < count; i++) {
    int64_t index = used_index(tensor, binding->dims, (int64_t)i);
    const uint8_t *expected = index < 0 ? zero : data ? data + (size_t)index * size : fill;
    CHECK(!memcmp(staging + i * size, expected, size), "element %zu of %zu, rank %u", i, count, tensor->rank);
  }
}

static void check_read(const infc_gpu_tensor *tensor, const infc_gpu_binding *binding, const uint8_t *staging,
                       size_t bytes) {
  size_t size = infc_dtype_size(tensor->dtype), count = infc_staging_bytes(tensor) / size;
  uint8_t *data = (uint8_t *)(uintptr_t)binding->memory;
  memset(data, 0xEE, bytes + 1);
  infc_staging_read(tensor, binding, staging);
  for (size_t i = 0; i < count; i++) {
    int64_t index = used_index(tensor, binding->dims, (int64_t)i);
    CHECK(index < 0 || !memcmp(data + (size_t)index * size, staging + i * size, size), "element %zu", i);
  }
  CHECK(data[bytes] == 0xEE, "written beyond the dimensions in use");
}

int main(void) {
  static uint8_t data[MAX_BYTES + 1], staging[MAX_BYTES];
  test_rng rng = {7};
  for (int round = 0; round < 3000; round++) {
    infc_gpu_tensor tensor = {.dtype = dtypes[round % 7], .rank = (uint32_t)test_random_int(&rng, 0, 4), .fill = 1};
    infc_gpu_binding binding = {.memory = round % 3 ? (uintptr_t)data : 0};
    size_t bytes = infc_dtype_size(tensor.dtype);
    for (uint32_t d = 0; d < tensor.rank; d++) {
      tensor.dims[d] = test_random_int(&rng, 1, 5);
      binding.dims[d] = test_random(&rng) % 2 ? tensor.dims[d] : test_random_int(&rng, 1, tensor.dims[d]);
      bytes *= (size_t)binding.dims[d];
    }
    memset(staging, 0xDD, sizeof staging); // what another profile left
    for (int run = 0; run < 2; run++) {
      for (size_t i = 0; i < bytes; i++)
        data[i] = (uint8_t)test_random(&rng);
      infc_staging_fill(&tensor, &binding, run == 0, staging);
      check_fill(&tensor, &binding, staging);
    }
    binding.memory = (uintptr_t)data;
    check_read(&tensor, &binding, staging, bytes);
  }
  return test_result();
}
