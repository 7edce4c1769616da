// What the files of the core share: errors, memory, the parsed views of an artifact.
#ifndef INFC_INTERNAL_H
#define INFC_INTERNAL_H

#include "dtype.h"
#include "error.h"
#include "infc/infc.h"
#include "kernels/cache/cache.h"
#include "kernels/kernel.h"
#include "layout.h"
#include "tensorrt/executor.h"
#include "watch.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define INFC_CACHE_LINE 64

// ---- Structs of the caller's (status.c)

// Copies an option struct of the caller's, whose first member is its size, into ours; what it lacks is zero. A larger
// struct with anything but zeros in the part we do not know fails.
infc_status infc_options_copy(void *ours, size_t our_size, const void *theirs, infc_error error);
// Copies a result into the caller's struct as far as that reaches; its struct_size stays. False if it has none.
bool infc_result_copy(void *theirs, const void *ours, size_t our_size);

// ---- Memory (memory.c)

infc_allocator infc_allocator_or_default(const infc_allocator *allocator);
// Returns NULL on failure. Size 0 gives one byte.
void *infc_alloc(const infc_allocator *allocator, size_t size);
void infc_free(const infc_allocator *allocator, void *memory);

static inline uint64_t infc_round_up(uint64_t size) {
  return (size + INFC_CACHE_LINE - 1) / INFC_CACHE_LINE * INFC_CACHE_LINE;
}

// Lays several arrays out in one block. First with base NULL to learn `used`, then with memory of that size.
typedef struct infc_carve {
  uint8_t *base;
  size_t used;
  bool overflow;
} infc_carve;

// `count` elements at a multiple of 64; meaningless while base is NULL.
void *infc_carve_take(infc_carve *carve, uint64_t count, uint64_t element_size);

// ---- Checksums (crc32.c)

// The CRC-32 of zlib, PNG and gzip.
uint32_t infc_crc32(const void *data, size_t size);

// ---- Instruction sets (cpuid.c)

// What the CPU and the operating system report.
typedef struct infc_cpu {
  uint32_t leaf1_ecx, leaf7_ebx, extended1_ecx;
  uint64_t xcr0; // state the operating system saves
  uint32_t leaf7_ecx, leaf71_eax;
} infc_cpu;

infc_cpu infc_cpu_read(void);
// The highest INFC_ISA_* that such a CPU runs.
uint32_t infc_cpu_level(const infc_cpu *cpu);
// The INFC_CPU_* that it has besides (cpu_features.h).
uint32_t infc_cpu_features_of(const infc_cpu *cpu);
// NULL for an unknown number.
const char *infc_isa_name(uint32_t isa);
// -1 for an unknown name.
int infc_isa_find(const char *name);

// ---- Parsed artifact (validate*.c)

typedef struct infc_io {
  const infc_io_header *header;
  const infc_io_tensor *inputs, *outputs;
  const infc_io_symbol *symbols;
  const uint32_t *bounds; // [profile][symbol]
  const char *strings;
} infc_io;

typedef struct infc_program {
  const infc_program_header *header;
  const infc_program_symbol *symbols;
  const infc_step *steps;
  const infc_operand *operands;
  const uint32_t *words;
  const char *strings;
  const infc_kernel **kernels; // owned; by index of the file's kernel table
  uint32_t io_operands;        // operands, over all steps, that are inputs or outputs
  size_t scratch;              // bytes a thread
  uint32_t cache_rows;         // most rows that a step puts into the cache
} infc_program;

// STATE. Without one, `header` is NULL.
typedef struct infc_state {
  const infc_state_header *header;
  const infc_state_layer *layers;
  uint32_t group_count;                    // of layers with the same window
  uint32_t windows[INFC_CACHE_GROUPS];     // 0: all
  uint64_t group_bytes[INFC_CACHE_GROUPS]; // of a block of all layers of the group
} infc_state;

