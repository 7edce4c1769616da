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
} tile_kind;

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

// What follows the bias, by way of memory: for activations, which are a lot of code, and for columns that end within a
// vector. It is there once for all tiles.
static __attribute__((noinline)) void epilogue_activate(const epilogue *e, int rows, float x[][TILE_COLS]) {
  const clamp limit = clamp_of(e->activation);
  for (int r = 0; r < rows; r++) {
    for (int c = 0; c < e->cols; c += LANES) {
      const int64_t n = e->cols - c < LANES ? e->cols - c : LANES;
      const infc_vec residual = e->residual ? load_cols(e->residual + r * e->ldr + c, n) : vec_zero();
      infc_vec y = vec_load(x[r] + c);
      if (e->residual && e->residual_first)
        y = y + residual;
      y = limit.cheap ? clamp_run(limit, y) : vec_activate(y, e->activation);
      if (e->residual && !e->residual_first)
        y = y + residual;
      store_cols(e->y + r * e->ldy + c, n, y);
    }
  }
}

INLINE void epilogue_residual(tile_kind k, const epilogue *e, infc_vec acc[][2]) {
#pragma GCC unroll 16
  for (int r = 0; r < k.rows; r++)
#pragma GCC unroll 2
    for (int v = 0; v < k.vectors; v++)
      acc[r][v] = acc[r][v] + vec_load(e->residual + r * e->ldr + v * LANES);
}

// One pass over the registers after the other, each there once: all orders in one pass would be as many copies of it.
INLINE void epilogue_run(tile_kind k, const epilogue *e, infc_vec acc[][2]) {
#pragma GCC unroll 2
  for (int v = 0; v < k.vectors; v++) {
    if (!e->bias)
      continue;
    const int64_t n = e->cols - v * LANES;
    const infc_vec bias = load_cols(e->bias + v * LANES, n < LANES ? n : LANES);
#pragma GCC unroll 16
    for (int r = 0; r < k.rows; r++)
      acc[r][v] = acc[r][v] + bias;
  }
  const clamp limit = clamp_of(e->activation);
  if (!limit.cheap || e->cols < k.vectors * LANES) {
    float x[TILE_ROWS][TILE_COLS] __attribute__((aligned(64)));
    store_tile(k, x, acc);
    epilogue_activate(e, k.rows, x);
    return;
  }
  if (e->residual && e->residual_first)
    epilogue_residual(k, e, acc);
  if (!limit.none) {
#pragma GCC unroll 16
    for (int r = 0; r < k.rows; r++)
#pragma GCC unroll 2
      for (int v = 0; v < k.vectors; v++)
        acc[r][v] = clamp_run(limit, acc[r][v]);
  }
  if (e->residual && !e->residual_first)
    epilogue_residual(k, e, acc);
#pragma GCC unroll 16
  for (int r = 0; r < k.rows; r++)
#pragma GCC unroll 2
    for (int v = 0; v < k.vectors; v++)
      vec_store(e->y + r * e->ldy + v * LANES, acc[r][v]);
}

#endif // INFC_X86_EPILOGUE_H
