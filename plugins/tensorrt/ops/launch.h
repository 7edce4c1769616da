// Operators as the generated table declares them, and their launch through the CUDA driver. See declare.py for what the
// parts of a declaration mean. Types are numbered as in ONNX's TensorProto.DataType.
#ifndef INFC_OPS_LAUNCH_H
#define INFC_OPS_LAUNCH_H

#include <cstdint>
#include <string>
#include <vector>

namespace infc_ops {

using Symbols = std::vector<int64_t>;
using Rule = int64_t (*)(const int64_t *symbols);

// Of the size of a symbol, which the first to name it sets; -1: of the size that `rule` gives. `leading`: any number of
// dimensions in front, and the symbol is their product.
struct Dim {
  int symbol;
  Rule rule;
  bool leading;
};

struct Operand {
  const char *name;
  int type;     // 0: that of `variable`
  int variable; // index
  std::vector<Dim> dims;
  bool optional;
};

struct Variable {
  const char *name;
  std::vector<int> choices;
  int attribute; // that holds the type; -1: the inputs do
};

struct Attribute {
  const char *name;
  int symbol; // -1: a float
  double initial;
};

struct Requirement {
  Rule holds;
  const char *text;
};

struct Kernel {
  const char *name; // "{T}" stands for the type of variable T
  Rule when, grid, block;
};

struct Argument {
  enum Kind { TENSOR, SYMBOL, ATTRIBUTE } kind;
  int index; // tensors: inputs, then outputs
};

struct Operator {
  const char *name;
  std::vector<Operand> inputs, outputs;
  std::vector<Variable> variables;
  std::vector<Attribute> attributes;
  std::vector<Requirement> requirements;
  std::vector<Kernel> kernels;
  std::vector<Argument> arguments;
  int symbols;
  const unsigned char *fatbin;
};

// The generated table.
extern const std::vector<Operator> OPERATORS;

using Shape = std::vector<int64_t>;

// One launch of an operator. Functions return "" or what is wrong.
struct Call {
  const Operator *op;
  std::vector<double> attributes;
  Symbols symbols;
  std::vector<int> types; // by variable

  std::string bind(const std::vector<Shape> &inputs);
  // `tensors`: addresses on the device, inputs, then outputs; null for an absent input. `stream` is a CUstream.
  std::string launch(const std::vector<const void *> &tensors, void *stream) const;
};

} // namespace infc_ops

#endif // INFC_OPS_LAUNCH_H
