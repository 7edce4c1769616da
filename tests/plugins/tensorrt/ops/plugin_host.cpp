// Does with a plugin what TensorRT does, from its creation for a build to a run: as far as a host without TensorRT can.
#include <NvInfer.h>

#include <cstdio>
#include <cstring>
#include <dlfcn.h>
#include <vector>

using namespace nvinfer1;

#define CHECK(condition)                                                                                               \
  if (!(condition))                                                                                                    \
  return #condition

namespace {

struct Logger : ILogger {
  char text[512] = "";
  void log(Severity, const char *message) noexcept override { snprintf(text, sizeof text, "%s", message); }
} logger;

struct Finder : ILoggerFinder {
  ILogger *findLogger() override { return &logger; }
} finder;

template <class T> T *capability(IPluginV3 *plugin, PluginCapabilityType type) {
  return static_cast<T *>(plugin->getCapabilityInterface(type));
}

} // namespace

// Tensors are inputs, then outputs; types are nvinfer1::DataType. Returns "" or what failed; the plugin's own words are
// in `said`.
extern "C" __attribute__((visibility("default"))) const char *
run_plugin(const char *path, const char *name, int fields, const char **field_names, const double *field_values,
           int inputs, int outputs, const int *types, const int *ranks, const int64_t (*dims)[Dims::MAX_DIMS],
           void **addresses, void *stream, const char **said) {
  logger.text[0] = 0;
  *said = logger.text;
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  CHECK(library);
  reinterpret_cast<void (*)(ILoggerFinder *)>(dlsym(library, "setLoggerFinder"))(&finder);
  int32_t count = 0;
  auto *creators =
      reinterpret_cast<IPluginCreatorInterface *const *(*)(int32_t &)>(dlsym(library, "getCreators"))(count);
  IPluginCreatorV3One *creator = nullptr;
  for (int32_t i = 0; i < count; i++) {
    auto *each = static_cast<IPluginCreatorV3One *>(creators[i]);
    CHECK(!strcmp(each->getPluginNamespace(), "infc") && !strcmp(each->getPluginVersion(), "1"));
    if (!strcmp(each->getPluginName(), name))
      creator = each;
  }
  CHECK(creator);
  CHECK(creator->getFieldNames()->nbFields == fields);

  std::vector<int64_t> integers(fields);
  std::vector<float> reals(fields);
  std::vector<PluginField> given;
  for (int f = 0; f < fields; f++) {
    CHECK(!strcmp(creator->getFieldNames()->fields[f].name, field_names[f]));
    const bool real = creator->getFieldNames()->fields[f].type == PluginFieldType::kFLOAT32;
    integers[f] = static_cast<int64_t>(field_values[f]);
    reals[f] = static_cast<float>(field_values[f]);
    given.emplace_back(field_names[f], real ? static_cast<void *>(&reals[f]) : &integers[f],
                       real ? PluginFieldType::kFLOAT32 : PluginFieldType::kINT64, 1);
  }
  const PluginFieldCollection collection{fields, given.data()};
  IPluginV3 *made = creator->createPlugin("made", &collection, TensorRTPhase::kBUILD);
  IPluginV3 *built = made->clone();
  delete made;
  auto *build = capability<IPluginV3OneBuild>(built, PluginCapabilityType::kBUILD);
  CHECK(!strcmp(capability<IPluginV3OneCore>(built, PluginCapabilityType::kCORE)->getPluginName(), name));
  CHECK(build->getNbOutputs() == outputs);

  std::vector<DataType> in_types, out_types(outputs);
  std::vector<PluginTensorDesc> tensors;
  std::vector<DynamicPluginTensorDesc> dynamic;
  for (int t = 0; t < inputs + outputs; t++) {
    PluginTensorDesc tensor{};
    tensor.dims.nbDims = ranks[t];
    memcpy(tensor.dims.d, dims[t], sizeof tensor.dims.d);
    tensor.type = static_cast<DataType>(types[t]);
    tensor.format = TensorFormat::kLINEAR;
    tensors.push_back(tensor);
    dynamic.push_back({tensor, tensor.dims, tensor.dims, tensor.dims});
    if (t < inputs)
      in_types.push_back(tensor.type);
  }
  CHECK(!build->getOutputDataTypes(out_types.data(), outputs, in_types.data(), inputs));
  for (int o = 0; o < outputs; o++)
    CHECK(out_types[o] == tensors[inputs + o].type);
  for (int t = 0; t < inputs + outputs; t++) {
    CHECK(build->supportsFormatCombination(t, dynamic.data(), inputs, outputs));
    PluginTensorDesc &tensor = dynamic[t].desc;
    tensor.format = TensorFormat::kCHW32;
    CHECK(!build->supportsFormatCombination(t, dynamic.data(), inputs, outputs));
    tensor.format = TensorFormat::kLINEAR;
    tensor.type = DataType::kBOOL;
    CHECK(!build->supportsFormatCombination(t, dynamic.data(), inputs, outputs));
    tensor.type = tensors[t].type;
  }
  CHECK(!build->configurePlugin(dynamic.data(), inputs, dynamic.data() + inputs, outputs));
  CHECK(build->getWorkspaceSize(dynamic.data(), inputs, dynamic.data() + inputs, outputs) == 0);

  const PluginFieldCollection *kept =
      capability<IPluginV3OneRuntime>(built, PluginCapabilityType::kRUNTIME)->getFieldsToSerialize();
  IPluginV3 *loaded = creator->createPlugin("loaded", kept, TensorRTPhase::kRUNTIME);
  delete built;
  IPluginV3 *attached =
      capability<IPluginV3OneRuntime>(loaded, PluginCapabilityType::kRUNTIME)->attachToContext(nullptr);
  delete loaded;
  auto *runtime = capability<IPluginV3OneRuntime>(attached, PluginCapabilityType::kRUNTIME);
  CHECK(!runtime->onShapeChange(tensors.data(), inputs, tensors.data() + inputs, outputs));
  CHECK(!runtime->enqueue(tensors.data(), tensors.data() + inputs, addresses, addresses + inputs, nullptr,
                          static_cast<cudaStream_t>(stream)));
  delete attached;
  return "";
}
