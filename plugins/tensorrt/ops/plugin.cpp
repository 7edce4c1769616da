// Every operator of the table as an IPluginV3 in the namespace "infc". TensorRT finds the creators through getCreators
// when the library is given to IPluginRegistry::loadLibrary; nothing here links against TensorRT.
#include "launch.h"

#include <NvInfer.h>
#include <cstring>
#include <memory>

namespace infc_ops {
namespace {

using namespace nvinfer1;

constexpr char NAMESPACE[] = "infc";
constexpr char VERSION[] = "1";

ILoggerFinder *logger_finder = nullptr;

int report(const Operator &op, const std::string &text) {
  if (text.empty())
    return 0;
  ILogger *logger = logger_finder ? logger_finder->findLogger() : nullptr;
  if (logger)
    logger->log(ILogger::Severity::kERROR, (std::string(NAMESPACE) + "::" + op.name + ": " + text).c_str());
  return 1;
}

int onnx_type(DataType type) {
  switch (type) {
  case DataType::kFLOAT:
    return 1;
  case DataType::kUINT8:
    return 2;
  case DataType::kINT8:
    return 3;
  case DataType::kINT32:
    return 6;
  case DataType::kHALF:
    return 10;
  case DataType::kBF16:
    return 16;
  case DataType::kFP8:
    return 17;
  default:
    return 0;
  }
}

DataType trt_type(int type) {
  for (const DataType t :
       {DataType::kFLOAT, DataType::kUINT8, DataType::kINT8, DataType::kINT32, DataType::kHALF, DataType::kBF16})
    if (onnx_type(t) == type)
      return t;
  return DataType::kFP8;
}

bool holds(const std::vector<int> &choices, int type) {
  for (const int choice : choices)
    if (choice == type)
      return true;
  return false;
}

class Plugin : public IPluginV3, public IPluginV3OneCore, public IPluginV3OneBuild, public IPluginV3OneRuntime {
public:
  Plugin(const Operator &op, std::vector<double> attributes) {
    call.op = &op;
    call.attributes = std::move(attributes);
    call.types.assign(op.variables.size(), 0);
  }

  IPluginCapability *getCapabilityInterface(PluginCapabilityType type) noexcept override {
    switch (type) {
    case PluginCapabilityType::kCORE:
      return static_cast<IPluginV3OneCore *>(this);
    case PluginCapabilityType::kBUILD:
      return static_cast<IPluginV3OneBuild *>(this);
    case PluginCapabilityType::kRUNTIME:
      return static_cast<IPluginV3OneRuntime *>(this);
    }
    return nullptr;
  }
  IPluginV3 *clone() noexcept override {
    auto *copy = new Plugin(*call.op, call.attributes);
    copy->call.symbols = call.symbols;
    copy->call.types = call.types;
    copy->present = present;
    return copy;
  }

  const char *getPluginName() const noexcept override { return call.op->name; }
  const char *getPluginVersion() const noexcept override { return VERSION; }
  const char *getPluginNamespace() const noexcept override { return NAMESPACE; }

  int32_t getNbOutputs() const noexcept override { return static_cast<int32_t>(call.op->outputs.size()); }

  int32_t getOutputDataTypes(DataType *out, int32_t outputs, const DataType *in,
                             int32_t inputs) const noexcept override {
    for (int32_t o = 0; o < outputs; o++) {
      const Operand &output = call.op->outputs[o];
      const int type =
          output.type ? output.type
                      : variable_type(output.variable, [&](int32_t i) { return i < inputs ? onnx_type(in[i]) : 0; });
      if (!type)
        return report(*call.op, std::string("no type for output ") + output.name);
      out[o] = trt_type(type);
    }
    return 0;
  }

