// branch and repeat: what they read and find; place: every index, any type, rows cut in any way.
#include "step.h"

static const infc_kernel *kernel_of(uint16_t op) {
  for (size_t k = 0; k < infc_kernel_count; k++)
    if (infc_kernels[k].op == op)
      return &infc_kernels[k];
  return NULL;
}

static bool taken(const test_step *s, uint16_t op, int64_t iteration) {
  infc_worker worker = {.iteration = iteration, .threads = 1, .taken = true};
  const infc_range range = {0, 1, 1, 0, 1};
  CHECK(kernel_of(op)->run(&s->task, &range, &worker) == INFC_FAULT_NONE, "no fault");
  return worker.taken;
}

static void test_branch(void) {
  uint8_t condition = 0;
  test_step s;
  test_step_init(&s, 1, 1);
  test_operand(&s, false, &condition, INFC_DTYPE_BOOL, 1, 0, 1);
  test_word(&s, 3);
  test_word(&s, 0);
  CHECK(test_validate(&s, INFC_OP_BRANCH, 0), "valid");
  CHECK(!taken(&s, INFC_OP_BRANCH, 0), "false");
  condition = 1;
  CHECK(taken(&s, INFC_OP_BRANCH, 0), "true");
  condition = 0x80;
  CHECK(taken(&s, INFC_OP_BRANCH, 0), "any bit");
  s.step.split[1] = INFC_SPLIT_COLS;
  CHECK(!test_validate(&s, INFC_OP_BRANCH, 0), "no columns");
  s.step.split[1] = INFC_SPLIT_ROWS;
  s.operands[0].dims[0] = 2;
  CHECK(!test_validate(&s, INFC_OP_BRANCH, 0), "two conditions");
  s.operands[0].dims[0] = 1;
  s.operands[0].dtype = INFC_DTYPE_I64;
  CHECK(!test_validate(&s, INFC_OP_BRANCH, 0), "no bool");
}

static void test_repeat(int mask) {
  const bool counts = mask & 1, asks = mask & 2, tells = mask & 4;
  int64_t trips = 3, iteration = -1;
  uint8_t condition = 1;
  test_step s;
  test_step_init(&s, 1, 1);
  if (counts)
    test_operand(&s, false, &trips, INFC_DTYPE_I64, 1, 0, 1);
  if (asks)
    test_operand(&s, false, &condition, INFC_DTYPE_BOOL, 1, 0, 1);
  if (tells)
    test_operand(&s, true, &iteration, INFC_DTYPE_I64, 1, 0, 1);
  const uint32_t words[] = {1, counts, asks, tells};
  for (int i = 0; i < 4; i++)
    test_word(&s, words[i]);
  CHECK(test_validate(&s, INFC_OP_REPEAT, 0), "valid");
  CHECK(taken(&s, INFC_OP_REPEAT, 2), "the last of three");
  CHECK(iteration == (tells ? 2 : -1), "iteration %lld", (long long)iteration);
  CHECK(taken(&s, INFC_OP_REPEAT, 3) == !counts, "after three");
  condition = 0;
  CHECK(taken(&s, INFC_OP_REPEAT, 0) == !asks, "the condition fails");
  trips = INT64_MIN;
  condition = 1;
  CHECK(taken(&s, INFC_OP_REPEAT, 0) == !counts, "less than none");
  for (int i = 1; i < 4; i++) {
    s.words[i] ^= 1;
    CHECK(!test_validate(&s, INFC_OP_REPEAT, 0), "other operands than announced");
    s.words[i] ^= 1;
  }
  s.words[1] = 2;
  CHECK(!test_validate(&s, INFC_OP_REPEAT, 0), "neither yes nor no");
}

static void place_once(test_rng *rng, uint8_t dtype, size_t size) {
  const int64_t rows = test_random_int(rng, 1, 5), axis = test_random_int(rng, 1, 6),
                inner = test_random_int(rng, 1, 9);
  const int64_t index = test_random_int(rng, -axis - 1, axis);
  const size_t bytes = (size_t)inner * size, y_bytes = (size_t)(rows * axis) * bytes;
  uint8_t *x = test_alloc((size_t)rows * bytes), *y = test_alloc(y_bytes), *want = test_alloc(y_bytes);
  for (size_t i = 0; i < (size_t)rows * bytes; i++)
    x[i] = (uint8_t)test_random(rng);
  memset(want, 0xEE, y_bytes);
  const bool inside = index >= -axis && index < axis;
  const int64_t at = index < 0 ? index + axis : index;
  for (int64_t r = 0; inside && r < rows; r++)
    memcpy(want + (size_t)(r * axis + at) * bytes, x + (size_t)r * bytes, bytes);
  test_step s;
  test_step_init(&s, rows, 1);
  int64_t wide = index;
  test_operand(&s, false, x, dtype, rows, inner, inner);
  test_operand(&s, false, &wide, INFC_DTYPE_I64, 1, 0, 1);
  test_operand(&s, true, y, dtype, rows, axis * inner, axis * inner);
  test_word(&s, (uint32_t)axis);
  test_word(&s, (uint32_t)inner);
  CHECK(test_validate(&s, INFC_OP_PLACE, 0), "valid");
  for (int parts = 1; parts <= 3; parts++) {
    memset(y, 0xEE, y_bytes);
    CHECK(test_run(&s, kernel_of(INFC_OP_PLACE), parts, 1, NULL) == (inside ? INFC_FAULT_NONE : INFC_FAULT_INDEX),
          "index %lld", (long long)index);
    CHECK(!memcmp(y, want, y_bytes), "index %lld of %lld", (long long)index, (long long)axis);
  }
  s.words[INFC_W_PLACE_AXIS]++;
  CHECK(!test_validate(&s, INFC_OP_PLACE, 0), "y is smaller");
  s.words[INFC_W_PLACE_AXIS] = s.words[INFC_W_PLACE_INNER] = UINT32_MAX;
  CHECK(!test_validate(&s, INFC_OP_PLACE, 0), "overflow");
  test_free(x);
  test_free(y);
  test_free(want);
}

int main(void) {
  test_branch();
  for (int mask = 0; mask < 8; mask++)
    test_repeat(mask);
  static const uint8_t dtypes[] = {INFC_DTYPE_U8, INFC_DTYPE_F16, INFC_DTYPE_F32, INFC_DTYPE_I64};
  static const size_t sizes[] = {1, 2, 4, 8};
  test_rng rng = {5};
  for (int i = 0; i < 200; i++)
    place_once(&rng, dtypes[i % 4], sizes[i % 4]);
  return test_result();
}
