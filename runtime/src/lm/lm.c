// Creation of a language model: how large its cache is, and where everything lies.
#include "request.h"

enum { MAX_SEQUENCES = 4096 };

// Blocks of a group that hold `tokens` of sequences of any number. Under a window no sequence has more at once than
// what it sees and what one run adds.
static uint64_t group_blocks(const infc_lm *lm, uint32_t group, uint64_t tokens) {
  const uint64_t all = tokens / INFC_CACHE_TOKENS + (tokens % INFC_CACHE_TOKENS != 0);
  if (!lm->windows[group])
    return all;
  const uint64_t seen = (uint64_t)lm->windows[group] + INFC_LM_SLACK + lm->max_tokens;
  const uint64_t most = lm->max_sequences * (seen / INFC_CACHE_TOKENS + 2);
  return most < all ? most : all;
}

// SIZE_MAX if that is too much.
static uint64_t cache_bytes(const infc_lm *lm, uint64_t tokens) {
  uint64_t total = 0;
  for (uint32_t g = 0; g < lm->group_count; g++) {
    uint64_t bytes;
    if (__builtin_mul_overflow(group_blocks(lm, g, tokens), lm->engine->state.group_bytes[g], &bytes) ||
        __builtin_add_overflow(total, bytes, &total))
      return SIZE_MAX;
  }
  return total;
}

// The tokens that the cache holds: as many as are asked for, or as fit.
static infc_status choose_tokens(const infc_lm *lm, const infc_lm_options *options, uint64_t *tokens,
                                 infc_error error) {
  *tokens = options->cache_tokens ? options->cache_tokens : lm->limit;
  if (!options->cache_bytes || cache_bytes(lm, *tokens) <= options->cache_bytes)
    return INFC_STATUS_OK;
  uint64_t low = 0, high = *tokens; // what fits, and what does not
  while (high - low > INFC_CACHE_TOKENS) {
    const uint64_t middle = low + (high - low) / 2;
    *(cache_bytes(lm, middle) <= options->cache_bytes ? &low : &high) = middle;
  }
  *tokens = low / INFC_CACHE_TOKENS * INFC_CACHE_TOKENS;
  if (*tokens == 0)
    return infc_fail(error, INFC_STATUS_INVALID_ARGUMENT, "%llu bytes hold no block of the cache: that has %llu",
                     (unsigned long long)options->cache_bytes, (unsigned long long)cache_bytes(lm, INFC_CACHE_TOKENS));
  return INFC_STATUS_OK;
}

typedef struct parts {
  infc_lm *lm;
  uint8_t *blocks[INFC_CACHE_GROUPS];
  int32_t *tables, *tokens;
} parts;

static void lay_out_blocks(infc_carve *carve, infc_lm *lm, parts *p) {
  const uint32_t count = lm->prefix.capacity;
  for (uint32_t g = 0; g < lm->group_count; g++) {
    infc_blocks *blocks = &lm->blocks[g];
    blocks->free = infc_carve_take(carve, blocks->count, sizeof *blocks->free);
    blocks->references = infc_carve_take(carve, blocks->count, sizeof *blocks->references);
    blocks->nodes = infc_carve_take(carve, blocks->count, sizeof *blocks->nodes);
    p->blocks[g] = infc_carve_take(carve, blocks->count, lm->engine->state.group_bytes[g]);
  }
  lm->prefix.nodes = infc_carve_take(carve, count, sizeof *lm->prefix.nodes);
  lm->prefix.buckets = infc_carve_take(carve, lm->prefix.bucket_count, sizeof *lm->prefix.buckets);
}

