// From tokens to text: what can be shown, and where a stop string ends it.
#ifndef INFC_LM_TEXT_H
#define INFC_LM_TEXT_H

#include "../internal.h"

typedef struct infc_text {
  const infc_language *language;
  const char **stops; // strings, none empty
  uint32_t stop_count;
  uint32_t kept;  // bytes of the end that may matter later: of a stop string, or of a character
  uint64_t bytes; // of all tokens so far
  uint64_t safe;  // bytes that can be shown
  char *tail;     // the last bytes: room for `kept` and for one token
  uint32_t tail_size;
  // The reader's.
  uint64_t shown;
  uint64_t before; // bytes of the tokens before `token`
  uint32_t token;  // first that is not shown as a whole
  char *piece;     // room for `kept` and one token
} infc_text;

const char *infc_token_text(const infc_language *language, int32_t token, uint32_t *size);
// Adds a token; true if a stop string appeared: the text ends before it, at `safe`.
bool infc_text_add(infc_text *text, int32_t token);
// Nothing follows: all can be shown.
void infc_text_end(infc_text *text);
// What can be shown of the tokens before `end`, of those that were not.
size_t infc_text_show(infc_text *text, const int32_t *tokens, uint32_t end);

#endif // INFC_LM_TEXT_H
