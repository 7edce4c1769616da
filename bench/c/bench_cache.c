// Attention over the cache: decoding in GB/s of keys and values beside a loop that only reads, and prefill in GFLOP/s
// beside a chain of multiply-adds.
//
//   bench_cache [HEADS KV_HEADS DIM]      9 3 64
//
// One thread, timed by its processor time; the best of several turns counts.
#include "kernels/cache/cache.h"
#include "kernels/step.h"

#include <immintrin.h>
#include <math.h>
#include <sys/mman.h>
#include <time.h>

enum { COLD_BYTES = 192 << 20, TURNS = 6, BATCH = 8 };

static volatile float sink;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

__attribute__((target("avx2"))) static double read_speed(const uint8_t *memory) {
  __m256i sum[8] = {0};
  const double start = now();
  for (size_t i = 0; i < COLD_BYTES; i += 256)
    for (int j = 0; j < 8; j++)
      sum[j] = _mm256_add_epi64(sum[j], _mm256_loadu_si256((const __m256i *)(const void *)(memory + i + 32 * j)));
  for (int j = 0; j < 8; j++)
    sink = (float)sum[j][0];
  return COLD_BYTES / (now() - start) / 1e9;
}

__attribute__((target("avx512f"))) static double peak_speed(void) {
  __m512 acc[24];
  for (int i = 0; i < 24; i++)
    acc[i] = _mm512_set1_ps((float)i);
  const __m512 a = _mm512_set1_ps(0.999f), b = _mm512_set1_ps(0.001f);
  const double start = now();
  for (int i = 0; i < 1 << 20; i++)
#pragma GCC unroll 24
    for (int j = 0; j < 24; j++)
      acc[j] = _mm512_fmadd_ps(acc[j], a, b);
  const double seconds = now() - start;
  for (int i = 0; i < 24; i++)
    sink = acc[i][0];
  return (1 << 20) * 24 * 32.0 / seconds / 1e9;
}

typedef struct setup {
  infc_cache_layer layer;
  infc_cache_sequence sequences[BATCH];
  infc_cache cache;
  test_step step;
  int64_t rows, batch; // rows of each of the sequences of a call
  int64_t blocks;      // of a sequence
  void *scratch;
  int32_t *tables; // [batch][blocks]
} setup;

static setup make(uint8_t *memory, uint32_t dtype, int64_t heads, int64_t kv_heads, int64_t dim, int64_t batch,
                  int64_t rows, int64_t past) {
  setup s = {.rows = rows, .batch = batch, .blocks = (past + rows + 31) / 32};
  s.layer = (infc_cache_layer){
      .heads = (uint32_t)kv_heads, .k_dim = (uint32_t)dim, .v_dim = (uint32_t)dim, .dtype = dtype, .blocks = memory};
  infc_cache_lay_out(&s.layer);
  s.tables = malloc((size_t)(batch * s.blocks) * 4);
  const int64_t all = batch * rows;
  float *q = test_alloc((size_t)(all * heads * dim) * 4), *y = test_alloc((size_t)(all * heads * dim) * 4);
  test_fill_random(&(test_rng){1}, q, (size_t)(all * heads * dim), -1, 1);
  test_step_init(&s.step, all, all * heads);
  test_operand(&s.step, false, q, INFC_DTYPE_F32, all, heads * dim, heads * dim);
  test_operand(&s.step, true, y, INFC_DTYPE_F32, all, heads * dim, heads * dim);
  const uint32_t words[] = {
      0, (uint32_t)heads, (uint32_t)kv_heads, (uint32_t)dim, (uint32_t)dim, test_float_word(1.0f / sqrtf((float)dim)),
      0};
  for (int i = 0; i < INFC_WORDS_CACHE_ATTENTION; i++)
    test_word(&s.step, words[i]);
  for (int64_t i = 0; i < batch; i++)
    s.sequences[i] = (infc_cache_sequence){.row0 = i * rows, .rows = rows, .past = past};
  return s;
}

