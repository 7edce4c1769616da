// depthwise in f32, written once for both vector widths; included by x86_avx2_f32.c and x86_avx512_f32.c.
//
// A tile is a vector of channels of neighbours in a line: a tap's weights are loaded once for all of them. Neighbours
// share the taps that lie in the input; where a line begins or ends, pixels go one by one.
#include "../gemm/x86_clamp.h"
#include "depthwise.h"

enum { TILE_PIXELS = 8 };

// Neighbours from row `row` on, the first at `p`, whose taps inside the input are `t`.
typedef struct depthwise_tile {
  const infc_depthwise *d;
  infc_pixel p;
  infc_taps t[INFC_AXES];
  int64_t row;
  const float *x, *w; // of the first of these taps
  int64_t step_d, step_h, weights_d, weights_h;
} depthwise_tile;

INLINE void find_first_tap(depthwise_tile *tile) {
  const infc_window *w = &tile->d->window;
  const int64_t tap[INFC_AXES] = {tile->t[0].first, tile->t[1].first, tile->t[2].first};
  for (int i = 0; i < INFC_AXES; i++)
    if (tap[i] == tile->t[i].end)
      return; // none to be read, and its place may be anywhere
  tile->x = tile->d->x + infc_tap_pixel(w, &tile->p, tap) * tile->d->ldx;
  tile->w = tile->d->w + tap[0] * tile->weights_d + tap[1] * tile->weights_h + tap[2] * tile->d->channels;
}

INLINE infc_vec load_some(const float *from, int64_t n) {
  return n == LANES ? vec_load(from) : vec_load_first(from, n, vec_zero());
}

INLINE void store_some(float *to, int64_t n, infc_vec x) {
  if (n == LANES)
    vec_store(to, x);
  else
    vec_store_first(to, n, x);
}

// Channels from c on, n of them.
INLINE void channels_run(const int pixels, const depthwise_tile *tile, int64_t c, int64_t n) {
  const infc_depthwise *d = tile->d;
  const infc_window *w = &d->window;
  const int64_t pixel_step = pixels > 1 ? w->stride[2] * d->ldx : 0, tap_step = infc_tap_step(w, 2) * d->ldx;
  infc_vec acc[TILE_PIXELS];
#pragma GCC unroll 8
  for (int r = 0; r < pixels; r++)
    acc[r] = d->bias ? load_some(d->bias + c, n) : vec_zero();
  const float *x_d = tile->x + c, *w_d = tile->w + c;
  for (int64_t i = tile->t[0].first; i < tile->t[0].end; i++, x_d += tile->step_d, w_d += tile->weights_d) {
    const float *x_h = x_d, *w_h = w_d;
    for (int64_t j = tile->t[1].first; j < tile->t[1].end; j++, x_h += tile->step_h, w_h += tile->weights_h) {
      const float *x = x_h, *weights = w_h;
      for (int64_t l = tile->t[2].first; l < tile->t[2].end; l++, x += tap_step, weights += d->channels) {
        const infc_vec k = load_some(weights, n);
#pragma GCC unroll 8
        for (int r = 0; r < pixels; r++)
          acc[r] = vec_fma(load_some(x + r * pixel_step, n), k, acc[r]);
      }
    }
  }
  float *y = d->y + tile->row * d->ldy + c;
  const clamp cheap = clamp_of(d->activation);
  if (cheap.cheap) {
#pragma GCC unroll 8
    for (int r = 0; r < pixels; r++)
      store_some(y + r * d->ldy, n, clamp_run(cheap, acc[r]));
    return;
  }
  float aside[TILE_PIXELS][LANES];
#pragma GCC unroll 8
  for (int r = 0; r < pixels; r++)
    vec_store(aside[r], acc[r]);
  for (int r = 0; r < pixels; r++)
    store_some(y + r * d->ldy, n, vec_activate(vec_load(aside[r]), d->activation));
}

INLINE void tile_run(const int pixels, const depthwise_tile *tile) {
  int64_t c = 0;
  for (; c + LANES <= tile->d->channels; c += LANES)
    channels_run(pixels, tile, c, LANES);
  if (c < tile->d->channels)
    channels_run(pixels, tile, c, tile->d->channels - c);
}

static void tile_many(const depthwise_tile *tile) {
  tile_run(TILE_PIXELS, tile);
}
static void tile_four(const depthwise_tile *tile) {
  tile_run(4, tile);
}
static void tile_one(const depthwise_tile *tile) {
  tile_run(1, tile);
}

// Positions of a line whose taps all lie inside the input: from `first` on, below `end`.
static infc_taps whole_positions(const infc_window *w) {
  const int64_t step = w->stride[2], room = w->in[2] - 1 - (w->kernel[2] - 1) * w->dilation[2] + w->pad[2];
  return (infc_taps){w->pad[2] > 0 ? (w->pad[2] + step - 1) / step : 0, room < 0 ? 0 : room / step + 1};
}

// Pixels of one line, from the tile's pixel on.
static void line_run(depthwise_tile *tile, infc_taps whole, int64_t pixels) {
  const infc_window *w = &tile->d->window;
  const int64_t end = tile->p.at[2] + pixels;
  for (int64_t step; tile->p.at[2] < end; tile->p.at[2] += step, tile->row += step) {
    const int64_t o = tile->p.at[2], left = (whole.end < end ? whole.end : end) - o;
    const bool inside = o >= whole.first && left > 0;
    tile->t[2] = inside ? (infc_taps){0, w->kernel[2]} : infc_taps_inside(w, 2, o);
    find_first_tap(tile);
    step = inside && left >= TILE_PIXELS ? TILE_PIXELS : inside && left >= 4 ? 4 : 1;
    (step == TILE_PIXELS ? tile_many : step == 4 ? tile_four : tile_one)(tile);
  }
}

static infc_fault depthwise_run(const infc_task *task, const infc_range *range) {
  const infc_depthwise d = infc_depthwise_view(task);
  const infc_window *w = &d.window;
  const infc_taps whole = whole_positions(w);
  depthwise_tile tile = {.d = &d,
                         .row = range->row0,
                         .x = d.x,
                         .w = d.w,
                         .step_d = infc_tap_step(w, 0) * w->in[1] * w->in[2] * d.ldx,
                         .step_h = infc_tap_step(w, 1) * w->in[2] * d.ldx,
                         .weights_d = w->kernel[1] * w->kernel[2] * d.channels,
                         .weights_h = w->kernel[2] * d.channels};
  while (tile.row < range->row1) {
    tile.p = infc_pixel_of(w, tile.row);
    for (int i = 0; i < 2; i++)
      tile.t[i] = infc_taps_inside(w, i, tile.p.at[i]);
    const int64_t left = w->out[2] - tile.p.at[2], rows = range->row1 - tile.row;
    line_run(&tile, whole, left < rows ? left : rows);
  }
  return INFC_FAULT_NONE;
}
