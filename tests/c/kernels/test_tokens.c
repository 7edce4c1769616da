// pack_tokens, gather_rows, scatter_rows, segment_reduce, grow, crop: random masks in rectangles smaller than their
// bounds, cut by rows; index data that lies must neither leave a buffer nor go unnoticed.
#include "step.h"

#include <math.h>

enum { BATCH, SEQ, TOKENS, SYMBOLS }; // symbols

static int64_t least(int64_t a, int64_t b) {
  return a < b ? a : b;
}

// ---- pack_tokens ----

static void set_mask(void *mask, uint8_t dtype, int64_t at, bool set) {
  if (dtype == INFC_DTYPE_I64)
    ((int64_t *)mask)[at] = set ? (int64_t)1 << 40 : 0; // not zero, though its low half is
  else if (dtype == INFC_DTYPE_I32)
    ((int32_t *)mask)[at] = set ? INT32_MIN : 0;
  else if (dtype == INFC_DTYPE_F32)
    ((float *)mask)[at] = set ? 0.25f : -0.0f;
  else
    ((uint8_t *)mask)[at] = set ? 0x80 : 0;
}

// dtype 0: no mask.
static void pack_once(test_rng *rng, uint8_t dtype, int64_t max_batch, int64_t max_seq, bool keep_first) {
  int64_t batch = test_random_int(rng, 1, max_batch), seq = test_random_int(rng, 1, max_seq);
  int64_t bound = max_batch * max_seq, density = test_random_int(rng, 0, 4);
  size_t size = dtype == INFC_DTYPE_I64 ? 8 : dtype == INFC_DTYPE_I32 || dtype == INFC_DTYPE_F32 ? 4 : 1;
  void *mask = test_alloc((size_t)(batch * seq) * size); // the caller's, not the bound's
  int32_t *index = test_alloc((size_t)bound * 4), *column = test_alloc((size_t)bound * 4),
          *offsets = test_alloc((size_t)(max_batch + 1) * 4), *key_start = test_alloc((size_t)max_batch * 4);
  int32_t *want_index = calloc((size_t)bound, 4), *want_column = calloc((size_t)bound, 4),
          *want_offsets = calloc((size_t)max_batch + 1, 4), *want_key_start = calloc((size_t)max_batch, 4);
  int32_t rows = 0;
  for (int64_t b = 0; b < batch; b++) {
    want_offsets[b] = want_key_start[b] = rows;
    for (int64_t s = 0; s < seq; s++) {
      bool set = !dtype || test_random_int(rng, 1, 4) <= density;
      if (dtype)
        set_mask(mask, dtype, b * seq + s, set);
      if (!set && !(keep_first && s == 0))
        continue;
      want_key_start[b] += !set;
      want_index[rows] = (int32_t)(b * seq + s);
      want_column[rows++] = (int32_t)s;
    }
  }
  want_offsets[batch] = rows;
  test_step s;
  test_step_init(&s, 1, 1);
  if (dtype)
    test_operand(&s, false, mask, dtype, max_batch, max_seq, max_seq)->rows_symbol = BATCH;
  test_operand(&s, true, index, INFC_DTYPE_I32, bound, 0, 1)->rows_symbol = TOKENS;
  test_operand(&s, true, column, INFC_DTYPE_I32, bound, 0, 1)->rows_symbol = TOKENS;
  test_operand(&s, true, offsets, INFC_DTYPE_I32, max_batch + 1, 0, 1);
  test_operand(&s, true, key_start, INFC_DTYPE_I32, max_batch, 0, 1)->rows_symbol = BATCH;
  test_word(&s, BATCH);
  test_word(&s, SEQ);
  test_word(&s, TOKENS);
  test_word(&s, dtype != 0);
  test_word(&s, keep_first);
  CHECK(test_validate(&s, INFC_OP_PACK_TOKENS, SYMBOLS), "valid");
  for (size_t k = 0; k < infc_kernel_count; k++) {
    if (infc_kernels[k].op != INFC_OP_PACK_TOKENS || !test_supported(&infc_kernels[k]))
      continue;
    const char *name = infc_kernels[k].name;
    int64_t symbols[SYMBOLS] = {batch, seq, -7};
    memset(index, 0xEE, (size_t)bound * 4);
    memset(column, 0xEE, (size_t)bound * 4);
    CHECK(test_run(&s, &infc_kernels[k], 1, 1, symbols) == INFC_FAULT_NONE, "%s", name);
    CHECK(symbols[TOKENS] == rows, "%s: %lld tokens, not %d", name, (long long)symbols[TOKENS], rows);
    CHECK(!memcmp(index, want_index, (size_t)rows * 4), "%s", name);
    CHECK(!memcmp(column, want_column, (size_t)rows * 4), "%s", name);
    CHECK(!memcmp(offsets, want_offsets, (size_t)(batch + 1) * 4), "%s", name);
    CHECK(!memcmp(key_start, want_key_start, (size_t)batch * 4), "%s", name);
  }
  s.words[INFC_W_PACK_TOKENS_TOKENS_SYMBOL] = SEQ;
  CHECK(!test_validate(&s, INFC_OP_PACK_TOKENS, SYMBOLS), "tokens and seq are one symbol");
  s.words[INFC_W_PACK_TOKENS_TOKENS_SYMBOL] = TOKENS;
  CHECK(!test_validate(&s, INFC_OP_PACK_TOKENS, TOKENS), "no such symbol");
  s.operands[dtype != 0].dims[0]--;
  CHECK(!test_validate(&s, INFC_OP_PACK_TOKENS, SYMBOLS), "index is too short");
  test_free(mask);
  test_free(index);
  test_free(column);
  test_free(offsets);
  test_free(key_start);
  free(want_index);
  free(want_column);
  free(want_offsets);
  free(want_key_start);
}

