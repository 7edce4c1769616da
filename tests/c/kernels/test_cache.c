// cache_write and cache_attention: every kernel against the scalar reference, and that against attention over all keys
// and values of a sequence as they were before they went into a cache.
#include "cpu_features.h"
#include "kernels/cache/cache.h"
#include "step.h"

#include <math.h>

enum { MOST_SEQUENCES = 4, POOL = 96 }; // blocks of a layer

static test_rng rng = {0x9E3779B97F4A7C15u};

static const uint32_t dtypes[] = {INFC_DTYPE_F32, INFC_DTYPE_BF16, INFC_DTYPE_I8, INFC_DTYPE_F8E4M3FN};
// What an element may be off by, as a share of the greatest of its head.
static const float grains[] = {0.0f, 0x1p-8f, 0.5f / 127, 0x1p-4f};

typedef struct shape {
  int64_t heads, kv_heads, k_dim, v_dim;
  int64_t window, pairs; // pairs: that are rotated, 0: none
  bool interleaved;
  float softcap;
  int pad; // elements by which strides exceed the rows
} shape;

// Sequences and all their tokens, of which a run takes some.
typedef struct text {
  int64_t length;                   // tokens
  int64_t past;                     // that are in the cache
  float *q, *k, *v, *cos, *sin, *y; // [length][...]
  int32_t table[POOL];
} text;

typedef struct world {
  shape s;
  int dtype; // index
  infc_cache_layer layers[2];
  infc_cache_sequence sequences[MOST_SEQUENCES];
  infc_cache cache;
  int count;
  text texts[MOST_SEQUENCES];
  size_t pool_bytes;
} world;

static float *random_floats(int64_t count) {
  float *x = test_alloc((size_t)count * sizeof *x);
  test_fill_random(&rng, x, (size_t)count, -1, 1);
  return x;
}

// Blocks of all sequences in any order; every byte of the pool is one of a NaN.
static void make_world(world *w, const shape *s, int dtype, int count, int64_t longest) {
  memset(w, 0, sizeof *w);
  w->s = *s;
  w->dtype = dtype;
  w->count = count;
  int32_t free_blocks[POOL];
  for (int i = 0; i < POOL; i++)
    free_blocks[i] = i;
  for (int i = POOL - 1; i > 0; i--) {
    const int j = (int)test_random_int(&rng, 0, i), block = free_blocks[i];
    free_blocks[i] = free_blocks[j], free_blocks[j] = block;
  }
  int taken = 0;
  for (int i = 0; i < count; i++) {
    text *t = &w->texts[i];
    t->length = test_random_int(&rng, 1, longest);
    t->q = random_floats(t->length * s->heads * s->k_dim);
    t->k = random_floats(t->length * s->kv_heads * s->k_dim);
    t->v = random_floats(t->length * s->kv_heads * s->v_dim);
    t->y = random_floats(t->length * s->heads * s->v_dim);
    t->cos = random_floats(t->length * (s->pairs + 1));
    t->sin = random_floats(t->length * (s->pairs + 1));
    for (int64_t block = 0; block < (t->length + 31) / 32; block++)
      t->table[block] = free_blocks[taken++];
  }
  infc_cache_layer *layer = &w->layers[1];
  *layer = (infc_cache_layer){.heads = (uint32_t)s->kv_heads,
                              .k_dim = (uint32_t)s->k_dim,
                              .v_dim = (uint32_t)s->v_dim,
                              .window = (uint32_t)s->window,
                              .group = 3,
                              .dtype = dtypes[dtype]};
  infc_cache_lay_out(layer);
  w->pool_bytes = POOL * layer->block_bytes;
  layer->blocks = test_alloc(w->pool_bytes);
  memset(layer->blocks, 0xFF, w->pool_bytes);
  w->cache = (infc_cache){w->layers, w->sequences, 2, (uint32_t)count};
}

static void free_world(world *w) {
  for (int i = 0; i < w->count; i++) {
    text *t = &w->texts[i];
    float *all[] = {t->q, t->k, t->v, t->y, t->cos, t->sin};
    for (size_t j = 0; j < sizeof all / sizeof *all; j++)
      test_free(all[j]);
  }
  test_free(w->layers[1].blocks);
}

// Kernels that round queries to bf16 are off by that too.
static float tolerance_of(const world *w) {
  const bool rounds = w->dtype && infc_cpu_features() & INFC_CPU_AVX512_BF16;
  return rounds ? 0x1p-7f : 2e-5f;
}

static const infc_kernel *scalar_of(uint16_t op) {
  for (size_t i = 0; i < infc_kernel_count; i++)
    if (infc_kernels[i].op == op && infc_kernels[i].isa == INFC_ISA_SCALAR)
      return &infc_kernels[i];
  abort();
}

