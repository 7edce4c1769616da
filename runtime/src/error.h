// One line of text about a failure.
#ifndef INFC_ERROR_H
#define INFC_ERROR_H

#include "infc/infc.h"

// A caller's buffer for one line of text; text may be NULL.
typedef struct infc_error {
  char *text;
  size_t size;
} infc_error;

// Writes the line and returns the status, so that a failure is one `return`.
infc_status infc_fail(infc_error error, infc_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

// Replaces control characters: names and commands in messages come from files, and messages go to terminals.
void infc_one_line(char *text);

#endif // INFC_ERROR_H
