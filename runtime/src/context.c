// Contexts: buffers, binding, and the checks before a run.
#include "context.h"

#include <string.h>

// Bytes of a tensor in the profile where it is largest.
static size_t largest_bytes(const infc_io *io, const infc_io_tensor *tensor) {
  size_t largest = 0;
  for (uint32_t p = 0; p < io->header->profile_count; p++) {
    size_t bytes = infc_dtype_size(tensor->dtype);
    for (uint32_t d = 0; d < tensor->rank; d++)
      bytes *= (size_t)infc_dim_bound(io, p, tensor->dims[d]);
    largest = bytes > largest ? bytes : largest;
  }
  return largest;
}

// Every array of the context, in one block. Runs twice: to learn the size, and to set the addresses.
typedef struct parts {
  infc_context *context;
  infc_bound_input *inputs;
  infc_bound_output *outputs;
  infc_plan *plans;
  infc_call *calls;
  infc_group *groups;
  infc_patch *patches;
  uint8_t *fills, *scratch, *arena;
  infc_watch_count *watch_counts;
  size_t scratch_stride, watch_stride;
  uint32_t max_steps;
  // The context's own cache: one sequence that every run begins.
  uint32_t cache_blocks;
  infc_cache *cache;
  infc_cache_layer *layers;
  infc_cache_sequence *sequence;
  int32_t *table;
  uint8_t *blocks[INFC_CACHE_GROUPS]; // layers of a group one after the other
} parts;

static void lay_out_cache(infc_carve *carve, const infc_engine *engine, uint32_t rows, parts *p) {
  const infc_state *state = &engine->state;
  p->cache_blocks = rows / INFC_CACHE_TOKENS + (rows % INFC_CACHE_TOKENS != 0);
  p->cache = infc_carve_take(carve, 1, sizeof *p->cache);
  p->layers = infc_carve_take(carve, state->header->layer_count, sizeof *p->layers);
  p->sequence = infc_carve_take(carve, 1, sizeof *p->sequence);
  p->table = infc_carve_take(carve, p->cache_blocks, sizeof *p->table);
  for (uint32_t g = 0; g < state->group_count; g++)
    p->blocks[g] = infc_carve_take(carve, p->cache_blocks, state->group_bytes[g]);
}

static parts lay_out(infc_carve *carve, const infc_engine *engine, uint32_t threads, bool own_cache) {
  const infc_io_header *io = engine->io.header;
  uint64_t steps = 0, groups = 0, patches = 0, arena = 0, scratch = 0, fills = 0;
  uint32_t cache_rows = 0;
  parts p = {0};
  for (uint32_t i = 0; i < io->profile_count; i++) {
    const infc_program *program = engine->selection[i];
    steps += program->header->step_count;
    groups += (uint64_t)program->header->step_count * program->header->schedule_count;
    patches += program->io_operands;
    arena = program->header->arena_size > arena ? program->header->arena_size : arena;
    scratch = program->scratch > scratch ? program->scratch : scratch;
    p.max_steps = program->header->step_count > p.max_steps ? program->header->step_count : p.max_steps;
    cache_rows = program->cache_rows > cache_rows ? program->cache_rows : cache_rows;
  }
  for (uint32_t i = 0; i < io->input_count; i++)
    if (infc_is_optional(&engine->io.inputs[i]) &&
        __builtin_add_overflow(fills, infc_round_up(largest_bytes(&engine->io, &engine->io.inputs[i])), &fills))
      carve->overflow = true;
  p.scratch_stride = infc_round_up(scratch);
  p.context = infc_carve_take(carve, 1, sizeof *p.context);
  p.inputs = infc_carve_take(carve, io->input_count, sizeof *p.inputs);
  p.outputs = infc_carve_take(carve, io->output_count, sizeof *p.outputs);
  p.plans = infc_carve_take(carve, io->profile_count, sizeof *p.plans);
  p.calls = infc_carve_take(carve, steps, sizeof *p.calls);
  p.groups = infc_carve_take(carve, groups, sizeof *p.groups);
  p.patches = infc_carve_take(carve, patches, sizeof *p.patches);
  p.fills = infc_carve_take(carve, fills, 1);
  p.scratch = infc_carve_take(carve, threads, p.scratch_stride);
  p.arena = infc_carve_take(carve, arena, 1);
  p.watch_stride = infc_round_up(infc_watch_layers(&engine->watch)); // a line of cache for each thread at least
  p.watch_counts = p.watch_stride ? infc_carve_take(carve, threads * p.watch_stride, sizeof *p.watch_counts) : NULL;
  if (own_cache)
    lay_out_cache(carve, engine, cache_rows, &p);
  return p;
}