static void test_pack_tokens(void) {
  static const uint8_t dtypes[] = {0, INFC_DTYPE_I64, INFC_DTYPE_I32, INFC_DTYPE_F32, INFC_DTYPE_BOOL, INFC_DTYPE_U8};
  test_rng rng = {11};
  for (int t = 0; t < 600; t++)
    pack_once(&rng, dtypes[t % 6], test_random_int(&rng, 1, 5), test_random_int(&rng, 1, 70), t / 6 % 2);
}

// ---- gather_rows and scatter_rows ----

// An ascending index into `total` positions; returns how many. `lies`: some entries are anything.
static int64_t random_index(test_rng *rng, int32_t *index, int64_t total, int64_t density) {
  int64_t rows = 0;
  for (int64_t i = 0; i < total; i++)
    if (test_random_int(rng, 1, 4) <= density)
      index[rows++] = (int32_t)i;
  return rows;
}

static void rows_once(test_rng *rng, bool scatter, int64_t inner, int type) {
  static const uint8_t dtypes[] = {INFC_DTYPE_I8, INFC_DTYPE_F16, INFC_DTYPE_F32, INFC_DTYPE_I64};
  const int64_t max_batch = 4, max_seq = 20, bound = max_batch * max_seq;
  int64_t batch = test_random_int(rng, 1, max_batch), seq = test_random_int(rng, 1, max_seq), total = batch * seq;
  size_t bytes = (size_t)inner << type, rectangle_bytes = (size_t)total * bytes, packed_bytes = (size_t)bound * bytes;
  uint8_t *rectangle = test_alloc(rectangle_bytes), *packed = test_alloc(packed_bytes);
  int32_t *index = test_alloc((size_t)bound * 4);
  int64_t rows = random_index(rng, index, total, test_random_int(rng, 0, 4));
  uint8_t *want = calloc(scatter ? rectangle_bytes : packed_bytes, 1);
  uint8_t *from = scatter ? packed : rectangle, *y = scatter ? rectangle : packed;
  size_t y_bytes = scatter ? rectangle_bytes : (size_t)rows * bytes;
  for (size_t i = 0; i < (scatter ? packed_bytes : rectangle_bytes); i++)
    from[i] = (uint8_t)test_random(rng);
  for (int64_t r = 0; r < rows; r++)
    memcpy(want + (size_t)(scatter ? index[r] : r) * bytes, from + (size_t)(scatter ? r : index[r]) * bytes, bytes);
  test_step s;
  test_step_init(&s, bound, 1);
  s.step.rows_symbol = TOKENS;
  infc_operand wide, thin = {.dtype = dtypes[type],
                             .rank = 2,
                             .rows_symbol = TOKENS,
                             .row_stride = (uint32_t)inner,
                             .dims = {(uint32_t)bound, (uint32_t)inner, 1, 1, 1, 1, 1, 1}};
  wide = (infc_operand){.dtype = dtypes[type],
                        .rank = 3,
                        .rows_symbol = BATCH,
                        .row_stride = (uint32_t)(max_seq * inner),
                        .dims = {(uint32_t)max_batch, (uint32_t)max_seq, (uint32_t)inner, 1, 1, 1, 1, 1}};
  *test_operand(&s, false, from, 0, 1, 1, 1) = scatter ? thin : wide;
  test_operand(&s, false, index, INFC_DTYPE_I32, bound, 0, 1)->rows_symbol = TOKENS;
  *test_operand(&s, true, y, 0, 1, 1, 1) = scatter ? wide : thin;
  test_word(&s, BATCH);
  test_word(&s, SEQ);
  uint16_t op = scatter ? INFC_OP_SCATTER_ROWS : INFC_OP_GATHER_ROWS;
  CHECK(test_validate(&s, op, SYMBOLS), "%s", infc_operators[op].name);
  int64_t symbols[SYMBOLS] = {batch, seq, rows};
  for (size_t k = 0; k < infc_kernel_count; k++)
    for (int parts = 1; parts <= 7; parts++) {
      if (infc_kernels[k].op != op || !test_supported(&infc_kernels[k]))
        continue;
      memset(y, 0xEE, scatter ? rectangle_bytes : packed_bytes);
      CHECK(test_run(&s, &infc_kernels[k], parts, 1, symbols) == INFC_FAULT_NONE, "%s", infc_kernels[k].name);
      CHECK(!memcmp(y, want, y_bytes), "%s: %lld rows in %d parts", infc_kernels[k].name, (long long)rows, parts);
    }
  // Lies: entries outside, repeated, descending. Only what a fault must leave alone is checked.
  for (int lie = 0; rows && lie < 8; lie++) {
    static const int32_t lies[] = {-1, INT32_MIN, INT32_MAX, 0, 1};
    int64_t at = test_random_int(rng, 0, rows - 1);
    int32_t before = index[at];
    index[at] = test_random(rng) % 2 ? lies[test_random(rng) % 5] : (int32_t)total;
    bool outside = index[at] < 0 || index[at] >= total;
    for (size_t k = 0; k < infc_kernel_count; k++) {
      if (infc_kernels[k].op != op || !test_supported(&infc_kernels[k]))
        continue;
      infc_fault fault = test_run(&s, &infc_kernels[k], 1 + lie % 3, 1, symbols);
      CHECK(!outside || fault == INFC_FAULT_INDEX, "%s", infc_kernels[k].name);
      if (!scatter && outside)
        for (size_t i = 0; i < bytes; i++)
          CHECK(y[(size_t)at * bytes + i] == 0, "%s: a row from outside", infc_kernels[k].name);
    }
    if (lie % 2)
      index[at] = before;
  }
  s.operands[0].dtype = INFC_DTYPE_BF16;
  CHECK(!test_validate(&s, op, SYMBOLS), "types differ");
  s.operands[0].dtype = dtypes[type];
  s.words[1] = SYMBOLS;
  CHECK(!test_validate(&s, op, SYMBOLS), "no such symbol");
  s.words[1] = SEQ;
  s.step.rows--;
  CHECK(!test_validate(&s, op, SYMBOLS), "rows differ from the operands'");
  test_free(rectangle);
  test_free(packed);
  test_free(index);
  free(want);
}

