// What the C test programs share: CHECK, a random number generator, allocations whose edges are guarded.
#ifndef INFC_TEST_H
#define INFC_TEST_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int test_failures;

// Counts a failure, prints where, goes on. Evaluates to the condition.
#define CHECK(condition, ...)                                                                                          \
  ((condition) ? 1                                                                                                     \
               : (test_failures++, fprintf(stderr, "%s:%d: CHECK(%s) failed. ", __FILE__, __LINE__, #condition),       \
                  fprintf(stderr, " " __VA_ARGS__), fputc('\n', stderr), 0))

// Returned from main.
static inline int test_result(void) {
  if (test_failures)
    fprintf(stderr, "%d failures\n", test_failures);
  return test_failures ? 1 : 0;
}

// xorshift64*; state must not be zero.
typedef struct test_rng {
  uint64_t state;
} test_rng;

static inline uint64_t test_random(test_rng *rng) {
  rng->state ^= rng->state >> 12;
  rng->state ^= rng->state << 25;
  rng->state ^= rng->state >> 27;
  return rng->state * 0x2545F4914F6CDD1Dull;
}

// Uniform in [low, high].
static inline int64_t test_random_int(test_rng *rng, int64_t low, int64_t high) {
  return low + (int64_t)(test_random(rng) % (uint64_t)(high - low + 1));
}

// Uniform in [low, high).
static inline float test_random_float(test_rng *rng, float low, float high) {
  return low + (high - low) * (float)(test_random(rng) >> 40) * 0x1p-24f;
}

static inline void test_fill_random(test_rng *rng, float *values, size_t count, float low, float high) {
  for (size_t i = 0; i < count; i++)
    values[i] = test_random_float(rng, low, high);
}

enum { TEST_GUARD = 64 };

// Under AddressSanitizer the guards may not be read either.
#if defined(__has_feature) // clang's way to tell
#if __has_feature(address_sanitizer)
#define __SANITIZE_ADDRESS__ 1
#endif
#endif
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(start, size) ((void)(start), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(start, size) ((void)(start), (void)(size))
#endif

// Memory at a multiple of 64 with guard bytes on both sides, which test_guards_intact and test_free check. Never NULL.
static inline void *test_alloc(size_t size) {
  size_t rounded = (size + 63) / 64 * 64;
  uint8_t *base = aligned_alloc(64, TEST_GUARD + rounded + TEST_GUARD);
  if (!base)
    abort();
  memset(base, 0xA5, TEST_GUARD + rounded + TEST_GUARD);
  memcpy(base, &size, sizeof size);
  ASAN_POISON_MEMORY_REGION(base, TEST_GUARD);
  ASAN_POISON_MEMORY_REGION(base + TEST_GUARD + size, rounded - size + TEST_GUARD);
  return base + TEST_GUARD;
}

static inline int test_guards_intact(const void *memory) {
  const uint8_t *data = memory;
  size_t size;
  ASAN_UNPOISON_MEMORY_REGION(data - TEST_GUARD, TEST_GUARD);
  memcpy(&size, data - TEST_GUARD, sizeof size);
  size_t rounded = (size + 63) / 64 * 64;
  ASAN_UNPOISON_MEMORY_REGION(data + size, rounded - size + TEST_GUARD);
  int intact = 1;
  for (size_t i = sizeof size; i < TEST_GUARD; i++)
    intact &= data[(ptrdiff_t)i - TEST_GUARD] == 0xA5;
  for (size_t i = size; i < rounded + TEST_GUARD; i++)
    intact &= data[i] == 0xA5;
  ASAN_POISON_MEMORY_REGION(data - TEST_GUARD, TEST_GUARD);
  ASAN_POISON_MEMORY_REGION(data + size, rounded - size + TEST_GUARD);
  return intact;
}

static inline void test_free(void *memory) {
  if (!memory)
    return;
  CHECK(test_guards_intact(memory), "written outside an allocation");
  ASAN_UNPOISON_MEMORY_REGION((uint8_t *)memory - TEST_GUARD, TEST_GUARD);
  free((uint8_t *)memory - TEST_GUARD);
}

#endif // INFC_TEST_H
