// A sequence in memory of the caller's: a header, its tokens, and the blocks that windows have not left behind.
#include "lm.h"

static const char magic[8] = "INFCSEQ";
enum { SAVE_VERSION = 1 };

typedef struct save_header {
  char magic[8];
  uint32_t version, length;
  uint64_t size; // of everything
  uint64_t model;
  uint32_t first[INFC_CACHE_GROUPS];
  uint32_t tokens_crc32, reserved;
} save_header;

// Tells artifacts apart: the checksum of the section table covers those of all sections.
static uint64_t model_of(const infc_lm *lm) {
  const infc_header *header = (const infc_header *)lm->engine->data;
  return (uint64_t)header->table_crc32 << 32 | header->header_crc32;
}

// Bytes of a sequence with so many tokens, of which windows have left `first` blocks behind. No overflow: the blocks
// are there.
static size_t size_of(const infc_lm *lm, uint32_t length, const uint32_t *first) {
  size_t size = infc_round_up(sizeof(save_header)) + infc_round_up(length * sizeof(int32_t));
  for (uint32_t g = 0; g < lm->group_count; g++)
    size += (infc_blocks_of(length) - first[g]) * lm->engine->state.group_bytes[g];
  return size + (length ? infc_state_size(lm) : 0);
}

size_t infc_sequence_save_size(const infc_sequence *sequence) {
  return sequence && sequence->live ? size_of(sequence->lm, sequence->length, sequence->first) : 0;
}

// Copies every block of every layer, to or from `memory`.
static void copy_blocks(const infc_sequence *sequence, uint8_t *memory, bool out) {
  const infc_lm *lm = sequence->lm;
  for (uint32_t l = 0; l < lm->cache.layer_count; l++) {
    const infc_cache_layer *layer = &lm->layers[l];
    for (uint32_t i = sequence->first[layer->group]; i < infc_blocks_of(sequence->length); i++) {
      uint8_t *block = layer->blocks + (size_t)sequence->tables[layer->group][i] * layer->block_bytes;
      memcpy(out ? memory : block, out ? block : memory, layer->block_bytes);
      memory += layer->block_bytes;
    }
  }
}

static infc_status no_memory(infc_lm *lm) {
  return infc_fail(infc_lm_error_buffer(lm), INFC_STATUS_INVALID_ARGUMENT, "memory is NULL");
}

static infc_status save(infc_sequence *sequence, void *memory, size_t size) {
  infc_lm *lm = sequence->lm;
  const size_t needed = infc_sequence_save_size(sequence);
  if (size < needed)
    return infc_fail(infc_lm_error_buffer(lm), INFC_STATUS_BAD_SHAPE,
                     "the sequence needs %zu bytes, the buffer has %zu", needed, size);
  const size_t tokens = sequence->length * sizeof(int32_t);
  save_header header = {.version = SAVE_VERSION,
                        .length = sequence->length,
                        .size = needed,
                        .model = model_of(lm),
                        .tokens_crc32 = infc_crc32(sequence->tokens, tokens)};
  memcpy(header.magic, magic, sizeof magic);
  memcpy(header.first, sequence->first, sizeof header.first);
  uint8_t *at = memory;
  memset(at, 0, infc_round_up(sizeof header) + infc_round_up(tokens));
  memcpy(at, &header, sizeof header);
  at += infc_round_up(sizeof header);
  memcpy(at, sequence->tokens, tokens);
  copy_blocks(sequence, at + infc_round_up(tokens), true);
  return infc_state_move(sequence, at + infc_round_up(tokens), true);
}

infc_status infc_sequence_save(infc_sequence *sequence, void *memory, size_t size) {
  if (!sequence || !sequence->live)
    return INFC_STATUS_INVALID_ARGUMENT;
  if (!infc_lm_acquire(sequence->lm))
    return INFC_STATUS_BUSY;
  return infc_lm_release(sequence->lm, memory ? save(sequence, memory, size) : no_memory(sequence->lm));
}