// ---- One run: the rows of some tokens of every sequence, with rows of none between

typedef struct run {
  int64_t rows, bound;
  float *q, *k, *v, *cos, *sin, *turned, *y;
  int64_t ldq, ldk, ldv, ldc;
  test_step write, attention;
} run;

static infc_operand *rows_operand(test_step *t, bool output, void *x, int64_t rows, int64_t cols, int64_t stride) {
  infc_operand *o = test_operand(t, output, x, INFC_DTYPE_F32, rows, cols, stride);
  o->rows_symbol = 0;
  return o;
}

static void write_words(test_step *t, const shape *s) {
  const int64_t words[INFC_WORDS_CACHE_WRITE] = {
      [INFC_W_CACHE_WRITE_LAYER] = 1,
      [INFC_W_CACHE_WRITE_HEADS] = s->heads,
      [INFC_W_CACHE_WRITE_KV_HEADS] = s->kv_heads,
      [INFC_W_CACHE_WRITE_K_DIM] = s->k_dim,
      [INFC_W_CACHE_WRITE_V_DIM] = s->v_dim,
      [INFC_W_CACHE_WRITE_HAS_ROPE] = s->pairs > 0,
      [INFC_W_CACHE_WRITE_INTERLEAVED] = s->interleaved,
  };
  for (int i = 0; i < INFC_WORDS_CACHE_WRITE; i++)
    test_word(t, (uint32_t)words[i]);
}

static void attention_words(test_step *t, const shape *s) {
  const uint32_t words[INFC_WORDS_CACHE_ATTENTION] = {
      [INFC_W_CACHE_ATTENTION_LAYER] = 1,
      [INFC_W_CACHE_ATTENTION_HEADS] = (uint32_t)s->heads,
      [INFC_W_CACHE_ATTENTION_KV_HEADS] = (uint32_t)s->kv_heads,
      [INFC_W_CACHE_ATTENTION_K_DIM] = (uint32_t)s->k_dim,
      [INFC_W_CACHE_ATTENTION_V_DIM] = (uint32_t)s->v_dim,
      [INFC_W_CACHE_ATTENTION_SCALE] = test_float_word(1.0f / sqrtf((float)s->k_dim)),
      [INFC_W_CACHE_ATTENTION_SOFTCAP] = test_float_word(s->softcap),
  };
  for (int i = 0; i < INFC_WORDS_CACHE_ATTENTION; i++)
    test_word(t, words[i]);
}

static void make_steps(run *r, const shape *s) {
  test_step_init(&r->write, r->bound, 1);
  r->write.step.rows_symbol = 0;
  rows_operand(&r->write, false, r->q, r->bound, s->heads * s->k_dim, r->ldq);
  rows_operand(&r->write, false, r->k, r->bound, s->kv_heads * s->k_dim, r->ldk);
  rows_operand(&r->write, false, r->v, r->bound, s->kv_heads * s->v_dim, r->ldv);
  if (s->pairs) {
    rows_operand(&r->write, false, r->cos, r->bound, s->pairs, r->ldc);
    rows_operand(&r->write, false, r->sin, r->bound, s->pairs, r->ldc);
  }
  rows_operand(&r->write, true, r->turned, r->bound, s->heads * s->k_dim, s->heads * s->k_dim);
  write_words(&r->write, s);
  test_step_init(&r->attention, r->bound,
                 test_random_int(&rng, 1, 3) * s->heads - test_random_int(&rng, 0, s->heads - 1));
  r->attention.step.rows_symbol = 0;
  rows_operand(&r->attention, false, r->turned, r->bound, s->heads * s->k_dim, s->heads * s->k_dim);
  rows_operand(&r->attention, true, r->y, r->bound, s->heads * s->v_dim, s->heads * s->v_dim);
  attention_words(&r->attention, s);
}

static void copy_rows(float *to, int64_t ld, const float *from, int64_t cols, int64_t rows) {
  for (int64_t i = 0; i < rows; i++)
    memcpy(to + i * ld, from + i * cols, (size_t)cols * sizeof *to);
}

