// The IO section: inputs, outputs, named dimensions and profiles.
#include "validate.h"

enum { MAX_TENSORS = 1024, MAX_IO_SYMBOLS = 16, MAX_PROFILES = 1024 };

static bool is_integer(uint32_t dtype) {
  return dtype == INFC_DTYPE_U8 || dtype == INFC_DTYPE_I8 || dtype == INFC_DTYPE_U16 || dtype == INFC_DTYPE_I16 ||
         dtype == INFC_DTYPE_I32 || dtype == INFC_DTYPE_U32 || dtype == INFC_DTYPE_I64 || dtype == INFC_DTYPE_BOOL;
}

// Every profile's size of the tensor in bytes must be addressable.
static infc_status check_bytes(const infc_file *file, const infc_io *io, const infc_io_tensor *tensor) {
  for (uint32_t profile = 0; profile < io->header->profile_count; profile++) {
    uint64_t bytes = infc_dtype_size(tensor->dtype);
    for (uint32_t d = 0; d < tensor->rank; d++)
      if (__builtin_mul_overflow(bytes, (uint64_t)infc_dim_bound(io, profile, tensor->dims[d]), &bytes) ||
          bytes > INT64_MAX / 4)
        return infc_bad(file, tensor, "tensor '%s' is too large", infc_tensor_name(io, tensor));
  }
  return INFC_STATUS_OK;
}

static infc_status check_tensor(const infc_file *file, const infc_io *io, const infc_io_tensor *tensor, bool output) {
  const infc_io_header *header = io->header;
  if (!infc_string_ok(tensor->name, header->strings_size) || !*infc_tensor_name(io, tensor))
    return infc_bad(file, &tensor->name, "a tensor has no name");
  const char *name = infc_tensor_name(io, tensor);
  if (!infc_dtype_size(tensor->dtype))
    return infc_bad(file, &tensor->dtype, "tensor '%s' has unknown type %u", name, tensor->dtype);
  if (tensor->rank > INFC_MAX_RANK)
    return infc_bad(file, &tensor->rank, "tensor '%s' has rank %u", name, tensor->rank);
  for (uint32_t d = 0; d < tensor->rank; d++) {
    int32_t dim = tensor->dims[d];
    if (dim == INT32_MIN || infc_dim_symbol(dim) >= (int32_t)header->symbol_count)
      return infc_bad(file, &tensor->dims[d], "tensor '%s' has dimension %d", name, dim);
  }
  bool optional = tensor->flags & INFC_TENSOR_OPTIONAL;
  if (tensor->flags & ~INFC_TENSOR_OPTIONAL || tensor->has_range > 1 || (output && (optional || tensor->has_range)))
    return infc_bad(file, &tensor->flags, "tensor '%s' has unknown flags", name);
  if (tensor->has_range && (!is_integer(tensor->dtype) || tensor->range_min > tensor->range_max))
    return infc_bad(file, &tensor->has_range, "tensor '%s' has a meaningless range", name);
  if (optional && !is_integer(tensor->dtype) && tensor->dtype != INFC_DTYPE_F32 && tensor->dtype != INFC_DTYPE_F64)
    return infc_bad(file, &tensor->flags, "tensor '%s' of such a type cannot be optional", name);
  return check_bytes(file, io, tensor);
}

static bool symbol_in_use(const infc_io *io, uint32_t symbol) {
  for (uint32_t i = 0; i < infc_io_count(io); i++)
    for (uint32_t d = 0; d < io->inputs[i].rank; d++)
      if (infc_dim_symbol(io->inputs[i].dims[d]) == (int32_t)symbol)
        return true;
  return false;
}

static infc_status check_symbols(const infc_file *file, const infc_io *io) {
  const infc_io_header *header = io->header;
  for (uint32_t s = 0; s < header->symbol_count; s++) {
    const infc_io_symbol *symbol = &io->symbols[s];
    if (!infc_string_ok(symbol->name, header->strings_size))
      return infc_bad(file, &symbol->name, "a dimension has no name");
    if (symbol->policy != INFC_DIM_EXACT && symbol->policy != INFC_DIM_PADS)
      return infc_bad(file, &symbol->policy, "dimension '%s' has unknown policy %u", io->strings + symbol->name,
                      symbol->policy);
    for (uint32_t p = 0; p < header->profile_count; p++) {
      const uint32_t *bound = &io->bounds[(size_t)p * header->symbol_count + s];
      if (*bound == 0 || *bound > INT32_MAX)
        return infc_bad(file, bound, "dimension '%s' is %u in profile %u", io->strings + symbol->name, *bound, p);
    }
  }
  return INFC_STATUS_OK;
}

infc_status infc_validate_io(const infc_file *file, const infc_section *section, infc_io *io) {
  infc_span span = {file->data + section->offset, section->size};
  const infc_io_header *header = io->header = infc_span_take(&span, 1, sizeof *header);
  if (!header)
    return infc_bad(file, section, "IO is too short for its header");
  if ((uint64_t)header->input_count + header->output_count > MAX_TENSORS || header->output_count == 0)
    return infc_bad(file, header, "%u inputs and %u outputs", header->input_count, header->output_count);
  if (header->symbol_count > MAX_IO_SYMBOLS)
    return infc_bad(file, &header->symbol_count, "%u named dimensions are too many", header->symbol_count);
  if (header->profile_count == 0 || header->profile_count > MAX_PROFILES)
    return infc_bad(file, &header->profile_count, "%u profiles", header->profile_count);
  io->inputs = infc_span_take(&span, (uint64_t)header->input_count + header->output_count, sizeof *io->inputs);
  io->symbols = infc_span_take(&span, header->symbol_count, sizeof *io->symbols);
  io->bounds = infc_span_take(&span, (uint64_t)header->profile_count * header->symbol_count, sizeof *io->bounds);
  io->strings = infc_span_take(&span, header->strings_size, 1);
  if (!io->inputs || !io->symbols || !io->bounds || !io->strings)
    return infc_bad(file, header, "IO is too short for what its header counts");
  if (span.left || header->strings_size == 0 || io->strings[header->strings_size - 1])
    return infc_bad(file, io->strings, "IO does not end with its strings");
  io->outputs = io->inputs + header->input_count;
  infc_status status = check_symbols(file, io);
  for (uint32_t i = 0; !status && i < header->input_count + header->output_count; i++)
    status = check_tensor(file, io, &io->inputs[i], i >= header->input_count);
  for (uint32_t s = 0; !status && s < header->symbol_count; s++)
    if (!symbol_in_use(io, s))
      status = infc_bad(file, &io->symbols[s], "no input and no output has dimension '%s'",
                        io->strings + io->symbols[s].name);
  return status;
}
