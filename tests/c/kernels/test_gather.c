// gather: any type and inner size along any axis, indices from both ends; those outside give zeros and a fault.
#include "step.h"

static const uint8_t dtypes[] = {INFC_DTYPE_U8, INFC_DTYPE_F16, INFC_DTYPE_F32, INFC_DTYPE_I64};
static const size_t sizes[] = {1, 2, 4, 8};

static void gather_once(test_rng *rng, int type, bool wide, bool bad) {
  size_t size = sizes[type];
  int64_t rows = test_random_int(rng, 1, 5), axis = test_random_int(rng, 1, 6), n = test_random_int(rng, 1, 9);
  int64_t inner = test_random(rng) % 2 ? 1 : test_random_int(rng, 1, 9);
  size_t bytes = (size_t)inner * size, y_bytes = (size_t)(rows * n) * bytes;
  uint8_t *data = test_alloc((size_t)(rows * axis) * bytes), *y = test_alloc(y_bytes), *want = test_alloc(y_bytes);
  void *indices = test_alloc((size_t)n * (wide ? 8 : 4));
  for (size_t i = 0; i < (size_t)(rows * axis) * bytes; i++)
    data[i] = (uint8_t)test_random(rng);
  infc_fault fault = INFC_FAULT_NONE;
  memset(want, 0, y_bytes);
  for (int64_t i = 0; i < n; i++) {
    int64_t at = test_random_int(rng, -axis, axis - 1);
    if (bad && test_random(rng) % 4 == 0) {
      const int64_t outside[] = {axis, -axis - 1, INT32_MIN, INT32_MAX, (int64_t)1 << 32, INT64_MIN};
      at = outside[test_random(rng) % (wide ? 6 : 4)];
      fault = INFC_FAULT_INDEX;
    } else {
      for (int64_t r = 0; r < rows; r++)
        memcpy(want + (size_t)(r * n + i) * bytes, data + (size_t)(r * axis + (at < 0 ? at + axis : at)) * bytes,
               bytes);
    }
    if (wide)
      ((int64_t *)indices)[i] = at;
    else
      ((int32_t *)indices)[i] = (int32_t)at;
  }
  test_step s;
  test_step_init(&s, rows, 1);
  test_operand(&s, false, data, dtypes[type], rows, axis * inner, axis * inner);
  test_operand(&s, false, indices, wide ? INFC_DTYPE_I64 : INFC_DTYPE_I32, n, 0, 1);
  test_operand(&s, true, y, dtypes[type], rows, n * inner, n * inner);
  test_word(&s, (uint32_t)axis);
  test_word(&s, (uint32_t)inner);
  CHECK(test_validate(&s, INFC_OP_GATHER, 0), "valid");
  for (size_t k = 0; k < infc_kernel_count; k++)
    for (int parts = 1; parts <= 3; parts++) {
      if (infc_kernels[k].op != INFC_OP_GATHER || !test_supported(&infc_kernels[k]))
        continue;
      memset(y, 0xEE, y_bytes);
      CHECK(test_run(&s, &infc_kernels[k], parts, 1, NULL) == fault, "%s", infc_kernels[k].name);
      CHECK(!memcmp(y, want, y_bytes), "%s, type %d", infc_kernels[k].name, type);
    }
  s.words[INFC_W_GATHER_AXIS]++;
  CHECK(!test_validate(&s, INFC_OP_GATHER, 0), "data is smaller than rows * axis * inner");
  s.words[INFC_W_GATHER_AXIS] = 0;
  CHECK(!test_validate(&s, INFC_OP_GATHER, 0), "no axis");
  s.words[INFC_W_GATHER_AXIS] = s.words[INFC_W_GATHER_INNER] = UINT32_MAX;
  CHECK(!test_validate(&s, INFC_OP_GATHER, 0), "overflow");
  test_free(data);
  test_free(indices);
  test_free(y);
  test_free(want);
}

// A hostile program's operands may overlap: AddressSanitizer knows a memcpy that must not.
static void test_overlap(void) {
  enum { AXIS = 4, INNER = 48 };
  uint8_t *memory = test_alloc(64 + AXIS * INNER);
  int32_t indices[AXIS] = {1, 2, 3, 0};
  memset(memory, 1, 64 + AXIS * INNER);
  test_step s;
  test_step_init(&s, 1, 1);
  test_operand(&s, false, memory, INFC_DTYPE_U8, 1, AXIS * INNER, AXIS * INNER);
  test_operand(&s, false, indices, INFC_DTYPE_I32, AXIS, 0, 1);
  test_operand(&s, true, memory + 64, INFC_DTYPE_U8, 1, AXIS * INNER, AXIS * INNER);
  test_word(&s, AXIS);
  test_word(&s, INNER);
  CHECK(test_validate(&s, INFC_OP_GATHER, 0), "valid");
  for (size_t k = 0; k < infc_kernel_count; k++)
    if (infc_kernels[k].op == INFC_OP_GATHER && test_supported(&infc_kernels[k]))
      CHECK(test_run(&s, &infc_kernels[k], 1, 1, NULL) == INFC_FAULT_NONE, "%s", infc_kernels[k].name);
  test_free(memory);
}

int main(void) {
  test_overlap();
  test_rng rng = {8};
  for (int t = 0; t < 400; t++)
    gather_once(&rng, t % 4, t / 4 % 2, t / 8 % 2);
  return test_result();
}
