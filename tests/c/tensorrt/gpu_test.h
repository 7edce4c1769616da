// Artifacts with engines of the fake TensorRT, and what tests of the executor share.
#ifndef INFC_GPU_TEST_H
#define INFC_GPU_TEST_H

#include "artifact.h"
#include "fake_plan.h"

// One TENSORRT section.
typedef struct art_plan {
  uint32_t sms[4];      // the first 0 ends
  uint32_t profiles[4]; // of the artifact, by optimisation profile
  uint32_t profile_count;
  uint32_t flavour, cuda;
  uint32_t version[4];
  uint32_t alias_output, alias_input; // as fake_plan has them
  const art_toy *engine;              // what the plan computes, if not the artifact's toy in its profiles
} art_plan;

// Serves both profiles of art_default on the fake's own device.
static const art_plan art_plan_default = {.sms = {86, 89},
                                          .profiles = {0, 1},
                                          .profile_count = 2,
                                          .flavour = INFC_TENSORRT_RTX,
                                          .cuda = 13000,
                                          .version = {1, 7, 1, 116}};

#define ART_COMMAND "infc build toy.onnx --precision f16 --profile batch=4 --profile batch=16"

// The toy with one plan's profiles.
static inline art_toy art_plan_toy(const art_toy *toy, const art_plan *plan) {
  art_toy inner = *toy;
  memset(inner.profiles, 0, sizeof inner.profiles);
  for (uint32_t i = 0; i < plan->profile_count; i++)
    inner.profiles[i] = toy->profiles[plan->profiles[i]];
  inner.isa_count = 1;
  inner.isas[0] = INFC_ISA_SCALAR;
  return inner;
}

static inline art_bytes art_tensorrt(const art_toy *toy, const art_plan *plan) {
  art_toy inner = plan->engine ? *plan->engine : art_plan_toy(toy, plan);
  size_t size;
  uint8_t *engine = art_make(&inner, &size);
  fake_plan fake = {.magic = FAKE_PLAN_MAGIC,
                    .size = size,
                    .profile_count = art_profile_count(&inner),
                    .alias_output = plan->alias_output,
                    .alias_input = plan->alias_input};
  infc_tensorrt_header header = {.flavour = plan->flavour,
                                 .cuda_version = plan->cuda,
                                 .profile_count = plan->profile_count,
                                 .strings_size = sizeof ART_COMMAND,
                                 .plan_size = sizeof fake + size};
  memcpy(header.version, plan->version, sizeof header.version);
  for (; header.sm_count < 4 && plan->sms[header.sm_count]; header.sm_count++)
    header.sms[header.sm_count] = plan->sms[header.sm_count];
  size_t used = sizeof header + plan->profile_count * sizeof *plan->profiles + sizeof ART_COMMAND;
  header.plan_offset = infc_round_up(used);
  static const uint8_t zeros[64];
  art_bytes out = {0};
  art_put(&out, &header, sizeof header);
  art_put(&out, plan->profiles, plan->profile_count * sizeof *plan->profiles);
  art_put(&out, ART_COMMAND, sizeof ART_COMMAND);
  art_put(&out, zeros, header.plan_offset - used);
  art_put(&out, &fake, sizeof fake);
  art_put(&out, engine, size);
  test_free(engine);
  return out;
}

// With programs for the CPU if the toy has instruction sets.
static inline uint8_t *art_make_gpu(const art_toy *toy, const art_plan *plans, uint32_t plan_count, size_t *size) {
  uint32_t kinds[ART_MAX_SECTIONS], count = 0;
  art_bytes parts[ART_MAX_SECTIONS] = {0};
  kinds[count] = INFC_SECTION_IO;
  parts[count++] = art_io(toy);
  for (uint32_t i = 0; i < toy->isa_count; i++)
    for (uint32_t p = 0; p < art_profile_count(toy); p++) {
      kinds[count] = INFC_SECTION_PROGRAM;
      parts[count++] = art_program_bytes(toy, p, toy->isas[i]);
    }
  for (uint32_t i = 0; i < plan_count; i++) {
    kinds[count] = INFC_SECTION_TENSORRT;
    parts[count++] = art_tensorrt(toy, &plans[i]);
  }
  return art_assemble(kinds, parts, count, size);
}

// An engine on `device`. Without it there is nothing to test.
static inline infc_engine *gpu_open(const uint8_t *data, size_t size, const char *device) {
  infc_engine_options options = {.struct_size = sizeof options, .device = device};
  infc_engine *engine = NULL;
  char why[512] = "";
  if (!CHECK(!infc_engine_open_memory(data, size, &options, &engine, why, sizeof why), "%s", why))
    exit(1);
  return engine;
}

static inline infc_context *gpu_context(infc_engine *engine) {
  infc_context *context = NULL;
  char why[512] = "";
  if (!CHECK(!infc_context_create(engine, NULL, &context, why, sizeof why), "%s", why))
    exit(1);
  return context;
}

#ifndef GPU_WITHOUT_FAKE // a program that does not link it
// The driver as a caller of infc uses it: driver_init, driver_stream_create...
#define GPU_TEST_ENTRY(member, symbol, parameters) CUresult driver_##member parameters __asm__(symbol);
INFC_CUDA_ENTRIES(GPU_TEST_ENTRY)
#undef GPU_TEST_ENTRY

// Nothing is left, and no rule was broken.
static inline void gpu_check_clean(const char *what) {
  CHECK(!fake_problem(), "%s: %s", what, fake_problem());
  CHECK(!fake_live(), "%s: left behind: %s", what, fake_live_text());
}
#endif

#endif // INFC_GPU_TEST_H