  // Checks the ranks; sizes are checked once they are known.
  int32_t getOutputShapes(const DimsExprs *in, int32_t inputs, const DimsExprs *, int32_t, DimsExprs *out,
                          int32_t outputs, IExprBuilder &) noexcept override {
    std::vector<const IDimensionExpr *> symbols(call.op->symbols);
    DimsExprs front{}; // the leading dimensions
    for (int32_t i = 0; i < inputs; i++) {
      const std::vector<Dim> &dims = call.op->inputs[i].dims;
      const int32_t rank = static_cast<int32_t>(dims.size()), lead = rank && dims[0].leading;
      const int32_t extra = in[i].nbDims - (rank - lead);
      if (extra < 0 || (!lead && extra))
        return report(*call.op, std::string("wrong number of dimensions: ") + call.op->inputs[i].name);
      if (lead && !front.nbDims)
        for (front.nbDims = 0; front.nbDims < extra; front.nbDims++)
          front.d[front.nbDims] = in[i].d[front.nbDims];
      for (int32_t d = lead; d < rank; d++)
        if (dims[d].symbol >= 0 && !symbols[dims[d].symbol])
          symbols[dims[d].symbol] = in[i].d[extra - lead + d];
    }
    for (int32_t o = 0; o < outputs; o++) {
      DimsExprs &shape = out[o] = DimsExprs{};
      for (const Dim &dim : call.op->outputs[o].dims)
        if (dim.leading)
          shape = front;
        else
          shape.d[shape.nbDims++] = symbols[dim.symbol];
    }
    return 0;
  }

  bool supportsFormatCombination(int32_t at, const DynamicPluginTensorDesc *tensors, int32_t inputs,
                                 int32_t) noexcept override {
    const PluginTensorDesc &tensor = tensors[at].desc;
    if (tensor.format != TensorFormat::kLINEAR)
      return false;
    const Operand &operand = at < inputs ? call.op->inputs[at] : call.op->outputs[at - inputs];
    const int type = onnx_type(tensor.type);
    if (operand.type)
      return type == operand.type;
    const int known = variable_type(
        operand.variable, [&](int32_t i) { return i < at && i < inputs ? onnx_type(tensors[i].desc.type) : 0; });
    return known ? type == known : holds(call.op->variables[operand.variable].choices, type);
  }

  int32_t configurePlugin(const DynamicPluginTensorDesc *in, int32_t inputs, const DynamicPluginTensorDesc *,
                          int32_t) noexcept override {
    std::vector<PluginTensorDesc> tensors;
    for (int32_t i = 0; i < inputs; i++) {
      tensors.push_back(in[i].desc);
      tensors.back().dims = in[i].max;
    }
    return take(tensors.data(), inputs);
  }

  int32_t onShapeChange(const PluginTensorDesc *in, int32_t inputs, const PluginTensorDesc *,
                        int32_t) noexcept override {
    return take(in, inputs);
  }

  int32_t enqueue(const PluginTensorDesc *, const PluginTensorDesc *, const void *const *inputs, void *const *outputs,
                  void *, cudaStream_t stream) noexcept override {
    std::vector<const void *> tensors(inputs, inputs + present);
    tensors.resize(call.op->inputs.size(), nullptr);
    tensors.insert(tensors.end(), outputs, outputs + call.op->outputs.size());
    return report(*call.op, call.launch(tensors, stream));
  }

  IPluginV3 *attachToContext(IPluginResourceContext *) noexcept override { return clone(); }

  const PluginFieldCollection *getFieldsToSerialize() noexcept override {
    fields.clear();
    values.resize(call.attributes.size());
    for (size_t i = 0; i < values.size(); i++) {
      const Attribute &attribute = call.op->attributes[i];
      if (attribute.symbol >= 0)
        values[i].integer = static_cast<int32_t>(call.attributes[i]);
      else
        values[i].real = static_cast<float>(call.attributes[i]);
      fields.emplace_back(attribute.name, &values[i],
                          attribute.symbol >= 0 ? PluginFieldType::kINT32 : PluginFieldType::kFLOAT32, 1);
    }
    collection = {static_cast<int32_t>(fields.size()), fields.data()};
    return &collection;
  }

private:
  union Value {
    int32_t integer;
    float real;
  };

