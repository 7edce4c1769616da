// Statuses in words, and the version.
#include "infc/infc.h"

const char *infc_version(void) { return INFC_VERSION; }

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
    return "artifact not usable here";
  case INFC_STATUS_BAD_SHAPE:
    return "shape does not fit";
  case INFC_STATUS_BAD_VALUE:
    return "value out of range";
  case INFC_STATUS_NOT_BOUND:
    return "tensor not bound";
  case INFC_STATUS_BUSY:
    return "context is in use";
  case INFC_STATUS_INTERNAL:
    return "internal error";
  }
  return "unknown status";
}