// With no row in use one thread fills the output, others leave it alone.
static void test_scatter_nothing(void) {
  float x[6], y[6] = {1, 2, 3, 4, 5, 6};
  int32_t index[3] = {0};
  test_step s;
  test_step_init(&s, 3, 1);
  s.step.rows_symbol = TOKENS;
  test_operand(&s, false, x, INFC_DTYPE_F32, 3, 2, 2)->rows_symbol = TOKENS;
  test_operand(&s, false, index, INFC_DTYPE_I32, 3, 0, 1)->rows_symbol = TOKENS;
  infc_operand *o = test_operand(&s, true, y, INFC_DTYPE_F32, 1, 3, 6);
  o->rank = 3;
  o->dims[2] = 2;
  test_word(&s, BATCH);
  test_word(&s, SEQ);
  CHECK(test_validate(&s, INFC_OP_SCATTER_ROWS, SYMBOLS), "valid");
  int64_t symbols[SYMBOLS] = {1, 2, 0};
  const infc_range nothing = {0};
  for (size_t k = 0; k < infc_kernel_count; k++)
    if (infc_kernels[k].op == INFC_OP_SCATTER_ROWS && test_supported(&infc_kernels[k])) {
      infc_worker worker = {.symbols = symbols, .thread = 1, .threads = 2};
      y[0] = 1;
      infc_kernels[k].run(&s.task, &nothing, &worker);
      CHECK(y[0] == 1, "thread 1 wrote");
      worker.thread = 0;
      infc_kernels[k].run(&s.task, &nothing, &worker);
      CHECK(y[0] == 0 && y[3] == 0 && y[4] == 5, "the caller's [1, 2] of the bound's [1, 3] is zero");
    }
}

