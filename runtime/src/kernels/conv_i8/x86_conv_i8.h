// conv_i8, written once for all ways of dot products (../gemm_i8/x86_dot.h). Blocks, pointers and panels are those of
// conv (../conv/x86_conv.h, which says why), a line of INFC_I8_DEPTH rows of b taking the place of a row.
#include "conv_i8.h"
#include "x86_requantise.h"

// One tile: `rows` holds its pixels' pointers of the first tap, those of the next follow `row_step` further on.
typedef struct conv_i8_tile {
  const infc_conv_i8 *c;
  const uint8_t *const *rows;
  int64_t row_step, taps, first_channel;
  int64_t lines, rest; // of a tap: whole ones, and bytes beyond them
  const int8_t *b;
  int64_t row, column, cols; // the first of the output
  prefetch ahead;
} conv_i8_tile;

INLINE void dot_line(tile_kind kind, ivec acc[][2], const uint8_t *const a[], int64_t at, size_t bytes,
                     const int8_t *b) {
  factor w[2];
#pragma GCC unroll 2
  for (int v = 0; v < kind.vectors; v++)
    w[v] = factor_signed(ivec_load(b + v * LANES * INFC_I8_DEPTH));
#pragma GCC unroll 16
  for (int r = 0; r < kind.rows; r++) {
    const factor x = row_factor(a[r] + at, bytes);
#pragma GCC unroll 2
    for (int v = 0; v < kind.vectors; v++)
      acc[r][v] = dot(acc[r][v], x, w[v]);
  }
}

INLINE int64_t tile_cols(tile_kind kind, const conv_i8_tile *t, int v) {
  return v + 1 < kind.vectors || t->cols == kind.vectors * LANES ? LANES : t->cols - v * LANES;
}

// Vector v of the columns of a row.
INLINE void finish_vector(const conv_i8_tile *t, int64_t row, int64_t column, int64_t n, ivec sum, infc_vec scale,
                          infc_vec bias) {
  const infc_conv_i8 *c = t->c;
  infc_vec y = vec_fma(IVEC(cvtepi32_ps)(sum), scale, bias);
  if (c->residual_q)
    y = vec_fma(floats_of_bytes(c->residual_q + row * c->ldr + column, n), vec_set(c->residual_scale), y);
  else if (c->residual)
    y = vec_fma(load_cols(c->residual + row * c->ldr + column, n), vec_set(c->residual_scale), y);
  if (c->out.activation != INFC_UNARY_IDENTITY)
    y = requantise_activate(&c->out, y);
  y = vec_clamp(y, vec_set(c->out.low), vec_set(c->out.high));
  if (c->out.quantised)
    store_bytes(c->yq + row * c->ldy + column, n, IVEC(cvtps_epi32)(y));
  else
    store_cols(c->y + row * c->ldy + column, n, y);
}

// The usual case in registers: bytes, of nothing but the sums.
INLINE void finish_plain(tile_kind kind, const conv_i8_tile *t, ivec acc[][2], const infc_vec *scale,
                         const infc_vec *bias) {
  const infc_conv_i8 *c = t->c;
  const infc_vec low = vec_set(c->out.low), high = vec_set(c->out.high);
  uint8_t *y = c->yq + t->row * c->ldy + t->column;
#pragma GCC unroll 16
  for (int r = 0; r < kind.rows; r++)
#pragma GCC unroll 2
    for (int v = 0; v < kind.vectors; v++) {
      const infc_vec x = vec_clamp(vec_fma(IVEC(cvtepi32_ps)(acc[r][v]), scale[v], bias[v]), low, high);
      store_bytes(y + r * c->ldy + v * LANES, tile_cols(kind, t, v), IVEC(cvtps_epi32)(x));
    }
}

static __attribute__((noinline)) void finish_any(const conv_i8_tile *t, int rows, int32_t sums[][TILE_COLS]) {
  const infc_conv_i8 *c = t->c;
  for (int64_t at = 0; at < t->cols; at += LANES) {
    const int64_t n = t->cols - at < LANES ? t->cols - at : LANES, column = t->column + at;
    const infc_vec scale = load_cols(c->scales + column, n), bias = load_cols(c->bias + column, n);
    for (int r = 0; r < rows; r++)
      finish_vector(t, t->row + r, column, n, ivec_load(sums[r] + at), scale, bias);
  }
}

