// The prefix cache: full blocks of sequences, found again by the tokens from the sequence's start.
//
// A node is found by its parent's serial and its 32 tokens, both compared, so that a chain of nodes stands for exactly
// one text. Serials are never used again: what followed a node that was let go is never found, and grows old.
#include "lm.h"

static uint32_t bucket_of(const infc_prefix *prefix, uint64_t parent, const int32_t *tokens) {
  uint64_t hash = parent * 0x9E3779B97F4A7C15u;
  for (int i = 0; i < INFC_CACHE_TOKENS; i++) {
    hash = (hash ^ (uint32_t)tokens[i]) * 0xFF51AFD7ED558CCDu;
    hash ^= hash >> 32;
  }
  return (uint32_t)hash & (prefix->bucket_count - 1);
}

static infc_node *find_node(const infc_prefix *prefix, uint64_t parent, const int32_t *tokens) {
  for (int32_t n = prefix->buckets[bucket_of(prefix, parent, tokens)]; n >= 0; n = prefix->nodes[n].next) {
    infc_node *node = &prefix->nodes[n];
    if (node->parent == parent && !memcmp(node->tokens, tokens, sizeof node->tokens))
      return node;
  }
  return NULL;
}

void infc_prefix_clear(infc_prefix *prefix) {
  for (uint32_t i = 0; i < prefix->bucket_count; i++)
    prefix->buckets[i] = -1;
  for (uint32_t i = 0; i < prefix->capacity; i++) {
    prefix->nodes[i].serial = 0;
    prefix->nodes[i].next = i + 1 < prefix->capacity ? (int32_t)i + 1 : -1;
  }
  prefix->free = 0;
}

static void drop_block(infc_lm *lm, infc_node *node, uint32_t group) {
  const int32_t block = node->blocks[group];
  if (block < 0)
    return;
  infc_blocks *blocks = &lm->blocks[group];
  blocks->idle -= blocks->references[block] == 1;
  blocks->nodes[block] = -1;
  node->blocks[group] = -1;
  infc_block_release(lm, group, block);
}

// Takes the node out once it knows no block.
static void drop_if_empty(infc_lm *lm, infc_node *node) {
  infc_prefix *prefix = &lm->prefix;
  for (uint32_t g = 0; g < lm->group_count; g++)
    if (node->blocks[g] >= 0)
      return;
  const int32_t number = (int32_t)(node - prefix->nodes);
  int32_t *link = &prefix->buckets[bucket_of(prefix, node->parent, node->tokens)];
  while (*link != number)
    link = &prefix->nodes[*link].next;
  *link = node->next;
  node->serial = 0;
  node->next = prefix->free;
  prefix->free = number;
}

// Whether `a` goes before `b`: what was not used for longest; of one chain, the end where all is seen, since nothing is
// found without its beginning, and the beginning where windows leave it behind.
static bool older(const infc_node *a, const infc_node *b, bool windowed) {
  if (a->used != b->used)
    return a->used < b->used;
  return windowed ? a->depth < b->depth : a->depth > b->depth;
}

void infc_prefix_evict(infc_lm *lm, uint32_t group) {
  const infc_blocks *blocks = &lm->blocks[group];
  infc_node *oldest = NULL;
  for (uint32_t i = 0; i < lm->prefix.capacity; i++) {
    infc_node *node = &lm->prefix.nodes[i];
    if (node->serial && node->blocks[group] >= 0 && blocks->references[node->blocks[group]] == 1 &&
        (!oldest || older(node, oldest, lm->windows[group])))
      oldest = node;
  }
  drop_block(lm, oldest, group);
  drop_if_empty(lm, oldest);
}

// A node out of use, if need be the oldest one's.
static infc_node *take_node(infc_lm *lm) {
  infc_prefix *prefix = &lm->prefix;
  if (prefix->free < 0) {
    infc_node *oldest = &prefix->nodes[0];
    for (uint32_t i = 1; i < prefix->capacity; i++)
      if (older(&prefix->nodes[i], oldest, false))
        oldest = &prefix->nodes[i];
    for (uint32_t g = 0; g < lm->group_count; g++)
      drop_block(lm, oldest, g);
    drop_if_empty(lm, oldest);
  }
  infc_node *node = &prefix->nodes[prefix->free];
  prefix->free = node->next;
  return node;
}

