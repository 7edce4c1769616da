// What the fuzz programs share: an allocator with a limit, and a run of any engine on random inputs within their
// ranges.
#ifndef INFC_DRIVE_H
#define INFC_DRIVE_H

#include "artifact.h"

enum { MAX_MEMORY = 256 << 20, MAX_TENSOR = 16 << 20, MAX_SYMBOLS = 16 };

static inline void *capped_alloc(void *user, size_t size, size_t alignment) {
  (void)user;
  void *memory;
  return size > MAX_MEMORY || posix_memalign(&memory, alignment, size) ? NULL : memory;
}

static inline void capped_free(void *user, void *memory) {
  (void)user;
  free(memory);
}

// Bytes of a tensor with the sizes of `values`; SIZE_MAX if that is more than a test wants.
static inline size_t tensor_bytes(const infc_tensor_info *info, const int64_t *values, int64_t *dims) {
  double bytes = (double)infc_dtype_size(info->dtype);
  for (int32_t d = 0; d < info->rank; d++) {
    dims[d] = info->dims[d].symbol < 0 ? info->dims[d].max : values[info->dims[d].symbol];
    bytes *= (double)dims[d];
  }
  return bytes <= MAX_TENSOR ? (size_t)bytes : SIZE_MAX;
}

static inline void fill_values(test_rng *rng, const infc_tensor_info *info, uint8_t *data, size_t bytes) {
  size_t size = infc_dtype_size(info->dtype);
  uint64_t span = (uint64_t)info->range_max - (uint64_t)info->range_min;
  for (size_t at = 0; at < bytes; at += size) {
    uint64_t value = test_random(rng);
    float single = test_random_float(rng, -2, 2);
    if (info->has_range && span != UINT64_MAX)
      value = (uint64_t)info->range_min + value % (span + 1);
    else if (info->dtype == INFC_F32)
      memcpy(&value, &single, sizeof single);
    else if (info->dtype == INFC_BOOL)
      value &= 1;
    memcpy(data + at, &value, size);
  }
}

static inline infc_status bind_and_run(const infc_engine *engine, infc_context *context, test_rng *rng) {
  int64_t values[MAX_SYMBOLS], dims[INFC_MAX_DIMS];
  uint32_t inputs = infc_engine_input_count(engine), outputs = infc_engine_output_count(engine);
  uint32_t profile = (uint32_t)(test_random(rng) % infc_engine_profile_count(engine));
  infc_tensor_info info = {.struct_size = sizeof info};
  void **buffers = calloc(inputs + outputs, sizeof *buffers);
  infc_status status = INFC_STATUS_OK;
  for (uint32_t s = 0; s < infc_engine_symbol_count(engine); s++)
    values[s] = infc_engine_profile_size(engine, profile, s);
  for (uint32_t i = 0; i < inputs; i++) {
    infc_engine_input(engine, i, &info);
    for (int32_t d = 0; d < info.rank; d++)
      if (info.dims[d].pads && test_random(rng) % 4 == 0)
        values[info.dims[d].symbol] = test_random_int(rng, 1, values[info.dims[d].symbol]);
  }
  for (uint32_t i = 0; i < inputs + outputs && !status; i++) {
    bool input = i < inputs;
    if (input)
      infc_engine_input(engine, i, &info);
    else
      infc_engine_output(engine, i - inputs, &info);
    size_t bytes = tensor_bytes(&info, values, dims);
    if (bytes == SIZE_MAX) {
      status = INFC_STATUS_OUT_OF_MEMORY;
      break;
    }
    buffers[i] = test_alloc(bytes);
    if (input)
      fill_values(rng, &info, buffers[i], bytes);
    status = input ? infc_context_bind_input(context, i, buffers[i], dims, (uint32_t)info.rank)
                   : infc_context_bind_output(context, i - inputs, buffers[i], bytes);
  }
  if (!status)
    status = infc_run(context);
  for (uint32_t i = 0; i < inputs + outputs; i++)
    test_free(buffers[i]);
  free(buffers);
  return status;
}

// Steps of the language model that an artifact may be: a text in two pieces, and a fork that goes another way.
static inline infc_status step_lm(infc_engine *engine, const infc_allocator *allocator, test_rng *rng) {
  const infc_lm_options options = {.struct_size = sizeof options,
                                   .allocator = allocator,
                                   .cache_tokens = 1 + test_random(rng) % 256,
                                   .max_sequences = 2,
                                   .no_prefix_cache = test_random(rng) % 4 == 0};
  infc_lm *lm;
  infc_lm_info info = {.struct_size = sizeof info};
  infc_status status = infc_lm_create(engine, &options, &lm, NULL, 0);
  if (status)
    return status;
  infc_lm_get_info(lm, &info);
  int32_t tokens[64];
  for (int i = 0; i < 64; i++)
    tokens[i] = (int32_t)(test_random(rng) % info.vocabulary);
  const size_t size = 2 * info.vocabulary * sizeof(float);
  float *logits = test_alloc(size);
  infc_sequence *a = NULL, *b = NULL;
  uint32_t reused;
  const uint32_t first = 1 + (uint32_t)(test_random(rng) % 60);
  status = infc_sequence_create(lm, &a);
  if (!status)
    status = infc_lm_step(lm, &(infc_lm_part){a, tokens, first, 1}, 1, logits, size);
  if (!status)
    status = infc_sequence_fork(a, &b);
  if (!status)
    status = infc_lm_step(lm, (infc_lm_part[]){{a, tokens + 62, 2, 1}, {b, tokens + 61, 1, 1}}, 2, logits, size);
  infc_sequence_destroy(a);
  if (b)
    infc_sequence_truncate(b, first / 2);
  if (!infc_sequence_create(lm, &a) && !infc_sequence_reuse(a, tokens, first, &reused))
    infc_lm_step(lm, &(infc_lm_part){a, tokens, 1, 0}, 1, NULL, 0);
  infc_lm_destroy(lm);
  test_free(logits);
  return status;
}

#endif