INLINE void conv_i8_tile_run(tile_kind kind, const conv_i8_tile *t) {
  const infc_conv_i8 *c = t->c;
  ivec acc[DOT_ROWS][2];
  infc_vec scale[2], bias[2];
#pragma GCC unroll 2
  for (int v = 0; v < kind.vectors; v++) {
    const int64_t column = t->column + v * LANES, n = tile_cols(kind, t, v);
    const ivec offset = ivec_of_bits(load_cols((const float *)(const void *)(c->offsets + column), n));
#pragma GCC unroll 16
    for (int r = 0; r < kind.rows; r++)
      acc[r][v] = offset;
  }
  const int8_t *b = t->b;
  const uint8_t *const *pointers = t->rows;
  prefetch ahead = t->ahead;
  for (int64_t tap = 0; tap < t->taps; tap++, pointers += t->row_step) {
    const uint8_t *a[DOT_ROWS];
#pragma GCC unroll 16
    for (int r = 0; r < kind.rows; r++)
      a[r] = pointers[r] + t->first_channel;
    int64_t at = 0;
    for (int64_t i = 0; i < t->lines; i++, at += INFC_I8_DEPTH, b += INFC_I8_LINE) {
      if (i % PREFETCH_STEP == 0)
        for (int64_t n = 0; n < ahead.lines; n++, ahead.address += CACHE_LINE)
          _mm_prefetch((const char *)ahead.address, _MM_HINT_T0);
      dot_line(kind, acc, a, at, INFC_I8_DEPTH, b);
    }
    if (t->rest)
      dot_line(kind, acc, a, at, (size_t)t->rest, b);
  }
  if (c->out.quantised && c->out.activation == INFC_UNARY_IDENTITY && !c->residual && !c->residual_q) {
#pragma GCC unroll 2
    for (int v = 0; v < kind.vectors; v++) {
      const int64_t column = t->column + v * LANES, n = tile_cols(kind, t, v);
      scale[v] = load_cols(c->scales + column, n);
      bias[v] = load_cols(c->bias + column, n);
    }
    finish_plain(kind, t, acc, scale, bias);
    return;
  }
  int32_t sums[DOT_ROWS][TILE_COLS] __attribute__((aligned(64)));
#pragma GCC unroll 16
  for (int r = 0; r < kind.rows; r++)
#pragma GCC unroll 2
    for (int v = 0; v < kind.vectors; v++)
      ivec_store(sums[r] + v * LANES, acc[r][v]);
  finish_any(t, kind.rows, sums);
}

#define DEFINE_TILE(rows)                                                                                              \
  static void conv_i8_tile_##rows(const conv_i8_tile *t) {                                                             \
    conv_i8_tile_run((tile_kind){rows, 2}, t);                                                                         \
  }                                                                                                                    \
  static void conv_i8_one_##rows(const conv_i8_tile *t) {                                                              \
    conv_i8_tile_run((tile_kind){rows, 1}, t);                                                                         \
  }
#define NAME_TILE(rows) conv_i8_tile_##rows,
#define NAME_ONE(rows) conv_i8_one_##rows,
FOR_DOT_ROWS(DEFINE_TILE)
// By whether the columns fill more than one vector.
static void (*const conv_i8_tiles[2][DOT_ROWS + 1])(const conv_i8_tile *) = {{NULL, FOR_DOT_ROWS(NAME_ONE)},
                                                                             {NULL, FOR_DOT_ROWS(NAME_TILE)}};

// ---- What a block of pixels reads

// The line of the input that taps (i, j) of a line of the output read, or NULL.
INLINE const uint8_t *line_of(const infc_conv_i8 *c, const infc_pixel *p, int64_t i, int64_t j) {
  const infc_window *w = &c->window;
  const int64_t d = p->at[0] * w->stride[0] - w->pad[0] + i * w->dilation[0];
  const int64_t h = p->at[1] * w->stride[1] - w->pad[1] + j * w->dilation[1];
  const bool inside = d >= 0 && d < w->in[0] && h >= 0 && h < w->in[1];
  return inside ? c->x + ((p->image * w->in[0] + d) * w->in[1] + h) * w->in[2] * c->ldx : NULL;
}

INLINE const uint8_t *pixel_of_line(const infc_conv_i8 *c, const uint8_t *line, int64_t q, const uint8_t *zeros) {
  return line && q >= 0 && q < c->window.in[2] ? line + q * c->ldx : zeros;
}

// pointers[tap * rows + r] for the rows from row0 on.
static void find_rows(const infc_conv_i8 *c, int64_t row0, int64_t rows, const uint8_t **pointers,
                      const uint8_t *zeros) {
  const infc_window *w = &c->window;
  for (int64_t r = 0, n; r < rows; r += n) {
    const infc_pixel p = infc_pixel_of(w, row0 + r);
    n = w->out[2] - p.at[2] < rows - r ? w->out[2] - p.at[2] : rows - r;
    const uint8_t **to = pointers + r;
    for (int64_t i = 0; i < w->kernel[0]; i++)
      for (int64_t j = 0; j < w->kernel[1]; j++) {
        const uint8_t *line = line_of(c, &p, i, j);
        for (int64_t l = 0; l < w->kernel[2]; l++, to += rows) {
          const int64_t q = p.at[2] * w->stride[2] - w->pad[2] + l * w->dilation[2];
          for (int64_t s = 0; s < n; s++)
            to[s] = pixel_of_line(c, line, q + s * w->stride[2], zeros);
        }
      }
  }
}