static infc_node *add_node(infc_lm *lm, uint64_t parent, uint32_t depth, const int32_t *tokens) {
  infc_prefix *prefix = &lm->prefix;
  infc_node *node = take_node(lm);
  node->serial = ++prefix->serials;
  node->parent = parent;
  node->depth = depth;
  memcpy(node->tokens, tokens, sizeof node->tokens);
  for (uint32_t g = 0; g < INFC_CACHE_GROUPS; g++)
    node->blocks[g] = -1;
  int32_t *bucket = &prefix->buckets[bucket_of(prefix, parent, tokens)];
  node->next = *bucket;
  *bucket = (int32_t)(node - prefix->nodes);
  return node;
}

static void learn_block(infc_sequence *sequence, uint32_t number) {
  infc_lm *lm = sequence->lm;
  const int32_t *tokens = sequence->tokens + number * INFC_CACHE_TOKENS;
  infc_node *node = find_node(&lm->prefix, sequence->chain, tokens);
  bool any = false;
  for (uint32_t g = 0; g < lm->group_count; g++)
    any |= number >= sequence->first[g];
  if (!node && any)
    node = add_node(lm, sequence->chain, number, tokens);
  // Without a node this block and what follows cannot be found.
  sequence->chain = node ? node->serial : ++lm->prefix.serials;
  if (!node)
    return;
  node->used = lm->prefix.clock;
  for (uint32_t g = 0; g < lm->group_count; g++) {
    const int32_t block = sequence->tables[g][number];
    if (node->blocks[g] >= 0 || number < sequence->first[g] || lm->blocks[g].nodes[block] >= 0)
      continue;
    infc_block_retain(lm, g, block);
    node->blocks[g] = block;
    lm->blocks[g].nodes[block] = (int32_t)(node - lm->prefix.nodes);
  }
}

void infc_prefix_learn(infc_sequence *sequence) {
  if (!sequence->lm->prefix_on || sequence->foreign)
    return;
  const uint32_t full = sequence->length / INFC_CACHE_TOKENS;
  sequence->lm->prefix.clock += sequence->known < full;
  while (sequence->known < full)
    learn_block(sequence, sequence->known++);
}

// Most blocks, of those known in a row, that a sequence could begin with: a window needs only the last.
static uint32_t usable_blocks(const infc_lm *lm, const int32_t *tokens, uint32_t blocks) {
  uint32_t since[INFC_CACHE_GROUPS] = {0}; // block from which on the group's are known without a gap
  uint32_t usable = 0;
  uint64_t chain = 0;
  for (uint32_t i = 0; i < blocks; i++) {
    const infc_node *node = find_node(&lm->prefix, chain, tokens + i * INFC_CACHE_TOKENS);
    if (!node)
      break;
    chain = node->serial;
    bool all = true;
    for (uint32_t g = 0; g < lm->group_count; g++) {
      since[g] = node->blocks[g] < 0 ? i + 1 : since[g];
      all &= since[g] <= infc_first_block(lm->windows[g], (i + 1) * INFC_CACHE_TOKENS);
    }
    usable = all ? i + 1 : usable;
  }
  return usable;
}

uint32_t infc_prefix_reuse(infc_sequence *sequence, const int32_t *tokens, uint32_t count) {
  infc_lm *lm = sequence->lm;
  const uint32_t most = count < lm->limit ? count : lm->limit;
  const uint32_t usable = lm->prefix_on ? usable_blocks(lm, tokens, most / INFC_CACHE_TOKENS) : 0;
  sequence->length = usable * INFC_CACHE_TOKENS;
  lm->prefix.clock += usable > 0;
  lm->prefix.hits += sequence->length;
  lm->prefix.asked += count;
  if (usable) // else there may be no tokens at all
    memcpy(sequence->tokens, tokens, sequence->length * sizeof *tokens);
  for (uint32_t g = 0; g < lm->group_count; g++)
    sequence->first[g] = infc_first_block(lm->windows[g], sequence->length);
  for (uint32_t i = 0; i < usable; i++) {
    infc_node *node = find_node(&lm->prefix, sequence->chain, tokens + i * INFC_CACHE_TOKENS);
    node->used = lm->prefix.clock;
    sequence->chain = node->serial;
    for (uint32_t g = 0; g < lm->group_count; g++)
      if (i >= sequence->first[g]) {
        infc_block_retain(lm, g, node->blocks[g]);
        sequence->tables[g][i] = node->blocks[g];
      }
  }
  sequence->known = usable;
  return sequence->length;
}
