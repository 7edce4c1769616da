// Opening: what is accepted, and each thing that is refused, with its status and its message.
#include "artifact.h"
#include "cpu_features.h"

#include <sys/stat.h>
#include <unistd.h>

static infc_status open_bytes(const void *data, size_t size, infc_engine **engine, char *why, size_t why_size) {
  why[0] = 0;
  return infc_engine_open_memory(data, size, NULL, engine, why, why_size);
}

// ---- One defect at a time

typedef struct artifact {
  uint8_t *data;
  size_t size;
  infc_header *header;
  infc_section *io_section, *program_section, *weights_section;
  infc_io_header *io;
  infc_io_tensor *tensors;
  infc_io_symbol *io_symbol;
  uint32_t *bounds;
  infc_program_header *program;
  infc_program_symbol *symbol;
  infc_program_kernel *kernels;
  infc_step *steps;
  infc_operand *operands; // 0-2 add, 3-4 negate, ...
  uint32_t *words;
} artifact;

static artifact make(void) {
  artifact a = {0};
  art_toy toy = art_default;
  toy.min_rows = 2;
  a.data = art_make(&toy, &a.size);
  a.header = (infc_header *)a.data;
  a.io_section = art_section(a.data, INFC_SECTION_IO, 0);
  a.program_section = art_section(a.data, INFC_SECTION_PROGRAM, 0);
  a.weights_section = art_section(a.data, INFC_SECTION_WEIGHTS, 0);
  a.io = (infc_io_header *)(a.data + a.io_section->offset);
  a.tensors = (infc_io_tensor *)(a.io + 1);
  a.io_symbol = (infc_io_symbol *)(a.tensors + ART_INPUTS + ART_OUTPUTS);
  a.bounds = (uint32_t *)(a.io_symbol + 1);
  a.program = (infc_program_header *)(a.data + a.program_section->offset);
  a.symbol = (infc_program_symbol *)(a.program + 1);
  a.kernels = (infc_program_kernel *)(a.symbol + 1);
  a.steps = (infc_step *)(a.kernels + 2);
  a.operands = (infc_operand *)(a.steps + a.program->step_count);
  a.words = (uint32_t *)(a.operands + a.program->operand_count);
  return a;
}

#define BAD INFC_STATUS_BAD_ARTIFACT
#define NEW INFC_STATUS_INCOMPATIBLE

