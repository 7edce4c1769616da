// Artifacts made by hand, for tests: a chain of elementwise steps in any shape the format allows.
#ifndef INFC_TEST_ARTIFACT_H
#define INFC_TEST_ARTIFACT_H

#include "internal.h"
#include "test.h"

// Bytes that grow.
typedef struct art_bytes {
  uint8_t *data;
  size_t size;
} art_bytes;

static inline size_t art_put(art_bytes *bytes, const void *data, size_t size) {
  size_t at = bytes->size;
  bytes->data = realloc(bytes->data, at + size + 1);
  if (!bytes->data)
    abort();
  memcpy(bytes->data + at, data, size);
  bytes->size += size;
  return at;
}

static inline uint32_t art_string(art_bytes *strings, const char *text) {
  return (uint32_t)art_put(strings, text, strlen(text) + 1);
}

static inline void art_append(art_bytes *bytes, art_bytes *part) {
  art_put(bytes, part->data ? (const void *)part->data : "", part->size);
  free(part->data);
}

// The toy model: y[batch, width] = (x + bias), then negated `negations` times, and s = y squared. Integer input `ids`
// [batch] is only range-checked, copied to output `t`. All f32 but ids and t, which are i32.
typedef struct art_toy {
  uint32_t width;
  uint32_t negations;
  uint32_t profiles[4]; // batch sizes; the first 0 ends
  uint32_t policy;      // INFC_DIM_*
  uint32_t isas[3];     // program sets; see isa_count
  uint32_t isa_count;
  uint8_t split; // of the elementwise steps, in schedule 0; schedule 1, if any, is serial
  bool barriers; // before each step
  uint32_t row_block;
  uint32_t min_rows; // not 0: two schedules, chosen by batch
} art_toy;

static const art_toy art_default = {
    .width = 8, .negations = 3, .profiles = {4, 16}, .policy = INFC_DIM_PADS, .isa_count = 1, .split = INFC_SPLIT_ROWS};

enum { ART_X, ART_BIAS, ART_IDS, ART_INPUTS };
enum { ART_Y, ART_S, ART_T, ART_OUTPUTS };
enum { ART_IDS_MAX = 9, ART_BIAS_FILL = 2 };

static inline uint32_t art_profile_count(const art_toy *toy) {
  uint32_t count = 0;
  while (count < 4 && toy->profiles[count])
    count++;
  return count;
}

static inline art_bytes art_io(const art_toy *toy) {
  art_bytes out = {0}, strings = {0};
  infc_io_header header = {.input_count = ART_INPUTS,
                           .output_count = ART_OUTPUTS,
                           .symbol_count = 1,
                           .profile_count = art_profile_count(toy)};
  infc_io_tensor tensors[ART_INPUTS + ART_OUTPUTS] = {
      [ART_X] = {.dtype = INFC_DTYPE_F32, .rank = 2, .dims = {-1, (int32_t)toy->width}},
      [ART_BIAS] = {.dtype = INFC_DTYPE_F32,
                    .rank = 1,
                    .flags = INFC_TENSOR_OPTIONAL,
                    .fill = ART_BIAS_FILL,
                    .dims = {(int32_t)toy->width}},
      [ART_IDS] = {.dtype = INFC_DTYPE_I32, .rank = 1, .has_range = 1, .range_max = ART_IDS_MAX, .dims = {-1}},
      [ART_INPUTS + ART_Y] = {.dtype = INFC_DTYPE_F32, .rank = 2, .dims = {-1, (int32_t)toy->width}},
      [ART_INPUTS + ART_S] = {.dtype = INFC_DTYPE_F32, .rank = 2, .dims = {-1, (int32_t)toy->width}},
      [ART_INPUTS + ART_T] = {.dtype = INFC_DTYPE_I32, .rank = 1, .dims = {-1}},
  };
  const char *names[] = {"x", "bias", "ids", "y", "s", "t"};
  for (int i = 0; i < ART_INPUTS + ART_OUTPUTS; i++)
    tensors[i].name = art_string(&strings, names[i]);
  infc_io_symbol symbol = {art_string(&strings, "batch"), toy->policy};
  header.strings_size = (uint32_t)strings.size;
  art_put(&out, &header, sizeof header);
  art_put(&out, tensors, sizeof tensors);
  art_put(&out, &symbol, sizeof symbol);
  art_put(&out, toy->profiles, header.profile_count * sizeof *toy->profiles);
  art_append(&out, &strings);
  return out;
}

