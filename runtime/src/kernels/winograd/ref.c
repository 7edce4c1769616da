// winograd: a 3 x 3 convolution by transforms. The scalar reference and what all its kernels rely on.
#include "winograd.h"

// Pixels of the images that `rows` tiles make up, for sizes of one image; -1 if that is no whole number of images.
static int64_t pixels_of(int64_t rows, int64_t tiles, int64_t h, int64_t w) {
  int64_t pixels;
  return rows % tiles || __builtin_mul_overflow(rows / tiles, h * w, &pixels) ? -1 : pixels;
}

static bool holds_pixels(const infc_operand *operand, int64_t pixels, int64_t channels) {
  return operand->dtype == INFC_DTYPE_F32 && operand->packing == INFC_PACK_ROW_MAJOR && operand->rank == 2 &&
         operand->rows_symbol < 0 && operand->dims[0] == pixels && operand->dims[1] == channels &&
         operand->row_stride >= channels;
}

bool infc_winograd_validate(const infc_task *task, uint32_t symbol_count) {
  (void)symbol_count;
  const infc_step *step = task->step;
  const uint32_t *words = task->words;
  if (step->word_count != INFC_WORDS_WINOGRAD || step->rows_symbol >= 0)
    return false;
  const uint32_t has_bias = words[INFC_W_WINOGRAD_HAS_BIAS], residual = words[INFC_W_WINOGRAD_HAS_RESIDUAL];
  const bool has_residual = residual;
  if (has_bias > 1 || residual > INFC_RESIDUAL_FIRST ||
      !infc_step_has(step, 2 + has_bias + has_residual, 1, INFC_WORDS_WINOGRAD))
    return false;
  for (int i = INFC_W_WINOGRAD_IN_H; i <= INFC_W_WINOGRAD_OUT_W; i++)
    if (words[i] < 1 || words[i] > INT32_MAX)
      return false;
  const infc_winograd g = infc_winograd_view(task);
  const infc_operand *b = &task->operands[1], *y = &task->operands[2 + has_bias + has_residual];
  const int64_t tiles = g.tiles_h * g.tiles_w; // below 2^58
  const int64_t in = pixels_of(step->rows, tiles, g.in_h, g.in_w);
  const int64_t out = pixels_of(step->rows, tiles, g.out_h, g.out_w);
  return in > 0 && out > 0 && infc_activation_supported(g.activation) &&
         holds_pixels(&task->operands[0], in, g.channels) && holds_pixels(y, out, g.columns) &&
         b->dtype == INFC_DTYPE_F32 && b->packing == INFC_PACK_F32_K1N32 && b->rank == 2 && b->rows_symbol < 0 &&
         b->dims[0] == INFC_WINOGRAD_POINTS * g.channels && b->dims[1] == g.columns &&
         step->cols == infc_gemm_panels(g.columns) && (!has_bias || infc_is_vector(&task->operands[2], g.columns)) &&
         (!has_residual || holds_pixels(&task->operands[2 + has_bias], out, g.columns));
}

// Channels are at most INT32_MAX, tiles of a block few where channels are many.
size_t infc_winograd_scratch(const infc_task *task) {
  const infc_winograd g = infc_winograd_view(task);
  const int64_t each = INFC_WINOGRAD_POINTS * infc_winograd_block(&g);
  return (size_t)(each * (infc_winograd_stride(&g) + INFC_PANEL)) * sizeof(float);
}

#define SAME(x) ((double)(x))

// The 36 products of one tile and column, then its 16 results.
static void tile_ref(const infc_winograd *g, const infc_winograd_tile *t, const float *b, double y[4][4]) {
  double products[6][6] = {{0}};
  for (int64_t c = 0; c < g->channels; c++) {
    double half[6][6], transformed[6];
    for (int j = 0; j < 6; j++) {
      double d[6], to[6];
      for (int i = 0; i < 6; i++) {
        const float *x = infc_winograd_source(g, t, i, j);
        d[i] = x ? (double)x[c] : 0.0;
      }
      INFC_WINOGRAD_INPUT(double, SAME, d, to);
      for (int i = 0; i < 6; i++)
        half[i][j] = to[i];
    }
    for (int i = 0; i < 6; i++) {
      INFC_WINOGRAD_INPUT(double, SAME, half[i], transformed);
      for (int j = 0; j < 6; j++)
        products[i][j] += transformed[j] * (double)b[((i * 6 + j) * g->channels + c) * INFC_PANEL];
    }
  }
  double half[4][6];
  for (int j = 0; j < 6; j++) {
    double m[6], to[4];
    for (int i = 0; i < 6; i++)
      m[i] = products[i][j];
    INFC_WINOGRAD_OUTPUT(double, SAME, m, to);
    for (int i = 0; i < 4; i++)
      half[i][j] = to[i];
  }
  for (int i = 0; i < 4; i++)
    INFC_WINOGRAD_OUTPUT(double, SAME, half[i], y[i]);
}

infc_fault infc_winograd_f32__scalar(const infc_task *task, const infc_range *range, infc_worker *worker) {
  (void)worker;
  const infc_winograd g = infc_winograd_view(task);
  for (int64_t row = range->row0; row < range->row1; row++) {
    const infc_winograd_tile t = infc_winograd_tile_of(&g, row);
    for (int64_t n = range->col0 * INFC_PANEL; n < range->col1 * INFC_PANEL && n < g.columns; n++) {
      double y[4][4];
      tile_ref(&g, &t, g.b + (n / INFC_PANEL * INFC_WINOGRAD_POINTS * g.channels) * INFC_PANEL + n % INFC_PANEL, y);
      for (int64_t i = 0; i < 4 && t.h + i < g.out_h; i++)
        for (int64_t j = 0; j < 4 && t.w + j < g.out_w; j++) {
          const int64_t pixel = (t.image * g.out_h + t.h + i) * g.out_w + t.w + j;
          const float *residual = g.residual ? &g.residual[pixel * g.ldr + n] : NULL;
          const float sum = (float)(y[i][j] + (g.bias ? (double)g.bias[n] : 0.0));
          g.y[pixel * g.ldy + n] = infc_gemm_finish_ref(sum, residual, g.residual_first, g.activation);
        }
    }
  }
  return INFC_FAULT_NONE;
}
