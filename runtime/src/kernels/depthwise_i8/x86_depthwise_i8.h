// depthwise_i8, written once for all ways of dot products (../gemm_i8/x86_dot.h).
//
// A dot product adds four taps of a channel: the bytes of four pixels are unpacked twice, so that those of a channel
// lie together. Narrowing the sums to bytes puts the channels back in order. Every pixel has its taps' places in a
// table, that of all pixels in the middle of lines, or its own where a tap lies outside the input and reads zeros: so
// borders, strides and dilations have no code of their own.
#include "../conv_i8/x86_requantise.h"
#include "depthwise_i8.h"

enum {
  BYTES = sizeof(ivec), // channels at a time
  PIXELS = 2,           // neighbours that share the loads of weights
};

// Neighbours from row `row` on: tap t of pixel r lies at base + r * pixel_step + taps[t].
typedef struct dw_tile {
  const infc_depthwise_i8 *d;
  uintptr_t base;
  const uintptr_t *taps;
  int64_t pixel_step, row;
} dw_tile;

INLINE ivec load_channels(uintptr_t from, int64_t n) {
  if (n == BYTES)
    return ivec_load((const void *)from);
#if defined(__AVX512F__)
  return _mm512_maskz_loadu_epi8(~(__mmask64)0 >> (64 - n), (const void *)from);
#else
  uint8_t bytes[BYTES] = {0};
  memcpy(bytes, (const void *)from, (size_t)n);
  return ivec_load(bytes);
#endif
}

INLINE void store_channels(uint8_t *to, int64_t n, ivec v) {
  if (n == BYTES) {
    ivec_store(to, v);
    return;
  }
#if defined(__AVX512F__)
  _mm512_mask_storeu_epi8(to, ~(__mmask64)0 >> (64 - n), v);
#else
  uint8_t bytes[BYTES];
  ivec_store(bytes, v);
  memcpy(to, bytes, (size_t)n);
#endif
}

// Four taps of each channel side by side.
INLINE void interleave(ivec to[4], ivec a, ivec b, ivec c, ivec d) {
  const ivec low = IVEC(unpacklo_epi8)(a, b), high = IVEC(unpackhi_epi8)(a, b);
  const ivec low2 = IVEC(unpacklo_epi8)(c, d), high2 = IVEC(unpackhi_epi8)(c, d);
  to[0] = IVEC(unpacklo_epi16)(low, low2);
  to[1] = IVEC(unpackhi_epi16)(low, low2);
  to[2] = IVEC(unpacklo_epi16)(high, high2);
  to[3] = IVEC(unpackhi_epi16)(high, high2);
}

// Whatever is not plain, by way of memory: `v` are the BYTES floats in the order of places.
static __attribute__((noinline)) void finish_any(const infc_depthwise_i8 *d, int64_t row, int64_t c, int64_t n,
                                                 infc_vec v[4]) {
  float places[4][LANES], channels[BYTES];
  for (int j = 0; j < 4; j++) {
    if (d->out.activation != INFC_UNARY_IDENTITY)
      v[j] = requantise_activate(&d->out, v[j]);
    vec_store(places[j], vec_clamp(v[j], vec_set(d->out.low), vec_set(d->out.high)));
  }
  for (int64_t i = 0; i < BYTES; i++)
    channels[i] = places[i % 16 / 4][i / 16 * 4 + i % 4];
  for (int64_t i = 0; i < n; i += LANES) {
    const int64_t some = n - i < LANES ? n - i : LANES;
    if (d->out.quantised)
      store_bytes(d->yq + row * d->ldy + c + i, some, IVEC(cvtps_epi32)(vec_load(channels + i)));
    else
      store_cols(d->y + row * d->ldy + c + i, some, vec_load(channels + i));
  }
}

