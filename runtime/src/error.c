#include "error.h"

#include <stdarg.h>
#include <stdio.h>

void infc_one_line(char *text) {
  for (; *text; text++)
    if ((unsigned char)*text < ' ' || *text == 0x7F)
      *text = '?';
}

infc_status infc_fail(infc_error error, infc_status status, const char *format, ...) {
  if (error.text && error.size) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error.text, error.size, format, arguments);
    va_end(arguments);
    infc_one_line(error.text);
  }
  return status;
}