// The next `tokens[i]` of each sequence.
static void begin_run(world *w, run *r, const int64_t *tokens) {
  const shape *s = &w->s;
  memset(r, 0, sizeof *r);
  for (int i = 0; i < w->count; i++) {
    r->rows += test_random(&rng) % 3 == 0; // rows of no sequence
    w->sequences[i] = (infc_cache_sequence){.row0 = r->rows, .rows = tokens[i], .past = w->texts[i].past};
    w->sequences[i].tables[3] = w->texts[i].table;
    r->rows += tokens[i];
  }
  r->rows += test_random(&rng) % 2;
  r->bound = r->rows + (int64_t)(test_random(&rng) % 3) + (r->rows == 0);
  r->ldq = s->heads * s->k_dim + s->pad, r->ldk = s->kv_heads * s->k_dim + s->pad;
  r->ldv = s->kv_heads * s->v_dim + s->pad, r->ldc = s->pairs + s->pad;
  r->q = random_floats(r->bound * r->ldq);
  r->k = random_floats(r->bound * r->ldk);
  r->v = random_floats(r->bound * r->ldv);
  r->cos = random_floats(r->bound * (r->ldc + 1));
  r->sin = random_floats(r->bound * (r->ldc + 1));
  r->turned = random_floats(r->bound * s->heads * s->k_dim);
  r->y = random_floats(r->bound * s->heads * s->v_dim);
  for (int i = 0; i < w->count; i++) {
    const text *t = &w->texts[i];
    const int64_t row = w->sequences[i].row0;
    copy_rows(r->q + row * r->ldq, r->ldq, t->q + t->past * s->heads * s->k_dim, s->heads * s->k_dim, tokens[i]);
    copy_rows(r->k + row * r->ldk, r->ldk, t->k + t->past * s->kv_heads * s->k_dim, s->kv_heads * s->k_dim, tokens[i]);
    copy_rows(r->v + row * r->ldv, r->ldv, t->v + t->past * s->kv_heads * s->v_dim, s->kv_heads * s->v_dim, tokens[i]);
    copy_rows(r->cos + row * r->ldc, r->ldc, t->cos + t->past * s->pairs, s->pairs, tokens[i]);
    copy_rows(r->sin + row * r->ldc, r->ldc, t->sin + t->past * s->pairs, s->pairs, tokens[i]);
  }
  make_steps(r, s);
  CHECK(test_validate(&r->write, INFC_OP_CACHE_WRITE, 1), "valid");
  CHECK(test_validate(&r->attention, INFC_OP_CACHE_ATTENTION, 1), "valid");
}

static void end_run(run *r) {
  float *all[] = {r->q, r->k, r->v, r->cos, r->sin, r->turned, r->y};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    test_free(all[i]);
}

static infc_fault run_step(const test_step *s, const infc_kernel *kernel, int row_parts, int col_parts, int64_t rows,
                           const infc_cache *cache) {
  const size_t scratch = infc_operators[kernel->op].scratch(&s->task);
  int64_t symbols[1] = {rows};
  infc_worker worker = {.scratch = test_alloc(scratch), .symbols = symbols, .threads = 1, .cache = cache};
  infc_fault fault = INFC_FAULT_NONE;
  for (int r = 0; r < row_parts; r++)
    for (int c = 0; c < col_parts; c++) {
      const int64_t cols = s->step.cols;
      const infc_range range = {rows * r / row_parts, rows * (r + 1) / row_parts, rows, cols * c / col_parts,
                                cols * (c + 1) / col_parts};
      const infc_fault one = kernel->run(&s->task, &range, &worker);
      fault = one ? one : fault;
    }
  test_free(worker.scratch);
  return fault;
}

// Every kernel writes the same bits, however its rows are split.
static void check_write(world *w, run *r) {
  uint8_t *pool = w->layers[1].blocks;
  const size_t turned_bytes = (size_t)(r->bound * w->s.heads * w->s.k_dim) * sizeof(float);
  uint8_t *before = test_alloc(w->pool_bytes), *want = test_alloc(w->pool_bytes), *turned = test_alloc(turned_bytes);
  memcpy(before, pool, w->pool_bytes);
  CHECK(!run_step(&r->write, scalar_of(INFC_OP_CACHE_WRITE), 1, 1, r->rows, &w->cache), "fault");
  memcpy(want, pool, w->pool_bytes);
  memcpy(turned, r->turned, turned_bytes);
  for (size_t i = 0; i < infc_kernel_count; i++) {
    if (infc_kernels[i].op != INFC_OP_CACHE_WRITE || !test_supported(&infc_kernels[i]))
      continue;
    for (int parts = 1; parts < 4; parts++) {
      memcpy(pool, before, w->pool_bytes);
      memset(r->turned, 0x77, (size_t)(r->rows * w->s.heads * w->s.k_dim) * sizeof(float));
      CHECK(!run_step(&r->write, &infc_kernels[i], parts, 1, r->rows, &w->cache), "fault");
      CHECK(!memcmp(pool, want, w->pool_bytes), "%s %d parts, type %d", infc_kernels[i].name, parts, w->dtype);
      CHECK(!memcmp(r->turned, turned, turned_bytes), "%s %d parts", infc_kernels[i].name, parts);
    }
  }
  test_free(before);
  test_free(want);
  test_free(turned);
}

