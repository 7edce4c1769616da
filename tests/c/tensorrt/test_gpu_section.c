// TENSORRT sections: each thing that is refused when a file is opened, whatever it is opened for.
#include "gpu_test.h"

typedef struct artifact {
  uint8_t *data;
  size_t size;
  infc_section *section;
  infc_tensorrt_header *header;
  uint32_t *profiles;
  char *strings;
  uint8_t *gap;
} artifact;

static artifact make(void) {
  artifact a = {0};
  a.data = art_make_gpu(&art_default, &art_plan_default, 1, &a.size);
  a.section = art_section(a.data, INFC_SECTION_TENSORRT, 0);
  a.header = (infc_tensorrt_header *)(a.data + a.section->offset);
  a.profiles = (uint32_t *)(a.header + 1);
  a.strings = (char *)(a.profiles + a.header->profile_count);
  a.gap = (uint8_t *)a.strings + a.header->strings_size;
  return a;
}

#define OK INFC_STATUS_OK
#define BAD INFC_STATUS_BAD_ARTIFACT

// Each line changes a valid artifact `a`, whose checksums are then set anew, and says what must come of it.
#define DEFECTS(DEFECT)                                                                                                \
  DEFECT((void)0, OK, "")                                                                                              \
  DEFECT(a.section->flags = INFC_SECTION_REQUIRED, OK, "")                                                             \
  DEFECT(a.section->size = 127, BAD, "too short for its header")                                                       \
  DEFECT(a.section->size = 130, BAD, "too short for what its header counts")                                           \
  DEFECT(a.section->size = a.header->plan_offset - 1, BAD, "does not end with its section")                            \
  DEFECT(a.section->size = a.header->plan_offset, BAD, "does not end with its section")                                \
  DEFECT(a.section->size--, BAD, "does not end with its section")                                                      \
  DEFECT(a.header->flavour = INFC_TENSORRT_ENTERPRISE, OK, "")                                                         \
  DEFECT(a.header->flavour = 2, BAD, "flavour 2 is unknown")                                                           \
  DEFECT(a.header->sm_count = 0, BAD, "for 0 SMs")                                                                     \
  DEFECT(a.header->sm_count = INFC_MAX_SMS + 1, BAD, "for 17 SMs")                                                     \
  DEFECT(a.header->sm_count = 0xFFFFFFFF, BAD, "SMs")                                                                  \
  DEFECT(a.header->sm_count = 3, BAD, "not ascending")                                                                 \
  DEFECT(a.header->sm_count = 1, BAD, "not ascending")                                                                 \
  DEFECT(a.header->sms[0] = 0, BAD, "not ascending")                                                                   \
  DEFECT(a.header->sms[0] = 89, BAD, "not ascending")                                                                  \
  DEFECT(a.header->sms[0] = 90, BAD, "not ascending")                                                                  \
  DEFECT(a.header->sms[INFC_MAX_SMS - 1] = 120, BAD, "not ascending")                                                  \
  DEFECT(a.header->sms[1] = 0xFFFFFFFF, OK, "")                                                                        \
  DEFECT((a.header->sms[0] = 0xFFFFFFFF, a.header->sms[1] = 1), BAD, "not ascending")                                  \
  DEFECT(a.header->reserved[0] = 1, BAD, "reserved")                                                                   \
  DEFECT(a.header->reserved[1] = 1, BAD, "reserved")                                                                   \
  DEFECT(a.header->profile_count = 0, BAD, "has 0 profiles")                                                           \
  DEFECT(a.header->profile_count = 3, BAD, "has 3 profiles, IO has 2")                                                 \
  DEFECT(a.header->profile_count = 1, BAD, "")                                                                         \
  DEFECT(a.profiles[1] = 2, BAD, "serves profile 2, IO has 2")                                                         \
  DEFECT(a.profiles[1] = 0, BAD, "serves profile 0 twice")                                                             \
  DEFECT((a.profiles[0] = 1, a.profiles[1] = 0), OK, "")                                                               \
  DEFECT(a.header->command = a.header->strings_size, BAD, "outside the strings")                                       \
  DEFECT(a.header->command = a.header->strings_size - 1, OK, "")                                                       \
  DEFECT(a.header->command = INFC_NO_STRING, OK, "")                                                                   \
  DEFECT(a.header->strings_size = 0, BAD, "outside the strings")                                                       \
  DEFECT(a.header->strings_size--, BAD, "zero byte")                                                                   \
  DEFECT(a.header->strings_size = 0xFFFFFFFF, BAD, "too short for what its header counts")                             \
  DEFECT(a.strings[a.header->strings_size - 1] = 'x', BAD, "zero byte")                                                \
  DEFECT(a.gap[0] = 1, BAD, "gap before the plan")                                                                     \
  DEFECT(a.header->plan_offset += 64, BAD, "the plan starts at")                                                       \
  DEFECT(a.header->plan_offset--, BAD, "the plan starts at")                                                           \
  DEFECT(a.header->plan_offset = UINT64_MAX - 63, BAD, "the plan starts at")                                           \
  DEFECT(a.header->plan_size--, BAD, "does not end with its section")                                                  \
  DEFECT(a.header->plan_size = UINT64_MAX, BAD, "does not end with its section")                                       \
  DEFECT((a.section->size = a.header->plan_offset, a.header->plan_size = 0), BAD, "does not end with its section")

