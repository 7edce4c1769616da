#include "launch.h"

#include <algorithm>
#include <dlfcn.h>
#include <map>
#include <mutex>

namespace infc_ops {
namespace {

using Result = int; // CUresult; 0 is success

// What is needed of the driver, found in the library that the process uses already.
struct Driver {
  Result (*library_load)(void **library, const void *code, void *, void *, unsigned, void *, void *, unsigned);
  Result (*library_kernel)(void **kernel, void *library, const char *name);
  Result (*launch)(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                   unsigned block_y, unsigned block_z, unsigned shared, void *stream, void **arguments, void **extra);
  Result (*error_name)(Result error, const char **text);
  std::string missing;

  Driver() {
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!cuda) {
      missing = dlerror();
      return;
    }
    find(cuda, "cuLibraryLoadData", &library_load);
    find(cuda, "cuLibraryGetKernel", &library_kernel);
    find(cuda, "cuLaunchKernel", &launch);
    find(cuda, "cuGetErrorName", &error_name);
  }

private:
  template <class F> void find(void *cuda, const char *symbol, F *out) {
    *out = reinterpret_cast<F>(dlsym(cuda, symbol));
    if (!*out)
      missing = std::string("the driver has no ") + symbol;
  }
};

const Driver &driver() {
  static const Driver found;
  return found;
}

std::string failure(const char *what, Result error) {
  const char *name = nullptr;
  driver().error_name(error, &name);
  return std::string(what) + ": " + (name ? name : std::to_string(error).c_str());
}

// Kernels of all operators, loaded when first launched; the driver keeps one for every context.
std::string find_kernel(const Operator &op, const std::string &name, void **out) {
  static std::mutex mutex;
  static std::map<const Operator *, void *> libraries;
  static std::map<std::string, void *> kernels;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = kernels.find(name);
  if (found != kernels.end()) {
    *out = found->second;
    return "";
  }
  void *&library = libraries[&op];
  if (!library) {
    const Result error = driver().library_load(&library, op.fatbin, nullptr, nullptr, 0, nullptr, nullptr, 0);
    if (error)
      return failure("cuLibraryLoadData", error);
  }
  const Result error = driver().library_kernel(out, library, name.c_str());
  if (error)
    return failure(("cuLibraryGetKernel " + name).c_str(), error);
  kernels[name] = *out;
  return "";
}

const char *type_name(int type) {
  switch (type) {
  case 3:
    return "int8";
  case 10:
    return "f16";
  case 16:
    return "bf16";
  case 17:
    return "fp8";
  default:
    return "f32";
  }
}

std::string mismatch(const Operand &operand, const Shape &shape) {
  std::string text = std::string(operand.name) + " has shape [";
  for (size_t i = 0; i < shape.size(); i++)
    text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "], which the other inputs and the attributes do not allow";
}

} // namespace

std::string Call::bind(const std::vector<Shape> &inputs) {
  symbols.assign(op->symbols, -1);
  for (size_t i = 0; i < op->attributes.size(); i++)
    if (op->attributes[i].symbol >= 0)
      symbols[op->attributes[i].symbol] = static_cast<int64_t>(attributes[i]);
  for (size_t i = 0; i < op->inputs.size(); i++) {
    const Operand &operand = op->inputs[i];
    if (i >= inputs.size()) {
      if (!operand.optional)
        return std::string("input ") + operand.name + " is missing";
      continue;
    }
    const size_t rank = operand.dims.size(), lead = rank && operand.dims[0].leading ? 1 : 0;
    if (inputs[i].size() < rank - lead || (!lead && inputs[i].size() != rank))
      return mismatch(operand, inputs[i]);
    const size_t front = inputs[i].size() - (rank - lead); // dimensions in front that the first rule takes together
    for (size_t d = 0; d < rank; d++) {
      const Dim &dim = operand.dims[d];
      int64_t size = lead ? d == 0 ? 1 : inputs[i][front + d - 1] : inputs[i][d];
      for (size_t f = 0; dim.leading && f < front; f++)
        size *= inputs[i][f];
      if (dim.symbol >= 0 && symbols[dim.symbol] < 0)
        symbols[dim.symbol] = size;
      if (size != (dim.symbol >= 0 ? symbols[dim.symbol] : dim.rule(symbols.data())))
        return mismatch(operand, inputs[i]);
    }
  }
  for (const Requirement &requirement : op->requirements)
    if (!requirement.holds(symbols.data()))
      return requirement.text;
  return "";
}

std::string Call::launch(const std::vector<const void *> &tensors, void *stream) const {
  if (!driver().missing.empty())
    return driver().missing;
  const Kernel &kernel = *std::find_if(op->kernels.begin(), op->kernels.end(),
                                       [this](const Kernel &k) { return k.when(symbols.data()) != 0; });
  std::string name = kernel.name;
  for (size_t v = 0; v < op->variables.size(); v++) {
    const std::string mark = std::string("{") + op->variables[v].name + "}";
    const size_t at = name.find(mark);
    if (at != std::string::npos)
      name.replace(at, mark.size(), type_name(types[v]));
  }

  union Value {
    const void *address;
    int32_t integer;
    float real;
  };
  std::vector<Value> values(op->arguments.size());
  std::vector<void *> arguments(op->arguments.size());
  for (size_t i = 0; i < values.size(); i++) {
    const Argument &argument = op->arguments[i];
    if (argument.kind == Argument::TENSOR)
      values[i].address = tensors[argument.index];
    else if (argument.kind == Argument::SYMBOL)
      values[i].integer = static_cast<int32_t>(symbols[argument.index]);
    else
      values[i].real = static_cast<float>(attributes[argument.index]);
    arguments[i] = &values[i];
  }

  const auto grid = static_cast<unsigned>(kernel.grid(symbols.data()));
  const auto block = static_cast<unsigned>(kernel.block(symbols.data()));
  if (grid == 0) // nothing to compute
    return "";
  void *function = nullptr;
  const std::string text = find_kernel(*op, name, &function);
  if (!text.empty())
    return text;
  const Result error = driver().launch(function, grid, 1, 1, block, 1, 1, 0, stream, arguments.data(), nullptr);
  return error ? failure(("cuLaunchKernel " + name).c_str(), error) : "";
}

} // namespace infc_ops