static void compare(const world *w, const run *r, const float *got, const float *want, float tolerance,
                    const char *name) {
  const shape *s = &w->s;
  const int64_t cols = s->heads * s->v_dim;
  for (int64_t i = 0; i < r->rows * cols; i++)
    if (!CHECK(test_close(got[i], want[i], tolerance),
               "%s heads %ld/%ld dims %ld %ld window %ld cap %g type %d at %ld of %ld,%ld: %g, expected %g", name,
               s->heads, s->kv_heads, s->k_dim, s->v_dim, s->window, (double)s->softcap, w->dtype, i / cols, r->rows,
               i % cols, (double)got[i], (double)want[i]))
      return;
}

// Every kernel agrees with the reference, and with itself to the bit however it is split. r->y is left as one had it.
static void check_attention(world *w, run *r) {
  const size_t bytes = (size_t)(r->bound * w->s.heads * w->s.v_dim) * sizeof(float);
  float *want = test_alloc(bytes), *first = test_alloc(bytes);
  memset(r->y, 0x5A, bytes);
  CHECK(!run_step(&r->attention, scalar_of(INFC_OP_CACHE_ATTENTION), 1, 1, r->rows, &w->cache), "fault");
  memcpy(want, r->y, bytes);
  static const int splits[][2] = {{1, 1}, {2, 1}, {1, 2}, {7, 1}, {1, 3}, {3, 2}, {1, 11}};
  for (size_t i = 0; i < infc_kernel_count; i++) {
    const infc_kernel *kernel = &infc_kernels[i];
    if (kernel->op != INFC_OP_CACHE_ATTENTION || !test_supported(kernel))
      continue;
    for (int features = 0; features < 1 + (kernel->isa == INFC_ISA_X86_64_V4); features++) {
      infc_cpu_allow(features ? ~0u : 0);
      for (size_t j = 0; j < sizeof splits / sizeof *splits; j++) {
        memset(r->y, 0x5A, bytes);
        CHECK(!run_step(&r->attention, kernel, splits[j][0], splits[j][1], r->rows, &w->cache), "fault");
        if (j == 0) {
          compare(w, r, r->y, want, tolerance_of(w), kernel->name);
          memcpy(first, r->y, bytes);
        }
        CHECK(!memcmp(r->y, first, bytes), "%s split %zu", kernel->name, j);
      }
    }
    infc_cpu_allow(~0u);
  }
  test_free(want);
  test_free(first);
}

// ---- What attention is, of a sequence's own floats

static void rotate(const shape *s, const float *cos, const float *sin, const float *x, double *y) {
  for (int64_t i = 0; i < s->k_dim; i++)
    y[i] = (double)x[i];
  for (int64_t i = 0; i < s->pairs; i++) {
    const int64_t a = s->interleaved ? 2 * i : i, b = s->interleaved ? 2 * i + 1 : i + s->pairs;
    y[a] = (double)x[a] * (double)cos[i] - (double)x[b] * (double)sin[i];
    y[b] = (double)x[b] * (double)cos[i] + (double)x[a] * (double)sin[i];
  }
}

static void attend(const shape *s, const text *t, int64_t place, int64_t head, double *y) {
  const int64_t group = s->heads / s->kv_heads, kv = head / group;
  double q[256], k[256], p[POOL * 32], total = 0.0;
  rotate(s, t->cos + place * s->pairs, t->sin + place * s->pairs, t->q + (place * s->heads + head) * s->k_dim, q);
  for (int64_t d = 0; d < s->v_dim; d++)
    y[d] = 0.0;
  for (int64_t at = s->window && place >= s->window ? place - s->window + 1 : 0; at <= place; at++) {
    double score = 0.0;
    rotate(s, t->cos + at * s->pairs, t->sin + at * s->pairs, t->k + (at * s->kv_heads + kv) * s->k_dim, k);
    for (int64_t d = 0; d < s->k_dim; d++)
      score += q[d] * k[d];
    score /= sqrt((double)s->k_dim);
    p[at] = exp(s->softcap > 0.0f ? (double)s->softcap * tanh(score / (double)s->softcap) : score);
    total += p[at];
    for (int64_t d = 0; d < s->v_dim; d++)
      y[d] += p[at] * (double)t->v[(at * s->kv_heads + kv) * s->v_dim + d];
  }
  for (int64_t d = 0; d < s->v_dim; d++)
    y[d] /= total;
}