static void test_rows(void) {
  test_rng rng = {12};
  for (int t = 0; t < 400; t++)
    rows_once(&rng, t % 2, t % 3 ? 1 : test_random_int(&rng, 2, 40), t / 2 % 4);
  test_scatter_nothing();
}

// ---- segment_reduce ----

static void reduce_once(test_rng *rng, uint32_t kind, int64_t n, bool lies) {
  const int64_t max_batch = 6, bound = 60;
  int64_t batch = test_random_int(rng, 1, max_batch), tokens = test_random_int(rng, 0, bound);
  float epsilon = test_random(rng) % 2 ? 1e-9f : 3.5f;
  float *x = test_alloc((size_t)(bound * n) * 4), *y = test_alloc((size_t)(max_batch * n) * 4),
        *want = test_alloc((size_t)(max_batch * n) * 4);
  int32_t *offsets = test_alloc((size_t)(max_batch + 1) * 4), *key_start = test_alloc((size_t)max_batch * 4);
  test_fill_random(rng, x, (size_t)(bound * n), -1, 1);
  for (int i = 0; i < 4; i++)
    x[test_random_int(rng, 0, bound * n - 1)] = i < 2 ? NAN : INFINITY;
  offsets[0] = 0;
  for (int64_t b = 0; b < batch; b++) {
    offsets[b + 1] = (int32_t)(b + 1 == batch ? tokens : least(offsets[b] + test_random_int(rng, 0, 20), tokens));
    key_start[b] = offsets[b] + (offsets[b] < offsets[b + 1] && test_random(rng) % 2);
  }
  if (lies) {
    static const int32_t values[] = {-1, INT32_MIN, INT32_MAX, 61, 0, 1};
    (test_random(rng) % 2 ? offsets : key_start)[test_random_int(rng, 0, batch - 1)] = values[test_random(rng) % 6];
  }
  infc_fault fault = INFC_FAULT_NONE;
  for (int64_t b = 0; b < batch; b++) {
    int64_t first = kind == INFC_SEGMENT_FIRST ? offsets[b] : key_start[b], end = offsets[b + 1];
    bool outside = first < 0 || end > tokens || first > end;
    if (outside)
      fault = INFC_FAULT_INDEX;
    for (int64_t i = 0; i < n; i++) {
      float r = 0;
      for (int64_t t = first; !outside && t < end; t++) {
        float v = x[t * n + i];
        if (t == first)
          r = v;
        else if (kind == INFC_SEGMENT_MAX)
          r = isnan(r) || isnan(v) ? NAN : fmaxf(r, v);
        else if (kind != INFC_SEGMENT_FIRST)
          r += v;
      }
      want[b * n + i] =
          kind == INFC_SEGMENT_MEAN && !outside && end > first ? r / fmaxf((float)(end - first), epsilon) : r;
    }
  }
  test_step s;
  test_step_init(&s, max_batch, 1);
  s.step.rows_symbol = BATCH;
  test_operand(&s, false, x, INFC_DTYPE_F32, bound, n, n)->rows_symbol = TOKENS;
  test_operand(&s, false, offsets, INFC_DTYPE_I32, max_batch + 1, 0, 1);
  test_operand(&s, false, key_start, INFC_DTYPE_I32, max_batch, 0, 1)->rows_symbol = BATCH;
  test_operand(&s, true, y, INFC_DTYPE_F32, max_batch, n, n)->rows_symbol = BATCH;
  test_word(&s, kind);
  test_word(&s, test_float_word(epsilon));
  CHECK(test_validate(&s, INFC_OP_SEGMENT_REDUCE, SYMBOLS), "valid");
  int64_t symbols[SYMBOLS] = {batch, 1, tokens};
  for (size_t k = 0; k < infc_kernel_count; k++)
    for (int parts = 1; parts <= 3; parts++) {
      if (infc_kernels[k].op != INFC_OP_SEGMENT_REDUCE || !test_supported(&infc_kernels[k]))
        continue;
      memset(y, 0xEE, (size_t)(max_batch * n) * 4);
      CHECK(test_run(&s, &infc_kernels[k], parts, 1, symbols) == fault, "%s", infc_kernels[k].name);
      for (int64_t i = 0; i < batch * n; i++)
        if (!CHECK(test_close(y[i], want[i], 0), "%s: kind %u, element %lld: %g, not %g", infc_kernels[k].name, kind,
                   (long long)i, (double)y[i], (double)want[i]))
          break;
    }
  s.words[0] = INFC_SEGMENT_COUNT;
  CHECK(!test_validate(&s, INFC_OP_SEGMENT_REDUCE, SYMBOLS), "no such kind");
  s.words[0] = kind;
  s.operands[1].dims[0]--;
  CHECK(!test_validate(&s, INFC_OP_SEGMENT_REDUCE, SYMBOLS), "offsets is too short");
  s.operands[1].dims[0]++;
  CHECK(!test_validate(&s, INFC_OP_SEGMENT_REDUCE, TOKENS), "no such symbol");
  test_free(x);
  test_free(y);
  test_free(want);
  test_free(offsets);
  test_free(key_start);
}

