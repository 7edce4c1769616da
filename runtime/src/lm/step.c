// A step: new tokens of several sequences, in as many runs as the largest profile makes of them.
#include "lm.h"

// Where the next run begins.
typedef struct cursor {
  uint32_t part, token;
} cursor;

// Tokens of a part, from `start` on, that a run with room for so many tokens and rows takes.
static infc_lm_span cut_span(const infc_lm_part *part, uint32_t number, uint32_t start, uint32_t tokens,
                             uint32_t rows) {
  const uint32_t silent = part->count - part->logit_rows; // tokens before those whose logits are wanted
  uint32_t count = part->count - start;
  count = count < tokens ? count : tokens;
  const uint64_t most = rows + (start < silent ? silent - start : 0u);
  count = count < most ? count : (uint32_t)most;
  const uint32_t end = start + count, first = start > silent ? start : silent;
  return (infc_lm_span){number, start, count, end > first ? end - first : 0};
}

// Fills lm->spans with the next run's; how many.
static uint32_t cut_run(infc_lm *lm, const infc_lm_part *parts, uint32_t count, cursor *at) {
  uint32_t tokens = lm->max_tokens, rows = lm->max_rows, spans = 0;
  while (at->part < count && tokens) {
    const infc_lm_span span = cut_span(&parts[at->part], at->part, at->token, tokens, rows);
    if (span.count == 0)
      break;
    lm->spans[spans++] = span;
    tokens -= span.count;
    rows -= span.rows;
    at->token += span.count;
    if (at->token < parts[at->part].count)
      break;
    *at = (cursor){at->part + 1, 0};
    if (lm->gpu)
      break;
  }
  return spans;
}

static infc_status check_part(infc_lm *lm, const infc_lm_part *part, uint32_t number) {
  const infc_error error = infc_lm_error_buffer(lm);
  infc_sequence *sequence = part->sequence;
  if (!sequence || sequence->lm != lm || !sequence->live)
    return infc_fail(error, INFC_STATUS_INVALID_ARGUMENT, "part %u: not a sequence of this model", number);
  if (part->count == 0 || !part->tokens || part->logit_rows > part->count)
    return infc_fail(error, INFC_STATUS_INVALID_ARGUMENT, "part %u: %u tokens, logits of %u", number, part->count,
                     part->logit_rows);
  if (sequence->step == lm->steps)
    return infc_fail(error, INFC_STATUS_INVALID_ARGUMENT, "part %u: the sequence has another part in the step", number);
  sequence->step = lm->steps;
  if (part->count > lm->limit - sequence->length)
    return infc_fail(error, INFC_STATUS_BAD_SHAPE, "part %u: %u tokens after %u are more than the context of %u",
                     number, part->count, sequence->length, lm->limit);
  for (uint32_t i = 0; i < part->count; i++)
    if (part->tokens[i] < 0 || (uint32_t)part->tokens[i] >= lm->vocabulary)
      return infc_fail(error, INFC_STATUS_BAD_VALUE, "part %u: token %d at %u is not one of %u", number,
                       part->tokens[i], i, lm->vocabulary);
  return INFC_STATUS_OK;
}

static infc_status check(infc_lm *lm, const infc_lm_part *parts, uint32_t count, const float *logits, size_t size) {
  const infc_error error = infc_lm_error_buffer(lm);
  if (!parts)
    return infc_fail(error, INFC_STATUS_INVALID_ARGUMENT, "parts is NULL");
  if (count == 0 || count > lm->max_sequences)
    return infc_fail(error, INFC_STATUS_INVALID_ARGUMENT, "%u parts, at most %u", count, lm->max_sequences);
  uint64_t rows = 0;
  lm->steps++;
  for (uint32_t i = 0; i < count; i++) {
    infc_status status = check_part(lm, &parts[i], i);
    if (status)
      return status;
    rows += parts[i].logit_rows;
  }
  if (rows && !logits)
    return infc_fail(error, INFC_STATUS_INVALID_ARGUMENT, "logits is NULL, and %llu rows are asked for",
                     (unsigned long long)rows);
  if (rows && (size / sizeof(float) / lm->vocabulary < rows))
    return infc_fail(error, INFC_STATUS_BAD_SHAPE, "%llu rows of logits need %llu bytes, the buffer has %zu",
                     (unsigned long long)rows, (unsigned long long)rows * lm->vocabulary * sizeof(float), size);
  return INFC_STATUS_OK;
}