typedef struct art_program {
  infc_program_header header;
  art_bytes steps, operands, words, strings;
} art_program;

static inline infc_operand art_operand(uint32_t space, uint64_t offset, uint32_t dtype, uint32_t rows, uint32_t width,
                                       int32_t symbol) {
  return (infc_operand){.space = (uint8_t)space,
                        .dtype = (uint8_t)dtype,
                        .rank = width ? 2 : 1,
                        .rows_symbol = symbol,
                        .offset = offset,
                        .row_stride = width ? width : 1,
                        .dims = {rows, width ? width : 1, 1, 1, 1, 1, 1, 1}};
}

static inline void art_step(art_program *program, const art_toy *toy, uint16_t kernel, const char *name, uint32_t rows,
                            uint8_t inputs, const infc_operand *operands, const uint32_t *words, uint32_t word_count) {
  infc_step step = {.kernel = kernel,
                    .input_count = inputs,
                    .output_count = 1,
                    .first_operand = (uint32_t)(program->operands.size / sizeof *operands),
                    .first_word = (uint32_t)(program->words.size / sizeof *words),
                    .word_count = word_count,
                    .rows_symbol = 0,
                    .rows = rows,
                    .cols = 1,
                    .split = {toy->split, INFC_SPLIT_SERIAL},
                    .barrier = {toy->barriers, 0},
                    .name = art_string(&program->strings, name)};
  art_put(&program->steps, &step, sizeof step);
  art_put(&program->operands, operands, (inputs + 1u) * sizeof *operands);
  art_put(&program->words, words, word_count * sizeof *words);
  program->header.step_count++;
}

static inline void art_unary(art_program *program, const art_toy *toy, const char *name, uint32_t function,
                             infc_operand x, infc_operand y) {
  infc_operand operands[] = {x, y};
  uint32_t words[INFC_WORDS_UNARY] = {[INFC_W_UNARY_FUNCTION] = function};
  art_step(program, toy, 1, name, x.dims[0], 1, operands, words, INFC_WORDS_UNARY);
}

