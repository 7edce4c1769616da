// Activations held against the ranges of calibration: what WATCH asks for, and a context's counts.
#ifndef INFC_WATCH_H
#define INFC_WATCH_H

#include "kernels/kernel.h"

// WATCH. Without one, `header` is NULL.
typedef struct infc_watch {
  const infc_watch_header *header;
  const infc_watch_layer *layers;
  const infc_watch_place *places;
  const char *strings;
} infc_watch;

// One thread's counts of a layer. `least` and `greatest` are of the values beyond that are numbers, f32 alone.
typedef struct infc_watch_count {
  uint64_t values, beyond;
  float least, greatest;
} infc_watch_count;

static inline uint32_t infc_watch_layers(const infc_watch *watch) {
  return watch->header ? watch->header->layer_count : 0;
}

// Before the step runs: counts what the place reads, as far as it is this thread's.
void infc_watch_step(const infc_watch_place *place, const infc_task *task, const infc_range *range, bool by_rows,
                     const infc_worker *worker, infc_watch_count *count);

#endif // INFC_WATCH_H
