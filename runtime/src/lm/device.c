// Sequences whose caches a GPU has: each in memory of its own, which is copied where the CPU's would be shared.
#include "lm.h"

static infc_gpu_place on_device(const infc_sequence *sequence) {
  return (infc_gpu_place){sequence->gpu.memory, true};
}

size_t infc_state_size(const infc_lm *lm) {
  return lm->gpu ? lm->gpu->state_bytes(lm->context->gpu) : 0;
}

infc_status infc_state_take(infc_sequence *sequence) {
  infc_lm *lm = sequence->lm;
  if (!lm->gpu || sequence->length)
    return INFC_STATUS_OK;
  if (!sequence->gpu.memory)
    return lm->gpu->state_create(lm->context->gpu, &sequence->gpu.memory, lm->error, sizeof lm->error);
  return lm->gpu->state_clear(lm->context->gpu, sequence->gpu.memory, lm->error, sizeof lm->error);
}

void infc_state_give_back(infc_sequence *sequence) {
  if (sequence->gpu.memory)
    sequence->lm->gpu->state_destroy(sequence->lm->context->gpu, sequence->gpu.memory);
  sequence->gpu.memory = 0;
}

infc_status infc_state_share(infc_sequence *to, const infc_sequence *from) {
  infc_lm *lm = to->lm;
  if (!lm->gpu || !from->length)
    return INFC_STATUS_OK;
  const infc_status status = infc_state_take(to);
  return status ? status
                : lm->gpu->state_copy(lm->context->gpu, on_device(to), on_device(from), lm->error, sizeof lm->error);
}

infc_status infc_state_move(infc_sequence *sequence, void *memory, bool out) {
  infc_lm *lm = sequence->lm;
  if (!lm->gpu || !sequence->length)
    return INFC_STATUS_OK;
  const infc_gpu_place host = {(uintptr_t)memory, false}, device = on_device(sequence);
  return lm->gpu->state_copy(lm->context->gpu, out ? host : device, out ? device : host, lm->error, sizeof lm->error);
}
