// A winograd step's operands by name, and the transforms.
//
// F(4 x 4, 3 x 3): Y = A^T [(G g G^T) * (B^T d B)] A for tiles d of 6 x 6 pixels, products by element: 36
// multiplications for 16 results where a direct product takes 144. (Winograd 1980; Lavin and Gray, arXiv 1509.09308.)
// The points 0, a, -a, b, -b and infinity with a = 5/8 and b = 3/2 are exact in binary and lose least: an error of
// about 4 times the direct product's on random data, where the usual 1 and 2 lose 25 times as much.
#ifndef INFC_WINOGRAD_H
#define INFC_WINOGRAD_H

#include "../gemm/gemm.h"

enum {
  INFC_WINOGRAD_OUT = 4,
  INFC_WINOGRAD_IN = 6,
  INFC_WINOGRAD_POINTS = INFC_WINOGRAD_IN * INFC_WINOGRAD_IN,
  INFC_WINOGRAD_BLOCK = 640 * 1024, // bytes of transformed input a block of tiles may take
  INFC_WINOGRAD_ALIGN = 16,         // floats
};

#define INFC_WINOGRAD_A 0.625f
#define INFC_WINOGRAD_B 1.5f
#define INFC_WINOGRAD_A2 (INFC_WINOGRAD_A * INFC_WINOGRAD_A)
#define INFC_WINOGRAD_B2 (INFC_WINOGRAD_B * INFC_WINOGRAD_B)

typedef struct infc_winograd {
  const float *x, *b, *bias, *residual; // bias and residual may be NULL
  bool residual_first;
  float *y;
  int64_t ldx, ldr, ldy;
  int64_t channels, columns;
  int64_t in_h, in_w, out_h, out_w, pad_h, pad_w, tiles_h, tiles_w;
  uint32_t activation;
} infc_winograd;

static inline infc_winograd infc_winograd_view(const infc_task *t) {
  const uint32_t *words = t->words;
  const bool has_bias = words[INFC_W_WINOGRAD_HAS_BIAS], has_residual = words[INFC_W_WINOGRAD_HAS_RESIDUAL];
  const int residual = 2 + has_bias, y = residual + has_residual;
  infc_winograd g = {
      .x = t->ptr[0],
      .b = t->ptr[1],
      .bias = has_bias ? t->ptr[2] : NULL,
      .residual = has_residual ? t->ptr[residual] : NULL,
      .residual_first = words[INFC_W_WINOGRAD_HAS_RESIDUAL] == INFC_RESIDUAL_FIRST,
      .y = t->ptr[y],
      .ldx = t->operands[0].row_stride,
      .ldr = has_residual ? t->operands[residual].row_stride : 0,
      .ldy = t->operands[y].row_stride,
      .channels = t->operands[0].dims[1],
      .columns = t->operands[y].dims[1],
      .in_h = words[INFC_W_WINOGRAD_IN_H],
      .in_w = words[INFC_W_WINOGRAD_IN_W],
      .out_h = words[INFC_W_WINOGRAD_OUT_H],
      .out_w = words[INFC_W_WINOGRAD_OUT_W],
      .pad_h = (int32_t)words[INFC_W_WINOGRAD_PAD_H],
      .pad_w = (int32_t)words[INFC_W_WINOGRAD_PAD_W],
      .activation = words[INFC_W_WINOGRAD_ACTIVATION],
  };
  g.tiles_h = (g.out_h + INFC_WINOGRAD_OUT - 1) / INFC_WINOGRAD_OUT;
  g.tiles_w = (g.out_w + INFC_WINOGRAD_OUT - 1) / INFC_WINOGRAD_OUT;
  return g;
}

// Where a tile lies: its image, and its first pixel of the output.
typedef struct infc_winograd_tile {
  int64_t image, h, w;
} infc_winograd_tile;

static inline infc_winograd_tile infc_winograd_tile_of(const infc_winograd *g, int64_t row) {
  return (infc_winograd_tile){row / (g->tiles_h * g->tiles_w), row / g->tiles_w % g->tiles_h * INFC_WINOGRAD_OUT,
                              row % g->tiles_w * INFC_WINOGRAD_OUT};
}

// Pixel (i, j) of a tile's 6 x 6 of the input, or NULL outside.
static inline const float *infc_winograd_source(const infc_winograd *g, const infc_winograd_tile *t, int64_t i,
                                                int64_t j) {
  const int64_t h = t->h - g->pad_h + i, w = t->w - g->pad_w + j;
  return h < 0 || h >= g->in_h || w < 0 || w >= g->in_w ? NULL
                                                        : g->x + ((t->image * g->in_h + h) * g->in_w + w) * g->ldx;
}

// Tiles of a block, and the distance of their transformed rows, in floats.
static inline int64_t infc_winograd_stride(const infc_winograd *g) {
  return (g->channels + INFC_WINOGRAD_ALIGN - 1) / INFC_WINOGRAD_ALIGN * INFC_WINOGRAD_ALIGN;
}
static inline int64_t infc_winograd_block(const infc_winograd *g) {
  const int64_t fit = INFC_WINOGRAD_BLOCK / (int64_t)sizeof(float) / INFC_WINOGRAD_POINTS / infc_winograd_stride(g);
  return fit < 12 ? 12 : fit;
}

// One dimension of B^T d, on any type with arithmetic.
#define INFC_WINOGRAD_INPUT(T, constant, d, to)                                                                        \
  do {                                                                                                                 \
    const T a = constant(INFC_WINOGRAD_A), b = constant(INFC_WINOGRAD_B);                                              \
    const T a2 = constant(INFC_WINOGRAD_A2), b2 = constant(INFC_WINOGRAD_B2);                                          \
    const T both = constant(INFC_WINOGRAD_A2 * INFC_WINOGRAD_B2), sum = constant(INFC_WINOGRAD_A2 + INFC_WINOGRAD_B2); \
    const T even_a = (d)[4] - b2 * (d)[2], odd_a = a * ((d)[3] - b2 * (d)[1]);                                         \
    const T even_b = (d)[4] - a2 * (d)[2], odd_b = b * ((d)[3] - a2 * (d)[1]);                                         \
    (to)[0] = both * (d)[0] - sum * (d)[2] + (d)[4];                                                                   \
    (to)[1] = even_a + odd_a;                                                                                          \
    (to)[2] = even_a - odd_a;                                                                                          \
    (to)[3] = even_b + odd_b;                                                                                          \
    (to)[4] = even_b - odd_b;                                                                                          \
    (to)[5] = both * (d)[1] - sum * (d)[3] + (d)[5];                                                                   \
  } while (0)

// One dimension of A^T m.
#define INFC_WINOGRAD_OUTPUT(T, constant, m, to)                                                                       \
  do {                                                                                                                 \
    const T a = constant(INFC_WINOGRAD_A), b = constant(INFC_WINOGRAD_B);                                              \
    const T a2 = constant(INFC_WINOGRAD_A2), b2 = constant(INFC_WINOGRAD_B2);                                          \
    const T even_a = (m)[1] + (m)[2], odd_a = a * ((m)[1] - (m)[2]);                                                   \
    const T even_b = (m)[3] + (m)[4], odd_b = b * ((m)[3] - (m)[4]);                                                   \
    (to)[0] = (m)[0] + even_a + even_b;                                                                                \
    (to)[1] = odd_a + odd_b;                                                                                           \
    (to)[2] = a2 * even_a + b2 * even_b;                                                                               \
    (to)[3] = a2 * odd_a + b2 * odd_b + (m)[5];                                                                        \
  } while (0)

#endif // INFC_WINOGRAD_H
