// Runs mutated artifacts: mutate COUNT SEED ARTIFACT...
//
// Each round changes a few bytes or fields of one artifact, half of the time with checksums set anew, opens it from
// memory, and if it validates runs it once on random inputs within their ranges. Engines for a GPU run on the fake one.
// Any status will do; a crash, a sanitizer's report, a write outside a buffer, a broken rule of the fake GPU or a run
// of more than LIMIT_S seconds of processor time fails. So does a mutator too blunt to get a fifth past validation.
#include "drive.h"
#include "load.h"
#include "tensorrt/gpu_test.h"

#include <signal.h>
#include <sys/time.h>
#include <unistd.h>

enum { LIMIT_S = 20, STUCK_S = 300, MAX_CHANGES = 1 << 16, MAX_SUBJECTS = 256, MAX_TENSORRT_HEADER = 320 };

// ---- An artifact and the changes made to it

typedef struct change {
  size_t at;
  uint8_t before;
} change;

typedef struct subject {
  uint8_t *data;
  size_t size;
  bool loaded; // from a file, which may have programs of several instruction sets
  change changes[MAX_CHANGES];
  size_t change_count;
} subject;

static void set_bytes(subject *s, size_t at, const void *bytes, size_t count) {
  for (size_t i = 0; i < count && at + i < s->size && s->change_count < MAX_CHANGES; i++) {
    s->changes[s->change_count++] = (change){at + i, s->data[at + i]};
    s->data[at + i] = ((const uint8_t *)bytes)[i];
  }
}

static void undo(subject *s) {
  while (s->change_count) {
    change *c = &s->changes[--s->change_count];
    s->data[c->at] = c->before;
  }
}

static void swap_bytes(subject *s, size_t a, size_t b, size_t count) {
  for (size_t i = 0; i < count; i++) {
    uint8_t kept = s->data[a + i];
    set_bytes(s, a + i, &s->data[b + i], 1);
    set_bytes(s, b + i, &kept, 1);
  }
}

static uint32_t get_u32(const subject *s, size_t at) {
  uint32_t value;
  memcpy(&value, s->data + at, sizeof value);
  return value;
}

static void set_u32(subject *s, size_t at, uint32_t value) {
  set_bytes(s, at, &value, sizeof value);
}

static const infc_section *sections_of(const subject *s) {
  return (const infc_section *)(s->data + ((const infc_header *)s->data)->section_table_offset);
}

// The checksums that opening reads; those of weights would cost too much.
static void seal(subject *s) {
  const infc_header *header = (const infc_header *)s->data;
  uint64_t table = header->section_table_offset, table_size = (uint64_t)header->section_count * sizeof(infc_section);
  if (table % 8 == 0 && table < s->size && table_size <= s->size - table) {
    for (uint32_t i = 0; i < header->section_count; i++) {
      const infc_section *section = &sections_of(s)[i];
      if (section->kind != INFC_SECTION_WEIGHTS && section->offset < s->size &&
          section->size <= s->size - section->offset)
        set_u32(s, (size_t)((const uint8_t *)&section->crc32 - s->data),
                infc_crc32(s->data + section->offset, section->size));
    }
    set_u32(s, offsetof(infc_header, table_crc32), infc_crc32(s->data + table, table_size));
  }
  set_u32(s, offsetof(infc_header, header_crc32), 0);
  set_u32(s, offsetof(infc_header, header_crc32), infc_crc32(s->data, sizeof(infc_header)));
}

// ---- Mutations

// What a round aims at, as it was before the first change. A kind that the artifact lacks has size 0.
typedef struct targets {
  infc_section io, program, weights, tensorrt;
  infc_program_header header;
} targets;

static infc_section pick_section(const subject *s, test_rng *rng, uint32_t kind) {
  uint32_t count = ((const infc_header *)s->data)->section_count;
  for (int attempt = 0; attempt < 100; attempt++) {
    const infc_section *section = &sections_of(s)[test_random(rng) % count];
    if (section->kind == kind && section->size >= 4)
      return *section;
  }
  return (infc_section){0};
}

static targets pick_targets(const subject *s, test_rng *rng) {
  targets t = {pick_section(s, rng, INFC_SECTION_IO),
               pick_section(s, rng, INFC_SECTION_PROGRAM),
               pick_section(s, rng, INFC_SECTION_WEIGHTS),
               pick_section(s, rng, INFC_SECTION_TENSORRT),
               {0}};
  if (t.program.size)
    memcpy(&t.header, s->data + t.program.offset, sizeof t.header);
  // The plan behind the header is TensorRT's to judge.
  if (t.tensorrt.size > MAX_TENSORRT_HEADER)
    t.tensorrt.size = MAX_TENSORRT_HEADER;
  return t;
}

static uint32_t odd_value(const subject *s, test_rng *rng, uint32_t old, const infc_section *section) {
  static const uint32_t values[] = {0, 1, 2, 3, 7, 32, 64, 255, 256, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0xFFFFFFFE};
  switch (test_random(rng) % 5) {
  case 0:
    return values[test_random(rng) % (sizeof values / sizeof *values)];
  case 1:
    return old + (uint32_t)test_random_int(rng, -2, 2);
  case 2:
    return old ^ 1u << test_random(rng) % 32;
  case 3: // a value found elsewhere in the section
    return get_u32(s, section->offset + test_random(rng) % (section->size / 4) * 4);
  default:
    return (uint32_t)test_random(rng) >> test_random(rng) % 32;
  }
}