// Each line changes a valid artifact `a`, whose checksums are then set anew, and says what must come of it.
#define DEFECTS(DEFECT)                                                                                                \
  DEFECT(a.header->magic[0] = 'X', BAD, "not an infc artifact")                                                        \
  DEFECT(a.header->version_major = 2, NEW, "format 2.0")                                                               \
  DEFECT(a.header->version_minor = 9, INFC_STATUS_OK, "")                                                              \
  DEFECT(a.header->required_features = 4, NEW, "features 0x4")                                                         \
  DEFECT(a.header->header_size = 128, BAD, "byte 12: the header size is 128")                                          \
  DEFECT(a.header->file_size++, BAD, "truncated or has grown")                                                         \
  DEFECT(a.io_section->offset += 8, BAD, "not a multiple of 64")                                                       \
  DEFECT(a.weights_section->offset -= 64, BAD, "not a multiple of 4096")                                               \
  DEFECT(a.weights_section->offset = 1ull << 40, BAD, "does not fit in the file")                                      \
  DEFECT(a.weights_section->size = UINT64_MAX, BAD, "does not fit in the file")                                        \
  DEFECT(a.weights_section->offset = 0, BAD, "overlaps the header")                                                    \
  DEFECT(a.io_section->size = 0, BAD, "IO is too short for its header")                                                \
  DEFECT(a.io_section[1].offset = a.io_section->offset, BAD, "overlap")                                                \
  DEFECT(a.io_section->flags = 3, BAD, "unknown section flags")                                                        \
  DEFECT(a.io_section->kind = INFC_SECTION_WEIGHTS, BAD, "")                                                           \
  DEFECT(a.weights_section->kind = 99, NEW, "section kind 99")                                                         \
  DEFECT(a.weights_section->kind = 99, NEW, "section kind 99")                                                         \
  DEFECT((a.weights_section->kind = 99, a.weights_section->flags = 0), INFC_STATUS_OK, "")                             \
  DEFECT(a.program_section[1].ordinal = 0, BAD, "both kind 4, ordinal 0")                                              \
  DEFECT(a.program_section[1].kind = INFC_SECTION_REPORT, NEW, "no programs for")                                      \
  DEFECT(a.io_section->kind = INFC_SECTION_REPORT, BAD, "one IO section")                                              \
  DEFECT(a.io->input_count = 0xFFFFFFFF, BAD, "inputs")                                                                \
  DEFECT(a.io->output_count = 0, BAD, "0 outputs")                                                                     \
  DEFECT(a.io->output_count++, BAD, "")                                                                                \
  DEFECT(a.io->symbol_count = 17, BAD, "named dimensions")                                                             \
  DEFECT(a.io->profile_count = 0, BAD, "0 profiles")                                                                   \
  DEFECT(a.io->strings_size--, BAD, "does not end with its strings")                                                   \
  DEFECT(a.io->strings_size = 0x7FFFFFFF, BAD, "too short for what its header counts")                                 \
  DEFECT(a.data[a.io_section->offset + a.io_section->size - 1] = 'x', BAD, "does not end with its strings")            \
  DEFECT(a.tensors[0].name = 1u << 30, BAD, "no name")                                                                 \
  DEFECT(a.tensors[0].dtype = 15, BAD, "'x' has unknown type 15")                                                      \
  DEFECT(a.tensors[0].dtype = INFC_DTYPE_I32, BAD, "does not agree with the input")                                    \
  DEFECT(a.tensors[0].rank = 9, BAD, "rank 9")                                                                         \
  DEFECT(a.tensors[0].dims[0] = 0, BAD, "does not agree with the input")                                               \
  DEFECT(a.tensors[0].dims[0] = -2, BAD, "'x' has dimension -2")                                                       \
  DEFECT(a.tensors[0].dims[0] = INT32_MIN, BAD, "dimension")                                                           \
  DEFECT(a.tensors[0].dims[1] = 9, BAD, "does not agree with the input")                                               \
  DEFECT(a.tensors[0].dims[0] = 3, BAD, "does not agree with the input")                                               \
  DEFECT(a.tensors[3].dims[1] = 7, BAD, "does not agree with the output")                                              \
  DEFECT(a.tensors[0].flags = 2, BAD, "unknown flags")                                                                 \
  DEFECT(a.tensors[3].flags = 1, BAD, "unknown flags")                                                                 \
  DEFECT(a.tensors[0].has_range = 1, BAD, "meaningless range")                                                         \
  DEFECT(a.tensors[2].range_min = 10, BAD, "meaningless range")                                                        \
  DEFECT(a.tensors[2].has_range = 2, BAD, "unknown flags")                                                             \
  DEFECT(a.io_symbol->policy = 2, BAD, "unknown policy 2")                                                             \
  DEFECT(a.io_symbol->name = 999, BAD, "no name")                                                                      \
  DEFECT(a.bounds[0] = 0, BAD, "'batch' is 0 in profile 0")                                                            \
  DEFECT(a.bounds[0] = 5, BAD, "is not the profile's")                                                                 \
  DEFECT(a.bounds[1] = 0x80000000, BAD, "in profile 1")                                                                \
  DEFECT((a.tensors[0].dims[0] = a.tensors[2].dims[0] = a.tensors[3].dims[0] = a.tensors[4].dims[0] =                  \
              a.tensors[5].dims[0] = 4),                                                                               \
         BAD, "no input and no output has dimension 'batch'")                                                          \
  DEFECT(a.program->profile = 2, BAD, "profile 2 of 2")                                                                \
  DEFECT(a.program->profile = 1, BAD, "")                                                                              \
  DEFECT(a.program->isa = 7, NEW, "unknown instruction set 7")                                                         \
  DEFECT(a.program->isa = INFC_ISA_X86_64_V3, NEW, "no programs for")                                                  \
  DEFECT(a.program->symbol_count = 0, BAD, "")                                                                         \
  DEFECT(a.program->symbol_count = 0xFFFFFFFF, BAD, "too short")                                                       \
  DEFECT(a.program->kernel_count = 0x20000000, BAD, "too short")                                                       \
  DEFECT(a.program->step_count++, BAD, "")                                                                             \
  DEFECT(a.program->operand_count = 0xFFFFFFFF, BAD, "too short")                                                      \
  DEFECT(a.program->word_count--, BAD, "")                                                                             \
  DEFECT(a.program->arena_size = 100, BAD, "arena of 100 bytes")                                                       \
  DEFECT(a.program->arena_size = 64, BAD, "does not fit in the arena")                                                 \
  DEFECT(a.program->arena_size = 1ull << 63, BAD, "arena of")                                                          \
  DEFECT(a.program->prologue_steps = 7, BAD, "7 of 6 steps")                                                           \
  DEFECT(a.program->schedule_count = 3, BAD, "3 schedules")                                                            \
  DEFECT(a.program->schedule_count = 0, BAD, "0 schedules")                                                            \
  DEFECT(a.program->schedule_symbol = 1, BAD, "chosen by symbol 1")                                                    \
  DEFECT(a.program->schedule_symbol = -2, BAD, "chosen by symbol -2")                                                  \
  DEFECT(a.symbol->max = 0, BAD, "bound 0")                                                                            \
  DEFECT(a.symbol->max = 8, BAD, "is not the profile's")                                                               \
  DEFECT(a.symbol->name++, BAD, "is not the profile's")                                                                \
  DEFECT(a.kernels[0].name++, NEW, "no kernel 'nfc_binary_any__scalar'")                                               \
  DEFECT(a.kernels[0].name = 0xFFFFFFF0, BAD, "a kernel has no name")                                                  \
  DEFECT(a.kernels[0].name = a.kernels[1].name, BAD, "step 0 (add) does not meet the rules of operator unary")         \
  DEFECT(a.steps[0].kernel = 2, BAD, "step 0 has kernel 2")                                                            \
  DEFECT(a.steps[0].input_count = 16, BAD, "operands of step 0")                                                       \
  DEFECT(a.steps[0].input_count = 1, BAD, "")                                                                          \
  DEFECT(a.steps[5].first_operand += 2, BAD, "operands of step 5")                                                     \
  DEFECT(a.steps[0].first_operand = 0xFFFFFFFF, BAD, "operands of step 0")                                             \
  DEFECT(a.steps[0].first_word = 0xFFFFFFFF, BAD, "words of step 0")                                                   \
  DEFECT(a.steps[0].word_count = 0xFFFFFFFF, BAD, "words of step 0")                                                   \
  DEFECT(a.steps[1].word_count = 2, BAD, "rules of operator unary")                                                    \
  DEFECT(a.steps[0].rows_symbol = 1, BAD, "rows symbol 1")                                                             \
  DEFECT(a.steps[0].rows_symbol = -2, BAD, "rows symbol -2")                                                           \
  DEFECT(a.steps[0].rows_symbol = -1, BAD, "")                                                                         \
  DEFECT(a.steps[0].rows = 3, BAD, "its symbol's bound is 4")                                                          \
  DEFECT(a.steps[0].cols = 0x80000000, BAD, "2147483648 columns")                                                      \
  DEFECT(a.steps[0].split[0] = 3, BAD, "split 3")                                                                      \
  DEFECT(a.steps[0].split[1] = 3, BAD, "split 3")                                                                      \
  DEFECT(a.steps[0].barrier[0] = 2, BAD, "barrier 2")                                                                  \
  DEFECT(a.steps[0].name = 12345, BAD, "name of step 0")                                                               \
  DEFECT(a.steps[0].name = INFC_NO_STRING, INFC_STATUS_OK, "")                                                         \
  DEFECT(a.operands[0].space = 4, BAD, "unknown space 4")                                                              \
  DEFECT(a.operands[0].offset = 3, BAD, "input or output 3")                                                           \
  DEFECT(a.operands[0].offset = ART_IDS, BAD, "does not agree with the input")                                         \
  DEFECT(a.operands[0].dtype = 0, BAD, "type 0")                                                                       \
  DEFECT(a.operands[0].rank = 0, BAD, "rank 0")                                                                        \
  DEFECT(a.operands[0].rank = 9, BAD, "rank 9")                                                                        \
  DEFECT(a.operands[0].packing = 2, BAD, "unknown packing 2")                                                          \
  DEFECT(a.operands[1].packing = 1, BAD, "packing 1")                                                                  \
  DEFECT(a.operands[0].dims[1] = 0, BAD, "dimension 1 is 0")                                                           \
  DEFECT(a.operands[0].dims[2] = 2, BAD, "dimension 2 is 2")                                                           \
  DEFECT(a.operands[0].dims[0] = 3, BAD, "an operand has 3 rows")                                                      \
  DEFECT(a.operands[0].dims[0] = 5, BAD, "")                                                                           \
  DEFECT(a.operands[0].rows_symbol = 1, BAD, "rows are symbol 1")                                                      \
  DEFECT(a.operands[0].rows_symbol = -1, BAD, "does not agree with the input")                                         \
  DEFECT(a.operands[0].row_stride = 7, BAD, "row stride 7")                                                            \
  DEFECT(a.operands[0].row_stride = 9, BAD, "")                                                                        \
  DEFECT(a.operands[2].offset = 32, BAD, "does not fit in the arena")                                                  \
  DEFECT(a.operands[2].offset = 1ull << 62, BAD, "does not fit in the arena")                                          \
  DEFECT(a.operands[2].space = INFC_SPACE_WEIGHTS, BAD, "does not fit in WEIGHTS")                                     \
  DEFECT((a.operands[4].space = INFC_SPACE_INPUT, a.operands[4].offset = ART_X), BAD, "step 1 writes to an input")     \
  DEFECT((a.operands[3].space = INFC_SPACE_WEIGHTS), BAD, "does not fit in WEIGHTS")                                   \
  DEFECT(a.words[INFC_W_BINARY_FUNCTION] = 99, BAD, "rules of operator binary")                                        \
  DEFECT(a.words[INFC_W_BINARY_SB5] = 2, BAD, "rules of operator binary")

