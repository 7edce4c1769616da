// embed_sum: sums of table rows, with ids of both types, cut by rows; negative ones from the end, ids outside a table
// give zeros and a fault.
#include "dtype.h"
#include "kernels/cast/convert.h"
#include "step.h"

enum { TABLES = 7, ROWS = 23 };

static float number_of(const void *table, uint8_t dtype, int64_t i) {
  double number;
  infc_load_reals(dtype, (const uint8_t *)table + i * (int64_t)infc_dtype_size(dtype), 1, &number);
  return (float)number;
}

// With `bad`, some ids lie outside their tables.
static void sum_once(test_rng *rng, uint32_t count, int64_t n, bool bad, bool in_use) {
  test_step s;
  test_step_init(&s, ROWS, 1);
  test_word(&s, count);
  void *ids[TABLES];
  void *tables[TABLES];
  uint8_t dtypes[TABLES];
  float *y = test_alloc(ROWS * (size_t)n * 4), *want = test_alloc(ROWS * (size_t)n * 4);
  int64_t chosen[TABLES][ROWS];
  for (uint32_t t = 0; t < count; t++) {
    int64_t size = test_random_int(rng, 1, 40);
    bool wide = test_random(rng) % 2;
    ids[t] = test_alloc(ROWS * (wide ? 8 : 4));
    static const uint8_t table_dtypes[] = {INFC_DTYPE_F32, INFC_DTYPE_BF16, INFC_DTYPE_F16};
    dtypes[t] = table_dtypes[test_random(rng) % 3];
    float *numbers = test_alloc((size_t)(size * n) * 4);
    test_fill_random(rng, numbers, (size_t)(size * n), -1, 1);
    tables[t] = test_alloc((size_t)(size * n) * infc_dtype_size(dtypes[t]));
    for (int64_t i = 0; i < size * n; i++) {
      const double number = numbers[i];
      infc_store_reals(dtypes[t], &number, 1, (uint8_t *)tables[t] + (size_t)i * infc_dtype_size(dtypes[t]), false,
                       INFC_ROUND_NEAREST);
    }
    test_free(numbers);
    for (int r = 0; r < ROWS; r++) {
      const int64_t outside[] = {-size - 1, INT32_MIN, INT32_MAX};
      int64_t id =
          bad && test_random(rng) % 8 == 0 ? outside[test_random(rng) % 3] : test_random_int(rng, -size, size - 1);
      if (bad && test_random(rng) % 16 == 0)
        id = size;
      if (bad && wide && test_random(rng) % 16 == 0)
        id = test_random(rng) % 2 ? INT64_MIN : (int64_t)1 << 32; // 0 if cut to 32 bits
      chosen[t][r] = id >= -size && id < size ? (id + size) % size : -1;
      if (wide)
        ((int64_t *)ids[t])[r] = id;
      else
        ((int32_t *)ids[t])[r] = (int32_t)id;
    }
    infc_operand *o = test_operand(&s, false, ids[t], wide ? INFC_DTYPE_I64 : INFC_DTYPE_I32, ROWS, 0, 1);
    o->rows_symbol = in_use ? 1 : -1;
    test_operand(&s, false, tables[t], dtypes[t], size, n, n);
  }
  test_operand(&s, true, y, INFC_DTYPE_F32, ROWS, n, n)->rows_symbol = in_use ? 1 : -1;
  s.step.rows_symbol = in_use ? 1 : -1;
  int64_t symbols[2] = {0, in_use ? test_random_int(rng, 0, ROWS) : 0}, rows = in_use ? symbols[1] : ROWS;
  infc_fault fault = INFC_FAULT_NONE;
  memset(want, 0xEE, ROWS * (size_t)n * 4);
  for (int64_t r = 0; r < rows; r++) {
    bool inside = true;
    for (uint32_t t = 0; t < count; t++)
      inside &= chosen[t][r] >= 0;
    if (!inside)
      fault = INFC_FAULT_INDEX;
    for (int64_t i = 0; i < n; i++) {
      float sum = inside ? number_of(tables[0], dtypes[0], chosen[0][r] * n + i) : 0;
      for (uint32_t t = 1; inside && t < count; t++)
        sum += number_of(tables[t], dtypes[t], chosen[t][r] * n + i);
      want[r * n + i] = sum;
    }
  }
  CHECK(test_validate(&s, INFC_OP_EMBED_SUM, 2), "count %u", count);
  for (size_t k = 0; k < infc_kernel_count; k++)
    for (int parts = 1; parts <= 7; parts += 3) {
      if (infc_kernels[k].op != INFC_OP_EMBED_SUM || !test_supported(&infc_kernels[k]))
        continue;
      memset(y, 0xEE, ROWS * (size_t)n * 4);
      CHECK(test_run(&s, &infc_kernels[k], parts, 1, symbols) == fault, "%s", infc_kernels[k].name);
      CHECK(!memcmp(y, want, ROWS * (size_t)n * 4), "%s, count %u, n %lld", infc_kernels[k].name, count, (long long)n);
    }
  for (uint32_t t = 0; t < count; t++) {
    test_free(ids[t]);
    test_free(tables[t]);
  }
  test_free(y);
  test_free(want);
}