static void make_fills(infc_context *context, uint8_t *fills) {
  const infc_io *io = &context->engine->io;
  for (uint32_t i = 0; i < io->header->input_count; i++) {
    if (!infc_is_optional(&io->inputs[i]))
      continue;
    size_t bytes = largest_bytes(io, &io->inputs[i]);
    infc_dtype_fill(io->inputs[i].dtype, io->inputs[i].fill, fills, bytes / infc_dtype_size(io->inputs[i].dtype));
    context->inputs[i].fill = fills;
    fills += infc_round_up(bytes);
  }
}

// ROWS steps over the same rows form a chain and SERIAL steps a run, as long as no barrier lies between.
static bool continues(const infc_program *program, const infc_group *group, const infc_step *step, uint32_t schedule) {
  const infc_step *first = &program->steps[group->first];
  if (step->barrier[schedule] || step->split[schedule] != group->split || group->split == INFC_SPLIT_COLS)
    return false;
  return group->split == INFC_SPLIT_SERIAL || (step->rows_symbol == first->rows_symbol && step->rows == first->rows);
}

// Regions that are open while a schedule is made.
typedef struct open_regions {
  struct {
    infc_group *control;
    uint32_t then_end, end; // steps
  } open[INFC_MAX_NESTING];
  uint32_t count;
} open_regions;

// Ends the regions that step `number` lies behind; true if a region begins or ends there.
static bool cross_regions(open_regions *regions, uint32_t number, uint32_t group) {
  bool crossed = false;
  for (uint32_t i = regions->count; i-- > 0;) {
    if (number == regions->open[i].control->first + 1)
      crossed = true;
    if (number == regions->open[i].then_end) {
      regions->open[i].control->then_end = group;
      crossed = true;
    }
    if (number == regions->open[i].end) {
      regions->open[i].control->end = group;
      regions->count = i;
      crossed = true;
    }
  }
  return crossed;
}

static void open_region(open_regions *regions, const infc_program *program, infc_group *group) {
  const infc_step *step = &program->steps[group->first];
  const uint32_t *words = program->words + step->first_word;
  const infc_region region = infc_region_of(program->kernels[step->kernel]->op, words);
  group->control = true;
  group->repeats = region.repeats;
  regions->open[regions->count].control = group;
  regions->open[regions->count].then_end = group->first + 1 + region.then_steps;
  regions->open[regions->count++].end = group->first + 1 + region.then_steps + region.else_steps;
}

static void make_schedule(infc_plan *plan, uint32_t number, infc_group *groups) {
  const infc_program *program = plan->program;
  infc_schedule *schedule = &plan->schedules[number];
  open_regions regions = {0};
  *schedule = (infc_schedule){.groups = groups, .row_block = program->header->row_block[number]};
  for (uint32_t i = program->header->prologue_steps; i < program->header->step_count; i++) {
    const infc_step *step = &program->steps[i];
    const bool control = infc_is_control(program->kernels[step->kernel]->op);
    const bool crossed = cross_regions(&regions, i, schedule->count);
    infc_group *last = schedule->count ? &groups[schedule->count - 1] : NULL;
    if (last && !crossed && !control && continues(program, last, step, number)) {
      last->count++;
      continue;
    }
    infc_group *group = &groups[schedule->count++];
    *group =
        (infc_group){.first = i, .count = 1, .split = step->split[number], .barrier = last && step->barrier[number]};
    schedule->parallel |= step->split[number] != INFC_SPLIT_SERIAL;
    schedule->controlled |= control;
    if (control)
      open_region(&regions, program, group);
  }
  cross_regions(&regions, program->header->step_count, schedule->count);
}