static void check_defect(const artifact *a, const char *defect, infc_status expected, const char *message) {
  art_seal(a->data, a->size);
  infc_engine *engine = NULL;
  char why[256];
  infc_status status = open_bytes(a->data, a->size, &engine, why, sizeof why);
  CHECK(status == expected && strstr(why, message), "%s: status %d, %s", defect, status, why);
  CHECK(status == INFC_STATUS_OK || engine == NULL);
  infc_engine_close(engine);
  test_free(a->data);
}

static void test_defects(void) {
#define DEFECT(change, status, message)                                                                                \
  {                                                                                                                    \
    artifact a = make();                                                                                               \
    (void)(change);                                                                                                    \
    check_defect(&a, #change, status, message);                                                                        \
  }
  DEFECTS(DEFECT)
}

// ---- Without checksums set anew

static void test_checksums(void) {
  artifact a = make();
  infc_engine *engine;
  char why[256];
  size_t sizes[] = {0, 1, 63, 64, 200, a.size - 1};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
    CHECK(open_bytes(a.data, sizes[i], &engine, why, sizeof why) == BAD, "%zu bytes: %s", sizes[i], why);
  // A flipped bit in each of the parts that are always read.
  size_t places[] = {40, sizeof(infc_header) + 9, a.io_section->offset + 3, a.program_section->offset + 300};
  for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
    a.data[places[i]] ^= 1;
    CHECK(open_bytes(a.data, a.size, &engine, why, sizeof why) == BAD && strstr(why, "checksum"), "%zu: %s", places[i],
          why);
    a.data[places[i]] ^= 1;
  }
  // Weights are read on request only.
  a.data[a.weights_section->offset] ^= 1;
  CHECK(!open_bytes(a.data, a.size, &engine, why, sizeof why));
  CHECK(infc_engine_verify(engine, why, sizeof why) == BAD && strstr(why, "section kind 5"));
  a.data[a.weights_section->offset] ^= 1;
  CHECK(!infc_engine_verify(engine, why, sizeof why));
  const void *data;
  size_t size;
  CHECK(!infc_engine_section(engine, INFC_META, &data, &size) && size == 2 && !memcmp(data, "{}", 2));
  CHECK(!infc_engine_section(engine, INFC_GOLDEN, &data, &size) && size == 0 && data == NULL);
  infc_engine_close(engine);
  test_free(a.data);
}