static void test_segment_reduce(void) {
  test_rng rng = {13};
  static const int64_t widths[] = {1, 5, 8, 16, 33, 64, 128, 150, 300};
  for (uint32_t kind = 0; kind < INFC_SEGMENT_COUNT; kind++)
    for (int w = 0; w < 9; w++)
      for (int t = 0; t < 10; t++)
        reduce_once(&rng, kind, widths[w], t % 3 == 0);
}

// ---- sum_until ----

static void sum_once(test_rng *rng, bool wide, bool counts) {
  const int64_t max_batch = 4, max_seq = 20, bound = max_batch * max_seq;
  int64_t batch = test_random_int(rng, 1, max_batch), seq = test_random_int(rng, 1, max_seq), total = batch * seq;
  void *x = test_alloc((size_t)total * (wide ? 8 : 4));
  int32_t *index = test_alloc((size_t)bound * 4), *column = test_alloc((size_t)bound * 4);
  int64_t *y = test_alloc((size_t)bound * 8), *want = test_alloc((size_t)bound * 8);
  for (int64_t i = 0; i < total; i++) {
    int64_t element = test_random_int(rng, -2, 2);
    if (wide)
      ((int64_t *)x)[i] = element;
    else
      ((int32_t *)x)[i] = (int32_t)element;
  }
  int64_t rows = random_index(rng, index, total, test_random_int(rng, 0, 4));
  for (int64_t r = 0; r < rows; r++) {
    column[r] = (int32_t)(index[r] % seq);
    want[r] = 0;
    for (int64_t i = index[r] - column[r]; i <= index[r]; i++) {
      int64_t element = wide ? ((int64_t *)x)[i] : ((int32_t *)x)[i];
      want[r] += counts ? element != -1 : element;
    }
  }
  test_step s;
  test_step_init(&s, bound, 1);
  s.step.rows_symbol = TOKENS;
  *test_operand(&s, false, x, 0, 1, 1, 1) =
      (infc_operand){.dtype = wide ? INFC_DTYPE_I64 : INFC_DTYPE_I32,
                     .rank = 2,
                     .rows_symbol = BATCH,
                     .row_stride = (uint32_t)max_seq,
                     .dims = {(uint32_t)max_batch, (uint32_t)max_seq, 1, 1, 1, 1, 1, 1}};
  test_operand(&s, false, index, INFC_DTYPE_I32, bound, 0, 1)->rows_symbol = TOKENS;
  test_operand(&s, false, column, INFC_DTYPE_I32, bound, 0, 1)->rows_symbol = TOKENS;
  test_operand(&s, true, y, INFC_DTYPE_I64, bound, 0, 1)->rows_symbol = TOKENS;
  test_word(&s, BATCH);
  test_word(&s, SEQ);
  test_word(&s, counts);
  test_word(&s, UINT32_MAX); // -1
  CHECK(test_validate(&s, INFC_OP_SUM_UNTIL, SYMBOLS), "sum_until");
  int64_t symbols[SYMBOLS] = {batch, seq, rows};
  for (size_t k = 0; k < infc_kernel_count; k++)
    for (int parts = 1; parts <= 7; parts++) {
      if (infc_kernels[k].op != INFC_OP_SUM_UNTIL || !test_supported(&infc_kernels[k]))
        continue;
      memset(y, 0xEE, (size_t)bound * 8);
      CHECK(test_run(&s, &infc_kernels[k], parts, 1, symbols) == INFC_FAULT_NONE, "%s", infc_kernels[k].name);
      CHECK(!memcmp(y, want, (size_t)rows * 8), "%s: %lld rows in %d parts", infc_kernels[k].name, (long long)rows,
            parts);
      if (rows == 0)
        continue;
      // A row that does not lie in the rectangle, or begins before it.
      int64_t at = test_random_int(rng, 0, rows - 1);
      int32_t *lie = test_random(rng) % 2 ? index : column, before = lie[at];
      lie[at] = test_random(rng) % 2 ? INT32_MAX : INT32_MIN;
      CHECK(test_run(&s, &infc_kernels[k], parts, 1, symbols) == INFC_FAULT_INDEX, "%s", infc_kernels[k].name);
      lie[at] = before;
    }
  test_free(x);
  test_free(index);
  test_free(column);
  test_free(y);
  test_free(want);
}

