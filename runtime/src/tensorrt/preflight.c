// What the artifact was built for against what is here, before anything of TensorRT is created. Each message gives both
// sides and what to do, with the command that builds the artifact again.
#include "gpu.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// A line that grows; what does not fit is cut.
typedef struct line {
  char text[1024];
  size_t used;
} line;

__attribute__((format(printf, 2, 3))) static void add(line *line, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  int length = vsnprintf(line->text + line->used, sizeof line->text - line->used, format, arguments);
  va_end(arguments);
  size_t room = sizeof line->text - 1 - line->used;
  line->used += length < 0 ? 0 : (size_t)length < room ? (size_t)length : room;
}

static const char *flavour_name(uint32_t flavour) {
  return flavour == INFC_TENSORRT_RTX ? "TensorRT-RTX" : "TensorRT";
}

static bool has_sm(const infc_tensorrt_header *header, uint32_t sm) {
  for (uint32_t i = 0; i < header->sm_count; i++)
    if (header->sms[i] == sm)
      return true;
  return false;
}

// The next SM above `sm` that a plan of the flavour serves; 0: none.
static uint32_t next_sm(const infc_gpu_artifact *artifact, uint32_t flavour, uint32_t sm) {
  uint32_t next = 0;
  for (uint32_t p = 0; p < artifact->plan_count; p++) {
    const infc_tensorrt_header *header = artifact->plans[p].header;
    for (uint32_t i = 0; header->flavour == flavour && i < header->sm_count; i++)
      if (header->sms[i] > sm && (!next || header->sms[i] < next))
        next = header->sms[i];
  }
  return next;
}

// "89,120", with one SM more unless that is 0.
static void add_sms(line *line, const infc_gpu_artifact *artifact, uint32_t flavour, uint32_t more) {
  const char *separator = "";
  for (uint32_t sm = next_sm(artifact, flavour, 0); sm || more; sm = next_sm(artifact, flavour, sm)) {
    if (more && (!sm || more < sm)) {
      add(line, "%s%u", separator, more);
      separator = ",";
      more = 0;
    }
    if (!sm)
      break;
    more = more == sm ? 0 : more;
    add(line, "%s%u", separator, sm);
    separator = ",";
  }
}

static void add_version(line *line, const uint32_t version[4]) {
  add(line, "%u.%u.%u", version[0], version[1], version[2]);
  if (version[3])
    add(line, ".%u", version[3]);
}

static void add_cuda(line *line, uint32_t version) {
  add(line, "CUDA %u.%u", version / 1000, version % 1000 / 10);
}

// "built for TensorRT-RTX 1.7.1.116 (SM 89,120; driver of CUDA 13.0 or newer)", of each flavour in the artifact.
static line built_for(const infc_gpu_artifact *artifact) {
  static const uint32_t flavours[] = {INFC_TENSORRT_RTX, INFC_TENSORRT_ENTERPRISE};
  line line = {.used = 0};
  const char *separator = "built for ";
  for (int f = 0; f < 2; f++)
    for (uint32_t p = 0; p < artifact->plan_count; p++) {
      const infc_tensorrt_header *header = artifact->plans[p].header;
      if (header->flavour != flavours[f])
        continue;
      add(&line, "%s%s ", separator, flavour_name(header->flavour));
      add_version(&line, header->version);
      add(&line, " (SM ");
      add_sms(&line, artifact, header->flavour, 0);
      add(&line, "; a driver of ");
      add_cuda(&line, header->cuda_version);
      add(&line, " or newer)");
      separator = " and ";
      break;
    }
  add(&line, "; found ");
  return line;
}

static const char *command_of(const infc_gpu_artifact *artifact) {
  const char *command = artifact->plans[0].command;
  return *command ? command : "infc build MODEL";
}

static bool rtx_serves(uint32_t sm) {
  static const uint32_t sms[] = {75, 80, 86, 89, 120, 121};
  for (size_t i = 0; i < sizeof sms / sizeof *sms; i++)
    if (sms[i] == sm)
      return true;
  return false;
}