static void check_truth(const world *w, const run *r) {
  const shape *s = &w->s;
  const int64_t cols = s->heads * s->v_dim;
  // Elements of scores are off by a grain of their greatest, and so are values; errors of a sum grow with its root.
  const float tolerance = tolerance_of(w) + 8.0f * grains[w->dtype];
  int64_t next = 0;
  for (int i = 0; i <= w->count; i++) {
    const int64_t row0 = i < w->count ? w->sequences[i].row0 : r->rows, rows = i < w->count ? w->sequences[i].rows : 0;
    for (int64_t at = next * cols; at < row0 * cols; at++)
      CHECK(r->y[at] == 0.0f, "a row of no sequence: %g", (double)r->y[at]);
    for (int64_t row = 0; row < rows; row++)
      for (int64_t head = 0; head < s->heads; head++) {
        double y[256];
        attend(s, &w->texts[i], w->texts[i].past + row, head, y);
        for (int64_t d = 0; d < s->v_dim; d++) {
          const float got = r->y[(row0 + row) * cols + head * s->v_dim + d];
          if (!CHECK(test_close(got, (float)y[d], tolerance), "type %d row %ld head %ld: %g, expected %g", w->dtype,
                     row, head, (double)got, y[d]))
            return;
        }
      }
    next = row0 + rows;
  }
}

// Blocks that the window has left behind are nowhere.
static void forget(world *w) {
  for (int i = 0; i < w->count; i++) {
    text *t = &w->texts[i];
    const int64_t seen = w->s.window && t->past + 1 > w->s.window ? t->past + 1 - w->s.window : 0;
    for (int64_t block = 0; block < seen / 32; block++)
      t->table[block] = INT32_MIN;
  }
}

// All sequences from their first token to their last, `most` of them a run.
static void check_world(world *w, int64_t most) {
  for (bool left = true; left;) {
    int64_t tokens[MOST_SEQUENCES];
    run r;
    for (int i = 0; i < w->count; i++) {
      const int64_t rest = w->texts[i].length - w->texts[i].past;
      const int64_t want = test_random(&rng) % 3 ? test_random_int(&rng, 0, most) : most;
      tokens[i] = want < rest ? want : rest;
    }
    forget(w);
    begin_run(w, &r, tokens);
    check_write(w, &r);
    check_attention(w, &r);
    check_truth(w, &r);
    left = false;
    for (int i = 0; i < w->count; i++) {
      const int64_t cols = w->s.heads * w->s.v_dim;
      memcpy(w->texts[i].y + w->texts[i].past * cols, r.y + w->sequences[i].row0 * cols,
             (size_t)(tokens[i] * cols) * sizeof(float));
      w->texts[i].past += tokens[i];
      left |= w->texts[i].past < w->texts[i].length;
    }
    end_run(&r);
  }
}

static shape random_shape(void) {
  static const int64_t dims[] = {1, 3, 8, 16, 33, 64, 80, 96, 100, 128};
  static const int64_t windows[] = {0, 0, 1, 7, 32, 40, 100};
  const int64_t kv_heads = test_random_int(&rng, 1, 3);
  shape s = {
      .kv_heads = kv_heads,
      .heads = kv_heads * (kv_heads > 1 ? test_random_int(&rng, 1, 3) : test_random_int(&rng, 1, 14)),
      .k_dim = dims[test_random(&rng) % 10],
      .window = windows[test_random(&rng) % 7],
      .interleaved = test_random(&rng) & 1,
      .softcap = test_random(&rng) % 3 ? 0.0f : 0.25f,
      .pad = (int)test_random_int(&rng, 0, 3),
  };
  s.v_dim = test_random(&rng) % 2 ? s.k_dim : dims[test_random(&rng) % 10];
  s.pairs = test_random(&rng) % 3 ? test_random_int(&rng, 0, s.k_dim / 2) : s.k_dim / 2;
  return s;
}

static void test_worlds(void) {
  for (int i = 0; i < 48; i++) {
    world w;
    const shape s = random_shape();
    const int count = (int)test_random_int(&rng, 1, MOST_SEQUENCES);
    make_world(&w, &s, i % 4, count, i % 12 < 8 ? 40 : 200);
    check_world(&w, i % 3 == 0 ? 1000 : i % 3 == 1 ? 60 : test_random_int(&rng, 20, 200));
    free_world(&w);
  }
}

