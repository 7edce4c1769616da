// conv in f32, written once for both vector widths; included by x86_avx2_f32.c and x86_avx512_f32.c.
//
// An implicit product: gemm's tiles and panels, except that a tile's rows are read by pointers, one a tap and pixel,
// found once for a block of pixels. So a block's input stays in L2 at its own size, not at taps times that, and
// borders, strides, dilations and zeros between pixels cost the tiles nothing. Taps of few channels are gathered side
// by side first: a tile would be done with one before it has loaded the pointers of the next.
#include "../gemm/x86_epilogue.h"
#include "conv.h"

#include <string.h>

// One tile: `rows` holds its pixels' pointers of the first tap, those of the next follow `row_step` further on.
typedef struct conv_tile {
  const float *const *rows;
  int64_t row_step, taps, channels, first_channel;
  const float *b;
  epilogue out;
  prefetch ahead;
} conv_tile;

INLINE void conv_tile_run(tile_kind kind, const conv_tile *t) {
  infc_vec acc[TILE_ROWS][2];
#pragma GCC unroll 16
  for (int r = 0; r < kind.rows; r++)
    acc[r][0] = acc[r][1] = vec_zero();
  epilogue_fetch(kind, &t->out);
  const float *b = t->b;
  const float *const *pointers = t->rows;
  prefetch ahead = t->ahead;
  for (int64_t tap = 0; tap < t->taps; tap++, pointers += t->row_step) {
    const float *a[TILE_ROWS];
#pragma GCC unroll 16
    for (int r = 0; r < kind.rows; r++)
      a[r] = pointers[r] + t->first_channel;
    for (int64_t i = 0; i < t->channels; i++, b += INFC_PANEL) {
      if (i % PREFETCH_STEP == 0)
        for (int64_t n = 0; n < ahead.lines; n++, ahead.address += CACHE_LINE)
          _mm_prefetch((const char *)ahead.address, _MM_HINT_T0);
      const infc_vec b0 = vec_load(b), b1 = kind.vectors == 2 ? vec_load(b + LANES) : vec_zero();
#pragma GCC unroll 16
      for (int r = 0; r < kind.rows; r++) {
        const infc_vec x = vec_set(a[r][i]);
        acc[r][0] = vec_fma(x, b0, acc[r][0]);
        if (kind.vectors == 2)
          acc[r][1] = vec_fma(x, b1, acc[r][1]);
      }
    }
  }
  epilogue_run(kind, &t->out, acc);
}

#define DEFINE_TILE(rows)                                                                                              \
  static void conv_tile_##rows(const conv_tile *t) {                                                                   \
    conv_tile_run((tile_kind){rows, 2}, t);                                                                            \
  }                                                                                                                    \
  static void conv_one_##rows(const conv_tile *t) {                                                                    \
    conv_tile_run((tile_kind){rows, 1}, t);                                                                            \
  }
#define NAME_TILE(rows) conv_tile_##rows,
#define NAME_ONE(rows) conv_one_##rows,
FOR_TILE_ROWS(DEFINE_TILE)
// By whether the columns fill more than one vector.
static void (*const conv_tiles[2][TILE_ROWS + 1])(const conv_tile *) = {{NULL, FOR_TILE_ROWS(NAME_ONE)},
                                                                        {NULL, FOR_TILE_ROWS(NAME_TILE)}};

// ---- What a block of pixels reads

// Position q of a dimension whose pixels have up - 1 zeros between them, as a position of the input; -1 outside.
INLINE int64_t source(int64_t q, int64_t up, int64_t in) {
  if (up > 1) {
    if (q % up)
      return -1;
    q /= up;
  }
  return q >= 0 && q < in ? q : -1;
}

// The line of the input that taps (i, j) of a line of the output read, or NULL.
INLINE const float *line_of(const infc_conv *c, const infc_pixel *p, int64_t i, int64_t j) {
  const infc_window *w = &c->window;
  const int64_t d = source(p->at[0] * w->stride[0] - w->pad[0] + i * w->dilation[0], c->up[0], w->in[0]);
  const int64_t h = source(p->at[1] * w->stride[1] - w->pad[1] + j * w->dilation[1], c->up[1], w->in[1]);
  return d < 0 || h < 0 ? NULL : c->x + ((p->image * w->in[0] + d) * w->in[1] + h) * w->in[2] * c->ldx;
}

