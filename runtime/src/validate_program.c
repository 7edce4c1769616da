// A PROGRAM section: symbols, kernels, steps and their operands.
#include "validate.h"

#include <string.h>

// A program under validation.
typedef struct infc_program_check {
  const infc_file *file;
  const infc_io *io;
  const infc_state *state;
  size_t weights_size;
  infc_program *program;
} infc_program_check;

// Kernels that know the caller's rectangle [batch, seq] by two symbols, and which of their operands that is.
static const struct {
  uint16_t op;
  bool output;  // the first output; else the first input
  uint8_t word; // INFC_W_*_BATCH_SYMBOL; the one for seq follows
} rectangles[] = {
    {INFC_OP_PACK_TOKENS, false, INFC_W_PACK_TOKENS_BATCH_SYMBOL},
    {INFC_OP_GATHER_ROWS, false, INFC_W_GATHER_ROWS_BATCH_SYMBOL},
    {INFC_OP_SUM_UNTIL, false, INFC_W_SUM_UNTIL_BATCH_SYMBOL},
    {INFC_OP_SCATTER_ROWS, true, INFC_W_SCATTER_ROWS_BATCH_SYMBOL},
    {INFC_OP_GROW, false, INFC_W_GROW_BATCH_SYMBOL},
    {INFC_OP_CROP, true, INFC_W_CROP_BATCH_SYMBOL},
};

static infc_status check_symbols(const infc_program_check *check) {
  const infc_io *io = check->io;
  const infc_program *program = check->program;
  const infc_program_header *header = program->header;
  if (header->symbol_count < io->header->symbol_count || header->symbol_count > INFC_MAX_SYMBOLS)
    return infc_bad(check->file, &header->symbol_count, "a program has %u symbols", header->symbol_count);
  for (uint32_t s = 0; s < header->symbol_count; s++) {
    const infc_program_symbol *symbol = &program->symbols[s];
    if (!infc_string_ok(symbol->name, header->strings_size))
      return infc_bad(check->file, &symbol->name, "a symbol has no name");
    const char *name = program->strings + symbol->name;
    if (symbol->max == 0 || symbol->max > INT32_MAX)
      return infc_bad(check->file, &symbol->max, "symbol '%s' has bound %u", name, symbol->max);
    if (s >= io->header->symbol_count)
      continue;
    uint32_t bound = io->bounds[(size_t)header->profile * io->header->symbol_count + s];
    if (symbol->max != bound || strcmp(name, io->strings + io->symbols[s].name))
      return infc_bad(check->file, symbol, "symbol '%s' with bound %u is not the profile's '%s' with %u", name,
                      symbol->max, io->strings + io->symbols[s].name, bound);
  }
  return INFC_STATUS_OK;
}

static const infc_kernel *find_kernel(const char *name) {
  for (size_t i = 0; i < infc_kernel_count; i++)
    if (!strcmp(infc_kernels[i].name, name))
      return &infc_kernels[i];
  return NULL;
}

static infc_status resolve_kernels(const infc_program_check *check, const infc_program_kernel *names,
                                   const infc_allocator *allocator) {
  infc_program *program = check->program;
  const infc_program_header *header = program->header;
  program->kernels = infc_alloc(allocator, header->kernel_count * sizeof *program->kernels);
  if (!program->kernels)
    return infc_fail(check->file->error, INFC_STATUS_OUT_OF_MEMORY, "out of memory for %u kernels",
                     header->kernel_count);
  for (uint32_t k = 0; k < header->kernel_count; k++) {
    if (!infc_string_ok(names[k].name, header->strings_size))
      return infc_bad(check->file, &names[k].name, "a kernel has no name");
    const char *name = program->strings + names[k].name;
    const infc_kernel *kernel = program->kernels[k] = find_kernel(name);
    if (!kernel)
      return infc_fail(check->file->error, INFC_STATUS_INCOMPATIBLE, "byte %zu: this library has no kernel '%s'",
                       (size_t)((const uint8_t *)&names[k] - check->file->data), name);
    if (kernel->isa > header->isa)
      return infc_bad(check->file, &names[k], "kernel '%s' needs more than the program's instruction set", name);
  }
  return INFC_STATUS_OK;
}

