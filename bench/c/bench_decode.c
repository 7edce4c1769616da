// Products of few rows, as decoding has them: every kernel with weights that no cache holds, for each form of weights
// and each shape GB/s of weights, the share of the read bandwidth, and how much faster 2:4 is than dense weights.
//
//   bench_decode [ROWS [THREADS [PART_OF_A_KERNEL'S_NAME]]]      1 row, 1 thread
//
// Of a shape the forms and a loop that only reads take turns, each passing over 256 MiB, and the best of each counts.
// The reading of the first half of the turns is held against that of the second: if they differ by more than a tenth,
// the machine was busy and the line says void. One thread is timed by its processor time, several by the clock.
#include "kernels/gemm/gemm.h"
#include "kernels/gemm_16/gemm_16.h"
#include "kernels/gemm_grouped/gemm_grouped.h"
#include "kernels/gemm_i8/gemm_i8.h"
#include "kernels/step.h"

#include <immintrin.h>
#include <pthread.h>
#include <sys/mman.h>
#include <time.h>

enum { COLD_BYTES = 256 << 20, TURNS = 8, MAX_THREADS = 64, MAX_STEPS = 2048 };

static int threads = 1;
static uint8_t *memory;
static volatile float sink;

static double now(void) {
  struct timespec t;
  clock_gettime(threads > 1 ? CLOCK_MONOTONIC : CLOCK_THREAD_CPUTIME_ID, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// ---- A pass: every thread does its part of all steps, or reads its part of the memory

typedef struct pass {
  const infc_kernel *kernel; // NULL: read
  const test_step *steps;
  int count;
  size_t scratch; // bytes a thread
} pass;

typedef struct part {
  const pass *pass;
  int thread;
} part;

__attribute__((target("avx2"))) static void read_part(int thread) {
  const size_t begin = COLD_BYTES / 1024 * (size_t)thread / (size_t)threads * 1024;
  const size_t end = COLD_BYTES / 1024 * (size_t)(thread + 1) / (size_t)threads * 1024;
  __m256i sum[8] = {0};
  for (size_t i = begin; i < end; i += 256)
    for (int j = 0; j < 8; j++)
      sum[j] = _mm256_add_epi64(sum[j], _mm256_loadu_si256((const __m256i *)(const void *)(memory + i + 32 * j)));
  for (int j = 0; j < 8; j++)
    sink = (float)sum[j][0];
}

static void *run_part(void *argument) {
  const part *p = argument;
  if (!p->pass->kernel)
    read_part(p->thread);
  infc_worker worker = {.threads = (uint32_t)threads, .scratch = test_alloc(p->pass->scratch + 1)};
  for (int i = 0; i < p->pass->count; i++) {
    const infc_step *step = &p->pass->steps[i].step;
    const int64_t cols = step->cols;
    const infc_range range = {0, step->rows, step->rows, cols * p->thread / threads, cols * (p->thread + 1) / threads};
    p->pass->kernel->run(&p->pass->steps[i].task, &range, &worker);
  }
  test_free(worker.scratch);
  return NULL;
}

static double seconds(const pass *pass) {
  part parts[MAX_THREADS];
  pthread_t others[MAX_THREADS];
  const double start = now();
  for (int t = 0; t < threads; t++) {
    parts[t] = (part){pass, t};
    if (t && pthread_create(&others[t], NULL, run_part, &parts[t]))
      abort();
  }
  run_part(&parts[0]);
  for (int t = 1; t < threads; t++)
    pthread_join(others[t], NULL);
  return now() - start;
}

// ---- Forms of weights

typedef struct form {
  const char *name;
  uint16_t op;
  uint32_t bits, format, group; // of gemm_grouped, gemm_16, gemm_grouped
  bool zeros, sparse;
} form;

static const form forms[] = {
    {"f32", INFC_OP_GEMM, 0, 0, 0, false, false},
    {"bf16", INFC_OP_GEMM_16, 0, INFC_GEMM_16_BF16, 0, false, false},
    {"bf16 2:4", INFC_OP_GEMM_16, 0, INFC_GEMM_16_BF16, 0, false, true},
    {"f16", INFC_OP_GEMM_16, 0, INFC_GEMM_16_F16, 0, false, false},
    {"f8e4m3", INFC_OP_GEMM_16, 0, INFC_GEMM_16_F8E4M3, 0, false, false},
    {"int8", INFC_OP_GEMM_I8, 0, 0, 0, false, false},
    {"int8 2:4", INFC_OP_GEMM_I8, 0, 0, 0, false, true},
    {"int8/32", INFC_OP_GEMM_GROUPED, 8, 0, 32, false, false},
    {"int8/64", INFC_OP_GEMM_GROUPED, 8, 0, 64, false, false},
    {"int4/32", INFC_OP_GEMM_GROUPED, 4, 0, 32, false, false},
    {"int4/32 2:4", INFC_OP_GEMM_GROUPED, 4, 0, 32, false, true},
    {"int4/32 zeros", INFC_OP_GEMM_GROUPED, 4, 0, 32, true, false},
    {"int4/32 zeros 2:4", INFC_OP_GEMM_GROUPED, 4, 0, 32, true, true},
    {"int4/64 zeros", INFC_OP_GEMM_GROUPED, 4, 0, 64, true, false},
    {"int4/64 zeros 2:4", INFC_OP_GEMM_GROUPED, 4, 0, 64, true, true},
};
enum { FORMS = sizeof forms / sizeof *forms };

// A step of the form, its weights at `b`; what is returned is their number of bytes.
static int64_t make_step(test_step *s, const form *f, int64_t rows, int64_t k, int64_t n, uint8_t *a, uint8_t *b,
                         float *vector, float *y) {
  const int64_t panels = infc_gemm_panels(n);
  uint32_t words[16];
  int64_t bytes, count;
  test_step_init(s, rows, panels);
  if (f->op == INFC_OP_GEMM) {
    bytes = k * INFC_PANEL * 4;
    test_operand(s, false, a, INFC_DTYPE_F32, rows, k, k);
    test_operand(s, false, b, INFC_DTYPE_F32, k, n, n)->packing = INFC_PACK_F32_K1N32;
    memcpy(words, (uint32_t[]){0, 0, 0}, (size_t)(count = INFC_WORDS_GEMM) * 4);
  } else if (f->op == INFC_OP_GEMM_16) {
    bytes = infc_gemm_16_lines(f->format, f->sparse, k) * infc_gemm_16_line(f->format, f->sparse);
    test_operand(s, false, a, infc_gemm_16_a_type(f->format), rows, k, k);
    test_operand(s, false, b, INFC_DTYPE_U8, panels, bytes, bytes);
    memcpy(words, (uint32_t[]){0, 0, 0, 0, f->format, f->sparse, (uint32_t)k, (uint32_t)n},
           (size_t)(count = INFC_WORDS_GEMM_16) * 4);
  } else if (f->op == INFC_OP_GEMM_I8) {
    bytes = infc_i8_panel_bytes(k, f->sparse);
    test_operand(s, false, a, INFC_DTYPE_U8, rows, k, k);
    test_operand(s, false, vector, INFC_DTYPE_F32, rows, 2, 2);
    test_operand(s, false, b, INFC_DTYPE_I8, panels, bytes, bytes);
    test_operand(s, false, vector, INFC_DTYPE_F32, n, 0, 1);
    test_operand(s, false, vector, INFC_DTYPE_I32, n, 0, 1);
    memcpy(words, (uint32_t[]){0, 0, 0, 0, 1, (uint32_t)k, f->sparse}, (size_t)(count = INFC_WORDS_GEMM_I8) * 4);
  } else {
    bytes = k / f->group *
            (INFC_PANEL * (2 + f->zeros) + infc_grouped_lines(f->group, f->bits, f->sparse) * INFC_GROUPED_LINE);
    test_operand(s, false, a, INFC_DTYPE_I8, rows, k, k);
    test_operand(s, false, vector, INFC_DTYPE_F32, rows, 2 * (k / f->group), 2 * (k / f->group));
    test_operand(s, false, b, INFC_DTYPE_U8, panels, bytes, bytes);
    memcpy(words, (uint32_t[]){0, 0, 0, f->bits, 0, f->zeros, f->sparse, f->group, (uint32_t)k, (uint32_t)n},
           (size_t)(count = INFC_WORDS_GEMM_GROUPED) * 4);
  }
  test_operand(s, true, y, INFC_DTYPE_F32, rows, n, n);
  for (int64_t w = 0; w < count; w++)
    test_word(s, words[w]);
  CHECK(test_validate(s, f->op, 0), "%s", f->name);
  return panels * bytes;
}

// ---- Shapes

static const int64_t shapes[][2] = {{4096, 4096}, {576, 1536}, {1536, 576}, {576, 960}, {576, 49152}}; // K, N

typedef struct figure {
  pass pass;
  test_step *steps;
  double bytes, best;
} figure;

static const infc_kernel *kernel_of(uint16_t op, uint16_t isa, const char *part) {
  for (size_t i = 0; i < infc_kernel_count; i++)
    if (infc_kernels[i].op == op && infc_kernels[i].isa == isa && test_supported(&infc_kernels[i]) &&
        (!part || strstr(infc_kernels[i].name, part)))
      return &infc_kernels[i];
  return NULL;
}

static void print(const form *f, const figure *figures, int64_t k, int64_t n, const double reading[2]) {
  const figure *mine = &figures[f - forms];
  const double rate = mine->bytes / mine->best, read = reading[0] > reading[1] ? reading[0] : reading[1];
  const bool same = reading[0] < 1.1 * reading[1] && reading[1] < 1.1 * reading[0];
  printf("%-24s %-18s %5ld x %-5ld %7.2f GB/s %5.1f %% of %.1f and %.1f%s", mine->pass.kernel->name, f->name, k, n,
         1e-9 * rate, 100.0 * rate / read, 1e-9 * reading[0], 1e-9 * reading[1], same ? "" : " void");
  if (f->sparse && mine[-1].pass.count) // the form before is the dense one
    printf("  x%.2f of dense", mine[-1].best / mine->best * mine->pass.count / mine[-1].pass.count);
  printf("\n");
}

static void bench(int64_t rows, int64_t k, int64_t n, uint16_t isa, const char *part) {
  uint8_t *a = test_alloc((size_t)(rows * k) * 4);
  float *vector = test_alloc((size_t)(n + 2 * rows * k) * 4), *y = test_alloc((size_t)(rows * n) * 4);
  memcpy(a, memory, (size_t)(rows * k) * 4);
  memcpy(vector, memory, (size_t)(n + 2 * rows * k) * 4);
  figure figures[FORMS] = {0};
  for (int i = 0; i < FORMS; i++) {
    figure *it = &figures[i];
    it->pass.kernel = kernel_of(forms[i].op, isa, part);
    it->best = 1e9;
    if (!it->pass.kernel || (forms[i].group && k % forms[i].group))
      continue;
    it->pass.steps = it->steps = test_alloc(MAX_STEPS * sizeof *it->steps);
    for (int64_t used = 0; it->pass.count < MAX_STEPS; it->pass.count++) {
      test_step *s = &it->steps[it->pass.count];
      const int64_t bytes = make_step(s, &forms[i], rows, k, n, a, memory + used, vector, y);
      used = (used + bytes + 63) / 64 * 64;
      if (used > COLD_BYTES)
        break;
      it->bytes += (double)bytes;
      it->pass.scratch = infc_operators[forms[i].op].scratch(&s->task);
    }
  }
  double reading[2] = {0};
  for (int turn = 0; turn < TURNS; turn++) {
    const double rate = COLD_BYTES / seconds(&(pass){0});
    double *half = &reading[turn >= TURNS / 2];
    *half = rate > *half ? rate : *half;
    for (int i = 0; i < FORMS; i++) {
      const double time = figures[i].pass.count ? seconds(&figures[i].pass) : 1e9;
      figures[i].best = time < figures[i].best ? time : figures[i].best;
    }
  }
  for (int i = 0; i < FORMS; i++)
    if (figures[i].pass.count)
      print(&forms[i], figures, k, n, reading);
  for (int i = 0; i < FORMS; i++)
    test_free(figures[i].steps);
  test_free(a);
  test_free(vector);
  test_free(y);
}

int main(int argc, char **argv) {
  const int64_t rows = argc > 1 ? atol(argv[1]) : 1;
  threads = argc > 2 ? atoi(argv[2]) : 1;
  if (rows < 1 || rows > 64 || threads < 1 || threads > MAX_THREADS) {
    fprintf(stderr, "usage: bench_decode [ROWS [THREADS [PART_OF_A_KERNEL'S_NAME]]]\n");
    return 2;
  }
  // Numbers of moderate size, whichever type they are read as, in large pages as a language model's.
  memory = aligned_alloc(2 << 20, COLD_BYTES);
  madvise(memory, COLD_BYTES, MADV_HUGEPAGE);
  test_rng rng = {1};
  for (size_t i = 0; i < COLD_BYTES; i += 2) {
    const uint16_t word = (uint16_t)(0x3000 + test_random(&rng) % 0xC00);
    memcpy(memory + i, &word, sizeof word);
  }
  static const uint16_t isas[] = {INFC_ISA_X86_64_V4, INFC_ISA_X86_64_V3};
  for (size_t i = 0; i < sizeof isas / sizeof *isas; i++)
    for (size_t j = 0; j < sizeof shapes / sizeof *shapes; j++)
      bench(rows, shapes[j][0], shapes[j][1], isas[i], argc > 3 ? argv[3] : NULL);
  free(memory);
  return test_result();
}
