// A language model at work: block pools, sequences, the prefix cache and the context that runs them.
#ifndef INFC_LM_H
#define INFC_LM_H

#include "../context.h"
#include "sample.h"

enum {
  INFC_LM_SEQUENCES = 64, // unless the caller says otherwise
  // A window keeps this many tokens more than it sees, so that as many can be taken back.
  INFC_LM_SLACK = 64,
};

// Blocks of one group of layers. A block is free, or has as many references as sequences use it, and one more if the
// prefix cache knows it.
typedef struct infc_blocks {
  int32_t *free; // a stack
  uint32_t free_count, count;
  uint32_t idle; // blocks that only the prefix cache has
  uint32_t *references;
  int32_t *nodes; // of the prefix cache that know the block; -1: none
} infc_blocks;

// A full block of tokens that follows another, or begins a sequence.
typedef struct infc_node {
  uint64_t serial; // never used again; 0: the node is free
  uint64_t parent; // serial; 0: the root
  uint64_t used;   // when last
  uint32_t depth;  // blocks before
  int32_t next;    // in the bucket, or in the list of free nodes
  int32_t tokens[INFC_CACHE_TOKENS];
  int32_t blocks[INFC_CACHE_GROUPS]; // -1: let go
} infc_node;

typedef struct infc_prefix {
  infc_node *nodes;
  int32_t *buckets;
  uint32_t capacity, bucket_count; // the latter a power of two
  int32_t free;
  uint64_t serials, clock;
  uint64_t hits, asked; // tokens
} infc_prefix;

struct infc_sequence {
  infc_lm *lm;
  bool live;
  uint32_t length;                    // tokens that are in the cache
  int32_t *tokens;                    // [context]
  int32_t *tables[INFC_CACHE_GROUPS]; // [blocks of a context]
  uint32_t first[INFC_CACHE_GROUPS];  // blocks before are left behind
  uint32_t known;                     // blocks that are in the prefix cache
  uint64_t chain;                     // serial of the last of them
  bool foreign;                       // came from the caller's memory: not for the prefix cache
  infc_gpu_state gpu;                 // on a GPU its cache is this; its memory stays for the next sequence
  uint32_t step;                      // the last that it took part in
};

// A part of a sequence's new tokens that one run computes.
typedef struct infc_lm_span {
  uint32_t part, start, count; // tokens of the part
  uint32_t rows;               // the last of them whose logits are wanted
} infc_lm_span;

struct infc_lm {
  atomic_bool busy;
  infc_allocator allocator;
  infc_engine *engine;
  infc_context *context;
  const infc_executor_api *gpu; // NULL: on the CPU. A GPU computes one sequence at a time, whose cache is in one piece.
  const infc_language *language;
  uint32_t max_tokens, max_rows; // of a run
  uint32_t vocabulary;
  uint32_t limit; // tokens of a sequence
  uint32_t table_blocks;
  uint32_t group_count;
  uint32_t windows[INFC_CACHE_GROUPS];
  infc_blocks blocks[INFC_CACHE_GROUPS];
  infc_cache cache;
  infc_cache_layer *layers;
  infc_cache_sequence *views; // [max_sequences]
  infc_lm_span *spans;        // [max_sequences]
  infc_sequence *sequences;
  uint32_t max_sequences, live;
  bool prefix_on;
  infc_prefix prefix;
  int64_t *ids, *positions, *rows;
  float *no_logits; // where a row goes that nobody asked for
  uint32_t steps;   // made so far
  // Generation.
  infc_request *requests; // in order of arrival
  infc_lm_part *parts;    // [max_sequences] of a step of theirs
  infc_request **owners;
  uint32_t batched_tokens, batched_rows; // most of a step
  float *logits;                         // [batched_rows][vocabulary]
  infc_sampler sampler;
  bool gentle; // prompts are read in such chunks that those who generate wait little
  struct {
    double decode, token; // seconds of a step without prompts, and of a prompt's token
  } pace;
  size_t memory;
  char error[256];
};

static inline infc_error infc_lm_error_buffer(infc_lm *lm) {
  return (infc_error){lm->error, sizeof lm->error};
}

static inline uint32_t infc_blocks_of(uint32_t tokens) {
  return tokens / INFC_CACHE_TOKENS + (tokens % INFC_CACHE_TOKENS != 0);
}

// First block that a sequence of `length` tokens still needs under a window.
static inline uint32_t infc_first_block(uint32_t window, uint32_t length) {
  const uint64_t kept = (uint64_t)window + INFC_LM_SLACK;
  return window && length > kept ? (uint32_t)(length - kept) / INFC_CACHE_TOKENS : 0;
}

// Takes the model for one call; a second thread fails at once.
bool infc_lm_acquire(infc_lm *lm);
infc_status infc_lm_release(infc_lm *lm, infc_status status);

// ---- blocks.c

static inline uint32_t infc_blocks_available(const infc_blocks *blocks) {
  return blocks->free_count + blocks->idle;
}
// A block with one reference, or -1. May take it from the prefix cache.
int32_t infc_block_take(infc_lm *lm, uint32_t group);
void infc_block_retain(infc_lm *lm, uint32_t group, int32_t block);
void infc_block_release(infc_lm *lm, uint32_t group, int32_t block);
void infc_block_copy(infc_lm *lm, uint32_t group, int32_t to, int32_t from);
// True if no other sequence uses the block.
static inline bool infc_block_exclusive(const infc_blocks *blocks, int32_t block) {
  return blocks->references[block] - (blocks->nodes[block] >= 0) == 1;
}

// ---- prefix.c

void infc_prefix_clear(infc_prefix *prefix);
// Makes the sequence's full blocks known.
void infc_prefix_learn(infc_sequence *sequence);
// Has an empty sequence begin with what is known of `tokens`; how many of them.
uint32_t infc_prefix_reuse(infc_sequence *sequence, const int32_t *tokens, uint32_t count);
// Lets go of the block of the group that was not used for longest and that nobody else has. One is idle.
void infc_prefix_evict(infc_lm *lm, uint32_t group);

// ---- sequence.c

infc_sequence *infc_sequence_new(infc_lm *lm); // NULL: none is free
void infc_sequence_clear(infc_sequence *sequence);
// Full blocks stay in the prefix cache; the rest is free.
void infc_sequence_end(infc_sequence *sequence);
// False if a window has left behind what a sequence of that length needs.
bool infc_sequence_cut(infc_sequence *sequence, uint32_t length);

// ---- device.c: sequences whose caches a GPU has

// Memory for its cache if it has none yet, of zeros if it is empty: the sequence before may have left anything there.
infc_status infc_state_take(infc_sequence *sequence);
void infc_state_give_back(infc_sequence *sequence);
infc_status infc_state_share(infc_sequence *to, const infc_sequence *from);
// To the host's memory, or from it: infc_state_size bytes.
infc_status infc_state_move(infc_sequence *sequence, void *memory, bool out);
size_t infc_state_size(const infc_lm *lm);

// ---- step.c

infc_status infc_lm_run_step(infc_lm *lm, const infc_lm_part *parts, uint32_t count, float *logits, size_t size);

#endif // INFC_LM_H
