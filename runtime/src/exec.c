// The interpreter of a plan.
#include "context.h"

#include <string.h>
#include <time.h>

static uint64_t now_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static inline int64_t rows_of(const infc_call *call, const int64_t *symbols) {
  return call->rows_symbol < 0 ? call->rows : symbols[call->rows_symbol];
}

// The first fault of a run is kept.
static void record_fault(infc_context *context, uint32_t step) {
  uint32_t none = 0;
  atomic_compare_exchange_strong_explicit(&context->fault, &none, step + 1, memory_order_relaxed, memory_order_relaxed);
}

// Shows what a step wrote to the arena.
static void trace_step(const infc_context *context, uint32_t number, const int64_t *symbols) {
  const infc_program *program = context->plan->program;
  const infc_task *task = &context->plan->calls[number].task;
  for (uint32_t i = task->step->input_count; i < infc_operand_count(task->step); i++) {
    const infc_operand *operand = &task->operands[i];
    if (operand->space != INFC_SPACE_ARENA)
      continue;
    infc_traced value = {.struct_size = sizeof value,
                         .step = number,
                         .output = i - task->step->input_count,
                         .name = infc_step_name(program, task->step),
                         .kernel = program->kernels[task->step->kernel]->name,
                         .dtype = (infc_dtype)operand->dtype,
                         .rank = operand->rank,
                         .row_stride = operand->row_stride,
                         .data = task->ptr[i]};
    for (uint32_t d = 0; d < operand->rank; d++)
      value.dims[d] = operand->dims[d];
    int64_t rows = operand->rows_symbol < 0 ? operand->dims[0] : symbols[operand->rows_symbol];
    value.dims[0] = rows < 0 ? 0 : rows < operand->dims[0] ? rows : operand->dims[0]; // a prologue's may be anything
    context->trace(context->trace_user, &value);
  }
}

static inline void call_step(infc_context *context, uint32_t step, const infc_range *range, infc_worker *worker,
                             bool by_rows, bool watched) {
  const infc_call *call = &context->plan->calls[step];
  bool timed = watched && context->timing;
  if (watched && context->watching && call->watch)
    infc_watch_step(call->watch, &call->task, range, by_rows, worker,
                    context->watch_counts + worker->thread * context->watch_stride + call->watch->layer);
  uint64_t start = timed ? now_ns() : 0;
  infc_fault fault = call->run(&call->task, range, worker);
  if (timed)
    context->thread_nanoseconds[(size_t)worker->thread * context->max_steps + step] += now_ns() - start;
  if (watched && context->trace)
    trace_step(context, step, worker->symbols);
  if (__builtin_expect(fault != INFC_FAULT_NONE, 0))
    record_fault(context, step);
}

static inline void call_whole(infc_context *context, uint32_t step, infc_worker *worker, bool watched) {
  const infc_call *call = &context->plan->calls[step];
  int64_t rows = rows_of(call, worker->symbols);
  infc_range range = {0, rows, rows, 0, call->cols};
  call_step(context, step, &range, worker, false, watched);
}

// A chain takes its rows through all its steps, a block at a time, while they are in cache. A thread without rows calls
// each step once with none.
static inline void call_rows(infc_context *context, const infc_group *group, infc_worker *worker, bool watched) {
  const infc_call *calls = context->plan->calls + group->first;
  int64_t rows = rows_of(calls, worker->symbols), end = rows;
  infc_range range = {.rows = rows};
  if (worker->threads > 1) {
    range.row0 = rows * worker->thread / worker->threads;
    end = rows * (worker->thread + 1) / worker->threads;
  }
  int64_t block = watched && context->trace ? 0 : context->schedule->row_block; // a trace shows whole steps
  do {
    range.row1 = block && range.row0 + block < end ? range.row0 + block : end;
    for (uint32_t i = 0; i < group->count; i++) {
      range.col1 = calls[i].cols;
      call_step(context, group->first + i, &range, worker, true, watched);
    }
    range.row0 = range.row1;
  } while (range.row0 < end);
}

