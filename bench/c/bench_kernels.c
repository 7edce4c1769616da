// Speed of the matrix kernels on one thread: GFLOP/s and the share of the multiply-add peak measured in the same run;
// with weights that no cache holds, GB/s and the share of the read bandwidth.
//
//   bench_kernels [PART_OF_A_KERNEL'S_NAME]
//
// Each figure is the least of this thread's processor time over a fifth of a second, so that other programs disturb it
// little; the peak is measured again before every line.
#include "kernels/gemm/gemm.h"
#include "kernels/gemm_i8/gemm_i8.h"
#include "kernels/matmul/matmul.h"
#include "kernels/step.h"

#include <immintrin.h>
#include <time.h>

static const double SECONDS = 0.2, SAMPLE = 2e-4; // for a figure, and at least for one reading of the clock

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static volatile float sink; // keeps what is measured from being optimised away

enum { CHAINS = 12, ROUNDS = 20000 };

#define DEFINE_PEAK(name, isa, type, set, fma, lanes)                                                                  \
  __attribute__((target(isa))) static double name(void) {                                                              \
    type x[CHAINS];                                                                                                    \
    for (int i = 0; i < CHAINS; i++)                                                                                   \
      x[i] = set((float)i);                                                                                            \
    const double start = now();                                                                                        \
    for (int r = 0; r < ROUNDS; r++)                                                                                   \
      for (int i = 0; i < CHAINS; i++)                                                                                 \
        x[i] = fma(x[i], set(0.5f), set(0.25f));                                                                       \
    const double seconds = now() - start;                                                                              \
    for (int i = 0; i < CHAINS; i++)                                                                                   \
      sink = x[i][0];                                                                                                  \
    return 2.0 * ROUNDS * CHAINS * lanes / seconds;                                                                    \
  }
DEFINE_PEAK(peak_avx512, "avx512f", __m512, _mm512_set1_ps, _mm512_fmadd_ps, 16)
DEFINE_PEAK(peak_avx2, "avx2,fma", __m256, _mm256_set1_ps, _mm256_fmadd_ps, 8)

static double peak_flops(void) {
  double best = 0.0;
  for (int i = 0; i < 10; i++) {
    const double flops = __builtin_cpu_supports("avx512f") ? peak_avx512() : peak_avx2();
    best = flops > best ? flops : best;
  }
  return best;
}

enum { COLD_BYTES = 256 << 20 };

// Bytes a second of one thread reading memory that no cache holds.
__attribute__((target("avx2"))) static double read_bandwidth(const float *memory) {
  double best = 0.0;
  for (int repeat = 0; repeat < 3; repeat++) {
    __m256 sum[8] = {0};
    const double start = now();
    for (size_t i = 0; i < COLD_BYTES / sizeof(float); i += 64)
      for (int j = 0; j < 8; j++)
        sum[j] = _mm256_add_ps(sum[j], _mm256_loadu_ps(memory + i + 8 * j));
    const double rate = COLD_BYTES / (now() - start);
    for (int j = 0; j < 8; j++)
      sink = sum[j][0];
    best = rate > best ? rate : best;
  }
  return best;
}

static float *floats(size_t count) {
  test_rng rng = {count | 1};
  float *x = test_alloc(count * sizeof(float));
  for (size_t i = 0; i < count; i++)
    x[i] = (float)(test_random(&rng) >> 40) * 0x1p-24f - 0.5f;
  return x;
}

static double best_time(const test_step *s, const infc_kernel *kernel, int64_t *symbols) {
  infc_worker worker = {
      .scratch = test_alloc(infc_operators[kernel->op].scratch(&s->task) + 1), .symbols = symbols, .threads = 1};
  const infc_range all = {0, s->step.rows, s->step.rows, 0, s->step.cols};
  const double first = now();
  kernel->run(&s->task, &all, &worker);
  const int calls = 1 + (int)(SAMPLE / (now() - first + 1e-7));
  double best = 1e9, end = now() + SECONDS;
  for (double start = now(); start < end;) {
    for (int i = 0; i < calls; i++)
      kernel->run(&s->task, &all, &worker);
    const double stop = now();
    best = (stop - start) / calls < best ? (stop - start) / calls : best;
    start = stop;
  }
  test_free(worker.scratch);
  return best;
}

static void print_flops(const infc_kernel *kernel, const char *shape, double flops, double seconds, double peak) {
  printf("%-36s %-28s %9.1f us %7.1f GFLOP/s %5.1f %% of %.0f\n", kernel->name, shape, 1e6 * seconds,
         1e-9 * flops / seconds, 100.0 * flops / seconds / peak, 1e-9 * peak);
}