// The command that builds the artifact again, with CPU programs or without, for one SM more unless that is 0. Engines
// of TensorRT-RTX are built anywhere, those of TensorRT on the machine that runs them.
static void add_command(line *line, const infc_gpu_artifact *artifact, bool cpu, uint32_t more) {
  const char *command = command_of(artifact);
  bool rtx = next_sm(artifact, INFC_TENSORRT_RTX, 0) && (!more || rtx_serves(more));
  if (!rtx)
    add(line, "on this machine ");
  add(line, "with: %s --target %s%s --sm ", command, cpu ? "cpu," : "", rtx ? "tensorrt-rtx" : "tensorrt");
  if (!rtx && more)
    add(line, "%u", more);
  else
    add_sms(line, artifact, rtx ? INFC_TENSORRT_RTX : INFC_TENSORRT_ENTERPRISE, more);
  if (cpu && !artifact->cpu && strstr(command, " --precision ")) // it is the engine's
    add(line, " --precision cpu=f32");
}

// What a machine without a GPU can do; TensorRT's engines are not built there.
static void add_cpu_command(line *line, const infc_gpu_artifact *artifact) {
  if (artifact->cpu)
    add(line, "or run it on the CPU");
  else if (next_sm(artifact, INFC_TENSORRT_RTX, 0)) {
    add(line, "or build it for the CPU too ");
    add_command(line, artifact, true, 0);
  } else
    add(line, "or build it for the CPU with --target cpu");
}

static infc_status refuse(infc_error error, const line *line) {
  return infc_fail(error, INFC_STATUS_INCOMPATIBLE, "%s", line->text);
}

// `what` is here instead of a driver that works, because of `cause`.
static infc_status no_driver(const infc_gpu_artifact *artifact, const char *what, const char *cause, const char *advice,
                             infc_error error) {
  line line = built_for(artifact);
  add(&line, "%s%s; %s, ", what, cause, advice);
  add_cpu_command(&line, artifact);
  return refuse(error, &line);
}

// The driver is there and says that it has nothing to drive.
static infc_status no_gpu(const infc_gpu_artifact *artifact, infc_error error) {
  const char *visible = getenv("CUDA_VISIBLE_DEVICES");
  char hidden[128] = "";
  if (visible)
    snprintf(hidden, sizeof hidden, " (CUDA_VISIBLE_DEVICES is '%s')", visible);
  return no_driver(artifact, "a driver, but no GPU", hidden, "run it where there is one", error);
}

static infc_status broken_driver(const infc_gpu_artifact *artifact, CUresult result, const char *cause,
                                 infc_error error) {
  if (result == CUDA_ERROR_NO_DEVICE)
    return no_gpu(artifact, error);
  if (result == CUDA_ERROR_NOT_INITIALIZED) // what cuInit gives nowhere else
    return infc_fail(error, INFC_STATUS_DEVICE, INFC_GPU_FORKED);
  return no_driver(artifact, "a driver that fails in ", cause, "make it work (nvidia-smi uses it too)", error);
}

static infc_status check_driver_version(const infc_gpu_artifact *artifact, uint32_t needed, uint32_t found,
                                        infc_error error) {
  if (found >= needed)
    return INFC_STATUS_OK;
  line line = built_for(artifact);
  add(&line, "a driver of ");
  add_cuda(&line, found);
  add(&line, "; install a newer one, or build again on an older TensorRT, ");
  add_command(&line, artifact, artifact->cpu, 0);
  return refuse(error, &line);
}