// The taps of one line of the window, side by side.
INLINE void gather_line(uint8_t *to, const infc_conv_i8 *c, const uint8_t *line, int64_t q, int64_t group,
                        const uint8_t *zeros) {
  const infc_window *w = &c->window;
  const int64_t kernel = w->kernel[2], channels = c->channels;
  if (line && c->groups == 1 && c->ldx == channels && w->dilation[2] == 1 && q >= 0 && q + kernel <= w->in[2]) {
    memcpy(to, line + q * channels, (size_t)(kernel * channels));
    return;
  }
  for (int64_t l = 0; l < kernel; l++, to += channels)
    memcpy(to, pixel_of_line(c, line, q + l * w->dilation[2], zeros) + group * channels, (size_t)channels);
}

static void gather_rows(const infc_conv_i8 *c, int64_t row0, int64_t rows, int64_t group, uint8_t *to,
                        const uint8_t *zeros) {
  const infc_window *w = &c->window;
  infc_pixel p = infc_pixel_of(w, row0);
  for (int64_t r = 0; r < rows; r++, to += c->lines * INFC_I8_DEPTH) {
    uint8_t *at = to;
    for (int64_t i = 0; i < w->kernel[0]; i++)
      for (int64_t j = 0; j < w->kernel[1]; j++, at += w->kernel[2] * c->channels)
        gather_line(at, c, line_of(c, &p, i, j), p.at[2] * w->stride[2] - w->pad[2], group, zeros);
    if (++p.at[2] == w->out[2])
      p = infc_pixel_of(w, row0 + r + 1);
  }
}

// ---- Blocks and panels

// One panel for a block whose pointers are found. `last`: no panel follows.
static void conv_i8_panel(const infc_conv_i8 *c, int64_t panel, int64_t row0, int64_t rows, conv_i8_tile *t,
                          bool last) {
  const int64_t panels = infc_gemm_panels(c->columns), group = panel / panels, bytes = c->lines * INFC_I8_LINE;
  const tiling tiles = tile_rows_of(rows, DOT_ROWS);
  const uint8_t *const *pointers = t->rows;
  const int64_t passes = tiles.count * (INFC_PANEL / TILE_COLS);
  const int64_t fetched = last ? 0 : (PREFETCH_STEP * INFC_I8_LINE / CACHE_LINE + passes - 1) / passes;
  t->ahead = (prefetch){(uintptr_t)(c->b + (panel + 1) * bytes), fetched, true};
  for (int64_t first = 0; first < INFC_PANEL; first += TILE_COLS) {
    const int64_t inside = panel % panels * INFC_PANEL + first;
    t->cols = c->columns - inside < TILE_COLS ? c->columns - inside : TILE_COLS;
    if (t->cols <= 0)
      break;
    t->column = group * c->columns + inside;
    t->b = c->b + panel * bytes + first * INFC_I8_DEPTH;
    for (int64_t i = 0, r = 0, height; i < tiles.count; i++, r += height) {
      height = tiles.height + (i < tiles.taller);
      t->rows = pointers + r;
      t->row = row0 + r;
      conv_i8_tiles[t->cols > LANES][height](t);
      t->ahead.address += (uintptr_t)(fetched * (c->lines / PREFETCH_STEP) * CACHE_LINE);
    }
  }
  t->rows = pointers;
}

INLINE void conv_i8_run(const infc_task *task, const infc_range *range, infc_worker *worker) {
  const infc_conv_i8 c = infc_conv_i8_view(task);
  const infc_conv_i8_plan plan = infc_conv_i8_plan_of(&c);
  const int64_t all = range->row1 - range->row0, blocks = (all + plan.rows - 1) / plan.rows;
  const int64_t panels = infc_gemm_panels(c.columns), pitch = c.lines * INFC_I8_DEPTH;
  uint8_t *gathered = worker->scratch, *zeros = gathered + plan.gathered;
  const uint8_t **pointers = (const uint8_t **)(void *)(zeros + plan.zeros);
  memset(gathered, 0, plan.gathered);
  memset(zeros, c.zero, plan.zeros);
  for (int64_t block = 0; block < blocks; block++) {
    const int64_t row0 = range->row0 + all * block / blocks, rows = range->row0 + all * (block + 1) / blocks - row0;
    conv_i8_tile t = {.c = &c, .rows = pointers, .row_step = rows, .taps = c.taps};
    t.lines = c.channels / INFC_I8_DEPTH;
    t.rest = c.channels % INFC_I8_DEPTH;
    int64_t found = -1; // the group whose taps are gathered
    if (plan.gathers) {
      t.taps = 1;
      t.lines = c.lines;
      t.rest = 0;
      for (int64_t r = 0; r < rows; r++)
        pointers[r] = gathered + r * pitch;
    } else {
      find_rows(&c, row0, rows, pointers, zeros);
    }
    for (int64_t panel = range->col0; panel < range->col1; panel++) {
      const int64_t group = panel / panels;
      if (plan.gathers && group != found)
        gather_rows(&c, row0, rows, found = group, gathered, zeros);
      t.first_channel = plan.gathers ? 0 : group * c.channels;
      conv_i8_panel(&c, panel, row0, rows, &t, panel + 1 == range->col1);
    }
  }
}