static void gemm_step(test_step *s, int64_t rows, int64_t k, int64_t n, const float *a, const float *b,
                      const float *bias, float *y, uint32_t activation) {
  test_step_init(s, rows, infc_gemm_panels(n));
  test_operand(s, false, (float *)a, INFC_DTYPE_F32, rows, k, k);
  test_operand(s, false, (float *)b, INFC_DTYPE_F32, k, n, n)->packing = INFC_PACK_F32_K1N32;
  test_operand(s, false, (float *)bias, INFC_DTYPE_F32, n, 0, 1);
  test_operand(s, true, y, INFC_DTYPE_F32, rows, n, n);
  test_word(s, activation);
  test_word(s, 1);
  test_word(s, 0);
}

static const int64_t gemm_shapes[][2] = {{384, 1152}, {384, 384}, {384, 1536}, {1536, 384}}; // K, N
static const int64_t gemm_rows[] = {1024, 512, 128, 66, 64, 32, 16, 12, 8, 4, 2, 1};

static void bench_gemm(const infc_kernel *kernel) {
  float *a = floats(1024 * 1536), *b = floats(1536 * 1536), *bias = floats(1536), *y = floats(1024 * 1536);
  for (int i = 0; i < 4; i++) {
    for (size_t j = 0; j < sizeof gemm_rows / sizeof *gemm_rows; j++) {
      const int64_t k = gemm_shapes[i][0], n = gemm_shapes[i][1], rows = gemm_rows[j];
      char shape[64];
      snprintf(shape, sizeof shape, "rows %ld K %ld N %ld%s", rows, k, n, n == 1536 ? " gelu" : "");
      test_step s;
      gemm_step(&s, rows, k, n, a, b, bias, y, n == 1536 ? INFC_UNARY_GELU_ERF : INFC_UNARY_IDENTITY);
      const double peak = peak_flops();
      print_flops(kernel, shape, 2.0 * (double)(rows * k * n), best_time(&s, kernel, NULL), peak);
    }
  }
  test_free(a);
  test_free(b);
  test_free(bias);
  test_free(y);
}

// A layer after the other whose weights come from memory, as in a run of a model larger than the caches.
static void bench_gemm_cold(const infc_kernel *kernel, const float *memory) {
  float *a = floats(64 * 1536), *bias = floats(1536), *y = floats(64 * 1536);
  for (size_t j = 4; j < sizeof gemm_rows / sizeof *gemm_rows; j++) {
    const int64_t rows = gemm_rows[j];
    const double bandwidth = read_bandwidth(memory), peak = peak_flops();
    const infc_range all = {0, rows, rows, 0, 0};
    double best = 1e9;
    size_t used = 0;
    for (int repeat = 0; repeat < 3; repeat++) {
      const double start = now();
      used = 0;
      for (int i = 0; used + 1536 * 1152 < COLD_BYTES / sizeof(float); i = (i + 1) % 4) {
        const int64_t k = gemm_shapes[i][0], n = gemm_shapes[i][1];
        test_step s;
        gemm_step(&s, rows, k, n, a, memory + used, bias, y, INFC_UNARY_IDENTITY);
        infc_range range = all;
        range.col1 = s.step.cols;
        kernel->run(&s.task, &range, &(infc_worker){.threads = 1});
        used += (size_t)(k * n);
      }
      best = now() - start < best ? now() - start : best;
    }
    printf("%-36s cold, rows %-15ld %9.2f GB/s  %5.1f %% of %.1f; %5.1f %% of peak\n", kernel->name, rows,
           4e-9 * (double)used / best, 400.0 * (double)used / best / bandwidth, 1e-9 * bandwidth,
           200.0 * (double)used * (double)rows / best / peak);
  }
  test_free(a);
  test_free(bias);
  test_free(y);
}

static void gemm_i8_step(test_step *s, int64_t rows, int64_t k, int64_t n, const void *a, const float *params,
                         const void *b, const float *vectors, float *y, uint32_t activation) {
  const int64_t panels = infc_gemm_panels(n), bytes = infc_i8_lines(k) * INFC_I8_LINE;
  test_step_init(s, rows, panels);
  test_operand(s, false, (void *)a, INFC_DTYPE_U8, rows, k, k);
  test_operand(s, false, (float *)params, INFC_DTYPE_F32, rows, 2, 2);
  test_operand(s, false, (void *)b, INFC_DTYPE_I8, panels, bytes, bytes);
  test_operand(s, false, (float *)vectors, INFC_DTYPE_F32, n, 0, 1);
  test_operand(s, false, (float *)vectors, INFC_DTYPE_I32, n, 0, 1);
  test_operand(s, false, (float *)vectors, INFC_DTYPE_F32, n, 0, 1);
  test_operand(s, true, y, INFC_DTYPE_F32, rows, n, n);
  const uint32_t words[INFC_WORDS_GEMM_I8] = {activation, 1, 0, 0, 1, (uint32_t)k};
  for (int w = 0; w < INFC_WORDS_GEMM_I8; w++)
    test_word(s, words[w]);
}