// A token after the other gives what all at once give, to the bit, in every kernel.
static void test_chunks(void) {
  for (size_t k = 0; k < infc_kernel_count; k++) {
    const infc_kernel *kernel = &infc_kernels[k];
    if (kernel->op != INFC_OP_CACHE_ATTENTION || !test_supported(kernel))
      continue;
    for (int dtype = 0; dtype < 4; dtype++) {
      const shape s = {6, 2, 64, 48, dtype % 2 ? 50 : 0, 32, false, 0.0f, 0};
      world w;
      make_world(&w, &s, dtype, 1, 1);
      free_world(&w);
      w.texts[0].length = 0;
      while (w.texts[0].length < 150) {
        make_world(&w, &s, dtype, 1, 200);
        if (w.texts[0].length < 150)
          free_world(&w);
      }
      const int64_t length = w.texts[0].length, cols = s.heads * s.v_dim;
      for (int64_t step = 1; step < 200; step = step == 1 ? 37 : step == 37 ? length : 200) {
        w.texts[0].past = 0;
        while (w.texts[0].past < length) {
          const int64_t left = length - w.texts[0].past, tokens = step < left ? step : left;
          run r;
          begin_run(&w, &r, &tokens);
          run_step(&r.write, scalar_of(INFC_OP_CACHE_WRITE), 1, 1, r.rows, &w.cache);
          run_step(&r.attention, kernel, 1, 1, r.rows, &w.cache);
          float *y = w.texts[0].y + w.texts[0].past * cols;
          const float *got = r.y + w.sequences[0].row0 * cols;
          if (step > 1)
            CHECK(!memcmp(y, got, (size_t)(tokens * cols) * sizeof *y), "%s %ld tokens from %ld", kernel->name, tokens,
                  w.texts[0].past);
          memcpy(y, got, (size_t)(tokens * cols) * sizeof *y);
          w.texts[0].past += tokens;
          end_run(&r);
        }
      }
      free_world(&w);
    }
  }
}

// Of sequences of one length each half of the columns is half of them.
static void test_shares(void) {
  const shape s = {6, 2, 16, 16, 0, 0, false, 0.0f, 0};
  const int64_t tokens[MOST_SEQUENCES] = {1, 1, 1, 1}, width = s.heads * s.v_dim;
  world w;
  run r;
  make_world(&w, &s, 0, MOST_SEQUENCES, 200);
  int64_t shortest = 200;
  for (int i = 0; i < w.count; i++)
    shortest = w.texts[i].length < shortest ? w.texts[i].length : shortest;
  for (int i = 0; i < w.count; i++)
    w.texts[i].past = shortest - 1;
  begin_run(&w, &r, tokens);
  r.attention.step.cols = 24;
  float *before = test_alloc((size_t)(r.rows * width) * sizeof *before);
  memcpy(before, r.y, (size_t)(r.rows * width) * sizeof *before);
  infc_worker worker = {.scratch = test_alloc(infc_operators[INFC_OP_CACHE_ATTENTION].scratch(&r.attention.task)),
                        .symbols = &r.rows,
                        .threads = 1,
                        .cache = &w.cache};
  for (size_t k = 0; k < infc_kernel_count; k++)
    for (int half = 0; half < 2; half++) {
      if (infc_kernels[k].op != INFC_OP_CACHE_ATTENTION || !test_supported(&infc_kernels[k]))
        continue;
      memcpy(r.y, before, (size_t)(r.rows * width) * sizeof *before);
      const infc_range range = {0, r.rows, r.rows, 12 * half, 12 * half + 12};
      CHECK(!infc_kernels[k].run(&r.attention.task, &range, &worker), "fault");
      for (int i = 0; i < w.count; i++)
        for (int64_t at = w.sequences[i].row0 * width, end = at + width; at < end; at++)
          if (!CHECK(memcmp(&r.y[at], &before[at], sizeof *before) == 0 ? i / 2 != half : i / 2 == half,
                     "%s half %d sequence %d", infc_kernels[k].name, half, i))
            break;
    }
  test_free(worker.scratch);
  test_free(before);
  end_run(&r);
  free_world(&w);
}