// GENERATION. Without one, `header` is NULL.
typedef struct infc_language {
  const infc_generation_header *header;
  const uint32_t *stops;
  const uint8_t *flags;    // INFC_TOKEN_*
  const uint32_t *offsets; // of the tokens' texts
  const uint8_t *bytes;
  uint32_t longest; // bytes of a token's text
  uint32_t tokens_symbol, rows_symbol;
} infc_language;

// A window that no sequence outgrows is none.
static inline uint32_t infc_state_window(const infc_state *state, uint32_t window) {
  return window < state->header->context ? window : 0;
}

// A layer as kernels see it, without its blocks (validate_lm.c).
infc_cache_layer infc_state_cache_layer(const infc_state *state, uint32_t layer);

// Symbol of an IO dimension, or -1 if it is a constant.
static inline int32_t infc_dim_symbol(int32_t dim) {
  return dim < 0 ? -(dim + 1) : -1;
}

static inline uint32_t infc_io_count(const infc_io *io) {
  return io->header->input_count + io->header->output_count;
}

static inline bool infc_is_optional(const infc_io_tensor *tensor) {
  return tensor->flags & INFC_TENSOR_OPTIONAL;
}

// Size of an IO tensor's dimension in a profile.
static inline int64_t infc_dim_bound(const infc_io *io, uint32_t profile, int32_t dim) {
  int32_t symbol = infc_dim_symbol(dim);
  return symbol < 0 ? dim : (int64_t)io->bounds[(size_t)profile * io->header->symbol_count + (uint32_t)symbol];
}

static inline const char *infc_tensor_name(const infc_io *io, const infc_io_tensor *tensor) {
  return io->strings + tensor->name;
}

// Name of a layer; "" if it has none.
static inline const char *infc_step_name(const infc_program *program, const infc_step *step) {
  return step->name == INFC_NO_STRING ? "" : program->strings + step->name;
}

enum {
  INFC_MAX_NESTING = 8,             // regions within regions
  INFC_MAX_REPEATED_STEPS = 1 << 20 // steps that all repeats of a run may make together
};

// What a control step's region consists of.
typedef struct infc_region {
  bool repeats;
  uint32_t then_steps, else_steps;
} infc_region;

static inline bool infc_is_control(uint16_t op) {
  return op == INFC_OP_BRANCH || op == INFC_OP_REPEAT;
}

static inline infc_region infc_region_of(uint16_t op, const uint32_t *words) {
  if (op == INFC_OP_REPEAT)
    return (infc_region){true, words[INFC_W_REPEAT_STEPS], 0};
  return (infc_region){false, words[INFC_W_BRANCH_THEN_STEPS], words[INFC_W_BRANCH_ELSE_STEPS]};
}

static inline uint32_t infc_operand_count(const infc_step *step) {
  return (uint32_t)step->input_count + step->output_count;
}

// ---- Engine (engine.c)

// The GPU an engine runs on (gpu.c). Without one, `api` is NULL.
typedef struct infc_gpu {
  const infc_executor_api *api;
  infc_gpu_engine *engine;
  infc_gpu_tensor *tensors; // [profile][tensor], and then those of a sequence's cache, with their names
  char name[16];            // "cuda:0"
} infc_gpu;

struct infc_engine {
  atomic_uint references;
  infc_allocator allocator;
  const uint8_t *data;
  size_t size;
  bool mapped;
  const infc_section *sections;
  uint32_t section_count;
  const uint8_t *weights;
  void *resident; // the copy of the weights that is used, or NULL
  infc_io io;
  infc_state state;
  infc_language language;
  uint32_t program_count;
  infc_program *programs;         // of all instruction sets
  const infc_program **selection; // [profile]: the programs that run
  infc_watch watch;
  uint32_t isa;
  infc_gpu_plan *plans; // TENSORRT sections
  uint32_t plan_count;
  infc_gpu gpu;
  char note[1024];
};

infc_engine *infc_engine_retain(infc_engine *engine);

// Loads the executor and has it open the artifact's plans on a GPU. `device` -1: the first that has a plan.
infc_status infc_gpu_open(infc_engine *engine, int device, const char *tensorrt_library, infc_error error);
void infc_gpu_close(infc_engine *engine);

#endif // INFC_INTERNAL_H