static void test_validator(void) {
  float table[12], y[8];
  int64_t ids[2];
  test_step s;
  test_step_init(&s, 2, 1);
  test_operand(&s, false, ids, INFC_DTYPE_I64, 2, 0, 1);
  test_operand(&s, false, table, INFC_DTYPE_F32, 3, 4, 4);
  test_operand(&s, true, y, INFC_DTYPE_F32, 2, 4, 4);
  test_word(&s, 1);
  CHECK(test_validate(&s, INFC_OP_EMBED_SUM, 0), "valid");
  s.operands[0].dtype = INFC_DTYPE_F32;
  CHECK(!test_validate(&s, INFC_OP_EMBED_SUM, 0), "ids are no integers");
  s.operands[0].dtype = INFC_DTYPE_I32;
  s.operands[1].dtype = INFC_DTYPE_BF16;
  CHECK(test_validate(&s, INFC_OP_EMBED_SUM, 0), "a table of 16 bits");
  s.operands[1].dtype = INFC_DTYPE_I16;
  CHECK(!test_validate(&s, INFC_OP_EMBED_SUM, 0), "a table of integers");
  s.operands[1].dtype = INFC_DTYPE_F32;
  s.words[0] = 2;
  CHECK(!test_validate(&s, INFC_OP_EMBED_SUM, 0), "two tables announced");
  s.words[0] = UINT32_MAX;
  CHECK(!test_validate(&s, INFC_OP_EMBED_SUM, 0), "2^32 - 1 tables announced");
  s.words[0] = 1;
  s.operands[2].dims[1] = s.operands[2].row_stride = 3;
  CHECK(!test_validate(&s, INFC_OP_EMBED_SUM, 0), "y is narrower than the table");
  s.operands[2].dims[1] = s.operands[2].row_stride = 4;
  s.step.rows = 3;
  CHECK(!test_validate(&s, INFC_OP_EMBED_SUM, 0), "more rows than ids");
  s.step.rows = 2;
  s.step.rows_symbol = 0;
  CHECK(!test_validate(&s, INFC_OP_EMBED_SUM, 1), "operands do not follow the step's rows");
}

int main(void) {
  test_rng rng = {7};
  static const int64_t widths[] = {1, 7, 8, 16, 31, 64, 384};
  for (uint32_t count = 1; count <= TABLES; count++)
    for (int w = 0; w < 7; w++)
      for (int mode = 0; mode < 4; mode++)
        sum_once(&rng, count, widths[w], mode & 1, mode & 2);
  test_validator();
  return test_result();
}