static void test_crc32(void) {
  CHECK(infc_crc32("123456789", 9) == 0xCBF43926u);
  CHECK(infc_crc32("", 0) == 0);
}

static void test_description(void) {
  artifact a = make();
  infc_engine *engine;
  char why[256];
  CHECK(!open_bytes(a.data, a.size, &engine, why, sizeof why), "%s", why);
  CHECK(infc_engine_input_count(engine) == 3 && infc_engine_output_count(engine) == 3);
  infc_tensor_info info = {.struct_size = sizeof info};
  CHECK(!infc_engine_input(engine, ART_X, &info) && !strcmp(info.name, "x") && info.dtype == INFC_F32 &&
        info.rank == 2);
  CHECK(info.dims[0].symbol == 0 && info.dims[0].max == 16 && info.dims[0].pads == 1);
  CHECK(info.dims[1].symbol == -1 && info.dims[1].max == 8 && info.dims[1].pads == 0 && !info.optional);
  CHECK(!infc_engine_input(engine, ART_BIAS, &info) && info.optional && info.fill == ART_BIAS_FILL && !info.has_range);
  CHECK(!infc_engine_input(engine, ART_IDS, &info) && info.has_range && info.range_max == ART_IDS_MAX);
  CHECK(infc_engine_input(engine, 3, &info) == INFC_STATUS_INVALID_ARGUMENT);
  info.struct_size = 0;
  CHECK(infc_engine_input(engine, 0, &info) == INFC_STATUS_INVALID_ARGUMENT);
  // An older caller's smaller struct is not written beyond its end.
  struct {
    size_t struct_size;
    const char *name;
    uint64_t guard;
  } old = {offsetof(infc_tensor_info, dtype), NULL, 0x1234};
  CHECK(!infc_engine_output(engine, ART_S, (infc_tensor_info *)&old) && !strcmp(old.name, "s") && old.guard == 0x1234);
  CHECK(infc_engine_find_input(engine, "ids") == ART_IDS && infc_engine_find_input(engine, "y") == -1);
  CHECK(infc_engine_find_output(engine, "y") == ART_Y && infc_engine_find_output(engine, NULL) == -1);
  CHECK(infc_engine_profile_count(engine) == 2 && infc_engine_symbol_count(engine) == 1);
  CHECK(!strcmp(infc_engine_symbol(engine, 0), "batch") && infc_engine_symbol(engine, 1) == NULL);
  CHECK(infc_engine_profile_size(engine, 1, 0) == 16 && infc_engine_profile_size(engine, 2, 0) == -1);
  CHECK(!strcmp(infc_engine_isa(engine), "scalar"));
  infc_engine_close(engine);
  test_free(a.data);
}

