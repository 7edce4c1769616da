// Sequences: tokens that are in the cache, and the tables of their blocks.
#include "lm.h"

infc_sequence *infc_sequence_new(infc_lm *lm) {
  for (uint32_t i = 0; i < lm->max_sequences; i++) {
    infc_sequence *sequence = &lm->sequences[i];
    if (sequence->live)
      continue;
    sequence->live = true;
    lm->live++;
    return sequence;
  }
  return NULL;
}

static void release_blocks(infc_sequence *sequence, uint32_t from) {
  for (uint32_t g = 0; g < sequence->lm->group_count; g++) {
    const uint32_t first = sequence->first[g] > from ? sequence->first[g] : from;
    for (uint32_t i = first; i < infc_blocks_of(sequence->length); i++)
      infc_block_release(sequence->lm, g, sequence->tables[g][i]);
  }
}

void infc_sequence_clear(infc_sequence *sequence) {
  release_blocks(sequence, 0);
  memset(sequence->first, 0, sizeof sequence->first);
  sequence->length = sequence->known = 0;
  sequence->chain = 0;
  sequence->foreign = false;
}

bool infc_sequence_cut(infc_sequence *sequence, uint32_t length) {
  const infc_lm *lm = sequence->lm;
  for (uint32_t g = 0; g < lm->group_count; g++) {
    const uint32_t window = lm->windows[g];
    // The next token's window begins at length - window + 1.
    if (window && length >= window && (length - window + 1) / INFC_CACHE_TOKENS < sequence->first[g])
      return false;
    if (window && length < window && sequence->first[g])
      return false;
  }
  release_blocks(sequence, infc_blocks_of(length));
  sequence->length = length;
  if (sequence->known > length / INFC_CACHE_TOKENS) {
    sequence->known = 0; // found again from the start
    sequence->chain = 0;
  }
  return true;
}

void infc_sequence_end(infc_sequence *sequence) {
  infc_prefix_learn(sequence);
  infc_sequence_clear(sequence);
  sequence->live = false;
  sequence->lm->live--;
}

static infc_status none_free(infc_lm *lm) {
  return infc_fail(infc_lm_error_buffer(lm), INFC_STATUS_CACHE_FULL, "all %u sequences are in use: max_sequences",
                   lm->max_sequences);
}

infc_status infc_sequence_create(infc_lm *lm, infc_sequence **out) {
  if (!lm || !out)
    return INFC_STATUS_INVALID_ARGUMENT;
  if (!infc_lm_acquire(lm))
    return INFC_STATUS_BUSY;
  infc_sequence *sequence = infc_sequence_new(lm);
  if (!sequence)
    return infc_lm_release(lm, none_free(lm));
  *out = sequence;
  return infc_lm_release(lm, INFC_STATUS_OK);
}

// Blocks are shared; the last one, if not full, until either writes to it.
static void share(infc_sequence *to, const infc_sequence *from) {
  infc_lm *lm = to->lm;
  to->length = from->length;
  to->known = from->known;
  to->chain = from->chain;
  to->foreign = from->foreign;
  memcpy(to->first, from->first, sizeof to->first);
  memcpy(to->tokens, from->tokens, from->length * sizeof *to->tokens);
  for (uint32_t g = 0; g < lm->group_count; g++)
    for (uint32_t i = from->first[g]; i < infc_blocks_of(from->length); i++) {
      to->tables[g][i] = from->tables[g][i];
      infc_block_retain(lm, g, to->tables[g][i]);
    }
}

infc_status infc_sequence_fork(infc_sequence *sequence, infc_sequence **out) {
  if (!sequence || !sequence->live || !out)
    return INFC_STATUS_INVALID_ARGUMENT;
  infc_lm *lm = sequence->lm;
  if (!infc_lm_acquire(lm))
    return INFC_STATUS_BUSY;
  infc_sequence *made = infc_sequence_new(lm);
  if (!made)
    return infc_lm_release(lm, none_free(lm));
  const infc_status status = infc_state_share(made, sequence);
  if (status) {
    infc_sequence_end(made);
    return infc_lm_release(lm, status);
  }
  share(made, sequence);
  *out = made;
  return infc_lm_release(lm, INFC_STATUS_OK);
}

void infc_sequence_destroy(infc_sequence *sequence) {
  if (!sequence || !sequence->live || !infc_lm_acquire(sequence->lm))
    return;
  infc_sequence_end(sequence);
  infc_lm_release(sequence->lm, INFC_STATUS_OK);
}

infc_status infc_sequence_truncate(infc_sequence *sequence, uint32_t length) {
  if (!sequence || !sequence->live)
    return INFC_STATUS_INVALID_ARGUMENT;
  infc_lm *lm = sequence->lm;
  if (!infc_lm_acquire(lm))
    return INFC_STATUS_BUSY;
  infc_status status = INFC_STATUS_OK;
  if (length > sequence->length)
    status = infc_fail(infc_lm_error_buffer(lm), INFC_STATUS_INVALID_ARGUMENT, "the sequence has %u tokens, not %u",
                       sequence->length, length);
  else if (length == 0)
    infc_sequence_clear(sequence);
  else if (!infc_sequence_cut(sequence, length))
    status = infc_fail(infc_lm_error_buffer(lm), INFC_STATUS_INVALID_ARGUMENT,
                       "a layer's window has left behind what %u tokens need; %d can be taken back, or all", length,
                       INFC_LM_SLACK);
  return infc_lm_release(lm, status);
}

infc_status infc_sequence_reuse(infc_sequence *sequence, const int32_t *tokens, uint32_t count, uint32_t *reused) {
  if (!sequence || !sequence->live || (count && !tokens) || !reused)
    return INFC_STATUS_INVALID_ARGUMENT;
  infc_lm *lm = sequence->lm;
  if (!infc_lm_acquire(lm))
    return INFC_STATUS_BUSY;
  if (sequence->length)
    return infc_lm_release(lm, infc_fail(infc_lm_error_buffer(lm), INFC_STATUS_INVALID_ARGUMENT,
                                         "the sequence has %u tokens already", sequence->length));
  *reused = infc_prefix_reuse(sequence, tokens, count);
  return infc_lm_release(lm, INFC_STATUS_OK);
}

uint32_t infc_sequence_length(const infc_sequence *sequence) {
  return sequence->length;
}

const int32_t *infc_sequence_tokens(const infc_sequence *sequence) {
  return sequence->tokens;
}
