// Statuses in words, option structs, and the version.
#include "internal.h"

#include <string.h>

const char *infc_version(void) {
  return INFC_VERSION;
}

const char *infc_status_string(infc_status status) {
  switch (status) {
  case INFC_STATUS_OK:
    return "ok";
  case INFC_STATUS_INVALID_ARGUMENT:
    return "invalid argument";
  case INFC_STATUS_OUT_OF_MEMORY:
    return "out of memory";
  case INFC_STATUS_IO:
    return "file cannot be read";
  case INFC_STATUS_BAD_ARTIFACT:
    return "not a valid artifact";
  case INFC_STATUS_INCOMPATIBLE:
    return "artifact cannot run here";
  case INFC_STATUS_BAD_SHAPE:
    return "shape does not fit";
  case INFC_STATUS_BAD_VALUE:
    return "value out of range";
  case INFC_STATUS_NOT_BOUND:
    return "tensor not bound";
  case INFC_STATUS_BUSY:
    return "context is in use";
  case INFC_STATUS_DEVICE:
    return "the GPU failed";
  case INFC_STATUS_CACHE_FULL:
    return "the cache is full";
  case INFC_STATUS_INTERNAL:
    return "internal error";
  }
  return "unknown status";
}

infc_status infc_options_copy(void *ours, size_t our_size, const void *theirs, infc_error error) {
  memset(ours, 0, our_size);
  if (!theirs)
    return INFC_STATUS_OK;
  size_t size;
  memcpy(&size, theirs, sizeof size);
  if (size < sizeof size)
    return infc_fail(error, INFC_STATUS_INVALID_ARGUMENT, "the options' struct_size is not set");
  for (size_t i = our_size; i < size; i++)
    if (((const uint8_t *)theirs)[i])
      return infc_fail(error, INFC_STATUS_INVALID_ARGUMENT,
                       "the options hold a field this version of infc does not know");
  memcpy(ours, theirs, size < our_size ? size : our_size);
  return INFC_STATUS_OK;
}

bool infc_result_copy(void *theirs, const void *ours, size_t our_size) {
  size_t size;
  memcpy(&size, theirs, sizeof size);
  if (size < sizeof size)
    return false;
  size_t copied = size < our_size ? size : our_size;
  memcpy((uint8_t *)theirs + sizeof size, (const uint8_t *)ours + sizeof size, copied - sizeof size);
  return true;
}