// Channels from c on, n of them.
INLINE void channels_run(const int pixels, const dw_tile *t, int64_t c, int64_t n) {
  const infc_depthwise_i8 *d = t->d;
  const int64_t chunk = c / INFC_DW_CHUNK, inside = c % INFC_DW_CHUNK;
  const int8_t *w = d->w + chunk * d->quads * INFC_DW_BYTES + inside;
  const int64_t at = chunk * INFC_DW_CHUNK + inside / 4;
  ivec acc[PIXELS][4];
#pragma GCC unroll 4
  for (int j = 0; j < 4; j++)
#pragma GCC unroll 2
    for (int r = 0; r < pixels; r++)
      acc[r][j] = ivec_load(d->offsets + at + j * 16);
  const uintptr_t base = t->base + (uintptr_t)c;
  for (int64_t q = 0; q < d->quads; q++, w += INFC_DW_BYTES) {
    const uintptr_t *taps = t->taps + q * INFC_DW_QUAD;
#pragma GCC unroll 2
    for (int r = 0; r < pixels; r++) {
      const uintptr_t from = base + (uintptr_t)(r * t->pixel_step);
      ivec x[4];
      interleave(x, load_channels(from + taps[0], n), load_channels(from + taps[1], n),
                 load_channels(from + taps[2], n), load_channels(from + taps[3], n));
#pragma GCC unroll 4
      for (int j = 0; j < 4; j++)
        acc[r][j] = dot(acc[r][j], factor_unsigned(x[j]), factor_signed(ivec_load(w + j * INFC_DW_CHUNK)));
    }
  }
  const bool plain = d->out.quantised && d->out.activation == INFC_UNARY_IDENTITY;
  const infc_vec low = vec_set(d->out.low), high = vec_set(d->out.high);
#pragma GCC unroll 2
  for (int r = 0; r < pixels; r++) {
    infc_vec v[4];
    ivec q[4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
      v[j] = vec_fma(IVEC(cvtepi32_ps)(acc[r][j]), vec_load(d->scales + at + j * 16), vec_load(d->bias + at + j * 16));
      q[j] = IVEC(cvtps_epi32)(vec_clamp(v[j], low, high));
    }
    if (plain)
      store_channels(d->yq + (t->row + r) * d->ldy + c, n,
                     IVEC(packus_epi16)(IVEC(packs_epi32)(q[0], q[1]), IVEC(packs_epi32)(q[2], q[3])));
    else
      finish_any(d, t->row + r, c, n, v);
  }
}

INLINE void tile_run(const int pixels, const dw_tile *t) {
  int64_t c = 0;
  for (; c + BYTES <= t->d->channels; c += BYTES)
    channels_run(pixels, t, c, BYTES);
  if (c < t->d->channels)
    channels_run(pixels, t, c, t->d->channels - c);
}

static void tile_many(const dw_tile *t) {
  tile_run(PIXELS, t);
}
static void tile_one(const dw_tile *t) {
  tile_run(1, t);
}

// Where the taps of a pixel lie, from the pixel of the input that tap 0 would read on.
static void find_middle(const infc_depthwise_i8 *d, uintptr_t *taps) {
  const infc_window *w = &d->window;
  for (int64_t t = 0; t < d->quads * INFC_DW_QUAD; t++) {
    const int64_t l = t % w->kernel[2], j = t / w->kernel[2] % w->kernel[1], i = t / w->kernel[2] / w->kernel[1];
    const uintptr_t line = (uintptr_t)(i * w->dilation[0]) * (uintptr_t)w->in[1] + (uintptr_t)(j * w->dilation[1]);
    const uintptr_t pixel = line * (uintptr_t)w->in[2] + (uintptr_t)(l * w->dilation[2]); // wraps where none is whole
    taps[t] = t < d->taps ? pixel * (uintptr_t)d->ldx : 0; // beyond them weights are zero
  }
}

