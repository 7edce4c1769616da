// What a user reads when an artifact and a machine do not fit. Each case runs in a process of its own, because the
// loader reads LD_LIBRARY_PATH at its start: the folders of tests/fake_gpu, whole or with something missing.
#define GPU_WITHOUT_FAKE
#include "gpu_test.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_WORDS = 6 };

typedef struct preflight {
  const char *name;
  const char *missing; // file of the folder of fakes
  const char *cuda, *trt;
  const char *device, *library;
  enum {
    PLAN_DEFAULT,
    PLAN_ENTERPRISE,
    PLAN_TRUNCATED,
    PLAN_OTHER_MODEL,
    PLAN_OTHER_NAME,
    PLAN_OTHER_TYPE,
    PLAN_OLDER,
    PLAN_HOSTILE, // its command is for a terminal
    PLANS_NONE
  } plan;
  bool no_programs;
  infc_status status; // of "cuda", or without CPU programs
  const char *words[MAX_WORDS];
  const char *absent;
} preflight;

#define REBUILD "infc build toy.onnx --precision f16 --profile batch=4 --profile batch=16 --target "
#define BUILT "built for TensorRT-RTX 1.7.1.116 (SM 86,89; a driver of CUDA 13.0 or newer)"

static const preflight cases[] = {
    {"no driver", .missing = "libcuda.so.1", .status = INFC_STATUS_INCOMPATIBLE,
     .words = {BUILT, "libcuda.so.1", "; install the driver of the GPU, or run it on the CPU"}},
    {"no driver, no programs", .missing = "libcuda.so.1", .no_programs = true, .status = INFC_STATUS_INCOMPATIBLE,
     .words = {BUILT, "or build it for the CPU too with: " REBUILD "cpu,tensorrt-rtx --sm 86,89 --precision cpu=f32"}},
    {"no driver, no programs, Enterprise", .missing = "libcuda.so.1", .no_programs = true, .plan = PLAN_ENTERPRISE,
     .status = INFC_STATUS_INCOMPATIBLE, .words = {"or build it for the CPU with --target cpu"}},
    {"cuInit fails", .cuda = "fail=cuInit:0:999", .status = INFC_STATUS_INCOMPATIBLE,
     .words = {BUILT, "found a driver that fails in cuInit", "nvidia-smi"}, .absent = "install"},
    {"no device", .cuda = "devices=0", .status = INFC_STATUS_INCOMPATIBLE,
     .words = {BUILT, "found a driver, but no GPU; run it where there is one, or run it on the CPU"},
     .absent = "install"},
    {"no device is counted", .cuda = "fail=cuInit:0:100", .status = INFC_STATUS_INCOMPATIBLE,
     .words = {"found a driver, but no GPU"}, .absent = "install"},
    {"an old driver", .cuda = "driver=12080", .status = INFC_STATUS_INCOMPATIBLE,
     .words = {BUILT, "CUDA 12.8", REBUILD}},
    {"wrong SM", .cuda = "sm=120", .status = INFC_STATUS_INCOMPATIBLE,
     .words = {BUILT, "SM 120", REBUILD "cpu,tensorrt-rtx --sm 86,89,120"}},
    {"wrong SM, no programs", .cuda = "sm=75", .no_programs = true, .status = INFC_STATUS_INCOMPATIBLE,
     .words = {BUILT, "SM 75", REBUILD "tensorrt-rtx --sm 75,86,89"}},
    {"an SM that RTX does not serve", .cuda = "sm=90", .status = INFC_STATUS_INCOMPATIBLE,
     .words = {BUILT, "SM 90", REBUILD "cpu,tensorrt --sm 90"}},
    {"a command for the terminal", .cuda = "sm=120", .plan = PLAN_HOSTILE, .status = INFC_STATUS_INCOMPATIBLE,
     .words = {BUILT, "with: in???build toy.onnx"}},
    {"no such device", .device = "cuda:3", .status = INFC_STATUS_INCOMPATIBLE, .words = {BUILT, "cuda:3"}},
    {"the other device fits", .cuda = "devices=2,sm=120+89", .device = "cuda:0", .status = INFC_STATUS_INCOMPATIBLE,
     .words = {BUILT, "SM 120", "cuda:0"}},
    {"no adapter", .missing = "libinfc_tensorrt_adapter.so", .status = INFC_STATUS_INCOMPATIBLE,
     .words = {BUILT, "libinfc_tensorrt_adapter.so", "TENSORRT_ROOT"}},
    {"no executor", .missing = "libinfc_tensorrt.so", .status = INFC_STATUS_INCOMPATIBLE,
     .words = {"libinfc_tensorrt.so"}},
    {"no TensorRT", .trt = "flavour=enterprise", .status = INFC_STATUS_INCOMPATIBLE,
     .words = {BUILT, "libtensorrt_rtx.so.1", "pip install tensorrt-rtx-cu13==1.7.1.116"}},
    {"no TensorRT of a build not known", .plan = PLAN_OLDER, .trt = "flavour=enterprise",
     .status = INFC_STATUS_INCOMPATIBLE, .words = {"pip install 'tensorrt-rtx-cu13==1.7.1.*'"}},
    {"no TensorRT at the path", .library = "/nowhere/libtensorrt_rtx.so.1", .status = INFC_STATUS_INCOMPATIBLE,
     .words = {BUILT, "/nowhere/libtensorrt_rtx.so.1"}},
    {"Enterprise on a machine of RTX", .plan = PLAN_ENTERPRISE, .status = INFC_STATUS_INCOMPATIBLE,
     .words = {"built for TensorRT 11.1.0.5 (SM 86,89;", "libnvinfer.so.11", "pip install tensorrt-cu13==11.1.0.5"}},
    {"another version", .trt = "version=1.8.0.3", .status = INFC_STATUS_INCOMPATIBLE,
     .words = {BUILT, "1.8.0.3", "pip install tensorrt-rtx-cu13==1.7.1.116", REBUILD "cpu,tensorrt-rtx --sm 86,89"}},
    {"another patch", .trt = "version=1.7.2.116", .status = INFC_STATUS_INCOMPATIBLE, .words = {BUILT, "1.7.2.116"}},
    {"another build", .trt = "version=1.7.1.117", .status = INFC_STATUS_INCOMPATIBLE, .words = {BUILT, "1.7.1.117"}},
    {"another minor", .trt = "version=1.8.1.116", .status = INFC_STATUS_INCOMPATIBLE, .words = {BUILT, "1.8.1.116"}},
    {"another major", .trt = "version=2.7.1.116", .status = INFC_STATUS_INCOMPATIBLE, .words = {BUILT, "2.7.1.116"}},
    {"the runtime cannot be created", .cuda = "fail=runtime_create:0:1", .status = INFC_STATUS_INCOMPATIBLE,
     .words = {BUILT, "runtime_create"}},
    {"the device fails under the runtime", .cuda = "fail=runtime_create:0:4", .status = INFC_STATUS_DEVICE,
     .words = {"createInferRuntime", "runtime_create"}, .absent = "install"},
    {"the device fails under a plan", .cuda = "fail=engine_create:0:4", .status = INFC_STATUS_DEVICE,
     .words = {"deserializeCudaEngine"}},
    {"a truncated plan", .plan = PLAN_TRUNCATED, .status = INFC_STATUS_BAD_ARTIFACT,
     .words = {"deserializeCudaEngine"}},
    {"a plan of another model", .plan = PLAN_OTHER_MODEL, .status = INFC_STATUS_BAD_ARTIFACT,
     .words = {"does not belong to the artifact"}},
    {"a plan with another tensor", .plan = PLAN_OTHER_NAME, .status = INFC_STATUS_BAD_ARTIFACT,
     .words = {"does not belong to the artifact", "bias"}},
    {"a plan with another type", .plan = PLAN_OTHER_TYPE, .no_programs = true, .status = INFC_STATUS_BAD_ARTIFACT,
     .words = {"does not belong to the artifact", "ids"}},
    {"too little memory", .cuda = "memory=1000", .status = INFC_STATUS_OUT_OF_MEMORY,
     .words = {"deserializeCudaEngine"}},
    {"no engine for a GPU", .plan = PLANS_NONE, .status = INFC_STATUS_INCOMPATIBLE,
     .words = {"no engine for a GPU", "--target"}},
    {"an unknown device", .device = "rocm", .status = INFC_STATUS_INVALID_ARGUMENT, .words = {"rocm"}},
    {"a number too many", .device = "cuda:", .status = INFC_STATUS_INVALID_ARGUMENT, .words = {"cuda:"}},
    // Those that run.
    {"all is well", .no_programs = true},
    {"the first with an engine", .cuda = "devices=3,sm=75+120+86", .no_programs = true, .words = {"cuda:2"}},
    {"a newer driver", .cuda = "driver=13010", .no_programs = true},
    {"a library by path", .library = "/proc/self/exe", .no_programs = true},
    {"Enterprise", .plan = PLAN_ENTERPRISE, .trt = "flavour=enterprise,version=11.1.0.5", .no_programs = true},
    {"a build number not known", .plan = PLAN_OLDER, .no_programs = true},
};