static inline art_bytes art_program_bytes(const art_toy *toy, uint32_t profile, uint32_t isa) {
  uint32_t rows = toy->profiles[profile], width = toy->width, tensor = rows * width * 4;
  art_program p = {.header = {.profile = profile,
                              .isa = isa,
                              .symbol_count = 1,
                              .kernel_count = 2,
                              .schedule_symbol = 0,
                              .schedule_min_rows = toy->min_rows,
                              .row_block = {toy->row_block, 0},
                              .schedule_count = toy->min_rows ? 2 : 1,
                              .arena_size = infc_round_up(tensor) * 2}};
  const char *suffix = isa == INFC_ISA_X86_64_V4 ? "avx512" : isa == INFC_ISA_X86_64_V3 ? "avx2" : "scalar";
  char binary[64], unary[64];
  snprintf(binary, sizeof binary, "infc_binary_any__%s", suffix);
  snprintf(unary, sizeof unary, "infc_unary__%s", suffix);
  infc_program_symbol symbol = {art_string(&p.strings, "batch"), rows};
  infc_program_kernel kernels[] = {{art_string(&p.strings, binary), 0}, {art_string(&p.strings, unary), 0}};
  infc_operand arena[2] = {art_operand(INFC_SPACE_ARENA, 0, INFC_DTYPE_F32, rows, width, 0),
                           art_operand(INFC_SPACE_ARENA, infc_round_up(tensor), INFC_DTYPE_F32, rows, width, 0)};
  infc_operand y = art_operand(INFC_SPACE_OUTPUT, ART_Y, INFC_DTYPE_F32, rows, width, 0);
  // x + bias: a nest over [1, 1, 1, 1, ...] whose outermost dimension is the batch.
  infc_operand add[] = {art_operand(INFC_SPACE_INPUT, ART_X, INFC_DTYPE_F32, rows, width, 0),
                        art_operand(INFC_SPACE_INPUT, ART_BIAS, INFC_DTYPE_F32, width, 0, -1),
                        toy->negations ? arena[0] : y};
  uint32_t words[INFC_WORDS_BINARY] = {
      INFC_BINARY_ADD, rows, 1, 1, 1, 1, width, width, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1};
  art_step(&p, toy, 0, "add", rows, 2, add, words, INFC_WORDS_BINARY);
  for (uint32_t i = 0; i < toy->negations; i++)
    art_unary(&p, toy, "negate", INFC_UNARY_NEG, arena[i % 2], i + 1 == toy->negations ? y : arena[(i + 1) % 2]);
  art_unary(&p, toy, "square", INFC_UNARY_SQUARE, y,
            art_operand(INFC_SPACE_OUTPUT, ART_S, INFC_DTYPE_F32, rows, width, 0));
  art_unary(&p, toy, "copy ids", INFC_UNARY_IDENTITY,
            art_operand(INFC_SPACE_INPUT, ART_IDS, INFC_DTYPE_I32, rows, 0, 0),
            art_operand(INFC_SPACE_OUTPUT, ART_T, INFC_DTYPE_I32, rows, 0, 0));
  p.header.operand_count = (uint32_t)(p.operands.size / sizeof(infc_operand));
  p.header.word_count = (uint32_t)(p.words.size / 4);
  p.header.strings_size = (uint32_t)p.strings.size;
  art_bytes out = {0};
  art_put(&out, &p.header, sizeof p.header);
  art_put(&out, &symbol, sizeof symbol);
  art_put(&out, kernels, sizeof kernels);
  art_append(&out, &p.steps);
  art_append(&out, &p.operands);
  art_append(&out, &p.words);
  art_append(&out, &p.strings);
  return out;
}

// Sets every checksum of an artifact anew, as far as what it covers lies within the file.
static inline void art_seal(uint8_t *data, size_t size) {
  infc_header *header = (infc_header *)data;
  uint64_t table = header->section_table_offset, table_size = header->section_count * sizeof(infc_section);
  if (table % 8 == 0 && table < size && table_size <= size - table) {
    infc_section *sections = (infc_section *)(data + table);
    for (uint32_t i = 0; i < header->section_count; i++)
      if (sections[i].offset < size && sections[i].size <= size - sections[i].offset)
        sections[i].crc32 = infc_crc32(data + sections[i].offset, sections[i].size);
    header->table_crc32 = infc_crc32(sections, table_size);
  }
  header->header_crc32 = 0;
  header->header_crc32 = infc_crc32(header, sizeof *header);
}

enum { ART_MAX_SECTIONS = 16 };

// Memory of test_alloc; `size` receives its length.
static inline uint8_t *art_assemble(const uint32_t *kinds, art_bytes *parts, uint32_t count, size_t *size) {
  infc_section table[ART_MAX_SECTIONS] = {0};
  uint64_t end = sizeof(infc_header) + count * sizeof *table;
  for (uint32_t i = 0; i < count; i++) {
    uint64_t align = kinds[i] == INFC_SECTION_WEIGHTS ? INFC_WEIGHTS_ALIGN : INFC_SECTION_ALIGN;
    uint32_t ordinal = 0;
    for (uint32_t j = 0; j < i; j++)
      ordinal += kinds[j] == kinds[i];
    table[i] = (infc_section){.kind = kinds[i],
                              .flags = INFC_SECTION_REQUIRED,
                              .offset = (end + align - 1) / align * align,
                              .size = parts[i].size,
                              .ordinal = ordinal};
    end = table[i].offset + table[i].size;
  }
  infc_header header = {.magic = {'I', 'N', 'F', 'C', '\r', '\n', 0x1A, '\n'},
                        .version_major = INFC_VERSION_MAJOR,
                        .header_size = sizeof header,
                        .file_size = end,
                        .section_table_offset = sizeof header,
                        .section_count = count};
  uint8_t *data = test_alloc(end);
  memset(data, 0, end);
  memcpy(data, &header, sizeof header);
  memcpy(data + sizeof header, table, count * sizeof *table);
  for (uint32_t i = 0; i < count; i++) {
    memcpy(data + table[i].offset, parts[i].data, parts[i].size);
    free(parts[i].data);
  }
  art_seal(data, end);
  *size = end;
  return data;
}

