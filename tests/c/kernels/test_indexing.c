// gather_elements, scatter_elements, gather_nd, scatter_nd: against loops over two dimensions, indices from both ends,
// faults, and what validators refuse.
#include "step.h"

enum { ROWS = 3, SIZE = 5, COUNT = 4, INNER = 2 };

static int64_t random_index(test_rng *rng, bool bad, infc_fault *fault) {
  if (bad && test_random(rng) % 5 == 0) {
    const int64_t outside[] = {SIZE, -SIZE - 1, INT64_MIN, INT64_MAX};
    *fault = INFC_FAULT_INDEX;
    return outside[test_random(rng) % 4];
  }
  return test_random_int(rng, -SIZE, SIZE - 1);
}

static int64_t place(int64_t index) {
  index += index < 0 ? SIZE : 0;
  return index >= 0 && index < SIZE ? index : -1;
}

static void words(test_step *s, int count, const uint32_t *values) {
  for (int i = 0; i < count; i++)
    test_word(s, values[i]);
}

static void run_all(test_step *s, uint16_t op, int parts, infc_fault fault, void *y, size_t bytes, const void *before,
                    const void *want) {
  CHECK(test_validate(s, op, 0), "valid");
  for (size_t k = 0; k < infc_kernel_count; k++)
    for (int p = 1; p <= parts; p++) {
      if (infc_kernels[k].op != op || !test_supported(&infc_kernels[k]))
        continue;
      memcpy(y, before, bytes);
      CHECK(test_run(s, &infc_kernels[k], p, 1, NULL) == fault, "%s", infc_kernels[k].name);
      CHECK(!memcmp(y, want, bytes), "%s in %d parts", infc_kernels[k].name, p);
    }
}

// y[r][i] = x[r][index[r][i]]
static void test_gather_elements(test_rng *rng, bool bad) {
  float *x = test_alloc(ROWS * SIZE * 4), *y = test_alloc(ROWS * COUNT * 4), want[ROWS * COUNT] = {0};
  int64_t *indices = test_alloc(ROWS * COUNT * 8);
  infc_fault fault = INFC_FAULT_NONE;
  test_fill_random(rng, x, ROWS * SIZE, -1, 1);
  for (int i = 0; i < ROWS * COUNT; i++) {
    indices[i] = random_index(rng, bad, &fault);
    want[i] = place(indices[i]) < 0 ? 0 : x[i / COUNT * SIZE + place(indices[i])];
  }
  test_step s;
  test_step_init(&s, ROWS, 1);
  test_operand(&s, false, x, INFC_DTYPE_F32, ROWS, SIZE, SIZE);
  test_operand(&s, false, indices, INFC_DTYPE_I64, ROWS, COUNT, COUNT);
  test_operand(&s, true, y, INFC_DTYPE_F32, ROWS, COUNT, COUNT);
  words(&s, 20, (uint32_t[]){ROWS, 1, 1, 1, 1, COUNT, SIZE, 0, 0, 0, 0, 0, COUNT, 0, 0, 0, 0, 1, SIZE, 1});
  run_all(&s, INFC_OP_GATHER_ELEMENTS, 3, fault, y, sizeof want, want, want);
  s.words[INFC_W_GATHER_ELEMENTS_SIZE] = SIZE + 1;
  CHECK(!test_validate(&s, INFC_OP_GATHER_ELEMENTS, 0), "an index beyond the last row");
  s.words[INFC_W_GATHER_ELEMENTS_SIZE] = 0;
  CHECK(!test_validate(&s, INFC_OP_GATHER_ELEMENTS, 0), "no element to take");
  s.words[INFC_W_GATHER_ELEMENTS_SIZE] = UINT32_MAX;
  s.words[INFC_W_GATHER_ELEMENTS_STRIDE] = UINT32_MAX;
  CHECK(!test_validate(&s, INFC_OP_GATHER_ELEMENTS, 0), "overflow");
  s.words[INFC_W_GATHER_ELEMENTS_SIZE] = 2; // the far end is inside, the near one is not
  s.words[INFC_W_GATHER_ELEMENTS_STRIDE] = SIZE;
  s.words[INFC_W_GATHER_ELEMENTS_SX0] = (uint32_t)-1;
  CHECK(!test_validate(&s, INFC_OP_GATHER_ELEMENTS, 0), "before the first element");
  test_free(x), test_free(y), test_free(indices);
}