// ---- Instruction sets

static void test_cpu_levels(void) {
  const infc_cpu v4 = {.leaf1_ecx = 0xFFFFFFFF, .leaf7_ebx = 0xFFFFFFFF, .extended1_ecx = 0xFFFFFFFF, .xcr0 = 0xE7};
  CHECK(infc_cpu_level(&v4) == INFC_ISA_X86_64_V4);
  infc_cpu cpu = v4;
  cpu.xcr0 = 0x07; // the operating system does not save ZMM registers
  CHECK(infc_cpu_level(&cpu) == INFC_ISA_X86_64_V3);
  cpu.xcr0 = 0x03;
  CHECK(infc_cpu_level(&cpu) == INFC_ISA_SCALAR);
  for (uint32_t bit = 0; bit < 32; bit++) { // what each feature's absence costs
    cpu = v4;
    cpu.leaf1_ecx &= ~(1u << bit);
    bool needed = bit == 12 || bit == 22 || bit == 27 || bit == 28 || bit == 29;
    CHECK(infc_cpu_level(&cpu) == (needed ? INFC_ISA_SCALAR : INFC_ISA_X86_64_V4), "leaf 1 bit %u", bit);
    cpu = v4;
    cpu.leaf7_ebx &= ~(1u << bit);
    uint32_t level = bit == 3 || bit == 5 || bit == 8                                ? INFC_ISA_SCALAR
                     : bit == 16 || bit == 17 || bit == 28 || bit == 30 || bit == 31 ? INFC_ISA_X86_64_V3
                                                                                     : INFC_ISA_X86_64_V4;
    CHECK(infc_cpu_level(&cpu) == level, "leaf 7 bit %u", bit);
    cpu = v4;
    cpu.extended1_ecx &= ~(1u << bit);
    CHECK(infc_cpu_level(&cpu) == (bit == 5 ? INFC_ISA_SCALAR : INFC_ISA_X86_64_V4), "extended leaf 1 bit %u", bit);
  }
}