static infc_status find_driver(infc_gpu_engine *engine, uint32_t *version, infc_error error) {
  char text[256] = "";
  infc_error reason = {text, sizeof text};
  const infc_gpu_artifact *artifact = &engine->artifact;
  int found = 0;
  if (infc_cuda_load(&engine->cuda, reason))
    return no_driver(artifact, text, "", "install the driver of the GPU", error);
  CUresult result = engine->cuda.init(0);
  infc_status status = infc_cuda_check(&engine->cuda, reason, INFC_CUDA_init, result);
  if (!status)
    status = INFC_CUDA(&engine->cuda, reason, driver_version, &found);
  if (status)
    return broken_driver(artifact, result, text, error);
  uint32_t needed = UINT32_MAX;
  for (uint32_t p = 0; p < artifact->plan_count; p++)
    if (artifact->plans[p].header->cuda_version < needed)
      needed = artifact->plans[p].header->cuda_version;
  *version = (uint32_t)found;
  return check_driver_version(artifact, needed, *version, error);
}

// Routes every profile to a plan of the flavour for the SM; false if one is left.
static bool route(infc_gpu_engine *engine, uint32_t flavour, uint32_t sm) {
  const infc_gpu_artifact *artifact = &engine->artifact;
  uint32_t routed = 0;
  for (uint32_t i = 0; i < artifact->profile_count; i++)
    engine->routes[i].plan = UINT32_MAX;
  for (uint32_t p = 0; p < artifact->plan_count; p++) {
    const infc_gpu_plan *plan = &artifact->plans[p];
    if (plan->header->flavour != flavour || !has_sm(plan->header, sm))
      continue;
    for (uint32_t i = 0; i < plan->header->profile_count; i++) {
      infc_gpu_route *entry = &engine->routes[plan->profiles[i]];
      if (entry->plan == UINT32_MAX) {
        *entry = (infc_gpu_route){p, i};
        routed++;
      }
    }
  }
  return routed == artifact->profile_count;
}

typedef struct device {
  CUdevice handle;
  int number;
  uint32_t sm;
} device;

static infc_status look_at(const infc_cuda_api *cuda, int number, device *out, infc_error error) {
  int major = 0, minor = 0;
  out->number = number;
  infc_status status = INFC_CUDA(cuda, error, device_get, &out->handle, number);
  if (!status)
    status =
        INFC_CUDA(cuda, error, device_attribute, &major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, out->handle);
  if (!status)
    status =
        INFC_CUDA(cuda, error, device_attribute, &minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, out->handle);
  out->sm = (uint32_t)(major * 10 + minor);
  return status;
}

static infc_status no_plan(const infc_gpu_engine *engine, const device *found, infc_error error) {
  char name[96] = "";
  infc_status status = INFC_CUDA(&engine->cuda, error, device_name, name, (int)sizeof name, found->handle);
  if (status)
    return status;
  line line = built_for(&engine->artifact);
  add(&line, "SM %u (cuda:%d, %s)%s; build again ", found->sm, found->number, name,
      rtx_serves(found->sm) ? "" : ", which TensorRT-RTX does not serve");
  add_command(&line, &engine->artifact, engine->artifact.cpu, found->sm);
  return refuse(error, &line);
}

// The wanted device, or the first with a plan.
static infc_status find_device(infc_gpu_engine *engine, int wanted, infc_error error) {
  int count = 0;
  infc_status status = INFC_CUDA(&engine->cuda, error, device_count, &count);
  if (status)
    return status;
  if (count == 0)
    return no_gpu(&engine->artifact, error);
  if (wanted >= count) {
    line line = built_for(&engine->artifact);
    add(&line, "%d GPU%s: there is no cuda:%d", count, count == 1 ? "" : "s", wanted);
    return refuse(error, &line);
  }
  device first = {0};
  for (int number = wanted < 0 ? 0 : wanted; number < (wanted < 0 ? count : wanted + 1); number++) {
    device found;
    if ((status = look_at(&engine->cuda, number, &found, error)))
      return status;
    if (route(engine, INFC_TENSORRT_RTX, found.sm) || route(engine, INFC_TENSORRT_ENTERPRISE, found.sm)) {
      engine->device = found.handle;
      engine->number = number;
      return INFC_STATUS_OK;
    }
    if (first.sm == 0)
      first = found;
  }
  return no_plan(engine, &first, error);
}

