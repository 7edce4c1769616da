// What a kernel is to the rest of the runtime. Kernels include this, layout.h, cpu_features.h and their own headers,
// nothing else.
//
// A kernel family is a folder: ref.c (the scalar reference, the operator's validator and its scratch size), one file
// per ISA and type (x86_avx2_f32.c, x86_avx512_f32.c), and kernels.inc with one line a kernel:
//   INFC_KERNEL(gemm, SCALAR, infc_gemm_f32__scalar)
//   INFC_KERNEL(gemm, X86_64_V4, infc_gemm_f32_12x32__avx512)
// and one line an operator in ref.c's terms:
//   INFC_OPERATOR(gemm, GEMM, infc_gemm_validate, infc_gemm_scratch)
// Programs name kernels by the function's name.
#ifndef INFC_KERNEL_H
#define INFC_KERNEL_H

#include "layout.h"

#include <stdbool.h>

#define INFC_MAX_OPERANDS 16
#define INFC_MAX_SYMBOLS 32

// One step of a program, its operands resolved for one context.
typedef struct infc_task {
  void *ptr[INFC_MAX_OPERANDS]; // inputs, then outputs
  const infc_operand *operands; // as in the file, same order
  const uint32_t *words;        // attributes, INFC_W_<OP>_*
  const infc_step *step;
} infc_task;

// The part of a task that one call computes. A step with split ROWS gets all columns, one with COLS all rows, SERIAL
// both. A range may be empty; every thread calls every step it takes part in.
typedef struct infc_range {
  int64_t row0, row1; // of `rows`
  int64_t rows;       // rows in use
  int64_t col0, col1;
} infc_range;

// The calling thread's own.
typedef struct infc_worker {
  void *scratch;    // at a multiple of 64, as large as the operator's scratch function asked
  int64_t *symbols; // run-time scalars, shared by the threads; only a prologue step may write
  uint32_t thread;
  uint32_t threads;
  int64_t iteration;              // of the `repeat` that is evaluated
  bool taken;                     // what a `branch` or `repeat` found
  const struct infc_cache *cache; // of keys and values (cache/cache.h); NULL in engines without STATE
} infc_worker;

// Why a kernel could not finish. It must leave outputs in bounds whatever its inputs hold, and its operands may overlap
// (memmove, not memcpy, between them): programs come from files.
typedef enum infc_fault {
  INFC_FAULT_NONE = 0,
  INFC_FAULT_INDEX = 1, // an index operand's value lies outside the table
} infc_fault;

typedef infc_fault (*infc_kernel_fn)(const infc_task *task, const infc_range *range, infc_worker *worker);

// True if the step's operands (number, types, ranks, packing, sizes, strides against each other) and words are all that
// the kernels of this operator rely on. The caller has checked each operand alone: known dtype and packing, no
// dimension of zero, bytes within its space at its bound, alignment of 64 in the arena and WEIGHTS. Must be safe on any
// values. rows_symbol of the step and of the operands that follow it must be compared here.
typedef bool (*infc_validate_fn)(const infc_task *task, uint32_t symbol_count);
// Bytes of scratch one thread needs for the task; SIZE_MAX if that overflows.
typedef size_t (*infc_scratch_fn)(const infc_task *task);

typedef struct infc_operator {
  const char *name;
  infc_validate_fn validate;
  infc_scratch_fn scratch;
} infc_operator;

typedef struct infc_kernel {
  const char *name;
  infc_kernel_fn run;
  uint16_t op;  // INFC_OP_*
  uint16_t isa; // INFC_ISA_*
} infc_kernel;

extern const infc_operator infc_operators[INFC_OP_COUNT];
extern const infc_kernel infc_kernels[];
extern const size_t infc_kernel_count;

static inline float infc_word_f32(uint32_t word) {
  union {
    uint32_t u;
    float f;
  } bits = {word};
  return bits.f;
}

#endif // INFC_KERNEL_H