static void *operand_address(const infc_context *context, const infc_operand *operand) {
  if (operand->space == INFC_SPACE_ARENA)
    return context->arena + operand->offset;
  return operand->space == INFC_SPACE_WEIGHTS ? (void *)(context->engine->weights + operand->offset) : NULL;
}

static void make_call(const infc_context *context, infc_plan *plan, uint32_t number) {
  const infc_program *program = plan->program;
  const infc_step *step = &program->steps[number];
  infc_call *call = &plan->calls[number];
  *call = (infc_call){
      .run = program->kernels[step->kernel]->run,
      .rows_symbol = step->rows_symbol,
      .rows = (int32_t)step->rows,
      .cols = (int32_t)step->cols,
      .task = {.operands = program->operands + step->first_operand,
               .words = program->words + step->first_word,
               .step = step},
  };
  for (uint32_t i = 0; i < infc_operand_count(step); i++) {
    const infc_operand *operand = &call->task.operands[i];
    call->task.ptr[i] = operand_address(context, operand);
    if (operand->space == INFC_SPACE_INPUT || operand->space == INFC_SPACE_OUTPUT)
      plan->patches[plan->patch_count++] =
          (infc_patch){&call->task.ptr[i], (uint32_t)operand->offset, operand->space == INFC_SPACE_OUTPUT};
  }
}

// Places are in order of programs and steps.
static void make_watches(const infc_engine *engine, infc_plan *plan) {
  const infc_watch *watch = &engine->watch;
  for (uint32_t i = 0; watch->header && i < watch->header->place_count; i++)
    if (&engine->programs[watch->places[i].program] == plan->program)
      plan->calls[watch->places[i].step].watch = &watch->places[i];
}

static void make_plans(infc_context *context, parts p) {
  const infc_engine *engine = context->engine;
  for (uint32_t i = 0; i < engine->io.header->profile_count; i++) {
    infc_plan *plan = &p.plans[i];
    const infc_program_header *header = engine->selection[i]->header;
    *plan = (infc_plan){.program = engine->selection[i], .calls = p.calls, .patches = p.patches};
    for (uint32_t step = 0; step < header->step_count; step++)
      make_call(context, plan, step);
    make_watches(engine, plan);
    for (uint32_t s = 0; s < header->schedule_count; s++, p.groups += header->step_count)
      make_schedule(plan, s, p.groups);
    p.calls += header->step_count;
    p.patches += plan->patch_count;
  }
}

static void make_cache(const infc_engine *engine, parts p) {
  const uint32_t layer_count = engine->state.header->layer_count;
  *p.cache = (infc_cache){p.layers, p.sequence, layer_count, 1};
  *p.sequence = (infc_cache_sequence){.rows = INT32_MAX};
  for (uint32_t g = 0; g < INFC_CACHE_GROUPS; g++)
    p.sequence->tables[g] = p.table;
  for (uint32_t b = 0; b < p.cache_blocks; b++)
    p.table[b] = (int32_t)b;
  for (uint32_t l = 0; l < layer_count; l++) {
    p.layers[l] = infc_state_cache_layer(&engine->state, l);
    p.layers[l].blocks = p.blocks[p.layers[l].group];
    p.blocks[p.layers[l].group] += p.cache_blocks * p.layers[l].block_bytes;
  }
}

static infc_status dead_pool(infc_error error) {
  return infc_fail(error, INFC_STATUS_INVALID_ARGUMENT,
                   "the pool was created before fork(): its threads are in the parent; create a pool in the child");
}

infc_status infc_context_create(infc_engine *engine, const infc_context_options *options, infc_context **out,
                                char *error_text, size_t error_size) {
  return infc_context_make(engine, options, NULL, out, (infc_error){error_text, error_size});
}

