// Checks of an artifact's structure. After them, every offset, count and index of the file may be used as it stands.
#ifndef INFC_VALIDATE_H
#define INFC_VALIDATE_H

#include "internal.h"

// A file under validation: its bytes, and where to report.
typedef struct infc_file {
  const uint8_t *data;
  size_t size;
  infc_error error;
} infc_file;

// Fails with BAD_ARTIFACT, saying at which byte of the file `where` lies.
infc_status infc_bad(const infc_file *file, const void *where, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

// A section's bytes not yet taken.
typedef struct infc_span {
  const uint8_t *next;
  uint64_t left;
} infc_span;

// `count` elements from the front; NULL if the section ends before.
const void *infc_span_take(infc_span *span, uint64_t count, uint64_t element_size);
// True if `offset` is the start of a NUL-terminated string within a block whose last byte is known to be NUL.
static inline bool infc_string_ok(uint32_t offset, uint32_t strings_size) {
  return offset < strings_size;
}

// The header and the section table: bounds, alignment, overlap, kinds, and the checksums of what is always read.
infc_status infc_validate_file(const infc_file *file, const infc_section **sections, uint32_t *count);
infc_status infc_validate_io(const infc_file *file, const infc_section *section, infc_io *io);
infc_status infc_validate_state(const infc_file *file, const infc_section *section, infc_state *state);
infc_status infc_validate_generation(const infc_file *file, const infc_section *section, const infc_io *io,
                                     infc_language *language);
// `program->kernels` is allocated, on failure too. `state->header` may be NULL.
infc_status infc_validate_program(const infc_file *file, const infc_section *section, const infc_io *io,
                                  const infc_state *state, size_t weights_size, const infc_allocator *allocator,
                                  infc_program *program);
// After the programs, in the file's order.
infc_status infc_validate_watch(const infc_file *file, const infc_section *section, const infc_program *programs,
                                uint32_t program_count, infc_watch *watch);
infc_status infc_validate_tensorrt(const infc_file *file, const infc_section *section, const infc_io *io,
                                   infc_gpu_plan *plan);

#endif // INFC_VALIDATE_H
