#include "text.h"

const char *infc_token_text(const infc_language *language, int32_t token, uint32_t *size) {
  *size = 0;
  if (token < 0 || (uint32_t)token >= language->header->vocabulary || language->flags[token] & INFC_TOKEN_SPECIAL)
    return "";
  *size = language->offsets[token + 1] - language->offsets[token];
  return (const char *)language->bytes + language->offsets[token];
}

// Bytes at the end that may be the beginning of a stop string.
static uint32_t begun_stop(const infc_text *text) {
  uint32_t longest = 0;
  for (uint32_t s = 0; s < text->stop_count; s++) {
    const uint32_t size = (uint32_t)strlen(text->stops[s]);
    for (uint32_t n = size - 1 < text->tail_size ? size - 1 : text->tail_size; n > longest; n--)
      if (!memcmp(text->tail + text->tail_size - n, text->stops[s], n)) {
        longest = n;
        break;
      }
  }
  return longest;
}

// Bytes at the end that are a character's first ones.
static uint32_t begun_character(const char *bytes, size_t size) {
  for (uint32_t n = 1; n <= 3 && n <= size; n++) {
    const uint8_t byte = (uint8_t)bytes[size - n];
    if (byte >= 0xC0)
      return n < (byte >= 0xF0 ? 4u : byte >= 0xE0 ? 3u : 2u) ? n : 0;
    if (byte < 0x80)
      return 0;
  }
  return 0;
}

// The first stop string within the tail, as bytes from its start, or UINT32_MAX.
static uint32_t find_stop(const infc_text *text) {
  uint32_t first = UINT32_MAX;
  for (uint32_t s = 0; s < text->stop_count; s++) {
    const char *at = memmem(text->tail, text->tail_size, text->stops[s], strlen(text->stops[s]));
    if (at && (uint32_t)(at - text->tail) < first)
      first = (uint32_t)(at - text->tail);
  }
  return first;
}

bool infc_text_add(infc_text *text, int32_t token) {
  uint32_t size;
  const char *bytes = infc_token_text(text->language, token, &size);
  if (text->tail_size > text->kept) {
    memmove(text->tail, text->tail + text->tail_size - text->kept, text->kept);
    text->tail_size = text->kept;
  }
  memcpy(text->tail + text->tail_size, bytes, size);
  text->tail_size += size;
  text->bytes += size;
  const uint32_t found = find_stop(text);
  if (found != UINT32_MAX) {
    text->bytes = text->safe = text->bytes - text->tail_size + found;
    return true;
  }
  const uint32_t stop = begun_stop(text), character = begun_character(text->tail, text->tail_size);
  text->safe = text->bytes - (stop > character ? stop : character);
  return false;
}

void infc_text_end(infc_text *text) {
  text->safe = text->bytes;
}

size_t infc_text_show(infc_text *text, const int32_t *tokens, uint32_t end) {
  size_t used = 0;
  while (text->token < end) {
    uint32_t size;
    const char *bytes = infc_token_text(text->language, tokens[text->token], &size);
    const uint64_t limit = text->before + size < text->safe ? text->before + size : text->safe;
    if (text->shown < limit) {
      memcpy(text->piece + used, bytes + (text->shown - text->before), limit - text->shown);
      used += limit - text->shown;
      text->shown = limit;
    }
    if (text->before + size > text->safe)
      break;
    text->before += size;
    text->token++;
  }
  if (text->shown == text->safe)
    return used;
  // More is known than is asked for: a character that is only begun waits for the tokens that follow.
  const uint32_t begun = begun_character(text->piece, used);
  text->shown -= begun;
  while (text->before > text->shown) {
    uint32_t size;
    infc_token_text(text->language, tokens[--text->token], &size);
    text->before -= size;
  }
  return used - begun;
}
