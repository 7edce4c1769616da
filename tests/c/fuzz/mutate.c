// Runs mutated artifacts: mutate COUNT SEED ARTIFACT...
//
// Each round changes a few bytes or fields of one artifact, half of the time with checksums set anew, opens it from
// memory, and if it validates runs it once on random inputs within their ranges. Engines for a GPU run on the fake one.
// Any status will do; a crash, a sanitizer's report, a write outside a buffer, a broken rule of the fake GPU or a run
// of more than LIMIT_S seconds of processor time fails. So does a mutator too blunt to get a fifth past validation.
#include "drive.h"
#include "lm/model.h"
#include "load.h"
#include "mutations.h"
#include "tensorrt/gpu_test.h"

#include <signal.h>
#include <sys/time.h>
#include <unistd.h>

enum { LIMIT_S = 20, STUCK_S = 300, MAX_SUBJECTS = 256 };

// ---- One run

typedef struct counts {
  int opened, ran;
  int gpu, stepped;
  int statuses[INFC_STATUS_CACHE_FULL + 1];
} counts;

static infc_status open_and_run(const subject *s, size_t size, test_rng *rng, infc_pool *pool, counts *c) {
  infc_allocator allocator = {capped_alloc, capped_free, NULL};
  infc_engine_options options = {.struct_size = sizeof options, .allocator = &allocator};
  options.device = test_random(rng) % 4 ? NULL : "cpu";
  static const char *const isas[] = {NULL, NULL, "scalar", "x86-64-v3"};
  if (s->loaded && !options.device)
    options.isa = isas[test_random(rng) % 4];
  infc_engine *engine;
  infc_context *context;
  char why[256];
  infc_status status = infc_engine_open_memory(s->data, size, &options, &engine, why, sizeof why);
  if (status)
    return status;
  c->opened++;
  infc_context_options with_pool = {.struct_size = sizeof with_pool, .pool = pool, .allocator = &allocator};
  status = infc_context_create(engine, &with_pool, &context, why, sizeof why);
  if (!status) {
    status = bind_and_run(engine, context, rng);
    c->ran += status == INFC_STATUS_OK || status == INFC_STATUS_BAD_VALUE;
    c->gpu += status == INFC_STATUS_OK && infc_engine_device(engine)[1] == 'u';
    infc_context_destroy(context);
  }
  if (!status || status == INFC_STATUS_BAD_VALUE) // random rows of logits are mostly not there
    c->stepped += step_lm(engine, &allocator, rng) == INFC_STATUS_OK;
  infc_engine_close(engine);
  return status;
}

// ---- The program

static void too_slow(int signal) {
  (void)signal;
  static const char text[] = "a run took too long\n";
  (void)!write(2, text, sizeof text - 1);
  abort();
}

// Of processor time, which a busy machine does not change; a run that waits for ever ends too. 0: no limit.
static void limit_time(int seconds) {
  struct itimerval limit = {.it_value.tv_sec = seconds};
  setitimer(ITIMER_PROF, &limit, NULL);
  alarm(seconds ? STUCK_S : 0);
}

static subject *load(const char *path) {
  subject *s = calloc(1, sizeof *s);
  if (!s)
    exit(2);
  s->data = load_file(path, &s->size);
  s->loaded = true;
  return s;
}

static subject *hand_made(uint32_t isa, uint8_t split, uint32_t row_block) {
  subject *s = calloc(1, sizeof *s);
  art_toy toy = art_default;
  toy.isas[0] = isa;
  toy.split = split;
  toy.row_block = row_block;
  toy.barriers = row_block;
  toy.min_rows = 4;
  if (s)
    s->data = art_make(&toy, &s->size);
  return s;
}

static subject *language_model(uint32_t dtype) {
  subject *s = calloc(1, sizeof *s);
  lm_model model = lm_default;
  model.dtype = dtype;
  if (s)
    s->data = lm_make(&model, &s->size);
  return s;
}

// With programs, without, and with a plan for each profile.
static subject *with_plans(uint32_t programs, uint32_t plan_count) {
  subject *s = calloc(1, sizeof *s);
  art_toy toy = art_default;
  art_plan plans[2] = {art_plan_default, art_plan_default};
  toy.isa_count = programs;
  for (uint32_t i = 0; i < plan_count; i++) {
    plans[i].profile_count = 3 - plan_count;
    plans[i].profiles[0] = i;
  }
  if (s)
    s->data = art_make_gpu(&toy, plans, plan_count, &s->size);
  return s;
}

int main(int argc, char **argv) {
  if (argc < 3) {
    fprintf(stderr, "usage: mutate COUNT SEED [ARTIFACT...]\n");
    return 2;
  }
  int count = atoi(argv[1]);
  uint64_t seed = strtoull(argv[2], NULL, 10);
  subject *subjects[MAX_SUBJECTS];
  int subject_count = 0;
  subjects[subject_count++] = hand_made((uint32_t)infc_isa_find(infc_cpu_isa()), INFC_SPLIT_ROWS, 3);
  subjects[subject_count++] = hand_made(INFC_ISA_SCALAR, INFC_SPLIT_SERIAL, 0);
  subjects[subject_count++] = with_plans(1, 1);
  subjects[subject_count++] = with_plans(0, 1);
  subjects[subject_count++] = with_plans(1, 2);
  subjects[subject_count++] = language_model(INFC_DTYPE_F32);
  subjects[subject_count++] = language_model(INFC_DTYPE_I8);
  fake_configure("memory=16777216");
  for (int i = 3; i < argc && subject_count < MAX_SUBJECTS; i++)
    subjects[subject_count++] = load(argv[i]);
  infc_pool *pool;
  infc_pool_options options = {.struct_size = sizeof options, .threads = 2};
  if (infc_pool_create(&options, &pool, NULL, 0))
    return 2;
  signal(SIGALRM, too_slow);
  signal(SIGPROF, too_slow);
  counts c = {0};
  for (int round = 0; round < count; round++) {
    test_rng rng = {(seed + (uint64_t)round) * 0x9E3779B97F4A7C15ull | 1};
    subject *s = subjects[round % subject_count];
    if (getenv("MUTATE_VERBOSE"))
      fprintf(stderr, "round %d: mutate 1 %llu\n", round, (unsigned long long)(seed + (uint64_t)round));
    mutate(s, &rng);
    if (round / subject_count % 2)
      seal(s);
    size_t size = test_random(&rng) % 64 ? s->size : test_random(&rng) % s->size;
    limit_time(LIMIT_S);
    c.statuses[open_and_run(s, size, &rng, test_random(&rng) % 2 ? pool : NULL, &c)]++;
    limit_time(0);
    gpu_check_clean("mutated");
    fake_reset();
    undo(s);
  }
  infc_pool_destroy(pool);
  printf("%d artifacts: %d passed validation, %d ran, %d of them on the GPU, %d as language models\n", count, c.opened,
         c.ran, c.gpu, c.stepped);
  for (int status = 0; status <= INFC_STATUS_CACHE_FULL; status++)
    if (c.statuses[status])
      printf("  %6d %s\n", c.statuses[status], infc_status_string((infc_status)status));
  CHECK(count < 1000 || c.gpu * 100 >= count || argc > 3, "too few ran on the GPU");
  CHECK(count < 1000 || c.stepped * 100 >= count || argc > 3, "too few ran as language models");
  CHECK(count < 1000 || c.opened * 5 >= count, "too few passed validation to test what comes after");
  for (int i = 0; i < subject_count; i++) {
    test_free(subjects[i]->data);
    free(subjects[i]);
  }
  return test_result();
}