static void mutate_field(subject *s, test_rng *rng, const infc_section *section) {
  size_t at = section->offset + test_random(rng) % (section->size / 4) * 4;
  set_u32(s, at, odd_value(s, rng, get_u32(s, at), section));
}

// Two entries of one of a program's tables: 0 steps, 1 operands, 2 words.
static size_t table_entry(const targets *t, test_rng *rng, int table, size_t *entry_size, size_t *other) {
  const infc_program_header *h = &t->header;
  size_t steps = t->program.offset + sizeof *h + h->symbol_count * sizeof(infc_program_symbol) +
                 h->kernel_count * sizeof(infc_program_kernel);
  size_t operands = steps + h->step_count * sizeof(infc_step);
  size_t starts[] = {steps, operands, operands + h->operand_count * sizeof(infc_operand)};
  size_t counts[] = {h->step_count, h->operand_count, h->word_count};
  size_t sizes[] = {sizeof(infc_step), sizeof(infc_operand), 4};
  table = counts[table] ? table : 0; // every program has steps
  *entry_size = sizes[table];
  *other = starts[table] + test_random(rng) % counts[table] * sizes[table];
  return starts[table] + test_random(rng) % counts[table] * sizes[table];
}

// Changes that often leave a program valid: they must run, whatever they compute.
static void mutate_plausibly(subject *s, test_rng *rng, const targets *t) {
  size_t size, other, at;
  uint8_t coin = test_random(rng) & 1;
  switch (test_random(rng) % 8) {
  case 0: // how a step is divided
    at = table_entry(t, rng, 0, &size, &other);
    set_bytes(s, at + offsetof(infc_step, split) + coin, (uint8_t[]){(uint8_t)(test_random(rng) % 3)}, 1);
    break;
  case 1: // a barrier more or less
    at = table_entry(t, rng, 0, &size, &other);
    set_bytes(s, at + offsetof(infc_step, barrier) + coin, (uint8_t[]){(uint8_t)(test_random(rng) & 1)}, 1);
    break;
  case 2: // the order of steps
    at = table_entry(t, rng, 0, &size, &other);
    swap_bytes(s, at, other, size);
    break;
  case 3: // tensors that overlap
    at = table_entry(t, rng, 1, &size, &other) + offsetof(infc_operand, offset);
    if (get_u32(s, at) >= 64)
      set_u32(s, at, (uint32_t)(test_random(rng) % (get_u32(s, at) / 64) * 64));
    break;
  case 4: // one operand for another
    at = table_entry(t, rng, 1, &size, &other);
    set_bytes(s, at, s->data + other, size);
    break;
  case 5: // an attribute
    at = table_entry(t, rng, 2, &size, &other);
    set_u32(s, at, odd_value(s, rng, get_u32(s, at), &t->program));
    break;
  case 6: // rows a block, choice of schedule, length of the prologue
    at = t->program.offset + offsetof(infc_program_header, prologue_steps) + test_random(rng) % 6 * 4;
    set_u32(s, at, (uint32_t)(test_random(rng) % 9));
    break;
  default: // a whole word anywhere
    mutate_field(s, rng, &t->program);
  }
}

static void mutate(subject *s, test_rng *rng) {
  targets t = pick_targets(s, rng);
  for (int64_t i = test_random_int(rng, 1, 3); i > 0; i--) {
    uint64_t dice = test_random(rng) % 16;
    if (dice == 0)
      set_u32(s, test_random(rng) % 64 * 4, (uint32_t)test_random(rng)); // header or section table
    else if (dice == 1)
      mutate_field(s, rng, &t.io);
    else if (t.tensorrt.size && (dice % 2 || !t.program.size))
      mutate_field(s, rng, &t.tensorrt);
    else if (dice < 6 && t.weights.size) // tables of indices, scales of NaN
      mutate_field(s, rng, &t.weights);
    else if (dice < 15)
      mutate_plausibly(s, rng, &t);
    else
      mutate_field(s, rng, &t.program);
  }
}

// ---- One run

typedef struct counts {
  int opened, ran;
  int gpu;
  int statuses[INFC_STATUS_DEVICE + 1];
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
  printf("%d artifacts: %d passed validation, %d ran, %d of them on the GPU\n", count, c.opened, c.ran, c.gpu);
  for (int status = 0; status <= INFC_STATUS_DEVICE; status++)
    if (c.statuses[status])
      printf("  %6d %s\n", c.statuses[status], infc_status_string((infc_status)status));
  CHECK(count < 1000 || c.gpu * 100 >= count || argc > 3, "too few ran on the GPU");
  CHECK(count < 1000 || c.opened * 5 >= count, "too few passed validation to test what comes after");
  for (int i = 0; i < subject_count; i++) {
    test_free(subjects[i]->data);
    free(subjects[i]);
  }
  return test_result();
}