// Bytes from the operand's first element to its last; false on overflow or a bad row stride.
static bool operand_bytes(const infc_operand *operand, uint64_t *bytes) {
  uint64_t size = infc_dtype_size(operand->dtype), row = 1, elements;
  for (uint32_t d = 1; d < operand->rank; d++)
    if (__builtin_mul_overflow(row, (uint64_t)operand->dims[d], &row))
      return false;
  if (operand->packing == INFC_PACK_F32_K1N32) {
    uint64_t columns = (row + 31) / 32 * 32;
    return !__builtin_mul_overflow(columns, (uint64_t)operand->dims[0] * size, bytes);
  }
  return operand->row_stride >= row &&
         !__builtin_add_overflow((uint64_t)(operand->dims[0] - 1) * operand->row_stride, row, &elements) &&
         !__builtin_mul_overflow(elements, size, bytes);
}

static infc_status check_operand(const infc_program_check *check, const infc_operand *operand) {
  const infc_program_header *header = check->program->header;
  if (!infc_dtype_size(operand->dtype) || operand->rank < 1 || operand->rank > INFC_MAX_RANK)
    return infc_bad(check->file, operand, "an operand of type %u and rank %u", operand->dtype, operand->rank);
  if (operand->packing > INFC_PACK_F32_K1N32 ||
      (operand->packing == INFC_PACK_F32_K1N32 && (operand->dtype != INFC_DTYPE_F32 || operand->rank != 2)))
    return infc_bad(check->file, &operand->packing, "an operand of unknown packing %u", operand->packing);
  for (uint32_t d = 0; d < INFC_MAX_RANK; d++)
    if (d < operand->rank ? operand->dims[d] == 0 || operand->dims[d] > INT32_MAX : operand->dims[d] != 1)
      return infc_bad(check->file, &operand->dims[d], "an operand's dimension %u is %u", d, operand->dims[d]);
  if (operand->rows_symbol < -1 || operand->rows_symbol >= (int32_t)header->symbol_count)
    return infc_bad(check->file, &operand->rows_symbol, "an operand's rows are symbol %d", operand->rows_symbol);
  if (operand->rows_symbol >= 0 && operand->dims[0] < check->program->symbols[operand->rows_symbol].max)
    return infc_bad(check->file, operand->dims, "an operand has %u rows, its symbol's bound is %u", operand->dims[0],
                    check->program->symbols[operand->rows_symbol].max);
  uint64_t bytes, space = 0;
  if (!operand_bytes(operand, &bytes))
    return infc_bad(check->file, &operand->row_stride, "an operand's row stride %u does not fit its dimensions",
                    operand->row_stride);
  switch (operand->space) {
  case INFC_SPACE_INPUT:
  case INFC_SPACE_OUTPUT:
    if (operand->offset >=
        (operand->space == INFC_SPACE_INPUT ? check->io->header->input_count : check->io->header->output_count))
      return infc_bad(check->file, &operand->offset, "an operand is input or output %llu",
                      (unsigned long long)operand->offset);
    return INFC_STATUS_OK;
  case INFC_SPACE_ARENA:
    space = header->arena_size;
    break;
  case INFC_SPACE_WEIGHTS:
    space = check->weights_size;
    break;
  default:
    return infc_bad(check->file, &operand->space, "an operand is in unknown space %u", operand->space);
  }
  if (operand->offset % INFC_ARENA_ALIGN || operand->offset > space || bytes > space - operand->offset)
    return infc_bad(check->file, &operand->offset, "an operand of %llu bytes at %llu does not fit in %s",
                    (unsigned long long)bytes, (unsigned long long)operand->offset,
                    operand->space == INFC_SPACE_ARENA ? "the arena" : "WEIGHTS");
  return INFC_STATUS_OK;
}