// y[r][index[r][i]] += x[r][i] (integers, where the order of equal indices does not show), or = x for the last one.
static void test_scatter_elements(test_rng *rng, bool bad, uint32_t kind) {
  int32_t *x = test_alloc(ROWS * COUNT * 4), *y = test_alloc(ROWS * SIZE * 4), before[ROWS * SIZE], want[ROWS * SIZE];
  int64_t *indices = test_alloc(ROWS * COUNT * 8);
  infc_fault fault = INFC_FAULT_NONE;
  for (int i = 0; i < ROWS * SIZE; i++)
    want[i] = before[i] = (int32_t)test_random(rng);
  for (int i = 0; i < ROWS * COUNT; i++) {
    x[i] = (int32_t)test_random(rng);
    indices[i] = random_index(rng, bad, &fault);
    if (place(indices[i]) < 0)
      continue;
    int32_t *to = &want[i / COUNT * SIZE + place(indices[i])], a = *to, b = x[i];
    *to = kind == INFC_SCATTER_NONE  ? b
          : kind == INFC_SCATTER_ADD ? (int32_t)((uint32_t)a + (uint32_t)b)
          : kind == INFC_SCATTER_MUL ? (int32_t)((uint32_t)a * (uint32_t)b)
          : kind == INFC_SCATTER_MAX ? (a > b ? a : b)
                                     : (a < b ? a : b);
  }
  test_step s;
  test_step_init(&s, ROWS, 1);
  test_operand(&s, false, x, INFC_DTYPE_I32, ROWS, COUNT, COUNT);
  test_operand(&s, false, indices, INFC_DTYPE_I64, ROWS, COUNT, COUNT);
  test_operand(&s, true, y, INFC_DTYPE_I32, ROWS, SIZE, SIZE);
  words(&s, 27, (uint32_t[]){kind, ROWS, 1, 1, 1, 1,    COUNT, COUNT, 0, 0, 0, 0,    1, COUNT,
                             0,    0,    0, 0, 1, SIZE, 0,     0,     0, 0, 0, SIZE, 1});
  run_all(&s, INFC_OP_SCATTER_ELEMENTS, 3, fault, y, sizeof want, before, want);
  s.words[INFC_W_SCATTER_ELEMENTS_KIND] = INFC_SCATTER_COUNT;
  CHECK(!test_validate(&s, INFC_OP_SCATTER_ELEMENTS, 0), "unknown kind");
  s.words[INFC_W_SCATTER_ELEMENTS_KIND] = INFC_SCATTER_ADD;
  s.operands[0].dtype = s.operands[2].dtype = INFC_DTYPE_BOOL;
  CHECK(!test_validate(&s, INFC_OP_SCATTER_ELEMENTS, 0), "bools do not add");
  s.operands[0].dtype = s.operands[2].dtype = INFC_DTYPE_I32;
  s.words[INFC_W_SCATTER_ELEMENTS_STRIDE] = 2;
  CHECK(!test_validate(&s, INFC_OP_SCATTER_ELEMENTS, 0), "beyond the last row");
  test_free(x), test_free(y), test_free(indices);
}

// y[r] = x[index[r][0]][index[r][1]], runs of INNER elements
static void test_tuples(test_rng *rng, bool bad) {
  enum { IMAGE = SIZE * SIZE * INNER };
  float *x = test_alloc(IMAGE * 4), *y = test_alloc(ROWS * INNER * 4), *z = test_alloc(IMAGE * 4);
  float want[ROWS * INNER] = {0}, before[IMAGE], scattered[IMAGE];
  int64_t *indices = test_alloc(ROWS * 2 * 8);
  infc_fault fault = INFC_FAULT_NONE;
  test_fill_random(rng, x, IMAGE, -1, 1);
  test_fill_random(rng, before, IMAGE, -1, 1);
  memcpy(scattered, before, sizeof before);
  for (int r = 0; r < ROWS; r++) {
    indices[2 * r] = random_index(rng, bad, &fault);
    indices[2 * r + 1] = random_index(rng, bad, &fault);
    const int64_t a = place(indices[2 * r]), b = place(indices[2 * r + 1]);
    if (a < 0 || b < 0)
      continue;
    memcpy(want + r * INNER, x + (a * SIZE + b) * INNER, INNER * 4);
    memcpy(scattered + (a * SIZE + b) * INNER, x + r * INNER, INNER * 4);
  }
  test_step s;
  test_step_init(&s, ROWS, 1);
  test_operand(&s, false, x, INFC_DTYPE_F32, IMAGE, 0, 1);
  test_operand(&s, false, indices, INFC_DTYPE_I64, ROWS, 2, 2);
  test_operand(&s, true, y, INFC_DTYPE_F32, ROWS, INNER, INNER);
  words(&s, 9, (uint32_t[]){ROWS, 2, INNER, SIZE, SIZE, 1, 1, 1, 1});
  run_all(&s, INFC_OP_GATHER_ND, 3, fault, y, sizeof want, want, want);
  s.words[INFC_W_GATHER_ND_N0]++;
  CHECK(!test_validate(&s, INFC_OP_GATHER_ND, 0), "more places than elements");
  s.words[INFC_W_GATHER_ND_N0]--;
  s.words[INFC_W_GATHER_ND_DEPTH] = INFC_NEST + 1;
  CHECK(!test_validate(&s, INFC_OP_GATHER_ND, 0), "tuples that are too long");
  s.words[INFC_W_GATHER_ND_DEPTH] = 2;
  s.words[INFC_W_GATHER_ND_TUPLES] = 0;
  CHECK(!test_validate(&s, INFC_OP_GATHER_ND, 0), "no tuple");

  test_step_init(&s, 1, 1);
  test_operand(&s, false, x, INFC_DTYPE_F32, ROWS, INNER, INNER);
  test_operand(&s, false, indices, INFC_DTYPE_I64, ROWS, 2, 2);
  test_operand(&s, true, z, INFC_DTYPE_F32, IMAGE, 0, 1);
  words(&s, 10, (uint32_t[]){INFC_SCATTER_NONE, ROWS, 2, INNER, SIZE, SIZE, 1, 1, 1, 1});
  run_all(&s, INFC_OP_SCATTER_ND, 1, fault, z, sizeof before, before, scattered);
  s.words[INFC_W_SCATTER_ND_TUPLES]++;
  CHECK(!test_validate(&s, INFC_OP_SCATTER_ND, 0), "more tuples than rows");
  s.words[INFC_W_SCATTER_ND_TUPLES] = ROWS;
  s.step.split[0] = INFC_SPLIT_ROWS;
  CHECK(!test_validate(&s, INFC_OP_SCATTER_ND, 0), "two threads may meet");
  test_free(x), test_free(y), test_free(z), test_free(indices);
}

int main(void) {
  test_rng rng = {11};
  for (int t = 0; t < 100; t++) {
    test_gather_elements(&rng, t % 2);
    test_scatter_elements(&rng, t % 2, (uint32_t)t % INFC_SCATTER_COUNT);
    test_tuples(&rng, t % 2);
  }
  return test_result();
}
