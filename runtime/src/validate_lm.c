// The STATE and GENERATION sections: the cache's layers, and how tokens go in, come out and become text.
#include "validate.h"

enum { MAX_LAYERS = 4096, MAX_CACHE_DIM = 1 << 16, MAX_CONTEXT = 1 << 24, MAX_VOCABULARY = 1 << 24, MAX_STOPS = 1024 };

// Layers with the same window share a group, whose sequences have one table of blocks.
static bool find_group(infc_state *state, uint32_t window, uint32_t *group) {
  for (*group = 0; *group < state->group_count; ++*group)
    if (state->windows[*group] == window)
      return true;
  if (state->group_count == INFC_CACHE_GROUPS)
    return false;
  state->windows[state->group_count++] = window;
  return true;
}

infc_cache_layer infc_state_cache_layer(const infc_state *state, uint32_t layer) {
  const infc_state_layer *l = &state->layers[layer];
  infc_cache_layer out = {.heads = l->heads,
                          .k_dim = l->k_dim,
                          .v_dim = l->v_dim,
                          .window = infc_state_window(state, l->window),
                          .dtype = state->header->dtype};
  while (state->windows[out.group] != out.window)
    out.group++;
  infc_cache_lay_out(&out);
  return out;
}

static infc_status check_layer(const infc_file *file, infc_state *state, uint32_t number) {
  const infc_state_layer *layer = &state->layers[number];
  const uint32_t dims[] = {layer->heads, layer->k_dim, layer->v_dim};
  for (int d = 0; d < 3; d++)
    if (dims[d] == 0 || dims[d] > MAX_CACHE_DIM)
      return infc_bad(file, layer, "layer %u of the cache has %u heads of %u and %u elements", number, layer->heads,
                      layer->k_dim, layer->v_dim);
  uint32_t group;
  if (layer->window > INT32_MAX || !find_group(state, infc_state_window(state, layer->window), &group))
    return infc_bad(file, &layer->window, "layer %u of the cache has window %u; %d different ones are the most", number,
                    layer->window, INFC_CACHE_GROUPS);
  const uint64_t bytes = infc_state_cache_layer(state, number).block_bytes;
  if (__builtin_add_overflow(state->group_bytes[group], bytes, &state->group_bytes[group]) ||
      state->group_bytes[group] > PTRDIFF_MAX / 4)
    return infc_bad(file, layer, "a block of the cache is too large");
  return INFC_STATUS_OK;
}

infc_status infc_validate_state(const infc_file *file, const infc_section *section, infc_state *state) {
  infc_span span = {file->data + section->offset, section->size};
  const infc_state_header *header = state->header = infc_span_take(&span, 1, sizeof *header);
  if (!header)
    return infc_bad(file, section, "STATE is too short for its header");
  if (header->layer_count == 0 || header->layer_count > MAX_LAYERS)
    return infc_bad(file, &header->layer_count, "a cache of %u layers", header->layer_count);
  if (header->block_tokens != INFC_CACHE_TOKENS)
    return infc_fail(file->error, INFC_STATUS_INCOMPATIBLE, "byte %zu: the cache has blocks of %u tokens, not %d",
                     (size_t)((const uint8_t *)&header->block_tokens - file->data), header->block_tokens,
                     INFC_CACHE_TOKENS);
  if (header->context == 0 || header->context > MAX_CONTEXT)
    return infc_bad(file, &header->context, "a context of %u tokens", header->context);
  if (header->dtype != INFC_DTYPE_F32 && header->dtype != INFC_DTYPE_BF16 && header->dtype != INFC_DTYPE_I8 &&
      header->dtype != INFC_DTYPE_F8E4M3FN)
    return infc_bad(file, &header->dtype, "a cache of type %u", header->dtype);
  state->layers = infc_span_take(&span, header->layer_count, sizeof *state->layers);
  if (!state->layers || span.left)
    return infc_bad(file, header, "STATE does not end with its %u layers", header->layer_count);
  infc_status status = INFC_STATUS_OK;
  for (uint32_t i = 0; !status && i < header->layer_count; i++)
    status = check_layer(file, state, i);
  return status;
}

// [.., n] whose last dimension is a symbol that pads, all others 1; the symbol, or -1.
static int32_t row_symbol(const infc_io *io, const infc_io_tensor *tensor, uint32_t last) {
  if (tensor->rank < last)
    return -1;
  for (uint32_t d = 0; d + last < tensor->rank; d++)
    if (tensor->dims[d] != 1)
      return -1;
  const int32_t symbol = infc_dim_symbol(tensor->dims[tensor->rank - last]);
  return symbol >= 0 && io->symbols[symbol].policy == INFC_DIM_PADS ? symbol : -1;
}