// What no compiler writes.
static void spoil(const preflight *p, uint8_t *data) {
  uint8_t *section = data + art_section(data, INFC_SECTION_TENSORRT, 0)->offset;
  fake_plan *plan = (fake_plan *)(section + ((infc_tensorrt_header *)section)->plan_offset);
  uint8_t *inner = (uint8_t *)(plan + 1);
  if (p->plan == PLAN_OTHER_NAME) {
    const infc_section *io = art_section(inner, INFC_SECTION_IO, 0);
    char *name = memmem(inner + io->offset, io->size, "bias", sizeof "bias");
    name[0] = 'c';
    art_seal(inner, plan->size);
  } else if (p->plan == PLAN_OTHER_TYPE) {
    uint8_t *io = data + art_section(data, INFC_SECTION_IO, 0)->offset;
    ((infc_io_tensor *)(io + sizeof(infc_io_header)))[ART_IDS].dtype = INFC_DTYPE_I16;
  } else if (p->plan == PLAN_HOSTILE) {
    char *command = memmem(section, 1024, ART_COMMAND, sizeof ART_COMMAND);
    memcpy(command + 2, "\x1b\n\x7f", 3);
  } else if (p->plan == PLAN_TRUNCATED)
    plan->size++;
}

static uint8_t *make(const preflight *p, size_t *size) {
  art_toy toy = art_default, other = art_default;
  other.width = 5;
  toy.isa_count = !p->no_programs;
  art_plan plan = art_plan_default;
  if (p->plan == PLAN_ENTERPRISE)
    plan = (art_plan){.sms = {86, 89}, .profiles = {0, 1}, .profile_count = 2, .cuda = 13000, .version = {11, 1, 0, 5}};
  if (p->plan == PLAN_OTHER_MODEL) {
    other.profiles[1] = 0;
    plan.engine = &other;
  }
  if (p->plan == PLAN_OLDER)
    plan.version[3] = 0;
  uint8_t *data = art_make_gpu(&toy, &plan, p->plan != PLANS_NONE, size);
  if (p->plan != PLANS_NONE)
    spoil(p, data);
  art_seal(data, *size);
  return data;
}

