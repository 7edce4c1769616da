// A file's bytes, in memory whose edges are guarded.
#ifndef INFC_LOAD_H
#define INFC_LOAD_H

#include "test.h"

// Ends the program if it cannot be read. Free with test_free.
static inline uint8_t *load_file(const char *path, size_t *size) {
  FILE *file = fopen(path, "rb");
  long end = file && !fseek(file, 0, SEEK_END) ? ftell(file) : -1;
  uint8_t *data = end >= 0 ? test_alloc((size_t)end) : NULL;
  if (!data || fseek(file, 0, SEEK_SET) || fread(data, 1, (size_t)end, file) != (size_t)end) {
    perror(path);
    exit(2);
  }
  fclose(file);
  *size = (size_t)end;
  return data;
}

#endif
