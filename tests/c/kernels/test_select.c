// select: any nest and type against an element-by-element choice.
#include "nest_step.h"

static const uint8_t dtypes[] = {INFC_DTYPE_BOOL, INFC_DTYPE_BF16, INFC_DTYPE_F32, INFC_DTYPE_I64};
static const size_t sizes[] = {1, 2, 4, 8};

static void test_random_nests(bool in_place) {
  test_rng rng = {3};
  for (int t = 0; t < 300; t++) {
    size_t size = sizes[t % 4];
    bool plain = in_place || t % 5 == 0;
    test_nest nest = test_nest_random(&rng, 5);
    test_layout c = test_layout_random(&rng, &nest, !plain, t % 3 == 0, false);
    test_layout a = test_layout_random(&rng, &nest, !plain, !in_place && t % 2, false);
    test_layout b = test_layout_random(&rng, &nest, !plain, t % 7 < 3, false);
    uint8_t *pc = test_alloc((size_t)c.extent), *pa = test_alloc((size_t)a.extent * size),
            *pb = test_alloc((size_t)b.extent * size), *y = test_alloc((size_t)nest.elements * size),
            *want = test_alloc((size_t)nest.elements * size);
    for (int64_t i = 0; i < c.extent; i++)
      pc[i] = test_random(&rng) % 2 ? 0 : (uint8_t)test_random(&rng); // any byte but 0 is true
    for (size_t i = 0; i < (size_t)a.extent * size; i++)
      pa[i] = (uint8_t)test_random(&rng);
    for (size_t i = 0; i < (size_t)b.extent * size; i++)
      pb[i] = (uint8_t)test_random(&rng);
    for (int64_t i = 0; i < nest.elements; i++)
      memcpy(want + (size_t)i * size,
             pc[test_layout_at(&nest, &c, i)] ? pa + (size_t)test_layout_at(&nest, &a, i) * size
                                              : pb + (size_t)test_layout_at(&nest, &b, i) * size,
             size);
    test_step s;
    test_step_init(&s, nest.dims[0], 1);
    test_operand(&s, false, pc, INFC_DTYPE_BOOL, c.extent, 0, 1);
    test_operand(&s, false, pa, dtypes[t % 4], a.extent, 0, 1);
    test_operand(&s, false, pb, dtypes[t % 4], b.extent, 0, 1);
    test_operand(&s, true, y, dtypes[t % 4], nest.elements, 0, 1);
    test_nest_words(&s, nest.dims);
    test_layout_words(&s, &c);
    test_layout_words(&s, &a);
    test_layout_words(&s, &b);
    test_expected expected = {y, want, (size_t)nest.elements * size};
    if (in_place) {
      memcpy(y, pa, expected.bytes);
      s.task.ptr[1] = y;
      for (size_t k = 0; k < infc_kernel_count; k++)
        if (infc_kernels[k].op == INFC_OP_SELECT && test_supported(&infc_kernels[k])) {
          memcpy(y, pa, expected.bytes);
          test_run(&s, &infc_kernels[k], 2, 1, NULL);
          test_check_bytes(infc_kernels[k].name, &expected);
        }
    } else {
      test_each_kernel(&s, INFC_OP_SELECT, NULL, INFC_FAULT_NONE, y, expected.bytes, test_check_bytes, &expected);
    }
    s.operands[0].dtype = INFC_DTYPE_U8;
    CHECK(!test_validate(&s, INFC_OP_SELECT, 0), "the condition is no bool");
    test_free(pc);
    test_free(pa);
    test_free(pb);
    test_free(y);
    test_free(want);
  }
}

int main(void) {
  test_random_nests(false);
  test_random_nests(true);
  test_nest_fuzz(INFC_OP_SELECT, 3, (uint8_t[]){INFC_DTYPE_BOOL, INFC_DTYPE_F32, INFC_DTYPE_F32, INFC_DTYPE_F32}, 4,
                 20000);
  return test_result();
}