// Addresses, of a pixel that has taps outside.
static void find_taps(const infc_depthwise_i8 *d, const infc_pixel *p, uintptr_t *taps, const uint8_t *zeros) {
  const infc_window *w = &d->window;
  uintptr_t *const end = taps + d->quads * INFC_DW_QUAD;
  int64_t at[INFC_AXES];
  for (int64_t i = 0; i < w->kernel[0]; i++)
    for (int64_t j = 0; j < w->kernel[1]; j++) {
      at[0] = p->at[0] * w->stride[0] - w->pad[0] + i * w->dilation[0];
      at[1] = p->at[1] * w->stride[1] - w->pad[1] + j * w->dilation[1];
      at[2] = p->at[2] * w->stride[2] - w->pad[2];
      const bool inside = at[0] >= 0 && at[0] < w->in[0] && at[1] >= 0 && at[1] < w->in[1];
      const int64_t line = inside ? ((p->image * w->in[0] + at[0]) * w->in[1] + at[1]) * w->in[2] : 0;
      for (int64_t l = 0; l < w->kernel[2]; l++, at[2] += w->dilation[2])
        *taps++ = (uintptr_t)(inside && at[2] >= 0 && at[2] < w->in[2] ? d->x + (line + at[2]) * d->ldx : zeros);
    }
  while (taps < end)
    *taps++ = (uintptr_t)zeros;
}

// Positions of one dimension whose taps all lie inside the input: from `first` on, below `end`.
static infc_taps whole_positions(const infc_window *w, int axis) {
  const int64_t step = w->stride[axis], pad = w->pad[axis];
  const int64_t room = w->in[axis] - 1 - (w->kernel[axis] - 1) * w->dilation[axis] + pad;
  return (infc_taps){pad > 0 ? (pad + step - 1) / step : 0, room < 0 ? 0 : room / step + 1};
}

// Pixels of one line from p on.
static void line_run(dw_tile *t, infc_pixel p, infc_taps whole, int64_t pixels, const uintptr_t *middle,
                     uintptr_t *taps, const uint8_t *zeros) {
  const infc_depthwise_i8 *d = t->d;
  const infc_window *w = &d->window;
  for (int64_t step; pixels > 0; pixels -= step, p.at[2] += step, t->row += step) {
    if (p.at[2] < whole.first || p.at[2] >= whole.end) {
      find_taps(d, &p, taps, zeros);
      t->base = 0;
      t->taps = taps;
      step = 1;
    } else {
      static const int64_t first[INFC_AXES] = {0, 0, 0};
      t->base = (uintptr_t)(d->x + infc_tap_pixel(w, &p, first) * d->ldx);
      t->taps = middle;
      step = pixels >= PIXELS && whole.end - p.at[2] >= PIXELS ? PIXELS : 1;
    }
    (step == PIXELS ? tile_many : tile_one)(t);
  }
}

INLINE void depthwise_i8_run(const infc_task *task, const infc_range *range, infc_worker *worker) {
  const infc_depthwise_i8 d = infc_depthwise_i8_view(task);
  const infc_window *w = &d.window;
  const infc_taps inside[INFC_AXES] = {whole_positions(w, 0), whole_positions(w, 1), whole_positions(w, 2)};
  const int64_t places = infc_dw_chunks(d.channels) * INFC_DW_CHUNK;
  uint8_t *zeros = worker->scratch;
  uintptr_t *middle = (uintptr_t *)(void *)(zeros + places), *taps = middle + d.quads * INFC_DW_QUAD;
  memset(zeros, d.zero, (size_t)places);
  find_middle(&d, middle);
  dw_tile t = {.d = &d, .row = range->row0, .pixel_step = w->stride[2] * d.ldx};
  while (t.row < range->row1) {
    const infc_pixel p = infc_pixel_of(w, t.row);
    bool whole = true;
    for (int i = 0; i < 2; i++)
      whole = whole && p.at[i] >= inside[i].first && p.at[i] < inside[i].end;
    const int64_t left = w->out[2] - p.at[2], rows = range->row1 - t.row;
    line_run(&t, p, whole ? inside[2] : (infc_taps){0, 0}, left < rows ? left : rows, middle, taps, zeros);
  }
}