infc_status infc_context_make(infc_engine *engine, const infc_context_options *options, const infc_cache *cache,
                              infc_context **out, infc_error error) {
  infc_context_options ours;
  infc_status status = infc_options_copy(&ours, sizeof ours, options, error);
  if (status)
    return status;
  if (!engine || !out)
    return infc_fail(error, INFC_STATUS_INVALID_ARGUMENT, "engine or out is NULL");
  if (ours.pool && !infc_pool_alive(ours.pool))
    return dead_pool(error);
  infc_allocator allocator = infc_allocator_or_default(ours.allocator);
  if (engine->gpu.api)
    return infc_gpu_context_create(engine, &allocator, out, error);
  uint32_t threads = ours.pool ? infc_pool_threads(ours.pool) : 1;
  const bool own_cache = engine->state.header && !cache;
  infc_carve carve = {0};
  lay_out(&carve, engine, threads, own_cache);
  size_t size = carve.used;
  void *memory = carve.overflow ? NULL : infc_alloc(&allocator, size);
  if (!memory)
    return infc_fail(error, INFC_STATUS_OUT_OF_MEMORY, "out of memory for a context of %zu bytes", size);
  carve = (infc_carve){.base = memory};
  parts p = lay_out(&carve, engine, threads, own_cache);
  if (own_cache)
    make_cache(engine, p);
  infc_context *context = p.context;
  *context = (infc_context){
      .shapes_stale = true,
      .addresses_stale = true,
      .engine = infc_engine_retain(engine),
      .pool = ours.pool,
      .threads = threads,
      .inputs = p.inputs,
      .outputs = p.outputs,
      .plans = p.plans,
      .plan = p.plans,
      .arena = p.arena,
      .scratch = p.scratch,
      .scratch_stride = p.scratch_stride,
      .max_steps = p.max_steps,
      .cache = own_cache ? p.cache : cache,
      .watch_counts = p.watch_counts,
      .watch_stride = p.watch_stride,
      .watch_every = engine->watch.header ? engine->watch.header->every : 0,
      .memory = size,
      .allocator = allocator,
  };
  memset(p.inputs, 0, engine->io.header->input_count * sizeof *p.inputs);
  memset(p.outputs, 0, engine->io.header->output_count * sizeof *p.outputs);
  if (p.watch_counts)
    memset(p.watch_counts, 0, threads * p.watch_stride * sizeof *p.watch_counts);
  make_fills(context, p.fills);
  make_plans(context, p);
  *out = context;
  return INFC_STATUS_OK;
}

void infc_context_destroy(infc_context *context) {
  if (!context)
    return;
  infc_engine *engine = context->engine;
  infc_allocator allocator = context->allocator;
  if (context->gpu)
    infc_gpu_context_destroy(context);
  infc_free(&allocator, context->thread_nanoseconds);
  infc_free(&allocator, context);
  infc_engine_close(engine);
}

// Takes the context for one call; a second thread fails at once.
static bool acquire(infc_context *context) {
  if (atomic_exchange_explicit(&context->busy, true, memory_order_acquire))
    return false;
  context->error[0] = 0;
  return true;
}

static infc_status release(infc_context *context, infc_status status) {
  atomic_store_explicit(&context->busy, false, memory_order_release);
  return status;
}

static infc_status check_dims(infc_context *context, const infc_io_tensor *tensor, const int64_t *dims, uint32_t rank) {
  const char *name = infc_tensor_name(&context->engine->io, tensor);
  infc_error error = infc_context_error_buffer(context);
  if (rank != tensor->rank)
    return infc_fail(error, INFC_STATUS_BAD_SHAPE, "input '%s' has %u dimensions, not %u", name, tensor->rank, rank);
  for (uint32_t d = 0; d < rank; d++)
    if (tensor->dims[d] < 0 ? dims[d] < 1 : dims[d] != tensor->dims[d])
      return infc_fail(error, INFC_STATUS_BAD_SHAPE, "input '%s': dimension %u is %lld, not %d%s", name, d,
                       (long long)dims[d], tensor->dims[d] < 0 ? 1 : tensor->dims[d],
                       tensor->dims[d] < 0 ? " or more" : "");
  return INFC_STATUS_OK;
}

// An address of the host's or, on a GPU, of the device's. The run in flight, if any, is waited for: it uses the
// bindings.
static infc_status check_address(infc_context *context, const infc_io_tensor *tensor, const void *data, bool device) {
  enum { DEVICE_ALIGN = 256 }; // TensorRT's
  infc_error error = infc_context_error_buffer(context);
  if (device && !context->gpu)
    return infc_fail(error, INFC_STATUS_INVALID_ARGUMENT, "the engine runs on the CPU: there is no device memory");
  if ((uintptr_t)data % (device ? DEVICE_ALIGN : infc_dtype_size(tensor->dtype)))
    return infc_fail(error, INFC_STATUS_INVALID_ARGUMENT, "'%s' is not aligned to %s",
                     infc_tensor_name(&context->engine->io, tensor), device ? "256 bytes" : "its elements");
  return context->gpu ? infc_gpu_wait(context) : INFC_STATUS_OK;
}