static inline void call_cols(infc_context *context, const infc_group *group, infc_worker *worker, bool watched) {
  const infc_call *call = &context->plan->calls[group->first];
  int64_t rows = rows_of(call, worker->symbols), cols = call->cols;
  infc_range range = {0, rows, rows, cols * worker->thread / worker->threads,
                      cols * (worker->thread + 1) / worker->threads};
  call_step(context, group->first, &range, worker, false, watched);
}

static inline __attribute__((always_inline)) void run_group(infc_context *context, const infc_group *group,
                                                            infc_worker *worker, bool watched) {
  if (group->barrier && worker->threads > 1)
    infc_pool_barrier(context->pool, worker->thread);
  if (group->split == INFC_SPLIT_ROWS)
    call_rows(context, group, worker, watched);
  else if (group->split == INFC_SPLIT_COLS)
    call_cols(context, group, worker, watched);
  else if (worker->thread == 0)
    for (uint32_t s = 0; s < group->count; s++)
      call_whole(context, group->first + s, worker, watched);
}

static inline __attribute__((always_inline)) void run_groups(infc_context *context, infc_worker *worker, bool watched) {
  const infc_schedule *schedule = context->schedule;
  for (uint32_t i = 0; i < schedule->count; i++)
    run_group(context, &schedule->groups[i], worker, watched);
}

// Evaluates a branch, or a repeat before an iteration, and charges that to the run's budget.
static bool evaluate(infc_context *context, const infc_group *control, infc_worker *worker, bool watched) {
  const infc_range range = {0, 1, 1, 0, 1};
  const uint64_t cost = control->repeats ? context->plan->calls[control->first].task.words[INFC_W_REPEAT_STEPS] : 0;
  call_step(context, control->first, &range, worker, false, watched);
  if (worker->taken && cost > context->budget) {
    record_fault(context, control->first);
    return false;
  }
  context->budget -= worker->taken ? cost : 0;
  return worker->taken;
}

// Thread 0 evaluates; those that go through the region with it learn what it found.
static bool decide(infc_context *context, const infc_group *control, infc_worker *worker, bool watched) {
  if (control->split == INFC_SPLIT_SERIAL || worker->threads == 1)
    return evaluate(context, control, worker, watched);
  infc_pool_barrier(context->pool, worker->thread);
  if (worker->thread == 0)
    context->taken = evaluate(context, control, worker, watched);
  infc_pool_barrier(context->pool, worker->thread);
  return context->taken;
}

static void run_region(infc_context *context, infc_worker *worker, uint32_t index, bool watched);

// Groups from `first` to before `end`.
static void run_span(infc_context *context, infc_worker *worker, uint32_t first, uint32_t end, bool watched) {
  const infc_group *groups = context->schedule->groups;
  for (uint32_t i = first; i < end; i = groups[i].control ? groups[i].end : i + 1) {
    if (!groups[i].control)
      run_group(context, &groups[i], worker, watched);
    else
      run_region(context, worker, i, watched);
  }
}

static void run_region(infc_context *context, infc_worker *worker, uint32_t index, bool watched) {
  const infc_group *control = &context->schedule->groups[index];
  if (control->split == INFC_SPLIT_SERIAL) {
    if (control->barrier && worker->threads > 1)
      infc_pool_barrier(context->pool, worker->thread);
    if (worker->thread != 0)
      return;
  }
  worker->iteration = 0;
  if (!control->repeats) {
    const bool taken = decide(context, control, worker, watched);
    run_span(context, worker, taken ? index + 1 : control->then_end, taken ? control->then_end : control->end, watched);
    return;
  }
  for (int64_t iteration = 0; decide(context, control, worker, watched); worker->iteration = ++iteration)
    run_span(context, worker, index + 1, control->end, watched);
}

static infc_worker worker_of(infc_context *context, uint32_t thread, uint32_t threads) {
  return (infc_worker){.scratch = context->scratch + thread * context->scratch_stride,
                       .symbols = context->symbols,
                       .thread = thread,
                       .threads = threads,
                       .cache = context->cache};
}