static infc_status check_header(infc_lm *lm, const save_header *header, size_t size) {
  const infc_error error = infc_lm_error_buffer(lm);
  if (memcmp(header->magic, magic, sizeof magic))
    return infc_fail(error, INFC_STATUS_BAD_VALUE, "this is not a saved sequence");
  if (header->version != SAVE_VERSION)
    return infc_fail(error, INFC_STATUS_INCOMPATIBLE, "the sequence was saved in version %u, not %d", header->version,
                     SAVE_VERSION);
  if (header->model != model_of(lm))
    return infc_fail(error, INFC_STATUS_INCOMPATIBLE, "the sequence is of another model");
  bool bounded = header->length <= lm->limit;
  for (uint32_t g = 0; bounded && g < lm->group_count; g++)
    bounded = header->first[g] <= infc_first_block(lm->windows[g], header->length);
  if (!bounded || header->size != size_of(lm, header->length, header->first) || header->size > size)
    return infc_fail(error, INFC_STATUS_BAD_VALUE, "the saved sequence is not whole");
  return INFC_STATUS_OK;
}

static infc_status check_tokens(infc_lm *lm, const save_header *header, const uint8_t *tokens) {
  bool good = infc_crc32(tokens, header->length * sizeof(int32_t)) == header->tokens_crc32;
  for (uint32_t i = 0; good && i < header->length; i++) {
    int32_t token;
    memcpy(&token, tokens + i * sizeof token, sizeof token);
    good = token >= 0 && (uint32_t)token < lm->vocabulary;
  }
  if (!good)
    return infc_fail(infc_lm_error_buffer(lm), INFC_STATUS_BAD_VALUE, "the saved sequence's tokens are damaged");
  for (uint32_t g = 0; g < lm->group_count; g++)
    if (infc_blocks_available(&lm->blocks[g]) < infc_blocks_of(header->length) - header->first[g])
      return infc_fail(infc_lm_error_buffer(lm), INFC_STATUS_CACHE_FULL,
                       "the cache has %u free blocks of %d tokens: too few for the sequence",
                       infc_blocks_available(&lm->blocks[g]), INFC_CACHE_TOKENS);
  return INFC_STATUS_OK;
}

static infc_status restore(infc_sequence *sequence, const uint8_t *memory, size_t size) {
  infc_lm *lm = sequence->lm;
  save_header header;
  if (sequence->length)
    return infc_fail(infc_lm_error_buffer(lm), INFC_STATUS_INVALID_ARGUMENT, "the sequence has %u tokens already",
                     sequence->length);
  if (size < infc_round_up(sizeof header))
    return infc_fail(infc_lm_error_buffer(lm), INFC_STATUS_BAD_VALUE, "the saved sequence is not whole");
  memcpy(&header, memory, sizeof header);
  const uint8_t *tokens = memory + infc_round_up(sizeof header);
  infc_status status = check_header(lm, &header, size);
  if (!status)
    status = check_tokens(lm, &header, tokens);
  if (!status)
    status = infc_state_take(sequence);
  if (status)
    return status;
  sequence->length = header.length;
  sequence->foreign = true; // its blocks may hold anything
  memcpy(sequence->first, header.first, sizeof sequence->first);
  memcpy(sequence->tokens, tokens, header.length * sizeof(int32_t));
  for (uint32_t g = 0; g < lm->group_count; g++)
    for (uint32_t i = header.first[g]; i < infc_blocks_of(header.length); i++)
      sequence->tables[g][i] = infc_block_take(lm, g);
  uint8_t *blocks = (uint8_t *)tokens + infc_round_up(header.length * sizeof(int32_t));
  copy_blocks(sequence, blocks, false);
  status = infc_state_move(sequence, blocks, false);
  if (status)
    infc_sequence_clear(sequence);
  return status;
}

infc_status infc_sequence_restore(infc_sequence *sequence, const void *memory, size_t size) {
  if (!sequence || !sequence->live)
    return INFC_STATUS_INVALID_ARGUMENT;
  if (!infc_lm_acquire(sequence->lm))
    return INFC_STATUS_BUSY;
  return infc_lm_release(sequence->lm, memory ? restore(sequence, memory, size) : no_memory(sequence->lm));
}