static bool is_row_input(const infc_io *io, uint32_t index, int32_t *symbol) {
  if (index >= io->header->input_count || io->inputs[index].dtype != INFC_DTYPE_I64)
    return false;
  *symbol = row_symbol(io, &io->inputs[index], 1);
  return *symbol >= 0;
}

static infc_status check_tensors(const infc_file *file, const infc_io *io, infc_language *language) {
  const infc_generation_header *header = language->header;
  const bool positioned = header->position_ids != INFC_NO_STRING;
  int32_t tokens, rows, positions;
  if (!is_row_input(io, header->input_ids, &tokens))
    return infc_bad(file, &header->input_ids, "input %u is not [tokens] of i64 that pads", header->input_ids);
  if (!is_row_input(io, header->logit_rows, &rows) || rows == tokens)
    return infc_bad(file, &header->logit_rows, "input %u is not [rows] of i64 that pads", header->logit_rows);
  if (positioned && (!is_row_input(io, header->position_ids, &positions) || positions != tokens))
    return infc_bad(file, &header->position_ids, "input %u is not [tokens] of i64", header->position_ids);
  for (uint32_t i = 0; i < io->header->input_count; i++)
    if (!infc_is_optional(&io->inputs[i]) && i != header->input_ids && i != header->logit_rows &&
        i != header->position_ids)
      return infc_bad(file, &io->inputs[i], "nothing feeds input '%s' while text is generated",
                      infc_tensor_name(io, &io->inputs[i]));
  if (header->logits >= io->header->output_count || io->header->output_count != 1)
    return infc_bad(file, &header->logits, "output %u of %u is the logits", header->logits, io->header->output_count);
  const infc_io_tensor *logits = &io->outputs[header->logits];
  if (logits->dtype != INFC_DTYPE_F32 || logits->rank < 2 || row_symbol(io, logits, 2) != rows ||
      logits->dims[logits->rank - 1] != (int32_t)header->vocabulary)
    return infc_bad(file, logits, "the logits are not [rows, %u] of f32", header->vocabulary);
  language->tokens_symbol = (uint32_t)tokens;
  language->rows_symbol = (uint32_t)rows;
  return INFC_STATUS_OK;
}

static infc_status check_texts(const infc_file *file, infc_language *language) {
  const infc_generation_header *header = language->header;
  for (uint32_t i = 0; i < header->stop_count; i++)
    if (language->stops[i] >= header->vocabulary)
      return infc_bad(file, &language->stops[i], "token %u ends a text, of %u", language->stops[i], header->vocabulary);
  for (uint32_t i = 0; i < header->vocabulary; i++) {
    if (language->offsets[i + 1] < language->offsets[i])
      return infc_bad(file, &language->offsets[i + 1], "the text of token %u ends before it starts", i);
    const uint32_t size = language->offsets[i + 1] - language->offsets[i];
    language->longest = size > language->longest ? size : language->longest;
  }
  if (language->offsets[0] || language->offsets[header->vocabulary] != header->bytes_size)
    return infc_bad(file, language->offsets, "the tokens' texts are not all of the %u bytes", header->bytes_size);
  return INFC_STATUS_OK;
}

infc_status infc_validate_generation(const infc_file *file, const infc_section *section, const infc_io *io,
                                     infc_language *language) {
  infc_span span = {file->data + section->offset, section->size};
  const infc_generation_header *header = language->header = infc_span_take(&span, 1, sizeof *header);
  if (!header)
    return infc_bad(file, section, "GENERATION is too short for its header");
  if (header->vocabulary == 0 || header->vocabulary > MAX_VOCABULARY || header->stop_count > MAX_STOPS)
    return infc_bad(file, &header->vocabulary, "%u tokens, of which %u end a text", header->vocabulary,
                    header->stop_count);
  language->stops = infc_span_take(&span, header->stop_count, sizeof *language->stops);
  language->flags = infc_span_take(&span, (header->vocabulary + 3) / 4, 4);
  language->offsets = infc_span_take(&span, (uint64_t)header->vocabulary + 1, sizeof *language->offsets);
  language->bytes = infc_span_take(&span, header->bytes_size, 1);
  if (!language->stops || !language->flags || !language->offsets || !language->bytes || span.left)
    return infc_bad(file, header, "GENERATION does not end with what its header counts");
  const infc_status status = check_tensors(file, io, language);
  return status ? status : check_texts(file, language);
}
