// A context and the plans it runs: a program's steps with every operand resolved to an address.
#ifndef INFC_CONTEXT_H
#define INFC_CONTEXT_H

#include "internal.h"
#include "pool.h"

// One step, ready to call.
typedef struct infc_call {
  infc_kernel_fn run;
  const infc_watch_place *watch; // counted before the step in runs that count; or NULL
  int32_t rows_symbol;           // or -1
  int32_t rows, cols;
  infc_task task;
} infc_call;

// Calls that a thread makes one after the other: a chain of ROWS steps that it takes through block by block, a run of
// SERIAL steps, one COLS step, or a branch or repeat, whose region are the groups that follow it.
typedef struct infc_group {
  uint32_t first, count; // calls
  uint8_t split;
  bool barrier;           // all threads meet before
  bool control, repeats;  // a branch or repeat; the latter
  uint32_t then_end, end; // groups after those of the region that runs if taken, and after both
} infc_group;

typedef struct infc_schedule {
  infc_group *groups;
  uint32_t count;
  uint32_t row_block; // rows a chain takes at once
  bool parallel;      // false: thread 0 does everything
  bool controlled;    // has branches or repeats
} infc_schedule;

// Where a bound address goes.
typedef struct infc_patch {
  void **slot;
  uint32_t index;
  bool output;
} infc_patch;

typedef struct infc_plan {
  const infc_program *program;
  infc_call *calls;
  infc_schedule schedules[INFC_MAX_SCHEDULES];
  infc_patch *patches;
  uint32_t patch_count;
  uint64_t *nanoseconds; // a step, summed over timed runs; NULL until timing is first switched on
  uint64_t timed_runs;
} infc_plan;

typedef struct infc_bound_input {
  const void *data; // NULL: not bound
  bool device;      // an address of the GPU's
  const void *fill; // what an unbound optional input reads
  int64_t elements; // once shapes are resolved
  int64_t dims[INFC_MAX_DIMS];
} infc_bound_input;

typedef struct infc_bound_output {
  void *data;  // NULL: not bound
  bool device; // an address of the GPU's
  size_t size;
  int64_t dims[INFC_MAX_DIMS]; // once shapes are resolved
} infc_bound_output;

struct infc_context {
  atomic_bool busy;
  bool shapes_stale;    // inputs changed shape: choose the profile again
  bool addresses_stale; // something was bound: patch the plan
  bool timing;
  void (*trace)(void *user, const infc_traced *value); // or NULL
  void *trace_user;
  atomic_uint fault; // 1 + the step that failed; 0: none
  bool taken;        // what thread 0 found of a branch or repeat that all threads go through
  uint64_t budget;   // steps that repeats may still make; thread 0's
  infc_engine *engine;
  infc_pool *pool;
  uint32_t threads;
  infc_bound_input *inputs;
  infc_bound_output *outputs;
  uint32_t profile;            // of the shapes in use
  infc_gpu_context *gpu;       // NULL: runs on the CPU
  infc_gpu_binding *bindings;  // inputs, then outputs, as the executor sees them
  const infc_gpu_state *state; // the sequence that runs read and add to; NULL: one that begins with each
  infc_plan *plans;            // [profile]; NULL on a GPU, as all that follows
  infc_plan *plan;             // of the shapes in use
  const infc_schedule *schedule;
  int64_t initial_symbols[INFC_MAX_SYMBOLS]; // on a GPU too: IO's from the shapes, others their bounds
  int64_t symbols[INFC_MAX_SYMBOLS];
  uint8_t *arena;
  uint8_t *scratch;
  size_t scratch_stride;        // bytes from one thread's to the next
  uint64_t *thread_nanoseconds; // [thread][max_steps] of the run in progress; NULL until timing is first switched on
  uint32_t max_steps;
  const infc_cache *cache;        // of keys and values; NULL without STATE
  infc_watch_count *watch_counts; // [thread][watch_stride]; NULL in engines without WATCH
  size_t watch_stride;
  uint32_t watch_every, watch_wait; // runs from one that counts to the next, 0: none does; and before the next one
  uint64_t watched_runs;
  bool watching; // the run in progress counts
  size_t memory;
  infc_allocator allocator;
  char error[256];
};

// infc_context_create; with a `cache` of the caller's instead of one of its own, which every run finds empty.
infc_status infc_context_make(infc_engine *engine, const infc_context_options *options, const infc_cache *cache,
                              infc_context **out, infc_error error);

// Runs the current plan on inputs already checked (exec.c).
infc_status infc_exec(infc_context *context);

// After binding: chooses the profile, and holds the outputs' buffers against their sizes. Integer inputs are held
// against their ranges at every run (context.c).
infc_status infc_prepare(infc_context *context);
infc_status infc_check_values(infc_context *context);

// A context on the engine's GPU (gpu_context.c).
infc_status infc_gpu_context_create(infc_engine *engine, const infc_allocator *allocator, infc_context **out,
                                    infc_error error);
void infc_gpu_context_destroy(infc_context *context);
infc_status infc_gpu_enqueue(infc_context *context, void *stream);
infc_status infc_gpu_wait(infc_context *context);

// Chooses the profile for the inputs' shapes, if they changed (shapes.c).
infc_status infc_resolve_shapes(infc_context *context);
// An element of an integer or bool type.
int64_t infc_read_integer(uint32_t dtype, const void *values, int64_t at);
// Index of the first of `count` integers outside the range, or -1 (shapes.c).
int64_t infc_find_outside(uint32_t dtype, const void *values, int64_t count, int64_t min, int64_t max);

static inline infc_error infc_context_error_buffer(infc_context *context) {
  return (infc_error){context->error, sizeof context->error};
}

#endif // INFC_CONTEXT_H
