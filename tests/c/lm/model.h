// A small language model made by hand, of random weights: two layers of attention, the second with a window.
#ifndef INFC_TEST_MODEL_H
#define INFC_TEST_MODEL_H

#include "../artifact.h"

enum { LM_V = 64, LM_D = 32, LM_HEADS = 2, LM_KV = 1, LM_HEAD = 16, LM_CONTEXT = 512, LM_WINDOW = 40 };
enum { LM_QKV = (LM_HEADS + 2 * LM_KV) * LM_HEAD, LM_LAYERS = 2, LM_STOP = 0 };
enum { LM_IDS, LM_POSITIONS, LM_ROWS };

typedef struct lm_model {
  uint32_t profiles[4][2]; // tokens, rows; the first 0 ends
  uint32_t windows[LM_LAYERS];
  uint32_t context;
  uint32_t dtype;
  uint64_t seed; // of the weights
} lm_model;

static const lm_model lm_default = {.profiles = {{1, 1}, {8, 4}, {32, 8}},
                                    .windows = {0, LM_WINDOW},
                                    .context = LM_CONTEXT,
                                    .dtype = INFC_DTYPE_F32,
                                    .seed = 7};

// Offsets within WEIGHTS, in bytes: tables, then the layers' two products, then the last.
enum {
  LM_W_TOKENS = 0,
  LM_W_POSITIONS = LM_W_TOKENS + LM_V * LM_D * 4,
  LM_W_LAYERS = LM_W_POSITIONS + LM_CONTEXT * LM_D * 4,
  LM_W_LAYER = (LM_D * LM_QKV + LM_HEADS * LM_HEAD * LM_D) * 4,
  LM_W_LOGITS = LM_W_LAYERS + LM_LAYERS * LM_W_LAYER,
  LM_W_SIZE = LM_W_LOGITS + LM_D * LM_V * 4,
};

static inline art_bytes lm_io(const lm_model *model) {
  art_bytes out = {0}, strings = {0};
  infc_io_header header = {.input_count = 3, .output_count = 1, .symbol_count = 2};
  while (header.profile_count < 4 && model->profiles[header.profile_count][0])
    header.profile_count++;
  infc_io_tensor tensors[] = {
      [LM_IDS] = {.dtype = INFC_DTYPE_I64, .rank = 1, .has_range = 1, .range_max = LM_V - 1, .dims = {-1}},
      [LM_POSITIONS] = {.dtype = INFC_DTYPE_I64, .rank = 1, .dims = {-1}},
      [LM_ROWS] = {.dtype = INFC_DTYPE_I64, .rank = 1, .dims = {-2}},
      [3] = {.dtype = INFC_DTYPE_F32, .rank = 2, .dims = {-2, LM_V}},
  };
  const char *names[] = {"input_ids", "position_ids", "logit_rows", "logits"};
  for (int i = 0; i < 4; i++)
    tensors[i].name = art_string(&strings, names[i]);
  infc_io_symbol symbols[] = {{art_string(&strings, "tokens"), INFC_DIM_PADS},
                              {art_string(&strings, "rows"), INFC_DIM_PADS}};
  header.strings_size = (uint32_t)strings.size;
  art_put(&out, &header, sizeof header);
  art_put(&out, tensors, sizeof tensors);
  art_put(&out, symbols, sizeof symbols);
  art_put(&out, model->profiles, header.profile_count * sizeof *model->profiles);
  art_append(&out, &strings);
  return out;
}

// A program under construction, of one profile.
typedef struct lm_program {
  art_program p;
  uint32_t tokens, rows, arena;
} lm_program;

static inline infc_operand lm_matrix(uint32_t space, uint64_t offset, uint32_t dtype, uint32_t rows, uint32_t width,
                                     uint32_t stride, int32_t symbol) {
  infc_operand operand = art_operand(space, offset, dtype, rows, width, symbol);
  operand.row_stride = stride;
  return operand;
}

static inline infc_operand lm_arena(lm_program *m, uint32_t width) {
  const infc_operand made = art_operand(INFC_SPACE_ARENA, m->arena, INFC_DTYPE_F32, m->tokens, width, 0);
  m->arena += (uint32_t)infc_round_up(m->tokens * width * 4);
  return made;
}

