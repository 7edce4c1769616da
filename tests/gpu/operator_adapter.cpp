// A TensorRT adapter whose engines are custom operators: with it the executor captures and launches real work on a GPU
// that has no TensorRT. A plan is text: the operator, its attributes, then the type of each type variable as ONNX
// numbers it.
#include "launch.h"

#define _Static_assert static_assert // of layout.h, which is C
#include "layout.h"
#include "tensorrt/trt_api.h"

#include <cstdio>
#include <cstring>
#include <sstream>

using infc_ops::Call;
using infc_ops::Operand;
using infc_ops::Operator;

struct infc_trt_runtime {};

struct infc_trt_engine {
  Call call;
  size_t inputs;
  const Operand &tensor(uint32_t index) const {
    return index < inputs ? call.op->inputs[index] : call.op->outputs[index - inputs];
  }
  uint32_t count() const { return static_cast<uint32_t>(inputs + call.op->outputs.size()); }
};

struct infc_trt_context {
  const infc_trt_engine *engine;
  Call call;
  std::vector<infc_ops::Shape> shapes;
  std::vector<const void *> addresses; // inputs that may be absent too
};

namespace {

infc_trt_result result(const std::string &text, char *error, size_t size) {
  if (text.empty())
    return INFC_TRT_OK;
  snprintf(error, size, "%s", text.c_str());
  return INFC_TRT_FAILED;
}

infc_trt_result runtime_create(uint32_t, const char *, infc_trt_runtime **out, uint32_t version[4], char *, size_t) {
  const uint32_t built[4] = {1, 7, 1, 116};
  memcpy(version, built, sizeof built);
  *out = new infc_trt_runtime;
  return INFC_TRT_OK;
}
void runtime_destroy(infc_trt_runtime *runtime) {
  delete runtime;
}

infc_trt_result engine_create(infc_trt_runtime *, const void *plan, size_t size, infc_trt_engine **out, char *error,
                              size_t error_size) {
  std::istringstream text(std::string(static_cast<const char *>(plan), size));
  std::string name;
  text >> name;
  for (const Operator &op : infc_ops::OPERATORS)
    if (name == op.name) {
      auto *engine = new infc_trt_engine{{&op, {}, {}, {}}, 0};
      engine->call.attributes.resize(op.attributes.size());
      engine->call.types.resize(op.variables.size());
      for (double &value : engine->call.attributes)
        text >> value;
      for (int &type : engine->call.types)
        text >> type;
      text >> engine->inputs;
      *out = engine;
      return result(text ? "" : "the plan is too short", error, error_size);
    }
  return result("no operator is named " + name, error, error_size);
}
void engine_destroy(infc_trt_engine *engine) {
  delete engine;
}
uint32_t engine_tensor_count(const infc_trt_engine *engine) {
  return engine->count();
}
infc_trt_tensor engine_tensor(const infc_trt_engine *engine, uint32_t index) {
  const Operand &operand = engine->tensor(index);
  const int type = operand.type ? operand.type : engine->call.types[operand.variable];
  return {operand.name, static_cast<uint32_t>(type), index >= engine->inputs,
          nullptr}; // the artifact numbers types as ONNX does
}
uint32_t engine_profile_count(const infc_trt_engine *) {
  return 1;
}
size_t engine_memory(const infc_trt_engine *, uint32_t) {
  return 0;
}

infc_trt_result context_create(infc_trt_engine *engine, uint32_t, void *, infc_trt_context **out, char *, size_t) {
  const Operator &op = *engine->call.op;
  *out = new infc_trt_context{engine, engine->call, std::vector<infc_ops::Shape>(engine->inputs),
                              std::vector<const void *>(op.inputs.size() + op.outputs.size())};
  return INFC_TRT_OK;
}
void context_destroy(infc_trt_context *context) {
  delete context;
}
infc_trt_result context_set_memory(infc_trt_context *, uint64_t, size_t, char *, size_t) {
  return INFC_TRT_OK;
}

infc_trt_result context_set_shape(infc_trt_context *context, const char *input, const int64_t *dims, uint32_t rank,
                                  char *error, size_t size) {
  for (uint32_t i = 0; i < context->engine->inputs; i++)
    if (!strcmp(context->engine->tensor(i).name, input)) {
      context->shapes[i].assign(dims, dims + rank);
      return INFC_TRT_OK;
    }
  return result(std::string("no input is named ") + input, error, size);
}

infc_trt_result context_set_address(infc_trt_context *context, const char *tensor, uint64_t memory, char *error,
                                    size_t size) {
  const infc_trt_engine &engine = *context->engine;
  for (uint32_t i = 0; i < engine.count(); i++)
    if (!strcmp(engine.tensor(i).name, tensor)) {
      const size_t absent = engine.call.op->inputs.size() - engine.inputs;
      context->addresses[i < engine.inputs ? i : i + absent] = reinterpret_cast<const void *>(memory);
      return INFC_TRT_OK;
    }
  return result(std::string("no tensor is named ") + tensor, error, size);
}

infc_trt_result context_enqueue(infc_trt_context *context, void *stream, char *error, size_t size) {
  std::string text = context->call.bind(context->shapes);
  if (text.empty())
    text = context->call.launch(context->addresses, stream);
  return result(text, error, size);
}

// Dimensions in front of an output are those in front of the first input.
infc_trt_result context_shape(const infc_trt_context *context, const char *tensor, int64_t *dims, uint32_t *rank,
                              char *error, size_t size) {
  const infc_trt_engine &engine = *context->engine;
  Call call = context->call;
  const std::string text = call.bind(context->shapes);
  *rank = 0;
  for (const Operand &output : engine.call.op->outputs)
    for (const infc_ops::Dim &dim : strcmp(output.name, tensor) ? std::vector<infc_ops::Dim>() : output.dims) {
      const infc_ops::Shape &front = context->shapes[0];
      for (size_t d = 0; dim.leading && d < front.size() + 1 - engine.tensor(0).dims.size(); d++)
        dims[(*rank)++] = front[d];
      if (!dim.leading)
        dims[(*rank)++] = dim.symbol >= 0 ? call.symbols[dim.symbol] : dim.rule(call.symbols.data());
    }
  return result(text, error, size);
}

} // namespace

extern "C" __attribute__((visibility("default"))) const infc_trt_api *infc_trt_adapter(void) {
  static const infc_trt_api api = {
      INFC_TRT_ABI,      runtime_create,       runtime_destroy, engine_create,  engine_destroy,  engine_tensor_count,
      engine_tensor,     engine_profile_count, engine_memory,   context_create, context_destroy, context_set_memory,
      context_set_shape, context_set_address,  context_enqueue, context_shape,
  };
  return &api;
}
