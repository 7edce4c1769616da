// From the bound inputs' dimensions to symbols, a profile and the outputs' dimensions; and the range check of integer
// inputs.
#include "context.h"

#include <stdio.h>
#include <string.h>

static const char *symbol_name(const infc_io *io, uint32_t symbol) {
  return io->strings + io->symbols[symbol].name;
}

// Sizes of named dimensions from the inputs that are bound; 0 where none tells.
static infc_status collect_symbols(infc_context *context, int64_t *values) {
  const infc_io *io = &context->engine->io;
  for (uint32_t i = 0; i < io->header->input_count; i++) {
    const infc_io_tensor *tensor = &io->inputs[i];
    const infc_bound_input *input = &context->inputs[i];
    if (!input->data && !infc_is_optional(tensor))
      return infc_fail(infc_context_error_buffer(context), INFC_STATUS_NOT_BOUND, "input '%s' is not bound",
                       infc_tensor_name(io, tensor));
    for (uint32_t d = 0; input->data && d < tensor->rank; d++) {
      int32_t symbol = infc_dim_symbol(tensor->dims[d]);
      if (symbol < 0)
        continue;
      if (values[symbol] && values[symbol] != input->dims[d])
        return infc_fail(infc_context_error_buffer(context), INFC_STATUS_BAD_SHAPE,
                         "input '%s': %s is %lld, another input has %lld", infc_tensor_name(io, tensor),
                         symbol_name(io, (uint32_t)symbol), (long long)input->dims[d], (long long)values[symbol]);
      values[symbol] = input->dims[d];
    }
  }
  return INFC_STATUS_OK;
}

static bool symbol_fits(const infc_io *io, uint32_t profile, uint32_t symbol, int64_t value) {
  int64_t bound = io->bounds[(size_t)profile * io->header->symbol_count + symbol];
  return value == 0 || value == bound || (io->symbols[symbol].policy == INFC_DIM_PADS && value < bound);
}

static bool profile_fits(const infc_io *io, uint32_t profile, const int64_t *values) {
  for (uint32_t s = 0; s < io->header->symbol_count; s++)
    if (!symbol_fits(io, profile, s, values[s]))
      return false;
  return true;
}

// First input that has the dimension.
static const char *input_with_symbol(const infc_io *io, uint32_t symbol) {
  for (uint32_t i = 0; i < io->header->input_count; i++)
    for (uint32_t d = 0; d < io->inputs[i].rank; d++)
      if (infc_dim_symbol(io->inputs[i].dims[d]) == (int32_t)symbol)
        return infc_tensor_name(io, &io->inputs[i]);
  return "";
}

// Appends name=size,... of a profile, or of the caller's sizes.
static size_t print_sizes(const infc_io *io, char *text, size_t size, size_t used, const int64_t *values,
                          uint32_t profile) {
  for (uint32_t s = 0; s < io->header->symbol_count && used < size; s++) {
    long long value = values ? values[s] : io->bounds[(size_t)profile * io->header->symbol_count + s];
    used += (size_t)snprintf(text + used, size - used, "%s%s=%lld", s ? "," : "", symbol_name(io, s), value);
  }
  return used;
}

// Appends which dimensions must be exactly a profile's, if any must.
static size_t print_exact(const infc_io *io, char *text, size_t size, size_t used) {
  const char *separator = " (";
  for (uint32_t s = 0; s < io->header->symbol_count && used < size; s++)
    if (io->symbols[s].policy != INFC_DIM_PADS) {
      used += (size_t)snprintf(text + used, size - used, "%s%s", separator, symbol_name(io, s));
      separator = ",";
    }
  if (*separator == ',' && used < size)
    used += (size_t)snprintf(text + used, size - used, " must be exactly a profile's)");
  return used;
}