static inline infc_operand lm_packed(uint32_t offset, uint32_t k, uint32_t n) {
  infc_operand made = art_operand(INFC_SPACE_WEIGHTS, offset, INFC_DTYPE_F32, k, n, -1);
  made.packing = INFC_PACK_F32_K1N32;
  return made;
}

enum { LM_K_EMBED, LM_K_GEMM, LM_K_WRITE, LM_K_ATTENTION };

static inline void lm_step(lm_program *m, uint16_t kernel, uint32_t inputs, const infc_operand *operands,
                           const uint32_t *words, uint32_t word_count, int32_t symbol, uint32_t cols, uint8_t split,
                           uint8_t barrier) {
  infc_step step = {.kernel = kernel,
                    .input_count = (uint8_t)inputs,
                    .output_count = 1,
                    .first_operand = (uint32_t)(m->p.operands.size / sizeof *operands),
                    .first_word = (uint32_t)(m->p.words.size / 4),
                    .word_count = word_count,
                    .rows_symbol = symbol,
                    .rows = symbol ? m->rows : m->tokens,
                    .cols = cols,
                    .split = {split},
                    .barrier = {barrier},
                    .name = INFC_NO_STRING};
  art_put(&m->p.steps, &step, sizeof step);
  art_put(&m->p.operands, operands, (inputs + 1) * sizeof *operands);
  art_put(&m->p.words, words, word_count * 4);
  m->p.header.step_count++;
}

static inline void lm_gemm(lm_program *m, infc_operand x, infc_operand w, const infc_operand *residual, infc_operand y,
                           int32_t symbol, uint8_t barrier) {
  const uint32_t words[INFC_WORDS_GEMM] = {[INFC_W_GEMM_HAS_RESIDUAL] = residual != NULL};
  const infc_operand operands[] = {x, w, residual ? *residual : y, y};
  lm_step(m, LM_K_GEMM, residual ? 3 : 2, operands, words, INFC_WORDS_GEMM, symbol, w.dims[1] / 32, INFC_SPLIT_ROWS,
          barrier);
}

static inline infc_operand lm_layer(lm_program *m, uint32_t layer, infc_operand h) {
  const uint32_t weights = LM_W_LAYERS + layer * LM_W_LAYER;
  const infc_operand qkv = lm_arena(m, LM_QKV), q = lm_arena(m, LM_HEADS * LM_HEAD),
                     a = lm_arena(m, LM_HEADS * LM_HEAD);
  const infc_operand out = lm_arena(m, LM_D);
  lm_gemm(m, h, lm_packed(weights, LM_D, LM_QKV), NULL, qkv, 0, 0);
  infc_operand write[] = {qkv, qkv, qkv, q};
  write[0].dims[1] = LM_HEADS * LM_HEAD;
  write[1].dims[1] = write[2].dims[1] = LM_KV * LM_HEAD;
  write[1].offset += LM_HEADS * LM_HEAD * 4;
  write[2].offset += (LM_HEADS + LM_KV) * LM_HEAD * 4;
  const uint32_t write_words[INFC_WORDS_CACHE_WRITE] = {layer, LM_HEADS, LM_KV, LM_HEAD, LM_HEAD};
  lm_step(m, LM_K_WRITE, 3, write, write_words, INFC_WORDS_CACHE_WRITE, 0, 1, INFC_SPLIT_ROWS, 0);
  const infc_operand attention[] = {q, a};
  const float scale = 0.25f;
  uint32_t words[INFC_WORDS_CACHE_ATTENTION] = {layer, LM_HEADS, LM_KV, LM_HEAD, LM_HEAD};
  memcpy(&words[INFC_W_CACHE_ATTENTION_SCALE], &scale, 4);
  lm_step(m, LM_K_ATTENTION, 1, attention, words, INFC_WORDS_CACHE_ATTENTION, 0, LM_HEADS, INFC_SPLIT_COLS, 1);
  lm_gemm(m, a, lm_packed(weights + LM_D * LM_QKV * 4, LM_HEADS * LM_HEAD, LM_D), &h, out, 0, 1);
  return out;
}

