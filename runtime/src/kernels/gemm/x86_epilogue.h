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
  bool residual_first; // added before the activation
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

// One vector: what identity and relu need is done in registers.
INLINE infc_vec epilogue_step(const epilogue *e, bool relu, infc_vec x, infc_vec bias, const float *residual) {
  x = x + bias;
  if (residual && e->residual_first)
    x = x + vec_load(residual);
  if (relu)
    x = INFC_VEC_NAME(relu)(x);
  if (residual && !e->residual_first)
    x = x + vec_load(residual);
  return x;
}

// By way of memory, so that the activations, a lot of code, are there once and in a loop.
static void epilogue_activate(const epilogue *e, int rows, float x[][TILE_COLS]) {
  for (int r = 0; r < rows; r++) {
    for (int c = 0; c < TILE_COLS; c += LANES) {
      const float *residual = e->residual ? e->residual + r * e->ldr + c : NULL;
      infc_vec v = vec_load(x[r] + c);
      if (residual && e->residual_first)
        v = v + vec_load(residual);
      v = vec_activate(v, e->activation);
      if (residual && !e->residual_first)
        v = v + vec_load(residual);
      vec_store(e->y + r * e->ldy + c, v);
    }
  }
}

INLINE void epilogue_run(const int rows, const epilogue *e, infc_vec acc[][2]) {
  const infc_vec bias0 = e->bias ? vec_load(e->bias) : vec_zero(),
                 bias1 = e->bias ? vec_load(e->bias + LANES) : vec_zero();
  if (e->activation == INFC_UNARY_IDENTITY || e->activation == INFC_UNARY_RELU) {
    const bool relu = e->activation == INFC_UNARY_RELU;
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) {
      const float *residual = e->residual ? e->residual + r * e->ldr : NULL;
      vec_store(e->y + r * e->ldy, epilogue_step(e, relu, acc[r][0], bias0, residual));
      vec_store(e->y + r * e->ldy + LANES,
                epilogue_step(e, relu, acc[r][1], bias1, residual ? residual + LANES : NULL));
    }
    return;
  }
#pragma GCC unroll 16
  for (int r = 0; r < rows; r++) {
    acc[r][0] = acc[r][0] + bias0;
    acc[r][1] = acc[r][1] + bias1;
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
  return (epilogue){a->bias, a->residual[0], a->y[0], TILE_COLS, TILE_COLS, e->activation, e->residual_first};
}

static void aside_end(const aside *a, const epilogue *e, int64_t rows, int64_t cols) {
  for (int64_t r = 0; r < rows; r++)
    memcpy(e->y + r * e->ldy, a->y[r], (size_t)cols * sizeof(float));
}

#endif // INFC_X86_EPILOGUE_H
