// The header and the section table.
#include "validate.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { MAX_SECTIONS = 1024 };

static const uint8_t magic[8] = {'I', 'N', 'F', 'C', '\r', '\n', 0x1A, '\n'};

infc_status infc_bad(const infc_file *file, const void *where, const char *format, ...) {
  char text[192];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return infc_fail(file->error, INFC_STATUS_BAD_ARTIFACT, "byte %zu: %s", (size_t)((const uint8_t *)where - file->data),
                   text);
}

const void *infc_span_take(infc_span *span, uint64_t count, uint64_t element_size) {
  uint64_t bytes;
  if (__builtin_mul_overflow(count, element_size, &bytes) || bytes > span->left)
    return NULL;
  const uint8_t *taken = span->next;
  span->next += bytes;
  span->left -= bytes;
  return taken;
}

static infc_status check_header(const infc_file *file) {
  if (file->size < sizeof(infc_header))
    return infc_bad(file, file->data, "the file has %zu bytes, too few for a header", file->size);
  infc_header header;
  memcpy(&header, file->data, sizeof header);
  const infc_header *at = (const infc_header *)file->data;
  if (memcmp(header.magic, magic, sizeof magic))
    return infc_bad(file, at->magic, "this is not an infc artifact");
  uint32_t crc = header.header_crc32;
  header.header_crc32 = 0;
  if (infc_crc32(&header, sizeof header) != crc)
    return infc_bad(file, &at->header_crc32, "the header's checksum does not match");
  if (header.version_major != INFC_VERSION_MAJOR)
    return infc_fail(file->error, INFC_STATUS_INCOMPATIBLE, "the artifact has format %u.%u, this library reads %d.x",
                     header.version_major, header.version_minor, INFC_VERSION_MAJOR);
  if (header.required_features)
    return infc_fail(file->error, INFC_STATUS_INCOMPATIBLE, "the artifact requires features 0x%llx of a newer library",
                     (unsigned long long)header.required_features);
  if (header.header_size != sizeof header)
    return infc_bad(file, &at->header_size, "the header size is %u, not %zu", header.header_size, sizeof header);
  if (header.file_size != file->size)
    return infc_bad(file, &at->file_size, "the file has %zu bytes, its header says %llu: it is truncated or has grown",
                    file->size, (unsigned long long)header.file_size);
  return INFC_STATUS_OK;
}

// True if [a, a + a_size) and [b, b + b_size) share a byte; no sum overflows.
static bool overlap(uint64_t a, uint64_t a_size, uint64_t b, uint64_t b_size) {
  return a_size && b_size && a < b + b_size && b < a + a_size;
}

static bool runs_here(uint32_t kind) {
  switch (kind) {
  case INFC_SECTION_META:
  case INFC_SECTION_IO:
  case INFC_SECTION_STATE:
  case INFC_SECTION_PROGRAM:
  case INFC_SECTION_WEIGHTS:
  case INFC_SECTION_TOKENIZER:
  case INFC_SECTION_GOLDEN:
  case INFC_SECTION_REPORT:
  case INFC_SECTION_TENSORRT:
  case INFC_SECTION_GENERATION:
    return true;
  }
  return false;
}

static infc_status check_section(const infc_file *file, const infc_section *section) {
  uint64_t align = section->kind == INFC_SECTION_WEIGHTS ? INFC_WEIGHTS_ALIGN : INFC_SECTION_ALIGN;
  if (section->offset % align)
    return infc_bad(file, &section->offset, "a section starts at %llu, not a multiple of %llu",
                    (unsigned long long)section->offset, (unsigned long long)align);
  if (section->offset > file->size || section->size > file->size - section->offset)
    return infc_bad(file, &section->offset, "a section of %llu bytes at %llu does not fit in the file",
                    (unsigned long long)section->size, (unsigned long long)section->offset);
  if (section->flags & ~(uint32_t)INFC_SECTION_REQUIRED)
    return infc_bad(file, &section->flags, "unknown section flags 0x%x", section->flags);
  if ((section->flags & INFC_SECTION_REQUIRED) && !runs_here(section->kind))
    return infc_fail(file->error, INFC_STATUS_INCOMPATIBLE,
                     "byte %zu: the artifact needs section kind %u, which this library lacks",
                     (size_t)((const uint8_t *)section - file->data), section->kind);
  bool always_read = section->kind == INFC_SECTION_META || section->kind == INFC_SECTION_IO ||
                     section->kind == INFC_SECTION_STATE || section->kind == INFC_SECTION_PROGRAM ||
                     section->kind == INFC_SECTION_GENERATION;
  if (always_read && infc_crc32(file->data + section->offset, section->size) != section->crc32)
    return infc_bad(file, &section->crc32, "the checksum of section kind %u does not match", section->kind);
  return INFC_STATUS_OK;
}

infc_status infc_validate_file(const infc_file *file, const infc_section **sections, uint32_t *count) {
  infc_status status = check_header(file);
  if (status)
    return status;
  const infc_header *header = (const infc_header *)file->data;
  uint64_t table = header->section_table_offset, table_size = (uint64_t)header->section_count * sizeof(infc_section);
  if (header->section_count > MAX_SECTIONS)
    return infc_bad(file, &header->section_count, "%u sections are too many", header->section_count);
  if (table % 8 || table < sizeof *header || table > file->size || table_size > file->size - table)
    return infc_bad(file, &header->section_table_offset, "the section table lies outside the file");
  const infc_section *entries = (const infc_section *)(file->data + table);
  if (infc_crc32(entries, table_size) != header->table_crc32)
    return infc_bad(file, &header->table_crc32, "the section table's checksum does not match");
  for (uint32_t i = 0; i < header->section_count; i++) {
    const infc_section *s = &entries[i];
    if ((status = check_section(file, s)))
      return status;
    if (overlap(s->offset, s->size, 0, sizeof *header) || overlap(s->offset, s->size, table, table_size))
      return infc_bad(file, s, "section %u overlaps the header or the section table", i);
    for (uint32_t j = 0; j < i; j++) {
      if (overlap(s->offset, s->size, entries[j].offset, entries[j].size))
        return infc_bad(file, s, "sections %u and %u overlap", j, i);
      if (s->kind == entries[j].kind && s->ordinal == entries[j].ordinal)
        return infc_bad(file, s, "sections %u and %u are both kind %u, ordinal %u", j, i, s->kind, s->ordinal);
    }
  }
  *sections = entries;
  *count = header->section_count;
  return INFC_STATUS_OK;
}