static inline art_bytes lm_program_bytes(const lm_model *model, uint32_t profile) {
  lm_program m = {.p.header = {.profile = profile, .symbol_count = 2, .kernel_count = 4, .schedule_count = 1},
                  .tokens = model->profiles[profile][0],
                  .rows = model->profiles[profile][1]};
  m.p.header.schedule_symbol = -1;
  const infc_program_symbol symbols[] = {{art_string(&m.p.strings, "tokens"), m.tokens},
                                         {art_string(&m.p.strings, "rows"), m.rows}};
  const infc_program_kernel kernels[] = {
      [LM_K_EMBED] = {art_string(&m.p.strings, "infc_embed_sum_f32__scalar"), 0},
      [LM_K_GEMM] = {art_string(&m.p.strings, "infc_gemm_f32__scalar"), 0},
      [LM_K_WRITE] = {art_string(&m.p.strings, "infc_cache_write__scalar"), 0},
      [LM_K_ATTENTION] = {art_string(&m.p.strings, "infc_cache_attention__scalar"), 0}};
  infc_operand h = lm_arena(&m, LM_D);
  const infc_operand embed[] = {art_operand(INFC_SPACE_INPUT, LM_IDS, INFC_DTYPE_I64, m.tokens, 0, 0),
                                art_operand(INFC_SPACE_WEIGHTS, LM_W_TOKENS, INFC_DTYPE_F32, LM_V, LM_D, -1),
                                art_operand(INFC_SPACE_INPUT, LM_POSITIONS, INFC_DTYPE_I64, m.tokens, 0, 0),
                                art_operand(INFC_SPACE_WEIGHTS, LM_W_POSITIONS, INFC_DTYPE_F32, LM_CONTEXT, LM_D, -1),
                                h};
  lm_step(&m, LM_K_EMBED, 4, embed, (uint32_t[]){2}, 1, 0, 1, INFC_SPLIT_ROWS, 0);
  for (uint32_t l = 0; l < LM_LAYERS; l++)
    h = lm_layer(&m, l, h);
  infc_operand chosen = lm_arena(&m, LM_D), table = h;
  chosen.dims[0] = m.rows;
  chosen.rows_symbol = 1;
  table.rows_symbol = -1;
  const infc_operand choose[] = {art_operand(INFC_SPACE_INPUT, LM_ROWS, INFC_DTYPE_I64, m.rows, 0, 1), table, chosen};
  lm_step(&m, LM_K_EMBED, 2, choose, (uint32_t[]){1}, 1, 1, 1, INFC_SPLIT_ROWS, 1);
  lm_gemm(&m, chosen, lm_packed(LM_W_LOGITS, LM_D, LM_V), NULL,
          art_operand(INFC_SPACE_OUTPUT, 0, INFC_DTYPE_F32, m.rows, LM_V, 1), 1, 0);
  m.p.header.arena_size = m.arena + (uint32_t)infc_round_up(m.rows * LM_D * 4);
  m.p.header.operand_count = (uint32_t)(m.p.operands.size / sizeof(infc_operand));
  m.p.header.word_count = (uint32_t)(m.p.words.size / 4);
  m.p.header.strings_size = (uint32_t)m.p.strings.size;
  art_bytes out = {0};
  art_put(&out, &m.p.header, sizeof m.p.header);
  art_put(&out, symbols, sizeof symbols);
  art_put(&out, kernels, sizeof kernels);
  art_append(&out, &m.p.steps);
  art_append(&out, &m.p.operands);
  art_append(&out, &m.p.words);
  art_append(&out, &m.p.strings);
  return out;
}

static inline art_bytes lm_state(const lm_model *model) {
  art_bytes out = {0};
  const infc_state_header header = {
      .layer_count = LM_LAYERS, .block_tokens = 32, .context = model->context, .dtype = model->dtype};
  art_put(&out, &header, sizeof header);
  for (uint32_t l = 0; l < LM_LAYERS; l++)
    art_put(&out, &(infc_state_layer){LM_KV, LM_HEAD, LM_HEAD, model->windows[l]}, sizeof(infc_state_layer));
  return out;
}

// Texts: token 0 ends and has none; 1 and 2 are the halves of an e with an acute accent; others one to three letters.
static inline void lm_text(uint32_t token, char *text) {
  if (token == 0)
    *text = 0;
  else if (token < 3)
    strcpy(text, token == 1 ? "\xC3" : "\xA9");
  else
    snprintf(text, 8, "%.*s", (int)(token % 3) + 1, (char[]){(char)('a' + token % 26), (char)('a' + token / 26), '.'});
}