// Seconds of a call, of so many that pass over different memory.
static double run(setup *s, const infc_kernel *kernel, int64_t calls) {
  s->step.task.operands = s->step.operands, s->step.task.words = s->step.words, s->step.task.step = &s->step.step;
  s->cache = (infc_cache){&s->layer, s->sequences, 1, (uint32_t)s->batch};
  for (int64_t i = 0; i < s->batch; i++)
    s->sequences[i].tables[0] = s->tables + i * s->blocks;
  const int64_t blocks = s->batch * s->blocks, rows = s->batch * s->rows;
  s->scratch = s->scratch ? s->scratch : test_alloc(infc_operators[kernel->op].scratch(&s->step.task));
  double best = 1e9;
  for (int turn = 0; turn < TURNS; turn++) {
    const double start = now();
    for (int64_t i = 0; i < calls; i++) {
      for (int64_t b = 0; b < blocks; b++)
        s->tables[b] = (int32_t)(i * blocks + b);
      kernel->run(&s->step.task, &(infc_range){0, rows, rows, 0, s->step.step.cols},
                  &(infc_worker){.scratch = s->scratch, .threads = 1, .cache = &s->cache});
    }
    const double took = now() - start;
    best = took < best ? took : best;
  }
  return best / (double)calls;
}

int main(int argc, char **argv) {
  const int64_t heads = argc > 1 ? atoi(argv[1]) : 9, kv_heads = argc > 2 ? atoi(argv[2]) : 3,
                dim = argc > 3 ? atoi(argv[3]) : 64;
  static const uint32_t dtypes[] = {INFC_DTYPE_F32, INFC_DTYPE_BF16, INFC_DTYPE_I8, INFC_DTYPE_F8E4M3FN};
  static const char *const names[] = {"f32", "bf16", "i8", "f8"};
  uint8_t *memory = aligned_alloc(2 << 20, COLD_BYTES);
  madvise(memory, COLD_BYTES, MADV_HUGEPAGE); // as the runtime does
  for (size_t i = 0; i < COLD_BYTES; i++)
    memory[i] = i % 4 == 3 ? 0x3D : i % 2 ? 0x3E : (uint8_t)(i * 7 >> 3);
  double read = 0;
  for (int i = 0; i < TURNS; i++)
    read = fmax(read, read_speed(memory));
  printf("read %.1f GB/s, multiply-add %.0f GFLOP/s\n", read, peak_speed());
  for (size_t k = 0; k < infc_kernel_count; k++) {
    const infc_kernel *kernel = &infc_kernels[k];
    if (kernel->op != INFC_OP_CACHE_ATTENTION || kernel->isa == INFC_ISA_SCALAR || !test_supported(kernel))
      continue;
    for (int d = 0; d < 4; d++) {
      for (int64_t past = 255; past < 8192; past = past * 4 + 3)
        for (int64_t batch = 1; batch <= (past < 1024 ? BATCH : 1); batch *= BATCH) {
          setup s = make(memory, dtypes[d], heads, kv_heads, dim, batch, 1, past);
          const int64_t bytes = batch * s.blocks * (int64_t)s.layer.block_bytes;
          const double t = run(&s, kernel, COLD_BYTES / bytes), rate = (double)bytes / t;
          printf("%s %-4s decode of %ld at %5ld: %6.1f us, %5.1f GB/s, %3.0f %%\n", kernel->name, names[d], batch, past,
                 t * 1e6, rate / 1e9, rate / 1e7 / read);
        }
      for (int64_t rows = 128; rows <= 2048; rows *= 4) {
        setup s = make(memory, dtypes[d], heads, kv_heads, dim, 1, rows, 0);
        const double t = run(&s, kernel, 1);
        printf("%s %-4s prefill of %4ld: %6.0f us, %4.0f GFLOP/s\n", kernel->name, names[d], rows, t * 1e6,
               2.0 * (double)(heads * dim * rows * (rows + 1)) / t / 1e9);
      }
    }
  }
  return 0;
}