static bool dim_pads(const infc_io *io, int32_t dim) {
  int32_t symbol = infc_dim_symbol(dim);
  return symbol >= 0 && io->symbols[symbol].policy == INFC_DIM_PADS;
}

// Word of the step that names the batch symbol if its kernel takes operand `index` as the caller's rectangle; else -1.
static int rectangle_word(const infc_step *step, uint16_t op, uint32_t index) {
  for (size_t i = 0; i < sizeof rectangles / sizeof *rectangles; i++)
    if (rectangles[i].op == op && index == (rectangles[i].output ? step->input_count : 0u))
      return rectangles[i].word;
  return -1;
}

// The operand has the tensor's own dimensions, densely, and where the caller may vary one, the kernel reads its symbol.
static bool rectangle_agrees(const infc_program_check *check, const infc_io_tensor *tensor, const infc_operand *operand,
                             const uint32_t *symbol_words) {
  const infc_program *program = check->program;
  uint64_t row = 1;
  if (operand->rank != tensor->rank)
    return false;
  for (uint32_t d = 0; d < tensor->rank; d++) {
    int64_t bound = infc_dim_bound(check->io, program->header->profile, tensor->dims[d]);
    bool pads = dim_pads(check->io, tensor->dims[d]);
    if (operand->dims[d] != bound || (d >= 2 && pads))
      return false;
    row *= d ? operand->dims[d] : 1;
    if (d >= 2)
      continue;
    uint32_t symbol = symbol_words[d];
    bool known = symbol < program->header->symbol_count;
    if (pads ? (int32_t)symbol != infc_dim_symbol(tensor->dims[d]) : known && program->symbols[symbol].max > bound)
      return false;
  }
  return operand->row_stride == row;
}

// An operand in the caller's memory must not reach beyond what the caller bound, whatever sizes it chose.
static bool io_agrees(const infc_program_check *check, const infc_step *step, uint16_t op, uint32_t index) {
  const infc_io *io = check->io;
  const infc_operand *operand = &check->program->operands[step->first_operand + index];
  const infc_io_tensor *tensor = (operand->space == INFC_SPACE_INPUT ? io->inputs : io->outputs) + operand->offset;
  if (operand->dtype != tensor->dtype || operand->packing != INFC_PACK_ROW_MAJOR)
    return false;
  uint32_t profile = check->program->header->profile, padding = 0, varying = 0;
  uint64_t tensor_bytes = infc_dtype_size(tensor->dtype), bytes, row = 1;
  for (uint32_t d = 0; d < tensor->rank; d++) {
    uint64_t bound = (uint64_t)infc_dim_bound(io, profile, tensor->dims[d]);
    padding |= (uint32_t)dim_pads(io, tensor->dims[d]) << d;
    varying |= (uint32_t)(dim_pads(io, tensor->dims[d]) && bound > 1) << d; // of one row there is always one
    tensor_bytes *= bound;
    row *= d ? bound : 1;
  }
  int word = rectangle_word(step, op, index);
  if (padding && word >= 0)
    return rectangle_agrees(check, tensor, operand, check->program->words + step->first_word + word);
  if (!varying)
    return operand_bytes(operand, &bytes) && bytes <= tensor_bytes;
  // Only whole rows vary: the step must follow them.
  return padding == 1 && operand->rows_symbol == infc_dim_symbol(tensor->dims[0]) &&
         operand->rows_symbol == step->rows_symbol &&
         operand->dims[0] == infc_dim_bound(io, profile, tensor->dims[0]) && operand->row_stride == row &&
         operand_bytes(operand, &bytes) && bytes == tensor_bytes;
}

static infc_status check_operands(const infc_program_check *check, const infc_step *step, uint32_t number) {
  infc_program *program = check->program;
  for (uint32_t i = 0; i < infc_operand_count(step); i++) {
    const infc_operand *operand = &program->operands[step->first_operand + i];
    infc_status status = check_operand(check, operand);
    if (status)
      return status;
    bool output = i >= step->input_count;
    if (output && operand->space != INFC_SPACE_ARENA && operand->space != INFC_SPACE_OUTPUT)
      return infc_bad(check->file, &operand->space, "step %u writes to an input or to WEIGHTS", number);
    program->io_operands += operand->space == INFC_SPACE_INPUT || operand->space == INFC_SPACE_OUTPUT;
  }
  return INFC_STATUS_OK;
}