static inline art_bytes lm_generation(void) {
  art_bytes out = {0}, texts = {0};
  infc_generation_header header = {
      .input_ids = LM_IDS, .position_ids = LM_POSITIONS, .logit_rows = LM_ROWS, .vocabulary = LM_V, .stop_count = 1};
  uint32_t stop = LM_STOP, offsets[LM_V + 1] = {0};
  uint8_t flags[LM_V] = {INFC_TOKEN_SPECIAL};
  for (uint32_t t = 0; t < LM_V; t++) {
    char text[8];
    lm_text(t, text);
    art_put(&texts, text, strlen(text));
    offsets[t + 1] = (uint32_t)texts.size;
  }
  header.bytes_size = (uint32_t)texts.size;
  art_put(&out, &header, sizeof header);
  art_put(&out, &stop, sizeof stop);
  art_put(&out, flags, sizeof flags);
  art_put(&out, offsets, sizeof offsets);
  art_append(&out, &texts);
  return out;
}

static inline art_bytes lm_weights(const lm_model *model) {
  art_bytes out = {0};
  test_rng rng = {model->seed};
  for (uint32_t i = 0; i < LM_W_SIZE / 4; i++) {
    float value = test_random_float(&rng, -1.0f, 1.0f) * (i * 4 < LM_W_LAYERS ? 0.5f : 0.4f);
    art_put(&out, &value, 4);
  }
  return out;
}

static inline uint8_t *lm_make(const lm_model *model, size_t *size) {
  uint32_t kinds[ART_MAX_SECTIONS], count = 0;
  art_bytes parts[ART_MAX_SECTIONS] = {0};
  kinds[count] = INFC_SECTION_META;
  art_put(&parts[count++], "{}", 2);
  kinds[count] = INFC_SECTION_IO;
  parts[count++] = lm_io(model);
  kinds[count] = INFC_SECTION_STATE;
  parts[count++] = lm_state(model);
  for (uint32_t p = 0; p < 4 && model->profiles[p][0]; p++) {
    kinds[count] = INFC_SECTION_PROGRAM;
    parts[count++] = lm_program_bytes(model, p);
  }
  kinds[count] = INFC_SECTION_WEIGHTS;
  parts[count++] = lm_weights(model);
  kinds[count] = INFC_SECTION_GENERATION;
  parts[count++] = lm_generation();
  return art_assemble(kinds, parts, count, size);
}

// An opened model.
typedef struct lm_test {
  uint8_t *data;
  size_t size;
  infc_engine *engine;
  infc_lm *lm;
} lm_test;

static inline infc_lm *lm_open(const infc_engine *engine, const infc_lm_options *options) {
  char why[256] = "";
  infc_lm *lm = NULL;
  CHECK(!infc_lm_create((infc_engine *)engine, options, &lm, why, sizeof why), "%s", why);
  if (!lm)
    exit(test_result());
  return lm;
}

static inline lm_test lm_begin(const lm_model *model, const infc_lm_options *options) {
  lm_test t = {0};
  char why[256] = "";
  t.data = lm_make(model, &t.size);
  CHECK(!infc_engine_open_memory(t.data, t.size, NULL, &t.engine, why, sizeof why), "%s", why);
  if (!t.engine)
    exit(test_result());
  t.lm = lm_open(t.engine, options);
  return t;
}

static inline void lm_end(lm_test *t) {
  infc_lm_destroy(t->lm);
  infc_engine_close(t->engine);
  test_free(t->data);
}

static inline void lm_random_tokens(test_rng *rng, int32_t *tokens, uint32_t count) {
  for (uint32_t i = 0; i < count; i++)
    tokens[i] = (int32_t)(test_random(rng) % LM_V);
}

// The last token's logits of a text, computed alone and in one step.
static inline void lm_alone(const infc_engine *engine, const int32_t *tokens, uint32_t count, float *logits) {
  infc_lm *lm = lm_open(engine, &(infc_lm_options){.struct_size = sizeof(infc_lm_options), .max_sequences = 1});
  infc_sequence *sequence;
  CHECK(!infc_sequence_create(lm, &sequence));
  CHECK(!infc_lm_step(lm, &(infc_lm_part){sequence, tokens, count, 1}, 1, logits, LM_V * 4), "%s", infc_lm_error(lm));
  infc_lm_destroy(lm);
}

#endif // INFC_TEST_MODEL_H