// Sizes are in `plan` already; the addresses go there too.
static parts lay_out(infc_carve *carve, infc_lm *plan) {
  parts p;
  const uint64_t sequences = plan->max_sequences;
  p.lm = infc_carve_take(carve, 1, sizeof *p.lm);
  plan->layers = infc_carve_take(carve, plan->cache.layer_count, sizeof *plan->layers);
  plan->views = infc_carve_take(carve, sequences, sizeof *plan->views);
  plan->spans = infc_carve_take(carve, sequences, sizeof *plan->spans);
  plan->sequences = infc_carve_take(carve, sequences, sizeof *plan->sequences);
  p.tables = infc_carve_take(carve, sequences * plan->group_count * plan->table_blocks, sizeof *p.tables);
  p.tokens = infc_carve_take(carve, sequences * plan->limit, sizeof *p.tokens);
  plan->ids = infc_carve_take(carve, plan->max_tokens, sizeof *plan->ids);
  plan->positions = infc_carve_take(carve, plan->max_tokens, sizeof *plan->positions);
  plan->rows = infc_carve_take(carve, plan->max_rows, sizeof *plan->rows);
  plan->no_logits = infc_carve_take(carve, plan->vocabulary, sizeof *plan->no_logits);
  plan->parts = infc_carve_take(carve, sequences, sizeof *plan->parts);
  plan->owners = infc_carve_take(carve, sequences, sizeof *plan->owners);
  plan->logits = infc_carve_take(carve, (uint64_t)plan->batched_rows * plan->vocabulary, sizeof *plan->logits);
  plan->sampler.weights = infc_carve_take(carve, plan->vocabulary, sizeof(float));
  plan->sampler.heap = infc_carve_take(carve, plan->vocabulary, sizeof(float));
  plan->sampler.tokens = infc_carve_take(carve, plan->vocabulary, sizeof(int32_t));
  plan->sampler.allowed = infc_carve_take(carve, (plan->vocabulary + 31) / 32, sizeof(uint32_t));
  lay_out_blocks(carve, plan, &p);
  return p;
}

static void make_blocks(infc_lm *lm, parts *p) {
  for (uint32_t g = 0; g < lm->group_count; g++) {
    infc_blocks *blocks = &lm->blocks[g];
    blocks->free_count = blocks->count;
    for (uint32_t b = 0; b < blocks->count; b++) {
      blocks->free[b] = (int32_t)(blocks->count - 1 - b);
      blocks->references[b] = 0;
      blocks->nodes[b] = -1;
    }
  }
  for (uint32_t l = 0; l < lm->cache.layer_count; l++) {
    infc_cache_layer *layer = &lm->layers[l];
    *layer = infc_state_cache_layer(&lm->engine->state, l);
    layer->blocks = p->blocks[layer->group];
    p->blocks[layer->group] += lm->blocks[layer->group].count * layer->block_bytes;
  }
  lm->cache.layers = lm->layers;
  lm->cache.sequences = lm->views;
}

static void make_sequences(infc_lm *lm, const parts *p) {
  memset(lm->sequences, 0, lm->max_sequences * sizeof *lm->sequences);
  int32_t *table = p->tables;
  for (uint32_t s = 0; s < lm->max_sequences; s++) {
    infc_sequence *sequence = &lm->sequences[s];
    sequence->lm = lm;
    sequence->tokens = p->tokens + (size_t)s * lm->limit;
    for (uint32_t g = 0; g < lm->group_count; g++, table += lm->table_blocks)
      sequence->tables[g] = table;
  }
}

// On a GPU: no more sequences than bytes for their caches.
static infc_status limit_sequences(infc_lm *lm, uint64_t bytes, infc_error error) {
  const uint64_t each = infc_state_size(lm);
  if (!each || !bytes || bytes / each >= lm->max_sequences)
    return INFC_STATUS_OK;
  lm->max_sequences = (uint32_t)(bytes / each);
  return lm->max_sequences
             ? INFC_STATUS_OK
             : infc_fail(error, INFC_STATUS_INVALID_ARGUMENT, "%llu bytes hold no sequence's cache: that has %llu",
                         (unsigned long long)bytes, (unsigned long long)each);
}