static void check_runs(infc_engine *engine) {
  infc_context *context;
  char why[512] = "";
  if (!CHECK(!infc_context_create(engine, NULL, &context, why, sizeof why), "%s", why))
    return;
  art_run run = art_bind(context, &art_default, 5);
  CHECK(!infc_run(context) && art_correct(&run, &art_default, 5), "%s", infc_context_error(context));
  infc_context_destroy(context);
  art_free(&run);
}

static void check_text(const preflight *p, const char *text) {
  CHECK(!strchr(text, '\n') && *text, "%s: '%s'", p->name, text);
  for (int i = 0; i < MAX_WORDS && p->words[i]; i++)
    CHECK(strstr(text, p->words[i]), "%s: no '%s' in '%s'", p->name, p->words[i], text);
  CHECK(!p->absent || !strstr(text, p->absent), "%s: '%s' in '%s'", p->name, p->absent, text);
}

static infc_status open_engine(const preflight *p, const uint8_t *data, size_t size, const char *device,
                               infc_engine **engine, char *why, size_t why_size) {
  infc_engine_options options = {.struct_size = sizeof options, .device = device, .tensorrt_library = p->library};
  *engine = NULL;
  return infc_engine_open_memory(data, size, &options, engine, why, why_size);
}

static void check_case(const preflight *p) {
  size_t size;
  uint8_t *data = make(p, &size);
  infc_engine *engine;
  char why[1024] = "";
  infc_status status = open_engine(p, data, size, p->device ? p->device : "cuda", &engine, why, sizeof why);
  CHECK(status == p->status, "%s: status %d, %s", p->name, status, why);
  if (status)
    check_text(p, why);
  else if (p->words[0])
    CHECK(!strcmp(infc_engine_device(engine), p->words[0]), "%s: on %s", p->name, infc_engine_device(engine));
  if (!status)
    check_runs(engine);
  infc_engine_close(engine);
  // By itself it takes the CPU and says why, or fails if there is nothing for that.
  if (!p->device || status == INFC_STATUS_OK) {
    bool gpu = status == INFC_STATUS_OK, fails = status && p->no_programs;
    status = open_engine(p, data, size, NULL, &engine, why, sizeof why);
    CHECK(status == (fails ? p->status : INFC_STATUS_OK), "%s: status %d, %s", p->name, status, why);
    if (!status) {
      CHECK(gpu == !strncmp(infc_engine_device(engine), "cuda:", 5), "%s: on %s", p->name, infc_engine_device(engine));
      if (!gpu && p->plan != PLANS_NONE)
        check_text(p, infc_engine_note(engine));
      else
        CHECK(!*infc_engine_note(engine), "%s: %s", p->name, infc_engine_note(engine));
      check_runs(engine);
      infc_engine_close(engine);
    }
  }
  // The CPU is always there, unless it is not.
  status = open_engine(p, data, size, "cpu", &engine, why, sizeof why);
  CHECK(status == (p->no_programs ? INFC_STATUS_INCOMPATIBLE : INFC_STATUS_OK), "%s: %s", p->name, why);
  CHECK(!status || strstr(why, "--target cpu"), "%s", why);
  infc_engine_close(engine);
  test_free(data);
}