static bool last_is_shared(const infc_lm *lm, const infc_sequence *sequence, uint32_t group) {
  if (sequence->length % INFC_CACHE_TOKENS == 0)
    return false;
  const int32_t last = sequence->tables[group][sequence->length / INFC_CACHE_TOKENS];
  return lm->blocks[group].references[last] > 1;
}

// Blocks that windows leave behind when `before` tokens become `after`, and that nobody else needs.
static uint32_t left_behind(const infc_lm *lm, const infc_sequence *sequence, uint32_t group, uint32_t after) {
  uint32_t left = 0;
  const uint32_t old = infc_blocks_of(sequence->length);
  for (uint32_t i = sequence->first[group]; i < infc_first_block(lm->windows[group], after); i++)
    left += i >= old || infc_block_exclusive(&lm->blocks[group], sequence->tables[group][i]);
  return left;
}

// Whether all the step's blocks will be there, before the first is taken: what runs leave behind serves the next ones.
static bool blocks_suffice(infc_lm *lm, const infc_lm_part *parts, uint32_t count, uint32_t group) {
  int64_t spare = infc_blocks_available(&lm->blocks[group]);
  uint32_t spans;
  for (cursor at = {0}; (spans = cut_run(lm, parts, count, &at));) {
    for (uint32_t i = 0; i < spans; i++) {
      const infc_lm_span *span = &lm->spans[i];
      const infc_sequence *sequence = parts[span->part].sequence;
      const uint32_t before = sequence->length + span->start;
      spare -= infc_blocks_of(before + span->count) - infc_blocks_of(before);
      spare -= span->start == 0 && last_is_shared(lm, sequence, group);
    }
    if (spare < 0)
      return false;
    for (uint32_t i = 0; i < spans; i++) {
      const infc_lm_span *span = &lm->spans[i];
      const infc_sequence *sequence = parts[span->part].sequence;
      const uint32_t before = sequence->length + span->start;
      spare += left_behind(lm, sequence, group, before + span->count) - left_behind(lm, sequence, group, before);
    }
  }
  return true;
}

// Blocks for the tokens of a span; there are enough.
static void reserve(infc_lm *lm, infc_sequence *sequence, uint32_t count) {
  for (uint32_t g = 0; g < lm->group_count; g++) {
    int32_t *table = sequence->tables[g];
    if (last_is_shared(lm, sequence, g)) {
      int32_t *last = &table[sequence->length / INFC_CACHE_TOKENS];
      const int32_t own = infc_block_take(lm, g);
      infc_block_copy(lm, g, own, *last);
      infc_block_release(lm, g, *last);
      *last = own;
    }
    for (uint32_t i = infc_blocks_of(sequence->length); i < infc_blocks_of(sequence->length + count); i++)
      table[i] = infc_block_take(lm, g);
  }
}

static void leave_behind(infc_sequence *sequence) {
  infc_lm *lm = sequence->lm;
  for (uint32_t g = 0; g < lm->group_count; g++)
    for (const uint32_t first = infc_first_block(lm->windows[g], sequence->length); sequence->first[g] < first;
         sequence->first[g]++)
      infc_block_release(lm, g, sequence->tables[g][sequence->first[g]]);
}

// Inputs of a run; how many tokens it has.
static uint32_t fill(infc_lm *lm, const infc_lm_part *parts, uint32_t spans, uint32_t *rows) {
  uint32_t tokens = 0;
  *rows = 0;
  for (uint32_t i = 0; i < spans; i++) {
    const infc_lm_span *span = &lm->spans[i];
    infc_sequence *sequence = parts[span->part].sequence;
    const int32_t *new = parts[span->part].tokens + span->start;
    reserve(lm, sequence, span->count);
    lm->views[i] = (infc_cache_sequence){.row0 = tokens, .rows = span->count, .past = sequence->length};
    sequence->gpu.length = sequence->length;
    lm->context->state = lm->gpu ? &sequence->gpu : NULL;
    for (uint32_t g = 0; g < lm->group_count; g++)
      lm->views[i].tables[g] = sequence->tables[g];
    for (uint32_t t = 0; t < span->count; t++) {
      lm->ids[tokens] = new[t];
      lm->positions[tokens++] = sequence->length + t;
    }
    for (uint32_t r = span->rows; r > 0; r--)
      lm->rows[(*rows)++] = tokens - r;
    memcpy(sequence->tokens + sequence->length, new, span->count * sizeof *new);
    sequence->length += span->count;
  }
  lm->cache.sequence_count = spans;
  return tokens;
}

