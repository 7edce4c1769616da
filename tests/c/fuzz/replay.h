// One function that libFuzzer calls with bytes of its choice (`make fuzz`); and a main for where there is none:
// NAME COUNT SEED [FILE...] runs the files, then COUNT inputs that are drawn, or made of the files.
#ifndef INFC_REPLAY_H
#define INFC_REPLAY_H

#include "load.h"

#include <stdbool.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
// The target's own way to make an input of another; false where bytes shall be drawn.
static bool fuzz_change(uint8_t *data, size_t size, test_rng *rng);

// What it returns. A failed CHECK is to libFuzzer what a crash is.
static inline int fuzz_result(void) {
#ifdef INFC_LIBFUZZER
  if (test_failures)
    abort();
#endif
  return 0;
}

#ifdef INFC_LIBFUZZER
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed);

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed) {
  test_rng rng = {seed * 0x9E3779B97F4A7C15ull | 1};
  return fuzz_change(data, size, &rng) ? size : LLVMFuzzerMutate(data, size, max_size);
}
#else
enum { REPLAY_DRAWN = 512 };

static uint8_t *replay_draw(test_rng *rng, uint8_t *const *files, const size_t *sizes, size_t count, size_t *size) {
  size_t picked = count ? test_random(rng) % count : 0;
  *size = count ? sizes[picked] : test_random(rng) % REPLAY_DRAWN;
  uint8_t *data = test_alloc(*size);
  for (size_t i = 0; i < *size; i++)
    data[i] = count ? files[picked][i] : (uint8_t)test_random(rng);
  if (count && fuzz_change(data, *size, rng))
    return data;
  for (int64_t changes = test_random_int(rng, 1, 4); *size && changes > 0; changes--)
    data[test_random(rng) % *size] = (uint8_t)test_random(rng);
  return data;
}

int main(int argc, char **argv) {
  if (argc < 3)
    return fprintf(stderr, "usage: %s COUNT SEED [FILE...]\n", argv[0]), 2;
  uint8_t **files = calloc((size_t)argc, sizeof *files);
  size_t *sizes = calloc((size_t)argc, sizeof *sizes), count = 0;
  if (!files || !sizes)
    return 2;
  for (int i = 3; i < argc; i++, count++) {
    files[count] = load_file(argv[i], &sizes[count]);
    LLVMFuzzerTestOneInput(files[count], sizes[count]);
  }
  long drawn = atol(argv[1]);
  for (long i = 0; i < drawn; i++) {
    test_rng rng = {(strtoull(argv[2], NULL, 10) + (uint64_t)i) * 0x9E3779B97F4A7C15ull | 1};
    size_t size;
    uint8_t *data = replay_draw(&rng, files, sizes, count, &size);
    LLVMFuzzerTestOneInput(data, size);
    test_free(data);
  }
  for (size_t i = 0; i < count; i++)
    test_free(files[i]);
  free(files);
  free(sizes);
  printf("%zu files, %ld drawn\n", count, drawn);
  return test_result();
}
#endif

#endif