static infc_status open_on(const uint8_t *data, size_t size, const char *device, const char *isa, char *why,
                           size_t why_size) {
  infc_engine_options options = {.struct_size = sizeof options, .device = device, .isa = isa};
  infc_engine *engine = NULL;
  why[0] = 0;
  infc_status status = infc_engine_open_memory(data, size, &options, &engine, why, why_size);
  CHECK(!status == !!engine);
  infc_engine_close(engine);
  return status;
}

static void check_defect(const artifact *a, const char *defect, infc_status expected, const char *message) {
  char why[512];
  art_seal(a->data, a->size);
  infc_status status = open_on(a->data, a->size, "cpu", NULL, why, sizeof why);
  CHECK(status == expected && strstr(why, message), "%s: status %d, %s", defect, status, why);
  test_free(a->data);
}

static void test_defects(void) {
#define DEFECT(change, status, message)                                                                                \
  {                                                                                                                    \
    artifact a = make();                                                                                               \
    (void)(change);                                                                                                    \
    check_defect(&a, #change, status, message);                                                                        \
  }
  DEFECTS(DEFECT)
}

// The caller's choice of a device against what the file has.
static void test_devices(void) {
  static const struct {
    bool cpu, gpu; // in the file
    const char *device, *isa;
    infc_status status;
    const char *message;
  } cases[] = {
      {true, true, "gpu", NULL, INFC_STATUS_INVALID_ARGUMENT, "'gpu' is not a device"},
      {true, true, "cuda:", NULL, INFC_STATUS_INVALID_ARGUMENT, "'cuda:' is not a device"},
      {true, true, "cuda:-1", NULL, INFC_STATUS_INVALID_ARGUMENT, "is not a device"},
      {true, true, "cuda:1x", NULL, INFC_STATUS_INVALID_ARGUMENT, "is not a device"},
      {true, true, "cuda:99999", NULL, INFC_STATUS_INVALID_ARGUMENT, "is not a device"},
      {true, true, "", NULL, INFC_STATUS_INVALID_ARGUMENT, "'' is not a device"},
      {true, true, "cuda:7", NULL, INFC_STATUS_INCOMPATIBLE, "there is no cuda:7"},
      {true, true, "cuda:0", NULL, OK, ""},
      {true, true, "auto", "scalar", OK, ""},
      {true, false, "cuda", NULL, INFC_STATUS_INCOMPATIBLE, "no engine for a GPU"},
      {true, false, "auto", NULL, OK, ""},
      {false, true, "cpu", NULL, INFC_STATUS_INCOMPATIBLE, "for a GPU only"},
      {false, true, "auto", "scalar", INFC_STATUS_INCOMPATIBLE, "for a GPU only"},
      {false, true, NULL, NULL, OK, ""},
      {false, false, "auto", NULL, INFC_STATUS_INCOMPATIBLE, "no programs"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    art_toy toy = art_default;
    toy.isa_count = cases[i].cpu;
    size_t size;
    uint8_t *data = art_make_gpu(&toy, &art_plan_default, cases[i].gpu, &size);
    char why[512];
    infc_status status = open_on(data, size, cases[i].device, cases[i].isa, why, sizeof why);
    CHECK(status == cases[i].status && strstr(why, cases[i].message), "case %d: status %d, %s", (int)i, status, why);
    test_free(data);
  }
  gpu_check_clean("devices");
}

int main(void) {
  test_defects();
  test_devices();
  return test_result();
}