static infc_status check_step_table(const infc_program_check *check, const infc_step *step, uint32_t number) {
  const infc_program *program = check->program;
  const infc_program_header *header = program->header;
  uint32_t operands = infc_operand_count(step);
  if (step->kernel >= header->kernel_count)
    return infc_bad(check->file, &step->kernel, "step %u has kernel %u", number, step->kernel);
  if (operands > INFC_MAX_OPERANDS || step->first_operand > header->operand_count ||
      operands > header->operand_count - step->first_operand)
    return infc_bad(check->file, &step->first_operand, "the operands of step %u lie outside the table", number);
  if (step->first_word > header->word_count || step->word_count > header->word_count - step->first_word)
    return infc_bad(check->file, &step->first_word, "the words of step %u lie outside the table", number);
  if (step->name != INFC_NO_STRING && !infc_string_ok(step->name, header->strings_size))
    return infc_bad(check->file, &step->name, "the name of step %u lies outside the strings", number);
  if (step->rows_symbol < -1 || step->rows_symbol >= (int32_t)header->symbol_count || step->rows > INT32_MAX ||
      step->cols > INT32_MAX)
    return infc_bad(check->file, &step->rows_symbol, "step %u has rows symbol %d, %u rows, %u columns", number,
                    step->rows_symbol, step->rows, step->cols);
  if (step->rows_symbol >= 0 && step->rows != program->symbols[step->rows_symbol].max)
    return infc_bad(check->file, &step->rows, "step %u has %u rows, its symbol's bound is %u", number, step->rows,
                    program->symbols[step->rows_symbol].max);
  for (uint32_t s = 0; s < header->schedule_count; s++)
    if (step->split[s] > INFC_SPLIT_COLS || step->barrier[s] > 1)
      return infc_bad(check->file, &step->split, "step %u has split %u and barrier %u", number, step->split[s],
                      step->barrier[s]);
  return INFC_STATUS_OK;
}

// A step that reads or writes the cache is made for the layer it names.
static infc_status check_cache_step(const infc_program_check *check, const infc_step *step, const uint32_t *words,
                                    uint32_t number) {
  // Both operators' words begin alike.
  enum { LAYER = INFC_W_CACHE_WRITE_LAYER, HEADS = INFC_W_CACHE_WRITE_KV_HEADS, K_DIM = INFC_W_CACHE_WRITE_K_DIM };
  _Static_assert((int)INFC_W_CACHE_ATTENTION_LAYER == LAYER && (int)INFC_W_CACHE_ATTENTION_KV_HEADS == HEADS &&
                     (int)INFC_W_CACHE_ATTENTION_K_DIM == K_DIM &&
                     (int)INFC_W_CACHE_ATTENTION_V_DIM == INFC_W_CACHE_WRITE_V_DIM,
                 "");
  const infc_state *state = check->state;
  if (!state->header)
    return infc_bad(check->file, step, "step %u uses a cache, but there is no STATE", number);
  if (words[LAYER] >= state->header->layer_count)
    return infc_bad(check->file, &words[LAYER], "step %u uses layer %u of a cache of %u", number, words[LAYER],
                    state->header->layer_count);
  const infc_state_layer *layer = &state->layers[words[LAYER]];
  if (words[HEADS] != layer->heads || words[K_DIM] != layer->k_dim || words[INFC_W_CACHE_WRITE_V_DIM] != layer->v_dim)
    return infc_bad(check->file, words, "step %u does not agree with layer %u of the cache", number, words[LAYER]);
  if (step->rows > check->program->cache_rows)
    check->program->cache_rows = step->rows;
  return INFC_STATUS_OK;
}

