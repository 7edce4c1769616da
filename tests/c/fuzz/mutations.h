// Changes to artifacts that aim at what a validator and kernels read. The artifact may have been changed before: what
// its tables say is followed only within the file.
#ifndef INFC_MUTATIONS_H
#define INFC_MUTATIONS_H

#include "artifact.h"

enum { MAX_CHANGES = 1 << 16, MAX_TENSORRT_HEADER = 320 };

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

static inline void set_bytes(subject *s, size_t at, const void *bytes, size_t count) {
  for (size_t i = 0; i < count && at + i < s->size && s->change_count < MAX_CHANGES; i++) {
    s->changes[s->change_count++] = (change){at + i, s->data[at + i]};
    s->data[at + i] = ((const uint8_t *)bytes)[i];
  }
}

static inline void undo(subject *s) {
  while (s->change_count) {
    change *c = &s->changes[--s->change_count];
    s->data[c->at] = c->before;
  }
}

static inline void swap_bytes(subject *s, size_t a, size_t b, size_t count) {
  for (size_t i = 0; i < count && a + i < s->size && b + i < s->size; i++) {
    uint8_t kept = s->data[a + i];
    set_bytes(s, a + i, &s->data[b + i], 1);
    set_bytes(s, b + i, &kept, 1);
  }
}

static inline uint32_t get_u32(const subject *s, size_t at) {
  uint32_t value = 0;
  if (at < s->size && s->size - at >= sizeof value)
    memcpy(&value, s->data + at, sizeof value);
  return value;
}

static inline void set_u32(subject *s, size_t at, uint32_t value) {
  set_bytes(s, at, &value, sizeof value);
}

static inline const infc_section *sections_of(const subject *s) {
  return (const infc_section *)(s->data + ((const infc_header *)s->data)->section_table_offset);
}

static inline bool has_sections(const subject *s) {
  const infc_header *header = (const infc_header *)s->data;
  if (s->size < sizeof *header || !header->section_count)
    return false;
  uint64_t table = header->section_table_offset, table_size = (uint64_t)header->section_count * sizeof(infc_section);
  return table % 8 == 0 && table < s->size && table_size <= s->size - table;
}

// The checksums that opening reads; those of weights would cost too much.
static inline void seal(subject *s) {
  const infc_header *header = (const infc_header *)s->data;
  if (has_sections(s)) {
    for (uint32_t i = 0; i < header->section_count; i++) {
      const infc_section *section = &sections_of(s)[i];
      if (section->kind != INFC_SECTION_WEIGHTS && section->offset < s->size &&
          section->size <= s->size - section->offset)
        set_u32(s, (size_t)((const uint8_t *)&section->crc32 - s->data),
                infc_crc32(s->data + section->offset, section->size));
    }
    set_u32(s, offsetof(infc_header, table_crc32),
            infc_crc32(sections_of(s), header->section_count * sizeof(infc_section)));
  }
  set_u32(s, offsetof(infc_header, header_crc32), 0);
  set_u32(s, offsetof(infc_header, header_crc32), infc_crc32(s->data, sizeof(infc_header)));
}

// ---- Mutations

// What a round aims at, as it was before the first change. A kind that the artifact lacks has size 0.
typedef struct targets {
  infc_section io, program, weights, tensorrt, state, generation;
  infc_program_header header;
} targets;

static inline infc_section pick_section(const subject *s, test_rng *rng, uint32_t kind) {
  uint32_t count = ((const infc_header *)s->data)->section_count;
  for (int attempt = 0; attempt < 100; attempt++) {
    const infc_section *section = &sections_of(s)[test_random(rng) % count];
    if (section->kind == kind && section->size >= 4 && section->offset < s->size &&
        section->size <= s->size - section->offset)
      return *section;
  }
  return (infc_section){0};
}

static inline targets pick_targets(const subject *s, test_rng *rng) {
  targets t = {pick_section(s, rng, INFC_SECTION_IO),
               pick_section(s, rng, INFC_SECTION_PROGRAM),
               pick_section(s, rng, INFC_SECTION_WEIGHTS),
               pick_section(s, rng, INFC_SECTION_TENSORRT),
               pick_section(s, rng, INFC_SECTION_STATE),
               pick_section(s, rng, INFC_SECTION_GENERATION),
               {0}};
  if (t.program.size >= sizeof t.header)
    memcpy(&t.header, s->data + t.program.offset, sizeof t.header);
  // The plan behind the header is TensorRT's to judge.
  if (t.tensorrt.size > MAX_TENSORRT_HEADER)
    t.tensorrt.size = MAX_TENSORRT_HEADER;
  return t;
}

static inline uint32_t odd_value(const subject *s, test_rng *rng, uint32_t old, const infc_section *section) {
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

static inline void mutate_field(subject *s, test_rng *rng, const infc_section *section) {
  if (!section->size)
    return;
  size_t at = section->offset + test_random(rng) % (section->size / 4) * 4;
  set_u32(s, at, odd_value(s, rng, get_u32(s, at), section));
}

// Two entries of one of a program's tables: 0 steps, 1 operands, 2 words.
static inline size_t table_entry(const targets *t, test_rng *rng, int table, size_t *entry_size, size_t *other) {
  const infc_program_header *h = &t->header;
  size_t steps = t->program.offset + sizeof *h + h->symbol_count * sizeof(infc_program_symbol) +
                 h->kernel_count * sizeof(infc_program_kernel);
  size_t operands = steps + h->step_count * sizeof(infc_step);
  size_t starts[] = {steps, operands, operands + h->operand_count * sizeof(infc_operand)};
  size_t counts[] = {h->step_count, h->operand_count, h->word_count};
  size_t sizes[] = {sizeof(infc_step), sizeof(infc_operand), 4};
  table = counts[table] ? table : 0; // every valid program has steps
  size_t count = counts[table] ? counts[table] : 1;
  *entry_size = sizes[table];
  *other = starts[table] + test_random(rng) % count * sizes[table];
  return starts[table] + test_random(rng) % count * sizes[table];
}

// Changes that often leave a program valid: they must run, whatever they compute.
static inline void mutate_plausibly(subject *s, test_rng *rng, const targets *t) {
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
    if (other + size <= s->size)
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

// One to three changes. The artifact must have sections.
static inline void mutate(subject *s, test_rng *rng) {
  targets t = pick_targets(s, rng);
  for (int64_t i = test_random_int(rng, 1, 3); i > 0; i--) {
    uint64_t dice = test_random(rng) % 16;
    if (dice == 0)
      set_u32(s, test_random(rng) % 64 * 4, (uint32_t)test_random(rng)); // header or section table
    else if (dice == 1)
      mutate_field(s, rng, &t.io);
    else if (t.tensorrt.size && (dice % 2 || !t.program.size))
      mutate_field(s, rng, &t.tensorrt);
    else if (t.state.size && dice == 2)
      mutate_field(s, rng, &t.state);
    else if (t.generation.size && dice < 5)
      mutate_field(s, rng, &t.generation);
    else if (dice < 6 && t.weights.size) // tables of indices, scales of NaN
      mutate_field(s, rng, &t.weights);
    else if (dice < 15 && t.program.size)
      mutate_plausibly(s, rng, &t);
    else
      mutate_field(s, rng, &t.program);
  }
}

#endif