static void test_cpu_features(void) {
  const infc_cpu v4 = {.leaf1_ecx = 0xFFFFFFFF,
                       .leaf7_ebx = 0xFFFFFFFF,
                       .extended1_ecx = 0xFFFFFFFF,
                       .xcr0 = 0xE7,
                       .leaf7_ecx = 1u << 11 | 1u << 1,
                       .leaf71_eax = 1u << 4 | 1u << 5};
  const uint32_t zmm = INFC_CPU_AVX512_VNNI | INFC_CPU_AVX512_BF16 | INFC_CPU_AVX512_VBMI;
  CHECK(infc_cpu_features_of(&v4) == (zmm | INFC_CPU_AVX_VNNI));
  infc_cpu cpu = v4;
  cpu.leaf7_ecx = 1u << 1, cpu.leaf71_eax = 1u << 5;
  CHECK(infc_cpu_features_of(&cpu) == (INFC_CPU_AVX512_BF16 | INFC_CPU_AVX512_VBMI));
  cpu = v4;
  cpu.xcr0 = 0x07; // what needs registers that are not saved is not there
  CHECK(infc_cpu_features_of(&cpu) == INFC_CPU_AVX_VNNI);
  cpu.xcr0 = 0x03;
  CHECK(infc_cpu_features_of(&cpu) == 0);
  const uint32_t all = infc_cpu_features();
  infc_cpu_allow(~(uint32_t)INFC_CPU_AVX512_VNNI);
  CHECK(infc_cpu_features() == (all & ~(uint32_t)INFC_CPU_AVX512_VNNI));
  infc_cpu_allow(~0u);
  CHECK(infc_cpu_features() == all);
}

static void test_isa_choice(void) {
  art_toy toy = art_default;
  toy.isa_count = 3;
  toy.isas[0] = INFC_ISA_SCALAR, toy.isas[1] = INFC_ISA_X86_64_V4, toy.isas[2] = INFC_ISA_X86_64_V3;
  size_t size;
  uint8_t *data = art_make(&toy, &size);
  infc_engine *engine = NULL;
  char why[256];
  CHECK(!open_bytes(data, size, &engine, why, sizeof why), "%s", why);
  CHECK(!strcmp(infc_engine_isa(engine), infc_cpu_isa()), "the best of all: %s", infc_engine_isa(engine));
  infc_engine_close(engine);
  static const char *const isas[] = {"scalar", "x86-64-v3", "x86-64-v4"};
  int here = infc_isa_find(infc_cpu_isa());
  for (int i = 0; i < 3; i++) {
    infc_engine_options options = {.struct_size = sizeof options, .isa = isas[i]};
    infc_status status = infc_engine_open_memory(data, size, &options, &engine, why, sizeof why);
    CHECK(status == (infc_isa_find(isas[i]) <= here ? INFC_STATUS_OK : NEW), "%s: %s", isas[i], why);
    if (status)
      continue;
    CHECK(!strcmp(infc_engine_isa(engine), isas[i]));
    infc_context *context;
    CHECK(!infc_context_create(engine, NULL, &context, NULL, 0));
    art_run run = art_bind(context, &toy, 7);
    CHECK(!infc_run(context) && art_correct(&run, &toy, 7));
    infc_context_destroy(context);
    infc_engine_close(engine);
    art_free(&run);
  }
  infc_engine_options options = {.struct_size = sizeof options, .isa = "sse2"};
  CHECK(infc_engine_open_memory(data, size, &options, &engine, why, sizeof why) == INFC_STATUS_INVALID_ARGUMENT);
  test_free(data);
  data = art_make(&art_default, &size);
  options.isa = "x86-64-v3";
  CHECK(infc_engine_open_memory(data, size, &options, &engine, why, sizeof why) == NEW &&
        strstr(why, "no programs for x86-64-v3"));
  // A program that understates what its kernels need.
  test_free(data);
  toy.isa_count = 1, toy.isas[0] = INFC_ISA_X86_64_V3;
  data = art_make(&toy, &size);
  ((infc_program_header *)(data + art_section(data, INFC_SECTION_PROGRAM, 0)->offset))->isa = INFC_ISA_SCALAR;
  art_seal(data, size);
  CHECK(open_bytes(data, size, &engine, why, sizeof why) == BAD &&
            strstr(why, "more than the program's instruction set"),
        "%s", why);
  test_free(data);
}

