// Contexts on a GPU: from bound tensors to the executor's bindings.
#include "context.h"

#include <string.h>

typedef struct parts {
  infc_context *context;
  infc_bound_input *inputs;
  infc_bound_output *outputs;
  infc_gpu_binding *bindings;
} parts;

static parts lay_out(infc_carve *carve, const infc_io *io) {
  parts p;
  p.context = infc_carve_take(carve, 1, sizeof *p.context);
  p.inputs = infc_carve_take(carve, io->header->input_count, sizeof *p.inputs);
  p.outputs = infc_carve_take(carve, io->header->output_count, sizeof *p.outputs);
  p.bindings = infc_carve_take(carve, infc_io_count(io), sizeof *p.bindings);
  return p;
}

infc_status infc_gpu_context_create(infc_engine *engine, const infc_allocator *allocator, infc_context **out,
                                    infc_error error) {
  infc_carve carve = {0};
  lay_out(&carve, &engine->io);
  size_t size = carve.used;
  void *memory = infc_alloc(allocator, size);
  if (!memory)
    return infc_fail(error, INFC_STATUS_OUT_OF_MEMORY, "out of memory for a context of %zu bytes", size);
  memset(memory, 0, size);
  carve = (infc_carve){.base = memory};
  parts p = lay_out(&carve, &engine->io);
  infc_gpu_context *gpu;
  infc_status status = engine->gpu.api->context_create(engine->gpu.engine, allocator, &gpu, error.text, error.size);
  if (status) {
    infc_free(allocator, memory);
    return status;
  }
  *p.context = (infc_context){
      .shapes_stale = true,
      .addresses_stale = true,
      .engine = infc_engine_retain(engine),
      .inputs = p.inputs,
      .outputs = p.outputs,
      .gpu = gpu,
      .bindings = p.bindings,
      .memory = size,
      .allocator = *allocator,
  };
  *out = p.context;
  return INFC_STATUS_OK;
}

void infc_gpu_context_destroy(infc_context *context) {
  context->engine->gpu.api->context_destroy(context->gpu);
}

// Nothing is padded in the caller's device memory.
static infc_status check_exact(infc_context *context, const infc_gpu_tensor *tensor, const int64_t *dims) {
  for (uint32_t d = 0; d < tensor->rank; d++)
    if (dims[d] != tensor->dims[d])
      return infc_fail(infc_context_error_buffer(context), INFC_STATUS_BAD_SHAPE,
                       "'%s' is in device memory: dimension %u must be the profile's %lld, not %lld", tensor->name, d,
                       (long long)tensor->dims[d], (long long)dims[d]);
  return INFC_STATUS_OK;
}

static infc_status make_bindings(infc_context *context) {
  const infc_io *io = &context->engine->io;
  uint32_t inputs = io->header->input_count, count = infc_io_count(io);
  const infc_gpu_tensor *tensors = context->engine->gpu.tensors + (size_t)context->profile * count;
  for (uint32_t i = 0; i < count; i++) {
    infc_gpu_binding *binding = &context->bindings[i];
    if (i < inputs)
      *binding = (infc_gpu_binding){.memory = (uintptr_t)context->inputs[i].data, .device = context->inputs[i].device};
    else
      *binding = (infc_gpu_binding){.memory = (uintptr_t)context->outputs[i - inputs].data,
                                    .device = context->outputs[i - inputs].device};
    for (uint32_t d = 0; d < tensors[i].rank; d++) {
      int32_t dim = io->inputs[i].dims[d], symbol = infc_dim_symbol(dim);
      binding->dims[d] = symbol < 0 ? dim : context->initial_symbols[symbol];
    }
    infc_status status = binding->device ? check_exact(context, &tensors[i], binding->dims) : INFC_STATUS_OK;
    if (status)
      return status;
  }
  return INFC_STATUS_OK;
}

infc_status infc_gpu_enqueue(infc_context *context, void *stream) {
  bool changed = context->addresses_stale;
  infc_status status = INFC_STATUS_OK;
  if (changed) {
    status = infc_prepare(context);
    if (!status)
      status = make_bindings(context);
  }
  if (!status)
    status = infc_check_values(context);
  if (!status)
    status = context->engine->gpu.api->enqueue(context->gpu, context->profile, context->bindings, changed,
                                               context->state, stream, context->error, sizeof context->error);
  if (!status)
    context->addresses_stale = false;
  return status;
}

infc_status infc_gpu_wait(infc_context *context) {
  return context->engine->gpu.api->wait(context->gpu, context->error, sizeof context->error);
}