// NaN and infinities stay in their sequence.
static void test_specials(void) {
  for (int dtype = 0; dtype < 4; dtype++) {
    const shape s = {4, 2, 40, 33, 0, 20, dtype % 2, 0.0f, 0};
    world w;
    make_world(&w, &s, dtype, 3, 70);
    text *t = &w.texts[1];
    t->q[0] = NAN;
    t->k[s.k_dim - 1] = INFINITY;
    t->k[s.kv_heads * s.k_dim - 1] = -INFINITY;
    t->v[0] = INFINITY;
    t->v[s.v_dim] = NAN;
    int64_t tokens[MOST_SEQUENCES];
    for (int i = 0; i < w.count; i++)
      tokens[i] = w.texts[i].length;
    run r;
    begin_run(&w, &r, tokens);
    check_write(&w, &r);
    const int64_t cols = s.heads * s.v_dim;
    float *want = test_alloc((size_t)(r.rows * cols) * sizeof *want);
    run_step(&r.attention, scalar_of(INFC_OP_CACHE_ATTENTION), 1, 1, r.rows, &w.cache);
    memcpy(want, r.y, (size_t)(r.rows * cols) * sizeof *want);
    for (size_t k = 0; k < infc_kernel_count; k++) {
      if (infc_kernels[k].op != INFC_OP_CACHE_ATTENTION || !test_supported(&infc_kernels[k]))
        continue;
      run_step(&r.attention, &infc_kernels[k], 1, 1, r.rows, &w.cache);
      const int64_t first = w.sequences[1].row0 * cols, last = first + w.sequences[1].rows * cols;
      for (int64_t i = 0; i < r.rows * cols; i++)
        CHECK((i >= first && i < last) || test_close(r.y[i], want[i], tolerance_of(&w)), "%s: %g, expected %g",
              infc_kernels[k].name, (double)r.y[i], (double)want[i]);
      CHECK(r.y[first] != r.y[first], "NaN is lost");
    }
    test_free(want);
    end_run(&r);
    free_world(&w);
  }
}

// Scores in the thousands: one key takes all.
static void test_peaks(void) {
  const shape s = {3, 1, 64, 64, 0, 0, false, 0.0f, 0};
  world w;
  make_world(&w, &s, 0, 2, 300);
  for (int64_t i = 0; i < w.texts[0].length * s.heads * s.k_dim; i++)
    w.texts[0].q[i] *= 2000.0f;
  int64_t tokens[MOST_SEQUENCES] = {w.texts[0].length, w.texts[1].length};
  run r;
  begin_run(&w, &r, tokens);
  check_write(&w, &r);
  run_step(&r.attention, scalar_of(INFC_OP_CACHE_ATTENTION), 1, 1, r.rows, &w.cache);
  const size_t bytes = (size_t)(r.bound * s.heads * s.v_dim) * sizeof(float);
  float *want = test_alloc(bytes);
  memcpy(want, r.y, bytes);
  for (size_t k = 0; k < infc_kernel_count; k++)
    if (infc_kernels[k].op == INFC_OP_CACHE_ATTENTION && test_supported(&infc_kernels[k])) {
      run_step(&r.attention, &infc_kernels[k], 1, 1, r.rows, &w.cache);
      compare(&w, &r, r.y, want, 1e-2f, infc_kernels[k].name);
    }
  test_free(want);
  end_run(&r);
  free_world(&w);
}

// Without a cache, or where the layer is not there or of other sizes, steps report a fault.
static void test_faults(void) {
  const shape s = {4, 2, 16, 16, 0, 0, false, 0.0f, 0};
  world w;
  make_world(&w, &s, 0, 1, 8);
  run r;
  int64_t tokens = w.texts[0].length;
  begin_run(&w, &r, &tokens);
  infc_cache few = w.cache;
  few.layer_count = 1;
  infc_cache_layer other[2] = {w.layers[1], w.layers[1]};
  infc_cache different = {other, w.sequences, 2, 1};
  for (size_t i = 0; i < infc_kernel_count; i++) {
    const infc_kernel *kernel = &infc_kernels[i];
    if ((kernel->op != INFC_OP_CACHE_ATTENTION && kernel->op != INFC_OP_CACHE_WRITE) || !test_supported(kernel))
      continue;
    const test_step *step = kernel->op == INFC_OP_CACHE_WRITE ? &r.write : &r.attention;
    CHECK(run_step(step, kernel, 1, 1, r.rows, NULL) == INFC_FAULT_INDEX, "%s", kernel->name);
    CHECK(run_step(step, kernel, 1, 1, r.rows, &few) == INFC_FAULT_INDEX, "%s", kernel->name);
    for (int field = 0; field < 4; field++) {
      other[1] = w.layers[1];
      *(uint32_t *[]){&other[1].heads, &other[1].k_dim, &other[1].v_dim, &other[1].group}[field] += 8;
      CHECK(run_step(step, kernel, 1, 1, r.rows, &different) == INFC_FAULT_INDEX, "%s", kernel->name);
    }
    // No sequence, and rows beyond those in use
    infc_cache none = w.cache;
    none.sequence_count = 0;
    CHECK(!run_step(step, kernel, 1, 1, r.rows, &none), "%s", kernel->name);
    w.sequences[0].rows += 1000;
    CHECK(!run_step(step, kernel, 2, 1, 1, &w.cache), "%s", kernel->name);
    w.sequences[0].rows -= 1000;
  }
  end_run(&r);
  free_world(&w);
}