// Against four times the multiply-add peak, which is what VNNI can do.
static void bench_gemm_i8(const infc_kernel *kernel) {
  float *a = floats(1024 * 1536 / 4), *params = floats(2048), *b = floats(1536 * 1536 / 4), *vectors = floats(1536);
  float *y = floats(1024 * 1536);
  for (int i = 0; i < 4; i++) {
    for (size_t j = 0; j < sizeof gemm_rows / sizeof *gemm_rows; j++) {
      const int64_t k = gemm_shapes[i][0], n = gemm_shapes[i][1], rows = gemm_rows[j];
      for (int gelu = 0; gelu <= (n == 1536); gelu++) {
        char shape[64];
        snprintf(shape, sizeof shape, "rows %ld K %ld N %ld%s", rows, k, n, gelu ? " gelu" : "");
        test_step s;
        gemm_i8_step(&s, rows, k, n, a, params, b, vectors, y, gelu ? INFC_UNARY_GELU_ERF : INFC_UNARY_IDENTITY);
        const double peak = 4 * peak_flops();
        print_flops(kernel, shape, 2.0 * (double)(rows * k * n), best_time(&s, kernel, NULL), peak);
      }
    }
  }
  void *all[] = {a, params, b, vectors, y};
  for (int i = 0; i < 5; i++)
    test_free(all[i]);
}

static void bench_gemm_i8_cold(const infc_kernel *kernel, const float *memory) {
  float *a = floats(64 * 1536 / 4), *params = floats(128), *vectors = floats(1536), *y = floats(64 * 1536);
  for (size_t j = 4; j < sizeof gemm_rows / sizeof *gemm_rows; j++) {
    const int64_t rows = gemm_rows[j];
    const double bandwidth = read_bandwidth(memory), peak = 4 * peak_flops();
    double best = 1e9;
    int64_t used = 0;
    for (int repeat = 0; repeat < 3; repeat++) {
      const double start = now();
      used = 0;
      for (int i = 0; used + 1536 * 1152 < COLD_BYTES; i = (i + 1) % 4) {
        const int64_t k = gemm_shapes[i][0], n = gemm_shapes[i][1];
        test_step s;
        gemm_i8_step(&s, rows, k, n, a, params, (const int8_t *)memory + used, vectors, y, INFC_UNARY_IDENTITY);
        kernel->run(&s.task, &(infc_range){0, rows, rows, 0, s.step.cols}, &(infc_worker){.threads = 1});
        used += k * n;
      }
      best = now() - start < best ? now() - start : best;
    }
    printf("%-36s cold, rows %-15ld %9.2f GB/s  %5.1f %% of %.1f; %5.1f %% of peak\n", kernel->name, rows,
           1e-9 * (double)used / best, 100.0 * (double)used / best / bandwidth, 1e-9 * bandwidth,
           200.0 * (double)used * (double)rows / best / peak);
  }
  void *all[] = {a, params, vectors, y};
  for (int i = 0; i < 4; i++)
    test_free(all[i]);
}

static const int64_t attention_shapes[][4] = {{1, 16, 12, 32},  {1, 77, 12, 32}, {1, 128, 12, 32}, {8, 20, 12, 32},
                                              {8, 128, 12, 32}, {1, 512, 12, 64}}; // batch, length, heads, dim

