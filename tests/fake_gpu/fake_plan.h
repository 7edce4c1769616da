// The fake TensorRT's serialised engine: this header, then a whole artifact for the CPU whose profiles are the
// optimisation profiles, in order.
#ifndef INFC_FAKE_PLAN_H
#define INFC_FAKE_PLAN_H

#include "fake.h"

#define FAKE_PLAN_MAGIC "FAKEPLAN"

enum {
  FAKE_PLAN_WORKSPACE = 4096, // bytes for activations, times the optimisation profile + 1
  FAKE_PLAN_TENSORS = 256,
};

typedef struct fake_plan {
  uint8_t magic[8];
  uint64_t size; // of the artifact
  uint32_t profile_count;
  // 1 + tensors' indices, inputs first, of an output that is written in place; 0: none but those that an input and
  // INFC_STATE_NEW name.
  uint32_t alias_output, alias_input;
  uint32_t zero[9];
} fake_plan;
_Static_assert(sizeof(fake_plan) == 64, "fake_plan");

#endif // INFC_FAKE_PLAN_H