static infc_status bind_input(infc_context *context, uint32_t index, const void *data, bool device, const int64_t *dims,
                              uint32_t rank) {
  const infc_io *io = &context->engine->io;
  if (index >= io->header->input_count)
    return infc_fail(infc_context_error_buffer(context), INFC_STATUS_INVALID_ARGUMENT, "there is no input %u", index);
  const infc_io_tensor *tensor = &io->inputs[index];
  if (data && rank && !dims)
    return infc_fail(infc_context_error_buffer(context), INFC_STATUS_INVALID_ARGUMENT, "input '%s': dims is NULL",
                     infc_tensor_name(io, tensor));
  infc_bound_input *input = &context->inputs[index];
  infc_status status = data ? check_dims(context, tensor, dims, rank) : INFC_STATUS_OK;
  if (!status)
    status = check_address(context, tensor, data, device);
  if (status)
    return status;
  context->shapes_stale |= !data != !input->data || (data && memcmp(input->dims, dims, rank * sizeof *dims));
  context->addresses_stale = true;
  input->data = data;
  input->device = device && data;
  if (data)
    memcpy(input->dims, dims, rank * sizeof *dims);
  return INFC_STATUS_OK;
}

infc_status infc_context_bind_input(infc_context *context, uint32_t index, const void *data, const int64_t *dims,
                                    uint32_t rank) {
  if (!context)
    return INFC_STATUS_INVALID_ARGUMENT;
  if (!acquire(context))
    return INFC_STATUS_BUSY;
  return release(context, bind_input(context, index, data, false, dims, rank));
}

infc_status infc_context_bind_input_device(infc_context *context, uint32_t index, uint64_t memory, const int64_t *dims,
                                           uint32_t rank) {
  if (!context)
    return INFC_STATUS_INVALID_ARGUMENT;
  if (!acquire(context))
    return INFC_STATUS_BUSY;
  return release(context, bind_input(context, index, (const void *)(uintptr_t)memory, true, dims, rank));
}

static infc_status bind_output(infc_context *context, uint32_t index, void *data, bool device, size_t size) {
  const infc_io *io = &context->engine->io;
  if (index >= io->header->output_count)
    return infc_fail(infc_context_error_buffer(context), INFC_STATUS_INVALID_ARGUMENT, "there is no output %u", index);
  infc_status status = check_address(context, &io->outputs[index], data, device);
  if (status)
    return status;
  infc_bound_output *output = &context->outputs[index];
  output->data = data;
  output->device = device;
  output->size = size;
  context->addresses_stale = true;
  return INFC_STATUS_OK;
}

infc_status infc_context_bind_output(infc_context *context, uint32_t index, void *data, size_t size) {
  if (!context)
    return INFC_STATUS_INVALID_ARGUMENT;
  if (!acquire(context))
    return INFC_STATUS_BUSY;
  return release(context, bind_output(context, index, data, false, size));
}

infc_status infc_context_bind_output_device(infc_context *context, uint32_t index, uint64_t memory, size_t size) {
  if (!context)
    return INFC_STATUS_INVALID_ARGUMENT;
  if (!acquire(context))
    return INFC_STATUS_BUSY;
  return release(context, bind_output(context, index, (void *)(uintptr_t)memory, true, size));
}

static infc_status output_dims(infc_context *context, uint32_t index, int64_t *dims, uint32_t *rank) {
  const infc_io *io = &context->engine->io;
  if (index >= io->header->output_count)
    return infc_fail(infc_context_error_buffer(context), INFC_STATUS_INVALID_ARGUMENT, "there is no output %u", index);
  infc_status status = infc_resolve_shapes(context);
  if (status)
    return status;
  *rank = io->outputs[index].rank;
  memcpy(dims, context->outputs[index].dims, *rank * sizeof *dims);
  return INFC_STATUS_OK;
}

