// What follows a tile's product on its way to memory: bias, activation, residual.
#ifndef INFC_X86_EPILOGUE_H
#define INFC_X86_EPILOGUE_H

#include "x86_clamp.h"
#include "x86_tile.h"

typedef struct epilogue {
  const float *bias;     // of the first column, or NULL
  const float *residual; // at the first element, or NULL
  float *y;
  int64_t ldr, ldy;
  uint32_t activation;
  bool residual_first; // added before the activation
  int64_t cols;        // from 1 to TILE_COLS
} epilogue;

// What a tile is compiled for: `vectors` of columns, the last of which may exist in part.
typedef struct tile_kind {
  int rows, vectors;
  bool whole;
} tile_kind;

// Columns of vector v.
INLINE int64_t cols_of(tile_kind k, const epilogue *e, int v) {
  return k.whole || v + 1 < k.vectors ? LANES : e->cols - v * LANES;
}
INLINE infc_vec load_cols(const float *from, int64_t n) {
  return n == LANES ? vec_load(from) : vec_load_first(from, n, vec_zero());
}
INLINE void store_cols(float *to, int64_t n, infc_vec x) {
  if (n == LANES)
    vec_store(to, x);
  else
    vec_store_first(to, n, x);
}

INLINE void store_tile(tile_kind k, float to[][TILE_COLS], infc_vec acc[][2]) {
#pragma GCC unroll 16
  for (int r = 0; r < k.rows; r++)
#pragma GCC unroll 2
    for (int v = 0; v < k.vectors; v++)
      vec_store(to[r] + v * LANES, acc[r][v]);
}

// The output's lines, before the product: its stores would wait for them.
INLINE void epilogue_fetch(tile_kind k, const epilogue *e) {
#pragma GCC unroll 16
  for (int r = 0; r < k.rows; r++)
    for (int c = 0; c < k.vectors * LANES * 4; c += CACHE_LINE)
      __builtin_prefetch((char *)(e->y + r * e->ldy) + c, 1);
}

// By way of memory, so that the activations, a lot of code, are there once and in a loop.
static __attribute__((noinline)) void epilogue_activate(const epilogue *e, int rows, float x[][TILE_COLS]) {
  for (int r = 0; r < rows; r++) {
    for (int c = 0; c < e->cols; c += LANES) {
      const int64_t n = e->cols - c < LANES ? e->cols - c : LANES;
      const infc_vec residual = e->residual ? load_cols(e->residual + r * e->ldr + c, n) : vec_zero();
      infc_vec y = vec_load(x[r] + c);
      if (e->residual && e->residual_first)
        y = y + residual;
      y = vec_activate(y, e->activation);
      if (e->residual && !e->residual_first)
        y = y + residual;
      store_cols(e->y + r * e->ldy + c, n, y);
    }
  }
}

INLINE void epilogue_run(tile_kind k, const epilogue *e, infc_vec acc[][2]) {
#pragma GCC unroll 2
  for (int v = 0; v < k.vectors; v++) {
    if (!e->bias)
      continue;
    const infc_vec bias = load_cols(e->bias + v * LANES, cols_of(k, e, v));
#pragma GCC unroll 16
    for (int r = 0; r < k.rows; r++)
      acc[r][v] = acc[r][v] + bias;
  }
  const clamp c = clamp_of(e->activation);
  if (!c.cheap) {
    float x[TILE_ROWS][TILE_COLS] __attribute__((aligned(64)));
    store_tile(k, x, acc);
    epilogue_activate(e, k.rows, x);
    return;
  }
#pragma GCC unroll 16
  for (int r = 0; r < k.rows; r++)
#pragma GCC unroll 2
    for (int v = 0; v < k.vectors; v++) {
      const int64_t n = cols_of(k, e, v);
      infc_vec y = acc[r][v];
      if (e->residual && e->residual_first)
        y = y + load_cols(e->residual + r * e->ldr + v * LANES, n);
      y = clamp_run(c, y);
      if (e->residual && !e->residual_first)
        y = y + load_cols(e->residual + r * e->ldr + v * LANES, n);
      store_cols(e->y + r * e->ldy + v * LANES, n, y);
    }
}

// Which of the three kinds of tile serves `cols` columns.
enum { TILE_WHOLE, TILE_TWO, TILE_ONE, TILE_KINDS };
INLINE int kind_for(int64_t cols) {
  return cols >= TILE_COLS ? TILE_WHOLE : cols > LANES ? TILE_TWO : TILE_ONE;
}

#endif // INFC_X86_EPILOGUE_H
