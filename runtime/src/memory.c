// Allocation.
#include "internal.h"

#include <stdlib.h>
#include <sys/mman.h>

// Large memory is asked for in pages of 2 MiB: in those of 4 KiB a virtual machine reads it at half the speed.
enum { HUGE_PAGE = 2 << 20 };

static void *default_alloc(void *user, size_t size, size_t alignment) {
  (void)user;
  void *memory;
  return posix_memalign(&memory, alignment, size) ? NULL : memory;
}

static void default_free(void *user, void *memory) {
  (void)user;
  free(memory);
}

infc_allocator infc_allocator_or_default(const infc_allocator *allocator) {
  return allocator ? *allocator : (infc_allocator){default_alloc, default_free, NULL};
}

void *infc_alloc(const infc_allocator *allocator, size_t size) {
  const bool large = size >= 2 * HUGE_PAGE;
  void *memory = allocator->alloc(allocator->user, size ? size : 1, large ? HUGE_PAGE : INFC_CACHE_LINE);
  if (memory && large) {
    const size_t pages = size / HUGE_PAGE * HUGE_PAGE; // what is advised may be refused
#ifdef MADV_HUGEPAGE
    madvise(memory, pages, MADV_HUGEPAGE);
#endif
#ifdef MADV_POPULATE_WRITE // now, so that no run waits for pages: a virtual machine takes a millisecond for each
    madvise(memory, pages, MADV_POPULATE_WRITE);
#endif
  }
  return memory;
}

void infc_free(const infc_allocator *allocator, void *memory) {
  if (memory)
    allocator->free(allocator->user, memory);
}

void *infc_carve_take(infc_carve *carve, uint64_t count, uint64_t element_size) {
  uint64_t bytes, end;
  uint64_t start = infc_round_up(carve->used);
  if (__builtin_mul_overflow(count, element_size, &bytes) || __builtin_add_overflow(start, bytes, &end) ||
      end > PTRDIFF_MAX / 2) {
    carve->overflow = true;
    return NULL;
  }
  carve->used = end;
  return carve->base ? carve->base + start : NULL;
}