infc_status infc_context_output_dims(infc_context *context, uint32_t index, int64_t *dims, uint32_t *rank) {
  if (!context || !dims || !rank)
    return INFC_STATUS_INVALID_ARGUMENT;
  if (!acquire(context))
    return INFC_STATUS_BUSY;
  return release(context, output_dims(context, index, dims, rank));
}

static infc_status check_outputs(infc_context *context) {
  const infc_io *io = &context->engine->io;
  infc_error error = infc_context_error_buffer(context);
  for (uint32_t i = 0; i < io->header->output_count; i++) {
    const infc_io_tensor *tensor = &io->outputs[i];
    const infc_bound_output *output = &context->outputs[i];
    size_t needed = infc_dtype_size(tensor->dtype);
    for (uint32_t d = 0; d < tensor->rank; d++)
      needed *= (size_t)output->dims[d];
    if (!output->data)
      return infc_fail(error, INFC_STATUS_NOT_BOUND, "output '%s' is not bound", infc_tensor_name(io, tensor));
    if (output->size < needed)
      return infc_fail(error, INFC_STATUS_BAD_SHAPE, "output '%s' needs %zu bytes, its buffer has %zu",
                       infc_tensor_name(io, tensor), needed, output->size);
  }
  return INFC_STATUS_OK;
}

infc_status infc_prepare(infc_context *context) {
  infc_status status = infc_resolve_shapes(context);
  return status ? status : check_outputs(context);
}

// Writes the bound addresses into the plan.
static void patch_plan(infc_context *context) {
  for (uint32_t i = 0; i < context->plan->patch_count; i++) {
    const infc_patch *patch = &context->plan->patches[i];
    const infc_bound_input *input = &context->inputs[patch->index];
    *patch->slot =
        patch->output ? context->outputs[patch->index].data : (void *)(input->data ? input->data : input->fill);
  }
  context->addresses_stale = false;
}

infc_status infc_check_values(infc_context *context) {
  const infc_io *io = &context->engine->io;
  for (uint32_t i = 0; i < io->header->input_count; i++) {
    const infc_io_tensor *tensor = &io->inputs[i];
    const infc_bound_input *input = &context->inputs[i];
    if (!tensor->has_range || !input->data || input->device)
      continue;
    int64_t at = infc_find_outside(tensor->dtype, input->data, input->elements, tensor->range_min, tensor->range_max);
    if (at >= 0)
      return infc_fail(infc_context_error_buffer(context), INFC_STATUS_BAD_VALUE,
                       "input '%s': the value at flat index %lld is %lld, outside %lld to %lld",
                       infc_tensor_name(io, tensor), (long long)at,
                       (long long)infc_read_integer(tensor->dtype, input->data, at), (long long)tensor->range_min,
                       (long long)tensor->range_max);
  }
  return INFC_STATUS_OK;
}

static infc_status run_cpu(infc_context *context) {
  infc_status status;
  if (context->addresses_stale) {
    if ((status = infc_prepare(context)))
      return status;
    patch_plan(context);
  }
  if ((status = infc_check_values(context)))
    return status;
  if (context->pool && !infc_pool_alive(context->pool))
    return dead_pool(infc_context_error_buffer(context));
  return infc_exec(context);
}

static infc_status run_gpu(infc_context *context) {
  infc_status status = infc_gpu_enqueue(context, NULL);
  return status ? status : infc_gpu_wait(context);
}

infc_status infc_run(infc_context *context) {
  if (!context)
    return INFC_STATUS_INVALID_ARGUMENT;
  if (!acquire(context))
    return INFC_STATUS_BUSY;
  return release(context, context->gpu ? run_gpu(context) : run_cpu(context));
}

static infc_status needs_gpu(infc_context *context) {
  return infc_fail(infc_context_error_buffer(context), INFC_STATUS_INVALID_ARGUMENT,
                   "the engine runs on the CPU: infc_run returns when it is done");
}

infc_status infc_run_async(infc_context *context, void *stream) {
  if (!context)
    return INFC_STATUS_INVALID_ARGUMENT;
  if (!acquire(context))
    return INFC_STATUS_BUSY;
  return release(context, context->gpu ? infc_gpu_enqueue(context, stream) : needs_gpu(context));
}

