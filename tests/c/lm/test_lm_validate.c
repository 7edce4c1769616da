// Artifacts of language models that are not what they seem are refused, each for its reason.
#include "model.h"

static infc_state_header *state_of(uint8_t *data) {
  return (infc_state_header *)(data + art_section(data, INFC_SECTION_STATE, 0)->offset);
}

static infc_state_layer *layer_of(uint8_t *data) {
  return (infc_state_layer *)(state_of(data) + 1);
}

static infc_generation_header *generation_of(uint8_t *data) {
  return (infc_generation_header *)(data + art_section(data, INFC_SECTION_GENERATION, 0)->offset);
}

static uint32_t *stop_of(uint8_t *data) {
  return (uint32_t *)(generation_of(data) + 1);
}

static uint32_t *offsets_of(uint8_t *data) {
  return stop_of(data) + 1 + LM_V / 4;
}

// The words of the first step of a program that writes to the cache.
static uint32_t *write_words(uint8_t *data) {
  infc_program_header *header = (infc_program_header *)(data + art_section(data, INFC_SECTION_PROGRAM, 0)->offset);
  uint8_t *at = (uint8_t *)(header + 1) + header->symbol_count * sizeof(infc_program_symbol) +
                header->kernel_count * sizeof(infc_program_kernel);
  const infc_step *steps = (const infc_step *)at;
  at += header->step_count * sizeof *steps + header->operand_count * sizeof(infc_operand);
  return (uint32_t *)at + steps[2].first_word;
}

#define DEFECT(change, message)                                                                                        \
  do {                                                                                                                 \
    size_t size;                                                                                                       \
    uint8_t *d = lm_make(&lm_default, &size);                                                                          \
    change;                                                                                                            \
    art_seal(d, size);                                                                                                 \
    infc_engine *engine = NULL;                                                                                        \
    char why[256] = "";                                                                                                \
    const infc_status status = infc_engine_open_memory(d, size, NULL, &engine, why, sizeof why);                       \
    CHECK(status && strstr(why, message), #change ": status %d, %s", status, why);                                     \
    infc_engine_close(engine);                                                                                         \
    test_free(d);                                                                                                      \
  } while (0)

static void test_without(uint32_t kind, const char *message) {
  size_t size;
  uint8_t *d = lm_make(&lm_default, &size);
  infc_section *section = art_section(d, kind, 0);
  section->kind = 99;
  section->flags = 0;
  art_seal(d, size);
  infc_engine *engine = NULL;
  infc_lm *lm = NULL;
  char why[256] = "";
  infc_status status = infc_engine_open_memory(d, size, NULL, &engine, why, sizeof why);
  if (!status)
    status = infc_lm_create(engine, NULL, &lm, why, sizeof why);
  CHECK(status && strstr(why, message), "status %d, %s", status, why);
  infc_engine_close(engine);
  test_free(d);
}

int main(void) {
  DEFECT(state_of(d)->layer_count = 0, "a cache of 0 layers");
  DEFECT(state_of(d)->layer_count = 3, "does not end with its 3 layers");
  DEFECT(state_of(d)->layer_count = UINT32_MAX, "layers");
  DEFECT(state_of(d)->block_tokens = 16, "blocks of 16 tokens");
  DEFECT(state_of(d)->context = 0, "a context of 0");
  DEFECT(state_of(d)->context = UINT32_MAX, "a context of");
  DEFECT(state_of(d)->dtype = INFC_DTYPE_F64, "a cache of type");
  DEFECT(layer_of(d)->heads = 0, "0 heads");
  DEFECT(layer_of(d)->k_dim = 1 << 20, "elements");
  DEFECT(layer_of(d)[1].window = UINT32_MAX, "window");
  DEFECT(layer_of(d)->k_dim = 32, "does not agree with layer 0");
  DEFECT(write_words(d)[INFC_W_CACHE_WRITE_LAYER] = 2, "uses layer 2 of a cache of 2");
  DEFECT(write_words(d)[INFC_W_CACHE_WRITE_LAYER] = UINT32_MAX, "of a cache of 2");
  DEFECT(art_section(d, INFC_SECTION_STATE, 0)->size = 8, "too short");
  DEFECT(generation_of(d)->input_ids = 7, "input 7");
  DEFECT(generation_of(d)->logit_rows = LM_IDS, "pads");
  DEFECT(generation_of(d)->position_ids = LM_ROWS, "is not [tokens]");
  DEFECT(generation_of(d)->position_ids = INFC_NO_STRING, "nothing feeds input");
  DEFECT(generation_of(d)->logits = 1, "output 1 of 1");
  DEFECT(generation_of(d)->vocabulary = 0, "0 tokens");
  DEFECT(generation_of(d)->vocabulary = UINT32_MAX, "tokens");
  DEFECT(generation_of(d)->stop_count = UINT32_MAX, "end a text");
  DEFECT(generation_of(d)->bytes_size += 1, "does not end with");
  DEFECT(*stop_of(d) = LM_V, "token 64 ends a text");
  DEFECT(offsets_of(d)[5] = UINT32_MAX, "ends before it starts");
  DEFECT(offsets_of(d)[0] = 1, "ends before it starts");
  DEFECT(art_section(d, INFC_SECTION_GENERATION, 0)->size = 8, "too short");
  test_without(INFC_SECTION_STATE, "there is no STATE");
  test_without(INFC_SECTION_GENERATION, "no GENERATION");
  return test_result();
}