// Pointers of one tap for `n` neighbours of a line.
INLINE void fill_pointers(const float **to, int64_t n, const infc_conv *c, const float *line, int64_t q,
                          const float *zeros) {
  const int64_t step = c->window.stride[2], up = c->up[2], in = c->window.in[2];
  if (!line) {
    for (int64_t r = 0; r < n; r++)
      to[r] = zeros;
  } else if (up == 1) {
    for (int64_t r = 0; r < n; r++, q += step)
      to[r] = (uint64_t)q < (uint64_t)in ? line + q * c->ldx : zeros;
  } else {
    for (int64_t r = 0; r < n; r++, q += step) {
      const int64_t at = source(q, up, in);
      to[r] = at < 0 ? zeros : line + at * c->ldx;
    }
  }
}

// pointers[tap * rows + r] for the rows from row0 on.
static void find_rows(const infc_conv *c, int64_t row0, int64_t rows, const float **pointers, const float *zeros) {
  const infc_window *w = &c->window;
  for (int64_t r = 0, n; r < rows; r += n) {
    const infc_pixel p = infc_pixel_of(w, row0 + r);
    n = w->out[2] - p.at[2] < rows - r ? w->out[2] - p.at[2] : rows - r;
    const float **to = pointers + r;
    for (int64_t i = 0; i < w->kernel[0]; i++)
      for (int64_t j = 0; j < w->kernel[1]; j++) {
        const float *line = line_of(c, &p, i, j);
        const int64_t q = p.at[2] * w->stride[2] - w->pad[2];
        for (int64_t l = 0; l < w->kernel[2]; l++, to += rows)
          fill_pointers(to, n, c, line, q + l * w->dilation[2], zeros);
      }
  }
}

INLINE float *put(float *to, const float *from, int64_t n) {
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES)
    vec_store(to + i, from ? vec_load(from + i) : vec_zero());
  if (i < n)
    vec_store_first(to + i, n - i, from ? vec_load_first(from + i, n - i, vec_zero()) : vec_zero());
  return to + n;
}

// The taps of one line of the window for `n` neighbours from position `o` on, `k` floats apart.
INLINE void gather_line(float *to, int64_t k, int64_t n, const infc_conv *c, const float *line, int64_t o,
                        int64_t group) {
  const infc_window *w = &c->window;
  const int64_t channels = c->channels, kernel = w->kernel[2];
  int64_t q = o * w->stride[2] - w->pad[2];
  if (!line) {
    for (int64_t r = 0; r < n; r++, to += k)
      put(to, NULL, kernel * channels);
  } else if (c->groups == 1 && c->ldx == channels && w->dilation[2] == 1 && c->up[2] == 1) { // taps are neighbours
    for (int64_t r = 0; r < n; r++, to += k, q += w->stride[2]) {
      if (q >= 0 && q + kernel <= w->in[2]) {
        put(to, line + q * channels, kernel * channels);
        continue;
      }
      const infc_taps t = infc_taps_inside(w, 2, o + r);
      float *next = put(to, NULL, t.first * channels);
      if (t.first < t.end)
        next = put(next, line + (q + t.first) * channels, (t.end - t.first) * channels);
      put(next, NULL, (kernel - t.end) * channels);
    }
  } else {
    for (int64_t r = 0; r < n; r++, to += k, q += w->stride[2])
      for (int64_t l = 0; l < kernel; l++) {
        const int64_t at = source(q + l * w->dilation[2], c->up[2], w->in[2]);
        put(to + l * channels, at < 0 ? NULL : line + at * c->ldx + group * channels, channels);
      }
  }
}

