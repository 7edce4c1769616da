// Elements of a cache from floats and back. What all kernels share: they write the same bits.
#ifndef INFC_CACHE_ELEMENTS_H
#define INFC_CACHE_ELEMENTS_H

#include <stdint.h>
#include <string.h>

#define INFC_CACHE_I8_MAX 127.0f
#define INFC_CACHE_F8_MAX 448.0f

static inline uint32_t infc_bits_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}
static inline float infc_float_of(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

// To the nearest, even if halfway; NaN stays NaN.
static inline uint16_t infc_bf16_of(float x) {
  const uint32_t bits = infc_bits_of(x), even = bits >> 16 & 1;
  return (uint16_t)(((bits & 0x7FFFFFFF) > 0x7F800000 ? bits | 0x400000 : bits + 0x7FFF + even) >> 16);
}

// Scale of a head's elements of a token, of which `most` is the greatest magnitude; `spoilt` is 0, or NaN if there is
// NaN or an infinity among them.
static inline float infc_cache_scale(float most, float spoilt, float limit) {
  const float scale = most / limit + spoilt;
  return scale < 0x1p-126f ? 1.0f : scale;
}

// x / scale held to the limit, which NaN becomes.
static inline float infc_cache_held(float x, float inverse, float limit) {
  float v = x * inverse;
  v = v < limit ? v : limit;
  return v > -limit ? v : -limit;
}

// The f8e4m3fn nearest to |x| <= 448, even if halfway.
static inline uint8_t infc_f8_of(float x) {
  const uint32_t bits = infc_bits_of(x), magnitude = bits & 0x7FFFFFFF, sign = bits >> 24 & 0x80;
  const uint32_t normal = ((magnitude + 0x7FFFF + (magnitude >> 20 & 1)) >> 20) - (120 << 3);
  // Below 2^-6 an element is a multiple of 2^-9: adding 2^14 leaves that in the lowest bits.
  const uint32_t small = infc_bits_of(infc_float_of(magnitude) + 0x1p14f) & 0xF;
  return (uint8_t)(sign | (magnitude < 0x3C800000 ? small : normal));
}

static inline float infc_f8_value(uint8_t x) {
  const uint32_t magnitude = x & 0x7F;
  const float value = magnitude < 8 ? (float)magnitude * 0x1p-9f : infc_float_of((magnitude << 20) + (120u << 23));
  return x & 0x80 ? -value : value;
}

#endif // INFC_CACHE_ELEMENTS_H