// A folder of links to all the shared objects but one.
static void make_folder(char *folder, const char *missing) {
  const char *const libraries[] = {FAKE_CUDA_PATH, FAKE_TRT_PATH, EXECUTOR_PATH};
  CHECK(mkdtemp(folder) != NULL);
  for (int i = 0; i < 3; i++) {
    const char *name = strrchr(libraries[i], '/') + 1;
    char link[512];
    snprintf(link, sizeof link, "%s/%s", folder, name);
    CHECK((missing && !strcmp(name, missing)) || !symlink(libraries[i], link));
  }
}

static void remove_folder(const char *folder) {
  const char *const libraries[] = {FAKE_CUDA_PATH, FAKE_TRT_PATH, EXECUTOR_PATH};
  for (int i = 0; i < 3; i++) {
    char link[512];
    snprintf(link, sizeof link, "%s/%s", folder, strrchr(libraries[i], '/') + 1);
    unlink(link);
  }
  rmdir(folder);
}

static void run_case(const char *program, size_t index) {
  char folder[] = "/tmp/infc_preflight_XXXXXX", number[16];
  make_folder(folder, cases[index].missing);
  snprintf(number, sizeof number, "%zu", index);
  pid_t child = fork();
  if (child == 0) {
    setenv("LD_LIBRARY_PATH", folder, 1);
    setenv("FAKE_CUDA", cases[index].cuda ? cases[index].cuda : "", 1);
    setenv("FAKE_TRT", cases[index].trt ? cases[index].trt : "", 1);
    execl(program, program, number, (char *)NULL);
    _exit(127);
  }
  int status = -1;
  waitpid(child, &status, 0);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%s: status %#x", cases[index].name, (unsigned)status);
  remove_folder(folder);
}

int main(int argc, char **argv) {
  if (argc > 1) {
    check_case(&cases[atoi(argv[1])]);
    return test_result();
  }
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    run_case("/proc/self/exe", i);
  return test_result();
}