static void gather_rows(const infc_conv *c, int64_t row0, int64_t rows, int64_t group, float *to) {
  const infc_window *w = &c->window;
  const int64_t k = c->taps * c->channels;
  for (int64_t r = 0, n; r < rows; r += n) {
    const infc_pixel p = infc_pixel_of(w, row0 + r);
    n = w->out[2] - p.at[2] < rows - r ? w->out[2] - p.at[2] : rows - r;
    float *at = to + r * k;
    for (int64_t i = 0; i < w->kernel[0]; i++)
      for (int64_t j = 0; j < w->kernel[1]; j++, at += w->kernel[2] * c->channels)
        gather_line(at, k, n, c, line_of(c, &p, i, j), p.at[2], group);
  }
}

// ---- Blocks and panels

// One panel for a block whose pointers are found. `last`: no panel follows.
static void conv_panel(const infc_conv *c, int64_t panel, int64_t row0, int64_t rows, conv_tile *t, bool last) {
  const int64_t panels = infc_gemm_panels(c->columns), group = panel / panels, k = c->taps * c->channels;
  const tiling tiles = tile_rows(rows);
  const float *const *pointers = t->rows;
  const int64_t passes = tiles.count * (INFC_PANEL / TILE_COLS);
  const int64_t lines = last ? 0 : (PREFETCH_STEP * INFC_PANEL * 4 / CACHE_LINE + passes - 1) / passes;
  t->ahead = (prefetch){(uintptr_t)(c->b + (panel + 1) * k * INFC_PANEL), lines, true};
  for (int64_t first = 0; first < INFC_PANEL; first += TILE_COLS) {
    const int64_t inside = panel % panels * INFC_PANEL + first, col = group * c->columns + inside;
    const int64_t cols = c->columns - inside < TILE_COLS ? c->columns - inside : TILE_COLS;
    if (cols <= 0)
      break;
    t->b = c->b + panel * k * INFC_PANEL + first;
    for (int64_t i = 0, r = 0, height; i < tiles.count; i++, r += height) {
      height = tiles.height + (i < tiles.taller);
      t->rows = pointers + r;
      t->out = (epilogue){c->bias ? c->bias + col : NULL,
                          c->residual ? c->residual + (row0 + r) * c->ldr + col : NULL,
                          c->y + (row0 + r) * c->ldy + col,
                          c->ldr,
                          c->ldy,
                          c->activation,
                          c->residual_first,
                          cols};
      conv_tiles[cols > LANES][height](t);
      t->ahead.address += (uintptr_t)(lines * (k / PREFETCH_STEP) * CACHE_LINE);
    }
  }
  t->rows = pointers;
}

static infc_fault conv_run(const infc_task *task, const infc_range *range, infc_worker *worker) {
  const infc_conv c = infc_conv_view(task);
  const infc_conv_plan plan = infc_conv_plan_of(&c);
  const int64_t all = range->row1 - range->row0, blocks = (all + plan.rows - 1) / plan.rows;
  const int64_t panels = infc_gemm_panels(c.columns), k = c.taps * c.channels;
  float *gathered = worker->scratch, *zeros = gathered + (plan.gathered + 15) / 16 * 16;
  const float **pointers = (const float **)(zeros + (plan.zeros + 15) / 16 * 16);
  memset(zeros, 0, plan.zeros * sizeof *zeros);
  for (int64_t block = 0; block < blocks; block++) {
    const int64_t row0 = range->row0 + all * block / blocks, rows = range->row0 + all * (block + 1) / blocks - row0;
    conv_tile t = {.rows = pointers, .row_step = rows, .taps = c.taps, .channels = c.channels};
    int64_t found = -1; // the group whose taps are gathered
    if (plan.gathers) {
      t.taps = 1;
      t.channels = k;
      for (int64_t r = 0; r < rows; r++)
        pointers[r] = gathered + r * k;
    } else {
      find_rows(&c, row0, rows, pointers, zeros);
    }
    for (int64_t panel = range->col0; panel < range->col1; panel++) {
      const int64_t group = panel / panels;
      if (plan.gathers && group != found)
        gather_rows(&c, row0, rows, found = group, gathered);
      t.first_channel = plan.gathers ? 0 : group * c.channels;
      conv_panel(&c, panel, row0, rows, &t, panel + 1 == range->col1);
    }
  }
  return INFC_FAULT_NONE;
}