static infc_status check_step(const infc_program_check *check, uint32_t number) {
  infc_program *program = check->program;
  const infc_step *step = &program->steps[number];
  infc_status status = check_step_table(check, step, number);
  if (!status)
    status = check_operands(check, step, number);
  if (status)
    return status;
  const infc_kernel *kernel = program->kernels[step->kernel];
  const infc_operator *op = &infc_operators[kernel->op];
  infc_task task = {
      .operands = program->operands + step->first_operand, .words = program->words + step->first_word, .step = step};
  if (!op->validate(&task, program->header->symbol_count))
    return infc_bad(check->file, step, "step %u (%s) does not meet the rules of operator %s", number,
                    infc_step_name(program, step), op->name);
  if (kernel->op == INFC_OP_CACHE_WRITE || kernel->op == INFC_OP_CACHE_ATTENTION)
    if ((status = check_cache_step(check, step, task.words, number)))
      return status;
  if (kernel->op == INFC_OP_PACK_TOKENS && number >= program->header->prologue_steps)
    return infc_bad(check->file, step, "step %u sets a symbol but is not of the prologue", number);
  if (kernel->op == INFC_OP_PACK_TOKENS &&
      task.words[INFC_W_PACK_TOKENS_TOKENS_SYMBOL] < check->io->header->symbol_count)
    return infc_bad(check->file, step, "step %u sets a symbol that is the caller's", number);
  for (uint32_t i = 0; i < infc_operand_count(step); i++) {
    uint8_t space = task.operands[i].space;
    if ((space == INFC_SPACE_INPUT || space == INFC_SPACE_OUTPUT) && !io_agrees(check, step, kernel->op, i))
      return infc_bad(check->file, &task.operands[i], "operand %u of step %u (%s) does not agree with the %s it is", i,
                      number, infc_step_name(program, step), space == INFC_SPACE_INPUT ? "input" : "output");
  }
  size_t scratch = op->scratch(&task);
  if (scratch > PTRDIFF_MAX / 4)
    return infc_bad(check->file, step, "step %u (%s) needs too much scratch memory", number,
                    infc_step_name(program, step));
  program->scratch = scratch > program->scratch ? scratch : program->scratch;
  return INFC_STATUS_OK;
}

// Regions that are open at a step, innermost last.
typedef struct open_regions {
  struct {
    uint64_t then_end, end;
    bool serial[INFC_MAX_SCHEDULES];
  } open[INFC_MAX_NESTING];
  uint32_t count;
} open_regions;

// Within a region that thread 0 runs alone nothing may be divided, and nobody else comes to a barrier.
static bool region_holds(const open_regions *regions, const infc_step *step, uint32_t schedules) {
  for (uint32_t s = 0; regions->count && s < schedules; s++)
    if (regions->open[regions->count - 1].serial[s] && (step->split[s] != INFC_SPLIT_SERIAL || step->barrier[s]))
      return false;
  return true;
}

// Opens the region of a control step; false if it does not lie within the one around it.
static bool open_region(open_regions *regions, uint32_t number, const infc_step *step, infc_region region,
                        uint64_t step_count) {
  uint64_t around = step_count, then_end = (uint64_t)number + 1 + region.then_steps;
  if (regions->count) {
    uint64_t before = regions->open[regions->count - 1].then_end;
    around = number < before ? before : regions->open[regions->count - 1].end;
  }
  if (regions->count == INFC_MAX_NESTING || then_end + region.else_steps > around ||
      (region.repeats && region.then_steps == 0))
    return false;
  regions->open[regions->count].then_end = then_end;
  regions->open[regions->count].end = then_end + region.else_steps;
  for (uint32_t s = 0; s < INFC_MAX_SCHEDULES; s++)
    regions->open[regions->count].serial[s] = step->split[s] == INFC_SPLIT_SERIAL;
  regions->count++;
  return true;
}