static infc_status find_adapter(infc_gpu_engine *engine, infc_error error) {
  void *library = dlopen(INFC_TRT_ADAPTER_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  infc_trt_adapter_fn entry = library ? (infc_trt_adapter_fn)dlsym(library, INFC_TRT_ADAPTER_SYMBOL) : NULL;
  const infc_trt_api *api = entry ? entry() : NULL;
  if (api && api->abi == INFC_TRT_ABI) {
    engine->trt = api;
    return INFC_STATUS_OK;
  }
  line line = built_for(&engine->artifact);
  add(&line, "an infc without its TensorRT adapter (%s); build infc with TENSORRT_ROOT naming TensorRT's headers",
      library ? INFC_TRT_ADAPTER_LIBRARY ": another version's" : dlerror());
  return refuse(error, &line);
}

static void add_package(line *line, const infc_tensorrt_header *header) {
  bool whole = header->version[3]; // else the build number is not known
  add(line, "pip install %stensorrt-%scu%u==", whole ? "" : "'", header->flavour == INFC_TENSORRT_RTX ? "rtx-" : "",
      header->cuda_version / 1000);
  add_version(line, header->version);
  add(line, "%s", whole ? "" : ".*'");
}

// The build number may be unknown: 0.
static bool same_version(const uint32_t a[4], const uint32_t b[4]) {
  return a[0] == b[0] && a[1] == b[1] && a[2] == b[2] && (a[3] == b[3] || !a[3] || !b[3]);
}

static infc_status check_version(const infc_gpu_engine *engine, const infc_tensorrt_header *built,
                                 const uint32_t found[4], infc_error error) {
  if (same_version(built->version, found))
    return INFC_STATUS_OK;
  line line = built_for(&engine->artifact);
  add(&line, "%s ", flavour_name(built->flavour));
  add_version(&line, found);
  add(&line, "; ");
  add_package(&line, built);
  add(&line, ", or build again on that version, ");
  add_command(&line, &engine->artifact, engine->artifact.cpu, 0);
  return refuse(error, &line);
}

infc_status infc_gpu_find_tensorrt(infc_gpu_engine *engine, const char *library, infc_error error) {
  const infc_tensorrt_header *built = engine->artifact.plans[engine->routes[0].plan].header;
  char text[256] = "";
  uint32_t version[4] = {0};
  infc_trt_result result =
      engine->trt->runtime_create(built->flavour, library, &engine->runtime, version, text, sizeof text);
  if (result == INFC_TRT_OUT_OF_MEMORY || result == INFC_TRT_DEVICE)
    return infc_gpu_trt_failed(error, INFC_STATUS_DEVICE, result, "createInferRuntime", text);
  if (result) {
    line line = built_for(&engine->artifact);
    add(&line, "%s %s (%s); ", result == INFC_TRT_NO_LIBRARY ? "no" : "a failing", flavour_name(built->flavour), text);
    add_package(&line, built);
    add(&line, ", or name the library's path (tensorrt_library)");
    return refuse(error, &line);
  }
  infc_status status = INFC_STATUS_OK;
  for (uint32_t i = 0; !status && i < engine->artifact.profile_count; i++)
    status = check_version(engine, engine->artifact.plans[engine->routes[i].plan].header, version, error);
  return status;
}

infc_status infc_gpu_preflight(infc_gpu_engine *engine, int device, infc_error error) {
  uint32_t driver = 0;
  infc_status status = find_driver(engine, &driver, error);
  if (!status)
    status = find_device(engine, device, error);
  for (uint32_t i = 0; !status && i < engine->artifact.profile_count; i++)
    status = check_driver_version(&engine->artifact,
                                  engine->artifact.plans[engine->routes[i].plan].header->cuda_version, driver, error);
  return status ? status : find_adapter(engine, error);
}