// ---- Arguments and files

static void test_arguments(void) {
  size_t size;
  uint8_t *data = art_make(&art_default, &size);
  infc_engine *engine = NULL;
  char why[256];
  CHECK(infc_engine_open_memory(NULL, 0, NULL, &engine, why, sizeof why) == INFC_STATUS_INVALID_ARGUMENT);
  CHECK(infc_engine_open_memory(data, size, NULL, NULL, why, sizeof why) == INFC_STATUS_INVALID_ARGUMENT);
  CHECK(infc_engine_open_memory(data + 8, size - 8, NULL, &engine, why, sizeof why) == INFC_STATUS_INVALID_ARGUMENT);
  struct {
    infc_engine_options options;
    uint64_t unknown;
  } newer = {{.struct_size = sizeof newer}, 0};
  CHECK(!infc_engine_open_memory(data, size, &newer.options, &engine, NULL, 0),
        "a newer caller that asks for nothing new");
  infc_engine_close(engine);
  newer.unknown = 1;
  CHECK(infc_engine_open_memory(data, size, &newer.options, &engine, why, sizeof why) == INFC_STATUS_INVALID_ARGUMENT);
  newer.options.struct_size = 0;
  CHECK(infc_engine_open_memory(data, size, &newer.options, &engine, why, sizeof why) == INFC_STATUS_INVALID_ARGUMENT);
  infc_engine_close(NULL);
  infc_context_destroy(NULL);
  infc_pool_destroy(NULL);
  CHECK(infc_run(NULL) == INFC_STATUS_INVALID_ARGUMENT);
  for (int status = 0; status < 12; status++)
    CHECK(*infc_status_string((infc_status)status));
  test_free(data);
}

static void test_file(void) {
  size_t size;
  uint8_t *data = art_make(&art_default, &size);
  infc_engine *engine = NULL;
  char why[256], path[] = "/tmp/infc_test_XXXXXX";
  CHECK(infc_engine_open("/nonexistent/model.infc", NULL, &engine, why, sizeof why) == INFC_STATUS_IO &&
        strstr(why, "No such file"));
  CHECK(infc_engine_open("/tmp", NULL, &engine, why, sizeof why) == INFC_STATUS_IO &&
        strstr(why, "not a regular file"));
  char pipe[sizeof path];
  snprintf(pipe, sizeof pipe, "/tmp/infc_pipe_%d", (int)getpid());
  CHECK(!mkfifo(pipe, 0600));
  CHECK(infc_engine_open(pipe, NULL, &engine, why, sizeof why) == INFC_STATUS_IO && strstr(why, "not a regular file"),
        "a pipe that nobody writes is not waited for");
  unlink(pipe);
  int file = mkstemp(path);
  CHECK(infc_engine_open(path, NULL, &engine, why, sizeof why) == BAD, "an empty file");
  CHECK(write(file, data, size) == (ssize_t)size);
  CHECK(!infc_engine_open(path, NULL, &engine, why, sizeof why), "%s", why);
  CHECK(!infc_engine_verify(engine, why, sizeof why));
  infc_engine_close(engine);
  CHECK(!ftruncate(file, (off_t)size - 1));
  CHECK(infc_engine_open(path, NULL, &engine, why, sizeof why) == BAD && strstr(why, "truncated"));
  close(file);
  unlink(path);
  test_free(data);
}

int main(void) {
  test_crc32();
  test_defects();
  test_checksums();
  test_description();
  test_cpu_levels();
  test_cpu_features();
  test_isa_choice();
  test_arguments();
  test_file();
  return test_result();
}