static infc_status check_regions(const infc_program_check *check) {
  const infc_program *program = check->program;
  open_regions regions = {0};
  for (uint32_t i = 0; i < program->header->step_count; i++) {
    const infc_step *step = &program->steps[i];
    const uint16_t op = program->kernels[step->kernel]->op;
    while (regions.count && regions.open[regions.count - 1].end == i)
      regions.count--;
    if (!region_holds(&regions, step, program->header->schedule_count))
      return infc_bad(check->file, step, "step %u divides or joins threads where only one runs", i);
    if (!infc_is_control(op))
      continue;
    if (i < program->header->prologue_steps)
      return infc_bad(check->file, step, "step %u of the prologue is control flow", i);
    if (!open_region(&regions, i, step, infc_region_of(op, program->words + step->first_word),
                     program->header->step_count))
      return infc_bad(check->file, program->words + step->first_word,
                      "the region of step %u (%s) is empty, nested too deeply, or leaves the one around it", i,
                      infc_step_name(program, step));
  }
  return INFC_STATUS_OK;
}

static infc_status check_program_header(const infc_program_check *check) {
  const infc_program_header *header = check->program->header;
  if (header->profile >= check->io->header->profile_count)
    return infc_bad(check->file, &header->profile, "a program serves profile %u of %u", header->profile,
                    check->io->header->profile_count);
  if (!infc_isa_name(header->isa))
    return infc_fail(check->file->error, INFC_STATUS_INCOMPATIBLE, "byte %zu: a program has unknown instruction set %u",
                     (size_t)((const uint8_t *)&header->isa - check->file->data), header->isa);
  if (header->arena_size % INFC_ARENA_ALIGN || header->arena_size > PTRDIFF_MAX / 4)
    return infc_bad(check->file, &header->arena_size, "a program has an arena of %llu bytes",
                    (unsigned long long)header->arena_size);
  if (header->prologue_steps > header->step_count)
    return infc_bad(check->file, &header->prologue_steps, "%u of %u steps are the prologue", header->prologue_steps,
                    header->step_count);
  if (header->schedule_count < 1 || header->schedule_count > INFC_MAX_SCHEDULES || header->schedule_symbol < -1 ||
      header->schedule_symbol >= (int32_t)header->symbol_count)
    return infc_bad(check->file, &header->schedule_count, "%u schedules, chosen by symbol %d", header->schedule_count,
                    header->schedule_symbol);
  return INFC_STATUS_OK;
}

infc_status infc_validate_program(const infc_file *file, const infc_section *section, const infc_io *io,
                                  const infc_state *state, size_t weights_size, const infc_allocator *allocator,
                                  infc_program *program) {
  infc_span span = {file->data + section->offset, section->size};
  const infc_program_header *header = program->header = infc_span_take(&span, 1, sizeof *header);
  if (!header)
    return infc_bad(file, section, "PROGRAM is too short for its header");
  const infc_program_kernel *names;
  program->symbols = infc_span_take(&span, header->symbol_count, sizeof *program->symbols);
  names = infc_span_take(&span, header->kernel_count, sizeof *names);
  program->steps = infc_span_take(&span, header->step_count, sizeof *program->steps);
  program->operands = infc_span_take(&span, header->operand_count, sizeof *program->operands);
  program->words = infc_span_take(&span, header->word_count, sizeof *program->words);
  program->strings = infc_span_take(&span, header->strings_size, 1);
  if (!program->symbols || !names || !program->steps || !program->operands || !program->words || !program->strings)
    return infc_bad(file, header, "PROGRAM is too short for what its header counts");
  if (span.left || header->strings_size == 0 || program->strings[header->strings_size - 1])
    return infc_bad(file, program->strings, "PROGRAM does not end with its strings");
  infc_program_check check = {file, io, state, weights_size, program};
  infc_status status = check_program_header(&check);
  if (!status)
    status = check_symbols(&check);
  if (!status)
    status = resolve_kernels(&check, names, allocator);
  for (uint32_t i = 0; !status && i < header->step_count; i++)
    status = check_step(&check, i);
  return status ? status : check_regions(&check);
}