  // The type of a variable, by its attribute or by the first input that has it; 0: not known yet.
  template <class TypeOf> int variable_type(int variable, TypeOf type_of) const {
    const Variable &v = call.op->variables[variable];
    int type = 0;
    if (v.attribute >= 0)
      type = static_cast<int>(call.attributes[v.attribute]);
    for (size_t i = 0; !type && i < call.op->inputs.size(); i++)
      if (!call.op->inputs[i].type && call.op->inputs[i].variable == variable)
        type = type_of(static_cast<int32_t>(i));
    return holds(v.choices, type) ? type : 0;
  }

  int32_t take(const PluginTensorDesc *in, int32_t inputs) {
    std::vector<Shape> shapes;
    for (int32_t i = 0; i < inputs; i++)
      shapes.emplace_back(in[i].dims.d, in[i].dims.d + in[i].dims.nbDims);
    for (size_t v = 0; v < call.types.size(); v++)
      call.types[v] =
          variable_type(static_cast<int>(v), [&](int32_t i) { return i < inputs ? onnx_type(in[i].type) : 0; });
    present = inputs;
    return report(*call.op, call.bind(shapes));
  }

  Call call;
  int32_t present = 0; // inputs
  std::vector<Value> values;
  std::vector<PluginField> fields;
  PluginFieldCollection collection{};
};

class Creator : public IPluginCreatorV3One {
public:
  explicit Creator(const Operator &declared) : op(declared) {
    for (const Attribute &attribute : op.attributes)
      fields.emplace_back(attribute.name, nullptr,
                          attribute.symbol >= 0 ? PluginFieldType::kINT32 : PluginFieldType::kFLOAT32, 1);
    collection = {static_cast<int32_t>(fields.size()), fields.data()};
  }

  IPluginV3 *createPlugin(const char *, const PluginFieldCollection *given, TensorRTPhase) noexcept override {
    std::vector<double> attributes;
    for (const Attribute &attribute : op.attributes)
      attributes.push_back(attribute.initial);
    for (int32_t f = 0; given && f < given->nbFields; f++)
      for (size_t i = 0; i < attributes.size(); i++)
        if (given->fields[f].data && !strcmp(given->fields[f].name, op.attributes[i].name))
          attributes[i] = read(given->fields[f]);
    return new Plugin(op, std::move(attributes));
  }
  const PluginFieldCollection *getFieldNames() noexcept override { return &collection; }
  const char *getPluginName() const noexcept override { return op.name; }
  const char *getPluginVersion() const noexcept override { return VERSION; }
  const char *getPluginNamespace() const noexcept override { return NAMESPACE; }

private:
  static double read(const PluginField &field) {
    if (field.type == PluginFieldType::kFLOAT32)
      return *static_cast<const float *>(field.data);
    if (field.type == PluginFieldType::kINT64)
      return static_cast<double>(*static_cast<const int64_t *>(field.data));
    return *static_cast<const int32_t *>(field.data);
  }

  const Operator &op;
  std::vector<PluginField> fields;
  PluginFieldCollection collection;
};

} // namespace
} // namespace infc_ops

extern "C" {

__attribute__((visibility("default"))) void setLoggerFinder(nvinfer1::ILoggerFinder *finder) {
  infc_ops::logger_finder = finder;
}

__attribute__((visibility("default"))) nvinfer1::IPluginCreatorInterface *const *getCreators(int32_t &count) {
  static const auto *creators = [] {
    auto *all = new std::vector<nvinfer1::IPluginCreatorInterface *>; // the registry keeps them until the process ends
    for (const infc_ops::Operator &op : infc_ops::OPERATORS)
      all->push_back(new infc_ops::Creator(op));
    return all;
  }();
  count = static_cast<int32_t>(creators->size());
  return creators->data();
}
}