static infc_status no_profile(infc_context *context, const int64_t *values) {
  const infc_io *io = &context->engine->io;
  uint32_t profiles = io->header->profile_count, culprit = 0;
  // Name the dimension that no profile takes, if it is one alone.
  for (uint32_t s = 0; s < io->header->symbol_count; s++) {
    bool fits = false;
    for (uint32_t p = 0; p < profiles; p++)
      fits |= symbol_fits(io, p, s, values[s]);
    if (!fits) {
      culprit = s;
      break;
    }
  }
  char *text = context->error;
  size_t size = sizeof context->error;
  size_t used = (size_t)snprintf(text, size, "input '%s': no profile fits ", input_with_symbol(io, culprit));
  used = used < size ? print_sizes(io, text, size, used, values, 0) : used;
  used = used < size ? print_exact(io, text, size, used) : used;
  for (uint32_t p = 0; p < profiles && used < size; p++) {
    used += (size_t)snprintf(text + used, size - used, "%s", p ? "; " : "; the artifact has ");
    used = used < size ? print_sizes(io, text, size, used, NULL, p) : used;
  }
  infc_one_line(text);
  return INFC_STATUS_BAD_SHAPE;
}

infc_status infc_resolve_shapes(infc_context *context) {
  const infc_io *io = &context->engine->io;
  if (!context->shapes_stale)
    return INFC_STATUS_OK;
  int64_t values[INFC_MAX_SYMBOLS] = {0};
  infc_status status = collect_symbols(context, values);
  if (status)
    return status;
  uint32_t profile = 0;
  while (profile < io->header->profile_count && !profile_fits(io, profile, values))
    profile++;
  if (profile == io->header->profile_count)
    return no_profile(context, values);
  context->profile = profile;
  for (uint32_t s = 0; s < io->header->symbol_count; s++)
    context->initial_symbols[s] = values[s] ? values[s] : infc_dim_bound(io, profile, -1 - (int32_t)s);
  if (!context->gpu) {
    context->plan = &context->plans[profile];
    const infc_program *program = context->plan->program;
    for (uint32_t s = io->header->symbol_count; s < program->header->symbol_count; s++)
      context->initial_symbols[s] = program->symbols[s].max;
  }
  for (uint32_t i = 0; i < io->header->input_count; i++) {
    infc_bound_input *input = &context->inputs[i];
    input->elements = 1;
    for (uint32_t d = 0; d < io->inputs[i].rank; d++)
      input->elements *= input->data ? input->dims[d] : 0;
  }
  for (uint32_t i = 0; i < io->header->output_count; i++)
    for (uint32_t d = 0; d < io->outputs[i].rank; d++) {
      int32_t dim = io->outputs[i].dims[d], symbol = infc_dim_symbol(dim);
      context->outputs[i].dims[d] = symbol < 0 ? dim : context->initial_symbols[symbol];
    }
  context->shapes_stale = false;
  context->addresses_stale = true;
  return INFC_STATUS_OK;
}

int64_t infc_read_integer(uint32_t dtype, const void *values, int64_t at) {
  switch (dtype) {
  case INFC_DTYPE_U8:
  case INFC_DTYPE_BOOL:
    return ((const uint8_t *)values)[at];
  case INFC_DTYPE_I8:
    return ((const int8_t *)values)[at];
  case INFC_DTYPE_U16:
    return ((const uint16_t *)values)[at];
  case INFC_DTYPE_I16:
    return ((const int16_t *)values)[at];
  case INFC_DTYPE_I32:
    return ((const int32_t *)values)[at];
  case INFC_DTYPE_U32:
    return ((const uint32_t *)values)[at];
  default:
    return ((const int64_t *)values)[at];
  }
}

// Without a branch a value, so that the compiler vectorises each type's loop.
static inline __attribute__((always_inline)) bool any_outside(uint32_t dtype, const void *values, int64_t count,
                                                              int64_t min, int64_t max) {
  bool outside = false;
  uint64_t span = (uint64_t)max - (uint64_t)min;
  for (int64_t i = 0; i < count; i++)
    outside |= (uint64_t)infc_read_integer(dtype, values, i) - (uint64_t)min > span;
  return outside;
}

int64_t infc_find_outside(uint32_t dtype, const void *values, int64_t count, int64_t min, int64_t max) {
  bool outside;
  if (dtype == INFC_DTYPE_I64)
    outside = any_outside(INFC_DTYPE_I64, values, count, min, max);
  else if (dtype == INFC_DTYPE_I32)
    outside = any_outside(INFC_DTYPE_I32, values, count, min, max);
  else
    outside = any_outside(dtype, values, count, min, max);
  for (int64_t i = 0; outside && i < count; i++) {
    int64_t value = infc_read_integer(dtype, values, i);
    if (value < min || value > max)
      return i;
  }
  return -1;
}
