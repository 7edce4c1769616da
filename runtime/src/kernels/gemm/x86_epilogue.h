// What follows a tile's product on its way to memory: bias, activation, residual.
#ifndef INFC_X86_EPILOGUE_H
#define INFC_X86_EPILOGUE_H

#include "x86_tile.h"

#include <string.h>

typedef struct epilogue {
  const float *bias;     // of the first column, or NULL
  const float *residual; // at the first element, or NULL
  float *y;
  int64_t ldr, ldy;
  uint32_t activation;
} epilogue;

INLINE void store_tile(const int rows, float to[][TILE_COLS], infc_vec acc[][2]) {
#pragma GCC unroll 16
  for (int r = 0; r < rows; r++) {
    vec_store(to[r], acc[r][0]);
    vec_store(to[r] + LANES, acc[r][1]);
  }
}

// The output's lines, before the product: its stores would wait for them.
INLINE void epilogue_fetch(const int rows, const epilogue *e) {
#pragma GCC unroll 16
  for (int r = 0; r < rows; r++)
    for (int c = 0; c < TILE_COLS * 4; c += CACHE_LINE)
      __builtin_prefetch((char *)(e->y + r * e->ldy) + c, 1);
}

// By way of memory, so that the activations, a lot of code, are there once and in a loop.
static void epilogue_activate(const epilogue *e, int rows, float x[][TILE_COLS]) {
  for (int r = 0; r < rows; r++) {
    for (int c = 0; c < TILE_COLS; c += LANES) {
      infc_vec v = vec_activate(vec_load(x[r] + c), e->activation);
      if (e->residual)
        v = v + vec_load(e->residual + r * e->ldr + c);
      vec_store(e->y + r * e->ldy + c, v);
    }
  }
}

INLINE void epilogue_run(const int rows, const epilogue *e, infc_vec acc[][2]) {
  if (e->bias) {
    const infc_vec bias0 = vec_load(e->bias), bias1 = vec_load(e->bias + LANES);
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) {
      acc[r][0] = acc[r][0] + bias0;
      acc[r][1] = acc[r][1] + bias1;
    }
  }
  if (e->activation == INFC_UNARY_IDENTITY) {
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) {
      if (e->residual) {
        acc[r][0] = acc[r][0] + vec_load(e->residual + r * e->ldr);
        acc[r][1] = acc[r][1] + vec_load(e->residual + r * e->ldr + LANES);
      }
      vec_store(e->y + r * e->ldy, acc[r][0]);
      vec_store(e->y + r * e->ldy + LANES, acc[r][1]);
    }
    return;
  }
  float x[TILE_ROWS][TILE_COLS] __attribute__((aligned(64)));
  store_tile(rows, x, acc);
  epilogue_activate(e, rows, x);
}

// A tile of which only some columns exist is computed aside and copied.
typedef struct aside {
  float bias[TILE_COLS], residual[TILE_ROWS][TILE_COLS], y[TILE_ROWS][TILE_COLS];
} aside;

static epilogue aside_begin(aside *a, const epilogue *e, int64_t rows, int64_t cols) {
  const size_t bytes = (size_t)cols * sizeof(float);
  memset(a, 0, sizeof *a);
  if (e->bias)
    memcpy(a->bias, e->bias, bytes);
  for (int64_t r = 0; e->residual && r < rows; r++)
    memcpy(a->residual[r], e->residual + r * e->ldr, bytes);
  return (epilogue){a->bias, a->residual[0], a->y[0], TILE_COLS, TILE_COLS, e->activation};
}

static void aside_end(const aside *a, const epilogue *e, int64_t rows, int64_t cols) {
  for (int64_t r = 0; r < rows; r++)
    memcpy(e->y + r * e->ldy, a->y[r], (size_t)cols * sizeof(float));
}

#endif // INFC_X86_EPILOGUE_H
