// An allocator that counts, and of which one allocation fails.
#ifndef INFC_BUDGET_H
#define INFC_BUDGET_H

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

typedef struct budget {
  int left; // allocations until one fails
  int live, made;
  size_t most; // bytes of an allocation; 0: any
} budget;

static inline void *limited_alloc(void *user, size_t size, size_t alignment) {
  budget *b = user;
  void *memory;
  if (b->left-- == 0 || (b->most && size > b->most) || posix_memalign(&memory, alignment, size))
    return NULL;
  memset(memory, 0xFF, size); // NaN, and great numbers: whatever is read without being written shows
  b->live++;
  b->made++;
  return memory;
}

static inline void limited_free(void *user, void *memory) {
  ((budget *)user)->live--;
  free(memory);
}

#endif // INFC_BUDGET_H