static infc_status bind_rows(infc_lm *lm, uint32_t input, const int64_t *values, int64_t count) {
  const uint32_t rank = lm->engine->io.inputs[input].rank;
  int64_t dims[INFC_MAX_DIMS];
  for (uint32_t d = 0; d < rank; d++)
    dims[d] = d + 1 < rank ? 1 : count;
  return infc_context_bind_input(lm->context, input, values, dims, rank);
}

static infc_status run(infc_lm *lm, uint32_t tokens, uint32_t rows, float *logits) {
  const infc_generation_header *header = lm->language->header;
  if (rows == 0) {
    lm->rows[0] = tokens - 1;
    logits = lm->no_logits;
  }
  infc_status status = bind_rows(lm, header->input_ids, lm->ids, tokens);
  if (!status && header->position_ids != INFC_NO_STRING)
    status = bind_rows(lm, header->position_ids, lm->positions, tokens);
  if (!status)
    status = bind_rows(lm, header->logit_rows, lm->rows, rows ? rows : 1);
  if (!status)
    status = infc_context_bind_output(lm->context, header->logits, logits,
                                      (size_t)(rows ? rows : 1) * lm->vocabulary * sizeof *logits);
  if (!status)
    status = infc_run(lm->context);
  return status ? infc_fail(infc_lm_error_buffer(lm), status, "%s", infc_context_error(lm->context)) : status;
}

// Back to what the sequences were, as far as windows have not left it behind; else to nothing.
static void undo(const infc_lm_part *parts, const infc_lm_span *last, uint32_t spans) {
  const uint32_t ended = spans ? last[spans - 1].part : 0;
  for (uint32_t p = 0; p <= ended; p++) {
    uint32_t done = parts[p].count; // of parts before this run's
    for (uint32_t i = 0; i < spans; i++)
      if (last[i].part == p)
        done = last[i].start + last[i].count;
    infc_sequence *sequence = parts[p].sequence;
    if (sequence->length == done || !infc_sequence_cut(sequence, sequence->length - done))
      infc_sequence_clear(sequence);
  }
}

infc_status infc_lm_run_step(infc_lm *lm, const infc_lm_part *parts, uint32_t count, float *logits, size_t size) {
  infc_status status = check(lm, parts, count, logits, size);
  if (status)
    return status;
  for (uint32_t i = 0; !status && i < count; i++)
    status = infc_state_take(parts[i].sequence);
  if (status)
    return status;
  for (uint32_t i = 0; i < count; i++)
    infc_prefix_learn(parts[i].sequence);
  for (uint32_t g = 0; g < lm->group_count; g++)
    if (!blocks_suffice(lm, parts, count, g))
      return infc_fail(infc_lm_error_buffer(lm), INFC_STATUS_CACHE_FULL,
                       "the cache has %u free blocks of %d tokens: too few for the step",
                       infc_blocks_available(&lm->blocks[g]), INFC_CACHE_TOKENS);
  uint32_t spans;
  for (cursor at = {0}; (spans = cut_run(lm, parts, count, &at));) {
    uint32_t rows;
    const uint32_t tokens = fill(lm, parts, spans, &rows);
    if ((status = run(lm, tokens, rows, logits))) {
      undo(parts, lm->spans, spans);
      return status;
    }
    if (rows)
      logits += (size_t)rows * lm->vocabulary;
    for (uint32_t i = 0; i < spans; i++)
      leave_behind(parts[lm->spans[i].part].sequence);
  }
  return INFC_STATUS_OK;
}

infc_status infc_lm_step(infc_lm *lm, const infc_lm_part *parts, uint32_t count, float *logits, size_t size) {
  if (!lm)
    return INFC_STATUS_INVALID_ARGUMENT;
  if (!infc_lm_acquire(lm))
    return INFC_STATUS_BUSY;
  return infc_lm_release(lm, infc_lm_run_step(lm, parts, count, logits, size));
}