static void test_sum_until(void) {
  test_rng rng = {13};
  for (int t = 0; t < 200; t++)
    sum_once(&rng, t % 2, t / 2 % 2);
}

// ---- grow and crop ----

// symbols 0: both dimensions vary, 1: batch alone, 2: seq alone. A rectangle of rank 1 has no seq.
static void corner_once(test_rng *rng, bool crop, int varies, int rank) {
  const int64_t max_batch = 4, max_seq = rank > 1 ? 9 : 1, inner = rank > 2 ? test_random_int(rng, 1, 7) : 1;
  int64_t batch = varies == 2 ? max_batch : test_random_int(rng, 1, max_batch),
          seq = varies == 1 ? max_seq : test_random_int(rng, 1, max_seq);
  size_t bytes = (size_t)inner * 4, small = (size_t)(batch * seq) * bytes,
         large = (size_t)(max_batch * max_seq) * bytes;
  uint8_t *rectangle = test_alloc(small), *whole = test_alloc(large), *want = calloc(crop ? small : large, 1);
  uint8_t *from = crop ? whole : rectangle, *y = crop ? rectangle : whole;
  for (size_t i = 0; i < (crop ? large : small); i++)
    from[i] = (uint8_t)test_random(rng);
  for (int64_t b = 0; b < batch; b++) {
    size_t near = (size_t)(b * seq) * bytes, far = (size_t)(b * max_seq) * bytes;
    memcpy(want + (crop ? near : far), from + (crop ? far : near), (size_t)seq * bytes);
  }
  test_step s;
  test_step_init(&s, max_batch, 1);
  infc_operand wide = {.dtype = INFC_DTYPE_F32,
                       .rank = (uint8_t)rank,
                       .rows_symbol = -1,
                       .row_stride = (uint32_t)(max_seq * inner),
                       .dims = {(uint32_t)max_batch, (uint32_t)max_seq, (uint32_t)inner, 1, 1, 1, 1, 1}},
               callers = wide;
  callers.rows_symbol = varies == 2 ? -1 : BATCH;
  *test_operand(&s, false, from, 0, 1, 1, 1) = crop ? wide : callers;
  *test_operand(&s, true, y, 0, 1, 1, 1) = crop ? callers : wide;
  test_word(&s, varies == 2 ? UINT32_MAX : BATCH);
  test_word(&s, varies == 1 ? UINT32_MAX : SEQ);
  uint16_t op = crop ? INFC_OP_CROP : INFC_OP_GROW;
  CHECK(test_validate(&s, op, SYMBOLS), "%s", infc_operators[op].name);
  int64_t symbols[SYMBOLS] = {batch, seq, -7};
  for (size_t k = 0; k < infc_kernel_count; k++)
    for (int parts = 1; parts <= 5; parts++) {
      if (infc_kernels[k].op != op || !test_supported(&infc_kernels[k]))
        continue;
      memset(y, 0xEE, crop ? small : large);
      CHECK(test_run(&s, &infc_kernels[k], parts, 1, symbols) == INFC_FAULT_NONE, "%s", infc_kernels[k].name);
      CHECK(!memcmp(y, want, crop ? small : large), "%s in %d parts", infc_kernels[k].name, parts);
    }
  s.operands[crop].dtype = INFC_DTYPE_I64;
  CHECK(!test_validate(&s, op, SYMBOLS), "types differ");
  s.operands[crop].dtype = INFC_DTYPE_F32;
  s.words[0] = SYMBOLS;
  CHECK(!test_validate(&s, op, SYMBOLS), "no such symbol");
  s.words[0] = (uint32_t)s.operands[crop].rows_symbol;
  s.operands[!crop].rows_symbol = BATCH;
  CHECK(!test_validate(&s, op, SYMBOLS), "the profile's rectangle varies");
  s.operands[!crop].rows_symbol = -1;
  s.operands[!crop].dims[rank - 1]++;
  CHECK(!test_validate(&s, op, SYMBOLS), "rectangles of other sizes");
  test_free(rectangle);
  test_free(whole);
  free(want);
}

static void test_corners(void) {
  test_rng rng = {14};
  for (int t = 0; t < 360; t++)
    corner_once(&rng, t % 2, t / 2 % 3, 1 + t / 6 % 3);
}

int main(void) {
  test_corners();
  test_pack_tokens();
  test_rows();
  test_sum_until();
  test_segment_reduce();
  return test_result();
}