infc_status infc_context_wait(infc_context *context) {
  if (!context)
    return INFC_STATUS_INVALID_ARGUMENT;
  if (!acquire(context))
    return INFC_STATUS_BUSY;
  return release(context, context->gpu ? infc_gpu_wait(context) : needs_gpu(context));
}

const char *infc_context_error(const infc_context *context) {
  return context->error;
}

// One block: times by thread, then by program.
static infc_status allocate_times(infc_context *context) {
  uint32_t profiles = context->engine->io.header->profile_count;
  infc_carve carve = {0};
  infc_carve_take(&carve, (uint64_t)context->threads * context->max_steps, sizeof(uint64_t));
  infc_carve_take(&carve, (uint64_t)profiles * context->max_steps, sizeof(uint64_t));
  size_t size = carve.used;
  void *memory = carve.overflow ? NULL : infc_alloc(&context->allocator, size);
  if (!memory)
    return infc_fail(infc_context_error_buffer(context), INFC_STATUS_OUT_OF_MEMORY, "out of memory for step times");
  carve = (infc_carve){.base = memory};
  context->thread_nanoseconds =
      infc_carve_take(&carve, (uint64_t)context->threads * context->max_steps, sizeof(uint64_t));
  uint64_t *nanoseconds = infc_carve_take(&carve, (uint64_t)profiles * context->max_steps, sizeof(uint64_t));
  for (uint32_t i = 0; i < profiles; i++)
    context->plans[i].nanoseconds = nanoseconds + (size_t)i * context->max_steps;
  context->memory += size;
  return INFC_STATUS_OK;
}

static infc_status set_timing(infc_context *context, bool on) {
  if (context->gpu)
    return INFC_STATUS_OK;
  infc_status status = on && !context->thread_nanoseconds ? allocate_times(context) : INFC_STATUS_OK;
  if (status)
    return status;
  for (uint32_t i = 0; on && i < context->engine->io.header->profile_count; i++) {
    infc_plan *plan = &context->plans[i];
    plan->timed_runs = 0;
    memset(plan->nanoseconds, 0, context->max_steps * sizeof *plan->nanoseconds);
  }
  context->timing = on;
  return INFC_STATUS_OK;
}

infc_status infc_context_set_timing(infc_context *context, int on) {
  if (!context)
    return INFC_STATUS_INVALID_ARGUMENT;
  if (!acquire(context))
    return INFC_STATUS_BUSY;
  return release(context, set_timing(context, on));
}

infc_status infc_context_set_trace(infc_context *context, void (*trace)(void *user, const infc_traced *value),
                                   void *user) {
  if (!context)
    return INFC_STATUS_INVALID_ARGUMENT;
  if (!acquire(context))
    return INFC_STATUS_BUSY;
  if (context->gpu)
    return release(context, infc_fail(infc_context_error_buffer(context), INFC_STATUS_INVALID_ARGUMENT,
                                      "there are no steps to trace on a GPU"));
  context->trace = trace;
  context->trace_user = user;
  return release(context, INFC_STATUS_OK);
}

uint32_t infc_context_step_count(const infc_context *context) {
  return context->gpu ? 0 : context->plan->program->header->step_count;
}

infc_status infc_context_step_time(const infc_context *context, uint32_t step, infc_step_time *out) {
  if (!context || !out || step >= infc_context_step_count(context))
    return INFC_STATUS_INVALID_ARGUMENT;
  const infc_plan *plan = context->plan;
  const infc_step *entry = &plan->program->steps[step];
  infc_step_time ours = {
      .name = infc_step_name(plan->program, entry),
      .kernel = plan->program->kernels[entry->kernel]->name,
      .calls = plan->timed_runs,
      .seconds = plan->nanoseconds ? (double)plan->nanoseconds[step] * 1e-9 : 0,
  };
  return infc_result_copy(out, &ours, sizeof ours) ? INFC_STATUS_OK : INFC_STATUS_INVALID_ARGUMENT;
}

size_t infc_context_memory(const infc_context *context) {
  return context->memory + (context->gpu ? context->engine->gpu.api->context_memory(context->gpu) : 0);
}