static void run_thread(infc_context *context, uint32_t thread, uint32_t threads) {
  infc_worker worker = worker_of(context, thread, threads);
  const bool watched = context->timing || context->trace || context->watching;
  if (context->schedule->controlled)
    run_span(context, &worker, 0, context->schedule->count, watched);
  else if (watched)
    run_groups(context, &worker, true);
  else
    run_groups(context, &worker, false);
}

static void job(void *argument, uint32_t thread) {
  infc_context *context = argument;
  run_thread(context, thread, context->threads);
}

// Kernels of the prologue set run-time scalars; whatever they do, none may exceed its bound.
static bool symbols_in_bounds(const infc_context *context) {
  const infc_program *program = context->plan->program;
  for (uint32_t s = 0; s < program->header->symbol_count; s++)
    if (context->symbols[s] < 0 || context->symbols[s] > program->symbols[s].max)
      return false;
  return true;
}

static bool run_prologue(infc_context *context) {
  infc_worker worker = worker_of(context, 0, 1);
  for (uint32_t step = 0; step < context->plan->program->header->prologue_steps; step++) {
    call_whole(context, step, &worker, context->timing || context->trace);
    if (!symbols_in_bounds(context))
      return false;
  }
  return true;
}

static const infc_schedule *choose_schedule(const infc_context *context) {
  const infc_program_header *header = context->plan->program->header;
  bool second = header->schedule_count > 1 && header->schedule_symbol >= 0 &&
                context->symbols[header->schedule_symbol] < (int64_t)header->schedule_min_rows * context->threads;
  return &context->plan->schedules[second];
}

// Every so many runs one counts, the first one among them.
static void choose_watching(infc_context *context) {
  context->watching = context->watch_every && context->watch_wait == 0;
  context->watch_wait = context->watching ? context->watch_every - 1 : context->watch_wait - !!context->watch_wait;
  context->watched_runs += context->watching;
}

static void clear_times(infc_context *context) {
  memset(context->thread_nanoseconds, 0,
         (size_t)context->threads * context->max_steps * sizeof *context->thread_nanoseconds);
}

// A step's time is its slowest thread's.
static void add_times(infc_context *context) {
  infc_plan *plan = context->plan;
  plan->timed_runs++;
  for (uint32_t step = 0; step < plan->program->header->step_count; step++) {
    uint64_t slowest = 0;
    for (uint32_t t = 0; t < context->threads; t++) {
      uint64_t time = context->thread_nanoseconds[(size_t)t * context->max_steps + step];
      slowest = time > slowest ? time : slowest;
    }
    plan->nanoseconds[step] += slowest;
  }
}

static infc_status report_fault(infc_context *context) {
  uint32_t step = atomic_load_explicit(&context->fault, memory_order_relaxed) - 1;
  const infc_program *program = context->plan->program;
  atomic_store_explicit(&context->fault, 0, memory_order_relaxed);
  if (program->kernels[program->steps[step].kernel]->op == INFC_OP_REPEAT)
    return infc_fail(infc_context_error_buffer(context), INFC_STATUS_BAD_VALUE,
                     "the loop of step %u (%s) did not end within %d steps", step,
                     infc_step_name(program, &program->steps[step]), INFC_MAX_REPEATED_STEPS);
  return infc_fail(infc_context_error_buffer(context), INFC_STATUS_BAD_VALUE,
                   "an index read by step %u (%s) lies outside its table", step,
                   infc_step_name(program, &program->steps[step]));
}

infc_status infc_exec(infc_context *context) {
  if (context->timing)
    clear_times(context);
  memcpy(context->symbols, context->initial_symbols,
         context->plan->program->header->symbol_count * sizeof *context->symbols);
  if (!run_prologue(context))
    return infc_fail(infc_context_error_buffer(context), INFC_STATUS_INTERNAL,
                     "the program set a symbol beyond its bound");
  context->schedule = choose_schedule(context);
  choose_watching(context);
  context->budget = INFC_MAX_REPEATED_STEPS;
  if (context->schedule->parallel && context->threads > 1 && !context->trace)
    infc_pool_run(context->pool, job, context);
  else
    run_thread(context, 0, 1);
  if (context->timing)
    add_times(context);
  return atomic_load_explicit(&context->fault, memory_order_relaxed) ? report_fault(context) : INFC_STATUS_OK;
}
