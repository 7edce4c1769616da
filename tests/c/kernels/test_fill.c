// fill: every element size, lengths that are no multiple of a word.
#include "step.h"

int main(void) {
  static const uint8_t dtypes[] = {INFC_DTYPE_BOOL, INFC_DTYPE_BF16, INFC_DTYPE_F32, INFC_DTYPE_F64};
  const uint64_t value = 0x0102030405060708;
  for (int t = 0; t < 4; t++)
    for (int64_t n = 1; n < 70; n++) {
      size_t size = (size_t)1 << t;
      uint8_t *y = test_alloc((size_t)n * size);
      test_step s;
      test_step_init(&s, 1, 1);
      test_operand(&s, true, y, dtypes[t], n, 0, 1);
      test_word(&s, (uint32_t)value);
      test_word(&s, (uint32_t)(value >> 32));
      CHECK(test_validate(&s, INFC_OP_FILL, 0), "valid");
      for (size_t k = 0; k < infc_kernel_count; k++) {
        if (infc_kernels[k].op != INFC_OP_FILL || !test_supported(&infc_kernels[k]))
          continue;
        memset(y, 0xEE, (size_t)n * size);
        test_run(&s, &infc_kernels[k], 1, 1, NULL);
        for (int64_t i = 0; i < n; i++)
          CHECK(!memcmp(y + (size_t)i * size, &value, size), "%s, element %lld", infc_kernels[k].name, (long long)i);
      }
      s.step.split[1] = INFC_SPLIT_ROWS;
      CHECK(!test_validate(&s, INFC_OP_FILL, 0), "cannot be split");
      test_free(y);
    }
  return test_result();
}