// What is known before memory is there: sizes and limits.
static infc_status plan_model(infc_lm *plan, infc_engine *engine, const infc_lm_options *options, infc_error error) {
  const infc_io *io = &engine->io;
  const infc_language *language = &engine->language;
  if (!engine->state.header || !language->header)
    return infc_fail(error, INFC_STATUS_INCOMPATIBLE,
                     "the artifact is not of a language model: it has no STATE or no GENERATION");
  if (options->max_sequences > MAX_SEQUENCES)
    return infc_fail(error, INFC_STATUS_INVALID_ARGUMENT, "max_sequences is %u, at most %d are possible",
                     options->max_sequences, MAX_SEQUENCES);
  const bool gpu = engine->gpu.api;
  const uint32_t context_tokens = engine->state.header->context;
  // On a GPU each sequence has a cache for a whole context.
  const uint64_t sequences = options->max_sequences         ? options->max_sequences
                             : gpu && options->cache_tokens ? 1 + (options->cache_tokens - 1) / context_tokens
                                                            : INFC_LM_SEQUENCES;
  *plan = (infc_lm){.allocator = infc_allocator_or_default(options->allocator),
                    .engine = engine,
                    .gpu = engine->gpu.api,
                    .language = language,
                    .vocabulary = language->header->vocabulary,
                    .limit = context_tokens,
                    .table_blocks = infc_blocks_of(context_tokens),
                    .group_count = gpu ? 0 : engine->state.group_count,
                    .max_sequences = (uint32_t)(sequences < MAX_SEQUENCES ? sequences : MAX_SEQUENCES),
                    .prefix_on = !options->no_prefix_cache && !gpu,
                    .batched_tokens = options->max_batched_tokens,
                    .gentle = options->max_batched_tokens == 0,
                    .sampler.vocabulary = language->header->vocabulary,
                    .cache.layer_count = gpu ? 0 : engine->state.header->layer_count};
  memcpy(plan->windows, engine->state.windows, sizeof plan->windows);
  for (uint32_t p = 0; p < io->header->profile_count; p++) {
    const uint32_t *bounds = io->bounds + (size_t)p * io->header->symbol_count;
    const uint32_t tokens = bounds[language->tokens_symbol], rows = bounds[language->rows_symbol];
    if (tokens > plan->max_tokens || (tokens == plan->max_tokens && rows > plan->max_rows)) {
      plan->max_tokens = tokens;
      plan->max_rows = rows;
    }
  }
  plan->batched_tokens = plan->batched_tokens ? plan->batched_tokens : plan->max_tokens;
  plan->batched_rows = plan->max_sequences + INFC_GUESSES;
  uint64_t tokens;
  const infc_status status = choose_tokens(plan, options, &tokens, error);
  if (status)
    return status;
  for (uint32_t g = 0; g < plan->group_count; g++) {
    const uint64_t count = group_blocks(plan, g, tokens);
    if (count > INT32_MAX)
      return infc_fail(error, INFC_STATUS_OUT_OF_MEMORY, "out of memory for a cache of %llu tokens",
                       (unsigned long long)tokens);
    plan->blocks[g].count = (uint32_t)count;
    plan->prefix.capacity = count > plan->prefix.capacity ? (uint32_t)count : plan->prefix.capacity;
  }
  plan->prefix.bucket_count = 1;
  while (plan->prefix.bucket_count < plan->prefix.capacity)
    plan->prefix.bucket_count *= 2;
  return INFC_STATUS_OK;
}