static inline uint8_t *art_make(const art_toy *toy, size_t *size) {
  uint32_t kinds[ART_MAX_SECTIONS], count = 0;
  art_bytes parts[ART_MAX_SECTIONS] = {0};
  kinds[count] = INFC_SECTION_META;
  art_put(&parts[count++], "{}", 2);
  kinds[count] = INFC_SECTION_IO;
  parts[count++] = art_io(toy);
  for (uint32_t i = 0; i < toy->isa_count; i++)
    for (uint32_t p = 0; p < art_profile_count(toy); p++) {
      kinds[count] = INFC_SECTION_PROGRAM;
      parts[count++] = art_program_bytes(toy, p, toy->isas[i]);
    }
  kinds[count] = INFC_SECTION_WEIGHTS;
  art_put(&parts[count++], "weights", 7);
  return art_assemble(kinds, parts, count, size);
}

static inline infc_section *art_section(uint8_t *data, uint32_t kind, uint32_t ordinal) {
  infc_header *header = (infc_header *)data;
  infc_section *sections = (infc_section *)(data + header->section_table_offset);
  for (uint32_t i = 0; i < header->section_count; i++)
    if (sections[i].kind == kind && sections[i].ordinal == ordinal)
      return &sections[i];
  abort();
}

// A toy with buffers bound to one context.
typedef struct art_run {
  infc_context *context;
  float *x, *y, *s;
  int32_t *ids, *t;
} art_run;

static inline art_run art_bind(infc_context *context, const art_toy *toy, int64_t batch) {
  size_t count = (size_t)batch * toy->width;
  art_run run = {context,
                 test_alloc(count * 4),
                 test_alloc(count * 4),
                 test_alloc(count * 4),
                 test_alloc((size_t)batch * 4),
                 test_alloc((size_t)batch * 4)};
  for (size_t i = 0; i < count; i++)
    run.x[i] = (float)i;
  for (int64_t i = 0; i < batch; i++)
    run.ids[i] = (int32_t)(i % (ART_IDS_MAX + 1));
  CHECK(!infc_context_bind_input(context, ART_X, run.x, (int64_t[]){batch, toy->width}, 2), "%s",
        infc_context_error(context));
  CHECK(!infc_context_bind_input(context, ART_IDS, run.ids, &batch, 1));
  CHECK(!infc_context_bind_output(context, ART_Y, run.y, count * 4));
  CHECK(!infc_context_bind_output(context, ART_S, run.s, count * 4));
  CHECK(!infc_context_bind_output(context, ART_T, run.t, (size_t)batch * 4));
  return run;
}

// True if the outputs are what x with the bias' fill gives.
static inline bool art_correct(const art_run *run, const art_toy *toy, int64_t batch) {
  bool ok = true;
  for (size_t i = 0; i < (size_t)batch * toy->width; i++) {
    float y = (run->x[i] + ART_BIAS_FILL) * (toy->negations % 2 ? -1 : 1);
    ok &= run->y[i] == y && run->s[i] == y * y;
  }
  for (int64_t i = 0; i < batch; i++)
    ok &= run->t[i] == run->ids[i];
  return ok;
}

static inline void art_free(art_run *run) {
  test_free(run->x);
  test_free(run->y);
  test_free(run->s);
  test_free(run->ids);
  test_free(run->t);
}

#endif // INFC_TEST_ARTIFACT_H