#define BAD_WRITE(change) TEST_INVALID(r.write, INFC_OP_CACHE_WRITE, 1, change)
#define BAD_ATTENTION(change) TEST_INVALID(r.attention, INFC_OP_CACHE_ATTENTION, 1, change)

static void test_validators(void) {
  const shape s = {4, 2, 16, 8, 0, 6, false, 0.0f, 1};
  world w;
  make_world(&w, &s, 0, 1, 8);
  run r;
  int64_t tokens = w.texts[0].length;
  begin_run(&w, &r, &tokens);
  BAD_WRITE(t.step.word_count--);
  BAD_WRITE(t.step.input_count--);
  BAD_WRITE(t.step.output_count++);
  BAD_WRITE(t.step.split[0] = INFC_SPLIT_COLS);
  BAD_WRITE(t.step.rows++);
  BAD_WRITE(t.step.rows_symbol = -1);
  BAD_WRITE(t.words[INFC_W_CACHE_WRITE_HEADS] = 0);
  BAD_WRITE(t.words[INFC_W_CACHE_WRITE_HEADS] = 5);
  BAD_WRITE(t.words[INFC_W_CACHE_WRITE_KV_HEADS] = 0);
  BAD_WRITE(t.words[INFC_W_CACHE_WRITE_KV_HEADS] = 4);
  BAD_WRITE(t.words[INFC_W_CACHE_WRITE_KV_HEADS] = 3);
  BAD_WRITE(t.words[INFC_W_CACHE_WRITE_K_DIM] = 0);
  BAD_WRITE(t.words[INFC_W_CACHE_WRITE_K_DIM] = 8);
  BAD_WRITE(t.words[INFC_W_CACHE_WRITE_K_DIM] = UINT32_MAX);
  BAD_WRITE(t.words[INFC_W_CACHE_WRITE_V_DIM] = 9);
  BAD_WRITE(t.words[INFC_W_CACHE_WRITE_V_DIM] = 0);
  BAD_WRITE(t.words[INFC_W_CACHE_WRITE_HAS_ROPE] = 0);
  BAD_WRITE(t.words[INFC_W_CACHE_WRITE_HAS_ROPE] = 2);
  BAD_WRITE(t.words[INFC_W_CACHE_WRITE_INTERLEAVED] = 2);
  for (int i = 0; i < 6; i++) {
    BAD_WRITE(t.operands[i].dtype = INFC_DTYPE_F16);
    BAD_WRITE(t.operands[i].dims[0]--);
    BAD_WRITE(t.operands[i].rows_symbol = -1);
    BAD_WRITE(t.operands[i].row_stride = t.operands[i].dims[1] - 1);
    BAD_WRITE(t.operands[i].packing = INFC_PACK_F32_K1N32);
  }
  BAD_WRITE(t.operands[3].dims[1] = t.operands[4].dims[1] = 9);
  BAD_WRITE(t.operands[3].dims[1]--);
  BAD_ATTENTION(t.step.word_count--);
  BAD_ATTENTION(t.step.input_count++);
  BAD_ATTENTION(t.step.cols = 0);
  BAD_ATTENTION(t.step.split[1] = INFC_SPLIT_ROWS);
  BAD_ATTENTION(t.words[INFC_W_CACHE_ATTENTION_HEADS] = 0);
  BAD_ATTENTION(t.words[INFC_W_CACHE_ATTENTION_KV_HEADS] = 0);
  BAD_ATTENTION(t.words[INFC_W_CACHE_ATTENTION_KV_HEADS] = 3);
  BAD_ATTENTION(t.words[INFC_W_CACHE_ATTENTION_K_DIM] = 15);
  BAD_ATTENTION(t.words[INFC_W_CACHE_ATTENTION_K_DIM] = 0);
  BAD_ATTENTION(t.words[INFC_W_CACHE_ATTENTION_V_DIM] = 0);
  BAD_ATTENTION(t.words[INFC_W_CACHE_ATTENTION_V_DIM] = UINT32_MAX);
  for (int i = 0; i < 2; i++) {
    BAD_ATTENTION(t.operands[i].dtype = INFC_DTYPE_F16);
    BAD_ATTENTION(t.operands[i].dims[0]--);
    BAD_ATTENTION(t.operands[i].rows_symbol = -1);
    BAD_ATTENTION(t.operands[i].row_stride = t.operands[i].dims[1] - 1);
  }
  end_run(&r);
  free_world(&w);
}

int main(void) {
  test_worlds();
  test_chunks();
  test_shares();
  test_specials();
  test_peaks();
  test_faults();
  test_validators();
  return test_result();
}