infc_status infc_lm_create(infc_engine *engine, const infc_lm_options *options, infc_lm **out, char *error_text,
                           size_t error_size) {
  const infc_error error = {error_text, error_size};
  infc_lm_options ours;
  infc_lm plan;
  infc_status status = infc_options_copy(&ours, sizeof ours, options, error);
  if (!status && (!engine || !out))
    status = infc_fail(error, INFC_STATUS_INVALID_ARGUMENT, "engine or out is NULL");
  if (!status)
    status = plan_model(&plan, engine, &ours, error);
  if (status)
    return status;
  infc_carve carve = {0};
  lay_out(&carve, &plan);
  const size_t size = carve.used;
  void *memory = carve.overflow ? NULL : infc_alloc(&plan.allocator, size);
  if (!memory)
    return infc_fail(error, INFC_STATUS_OUT_OF_MEMORY, "out of memory for a cache in %zu bytes", size);
  carve = (infc_carve){.base = memory};
  parts p = lay_out(&carve, &plan);
  infc_lm *lm = p.lm;
  *lm = plan;
  make_blocks(lm, &p);
  make_sequences(lm, &p);
  infc_prefix_clear(&lm->prefix);
  const infc_context_options context = {
      .struct_size = sizeof context, .pool = ours.pool, .allocator = ours.allocator ? &lm->allocator : NULL};
  status = infc_context_make(engine, &context, &lm->cache, &lm->context, error);
  if (status) {
    infc_free(&plan.allocator, memory);
    return status;
  }
  status = limit_sequences(lm, ours.cache_bytes, error);
  if (status) {
    infc_lm_destroy(lm);
    return status;
  }
  lm->memory = size + infc_context_memory(lm->context);
  *out = lm;
  return INFC_STATUS_OK;
}

void infc_lm_destroy(infc_lm *lm) {
  if (!lm)
    return;
  const infc_allocator allocator = lm->allocator;
  while (lm->requests)
    infc_request_destroy(lm->requests);
  for (uint32_t s = 0; s < lm->max_sequences; s++)
    infc_state_give_back(&lm->sequences[s]);
  infc_context_destroy(lm->context);
  infc_free(&allocator, lm);
}

bool infc_lm_acquire(infc_lm *lm) {
  if (atomic_exchange_explicit(&lm->busy, true, memory_order_acquire))
    return false;
  lm->error[0] = 0;
  return true;
}

infc_status infc_lm_release(infc_lm *lm, infc_status status) {
  atomic_store_explicit(&lm->busy, false, memory_order_release);
  return status;
}

const char *infc_lm_error(const infc_lm *lm) {
  return lm->error;
}

infc_status infc_lm_get_info(const infc_lm *lm, infc_lm_info *info) {
  if (!lm || !info)
    return INFC_STATUS_INVALID_ARGUMENT;
  infc_lm_info ours = {.context = lm->limit,
                       .vocabulary = lm->vocabulary,
                       .block_tokens = INFC_CACHE_TOKENS,
                       .max_tokens = lm->max_tokens,
                       .max_rows = lm->max_rows,
                       .max_sequences = lm->max_sequences,
                       .sequences = lm->live,
                       .memory = lm->memory,
                       .prefix_hits = lm->prefix.hits,
                       .prefix_asked = lm->prefix.asked};
  for (uint32_t s = 0; lm->gpu && s < lm->max_sequences; s++)
    ours.cache_bytes += lm->sequences[s].gpu.memory ? infc_state_size(lm) : 0;
  if (lm->gpu) {
    ours.cache_tokens = (uint64_t)lm->max_sequences * lm->limit;
    ours.free_tokens = (uint64_t)(lm->max_sequences - lm->live) * lm->limit;
  }
  for (uint32_t g = 0; g < lm->group_count; g++) {
    const infc_blocks *blocks = &lm->blocks[g];
    const uint64_t free = (uint64_t)infc_blocks_available(blocks) * INFC_CACHE_TOKENS;
    ours.cache_bytes += blocks->count * lm->engine->state.group_bytes[g];
    if (blocks->count == lm->prefix.capacity) { // the group that has most, as those without a window
      ours.cache_tokens = (uint64_t)blocks->count * INFC_CACHE_TOKENS;
      ours.free_tokens = free;
    }
  }
  return infc_result_copy(info, &ours, sizeof ours) ? INFC_STATUS_OK : INFC_STATUS_INVALID_ARGUMENT;
}