static void bench_attention(const infc_kernel *kernel) {
  for (size_t i = 0; i < sizeof attention_shapes / sizeof *attention_shapes; i++) {
    const int64_t batch = attention_shapes[i][0], length = attention_shapes[i][1], heads = attention_shapes[i][2];
    const int64_t dim = attention_shapes[i][3], rows = batch * length, cols = heads * dim;
    float *qkv = floats((size_t)(rows * 3 * cols)), *y = floats((size_t)(rows * cols));
    int32_t *offsets = test_alloc((size_t)(2 * batch + 1) * sizeof *offsets), *key_start = offsets + batch + 1;
    for (int64_t b = 0; b <= batch; b++)
      offsets[b] = (int32_t)(b * length);
    for (int64_t b = 0; b < batch; b++)
      key_start[b] = offsets[b];
    test_step s;
    test_step_init(&s, rows, heads);
    for (int part = 0; part < 3; part++)
      test_operand(&s, false, qkv + part * cols, INFC_DTYPE_F32, rows, cols, 3 * cols);
    test_operand(&s, false, offsets, INFC_DTYPE_I32, batch + 1, 0, 1);
    test_operand(&s, false, key_start, INFC_DTYPE_I32, batch, 0, 1);
    test_operand(&s, true, y, INFC_DTYPE_F32, rows, cols, cols);
    const uint32_t words[INFC_WORDS_ATTENTION] = {
        [INFC_W_ATTENTION_HEADS] = (uint32_t)heads,    [INFC_W_ATTENTION_KV_HEADS] = (uint32_t)heads,
        [INFC_W_ATTENTION_HEAD_DIM] = (uint32_t)dim,   [INFC_W_ATTENTION_V_DIM] = (uint32_t)dim,
        [INFC_W_ATTENTION_SCALE] = test_float_word(1), [INFC_W_ATTENTION_HAS_SEGMENTS] = 1,
        [INFC_W_ATTENTION_BATCH_SYMBOL] = UINT32_MAX,  [INFC_W_ATTENTION_BATCH] = (uint32_t)batch};
    for (int w = 0; w < INFC_WORDS_ATTENTION; w++)
      test_word(&s, words[w]);
    char shape[64];
    snprintf(shape, sizeof shape, "(%ld,%ld) %ld heads of %ld", batch, length, heads, dim);
    const double peak = peak_flops();
    print_flops(kernel, shape, 4.0 * (double)(rows * length * cols), best_time(&s, kernel, NULL), peak);
    test_free(qkv);
    test_free(y);
    test_free(offsets);
  }
}

static const int64_t matmul_shapes[][5] = {
    {12, 128, 128, 32, 1}, {12, 128, 32, 128, 0}, {1, 512, 512, 512, 0}, {1, 512, 512, 512, 1}};

static void bench_matmul(const infc_kernel *kernel) {
  for (size_t i = 0; i < sizeof matmul_shapes / sizeof *matmul_shapes; i++) { // batch, m, n, k, transposed
    const int64_t *d = matmul_shapes[i], batch = d[0], m = d[1], n = d[2], k = d[3];
    float *a = floats((size_t)(batch * m * k)), *b = floats((size_t)(batch * k * n)),
          *y = floats((size_t)(batch * m * n));
    test_step s;
    test_step_init(&s, batch, infc_matmul_panels(n));
    test_operand(&s, false, a, INFC_DTYPE_F32, batch, m * k, m * k);
    test_operand(&s, false, b, INFC_DTYPE_F32, batch, k * n, k * n);
    test_operand(&s, true, y, INFC_DTYPE_F32, batch, m * n, m * n);
    const int64_t words[INFC_WORDS_MATMUL] = {m, n, k, m * k, k * n, d[4], test_float_word(1)};
    for (int w = 0; w < INFC_WORDS_MATMUL; w++)
      test_word(&s, (uint32_t)words[w]);
    char shape[64];
    snprintf(shape, sizeof shape, "%ld x [%ld,%ld] [%ld,%ld]%s", batch, m, k, k, n, d[4] ? "^T" : "");
    const double peak = peak_flops();
    print_flops(kernel, shape, 2.0 * (double)(batch * m * n * k), best_time(&s, kernel, NULL), peak);
    test_free(a);
    test_free(b);
    test_free(y);
  }
}

int main(int argc, char **argv) {
  float *memory = floats(COLD_BYTES / sizeof(float));
  for (size_t i = 0; i < infc_kernel_count; i++) {
    const infc_kernel *kernel = &infc_kernels[i];
    if (kernel->isa == INFC_ISA_SCALAR || !test_supported(kernel) || (argc > 1 && !strstr(kernel->name, argv[1])))
      continue;
    if (kernel->op == INFC_OP_GEMM) {
      bench_gemm(kernel);
      bench_gemm_cold(kernel, memory);
    } else if (kernel->op == INFC_OP_GEMM_I8) {
      bench_gemm_i8(kernel);
      bench_gemm_i8_cold(kernel, memory);
    } else if (kernel->op == INFC_OP_ATTENTION) {
      bench_attention(kernel);
    } else if (kernel->op == INFC_OP_MATMUL) {
      bench_matmul(kernel);
    }
  }
  test_free(memory);
  return test_result();
}
