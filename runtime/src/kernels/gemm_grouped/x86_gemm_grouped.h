// gemm_grouped, written once for all ways of dot products (../gemm_i8/x86_dot.h). Of a block of rows the kernel first
// makes a copy in the order in which tiles read it. A tile then goes over the whole of K, with a sum of integers a
// group and one of floats in registers for every result. Few rows take two vectors of columns and so read a panel once,
// many take one: weights of 4 bits are spread out once for all rows of a tile. Panels come from memory once a block of
// rows, as in gemm (../gemm/x86_gemm.h).
//
// Of 32 along K a row and a vector cost 8 dot products, and 2 multiplications for scales that need the same units: 80 %
// of the dot products' peak is the most.
//
// Measured on one Zen 4 core in cycles of such 32, weights from memory, 8 being that peak: 4 bits in groups of 32 at
// 128 rows 10.5 to 10.6, at 8 rows 11.1, at 4 rows 12.1, at 1 row 34, which is 88 % of a loop that reads; with
// zeros 11.7, 11.9, 13; 8 bits in groups of 64 at 128 rows 9.4, at 8 rows 10.4. One Zen 3 core, AVX2, 4 bits with
// zeros, 8 columns a vector: 8.1 at 8 rows, where adding and multiplying bytes alone is 5.3.
//
// Sparse weights are not spread out. Kept ones of 8 along K fill a dword, and the bytes of the row that they meet are
// put in its place by a shuffle of those 8 bytes, which every lane holds.
#include "gemm_grouped.h"

#include "../gemm/x86_epilogue.h"
#include "../gemm_i8/x86_dot.h"

enum {
  FEW_ROWS = 2,        // whose outputs are not fetched beforehand
  STREAM_AHEAD = 1024, // bytes
  FIRST_BYTES = 16 * 1024,
  VECTOR_BYTES = LANES * 4,
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
  PAIR_ROWS = 2, // up to so many take two vectors of columns
  WIDE = 1,      // bytes of a row's number where weights have 8 bits
#else
  PAIR_ROWS = DOT_ROWS, // what is read of a row serves both
  WIDE = 2,
#endif
};

// SINGLE_4 is any dense one of 4 bits whose groups are one unit, where registers are few.
#if defined(__AVX512F__) || defined(__AVXVNNI__)
#define HAS_SINGLE 0
#else
#define HAS_SINGLE 1
#endif
typedef enum format { DENSE_8, DENSE_4, FINE_4, SPARSE_4, SINGLE_4, FORMATS } format;

INLINE int64_t unit_bytes(format kind) {
  return INFC_GROUPED_LINE * (kind == DENSE_8 ? 8 : kind == SPARSE_4 ? 3 : 4);
}

// What a tile is compiled for.
typedef struct shape {
  int rows, vectors;
  int across; // so many times its columns, group by group
  format kind;
} shape;

// One row takes a whole panel: it would else be read in two passes, of which the second finds it in cache while memory
// idles.
INLINE int across_of(int64_t rows) {
  return rows == 1 ? INFC_PANEL / TILE_COLS : 1;
}

INLINE format format_of(const infc_gemm_grouped *g) {
  if (g->bits == 8 || g->sparse)
    return g->sparse ? SPARSE_4 : DENSE_8;
  return HAS_SINGLE && g->group == INFC_GROUPED_UNIT ? SINGLE_4 : g->sixteenths ? FINE_4 : DENSE_4;
}

// Bytes of a number of a row, as tiles read it.
INLINE int64_t row_width(format kind) {
  return kind == DENSE_8 ? WIDE : 1;
}

// Of a row and a group, before its bytes.
typedef struct row_params {
  float scale;
  union {
    int32_t start; // what sums begin with
    float total;   // where zeros are floats (FINE_4, SINGLE_4): the row's sum, of which they take so many
  };
} row_params;

// Where one tile finds its operands.
typedef struct tile_place {
  const uint8_t *a; // packed
  const uint8_t *b; // of the panel
  int64_t col;      // of the tile in it
  epilogue out;
  bool plain;      // nothing follows the sums, and all columns exist
  uintptr_t ahead; // what to fetch: so many bytes a unit
  uintptr_t fetched;
} tile_place;

INLINE ivec ivec_or(ivec a, ivec b) {
#if defined(__AVX512F__)
  return _mm512_or_si512(a, b);
#else
  return _mm256_or_si256(a, b);
#endif
}

INLINE ivec nibbles(ivec v) {
  return ivec_and(v, IVEC(set1_epi8)(15));
}

INLINE ivec row_bytes(const uint8_t *a) {
  int32_t four;
  memcpy(&four, a, sizeof four);
  return IVEC(set1_epi32)(four);
}

// Eight bytes of a row, again and again.
INLINE ivec row_eight(const uint8_t *a) {
  int64_t eight;
  memcpy(&eight, a, sizeof eight);
#if defined(__AVX512F__)
  return _mm512_set1_epi64(eight);
#else
  return _mm256_set1_epi64x(eight);
#endif
}

// Of 32 along K: acc += rows * weights. Rows are so many numbers apart.
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
INLINE void unit_dense_8(const shape s, ivec acc[][2], const uint8_t *a, const uint8_t *b) {
#pragma GCC unroll 8
  for (int i = 0; i < INFC_GROUPED_UNIT; i += 4, b += INFC_GROUPED_LINE) {
    factor w[2];
#pragma GCC unroll 2
    for (int v = 0; v < s.vectors; v++)
      w[v] = factor_unsigned(ivec_load(b + v * VECTOR_BYTES));
#pragma GCC unroll 16
    for (int r = 0; r < s.rows; r++) {
      const factor x = factor_signed(row_bytes(a + r * INFC_GROUPED_UNIT + i));
#pragma GCC unroll 2
      for (int v = 0; v < s.vectors; v++)
        acc[r][v] = dot(acc[r][v], w[v], x);
    }
  }
}

INLINE void unit_dense_4(const shape s, ivec acc[][2], const uint8_t *a, const uint8_t *b) {
#pragma GCC unroll 4
  for (int i = 0; i < INFC_GROUPED_UNIT; i += 8, b += INFC_GROUPED_LINE) {
    ivec low[2], high[2];
#pragma GCC unroll 2
    for (int v = 0; v < s.vectors; v++) {
      const ivec w = ivec_load(b + v * VECTOR_BYTES);
      low[v] = nibbles(w), high[v] = nibbles(IVEC(srli_epi16)(w, 4));
    }
#pragma GCC unroll 16
    for (int r = 0; r < s.rows; r++) {
      const ivec x = row_bytes(a + r * INFC_GROUPED_UNIT + i), x4 = row_bytes(a + r * INFC_GROUPED_UNIT + i + 4);
#pragma GCC unroll 2
      for (int v = 0; v < s.vectors; v++)
        acc[r][v] =
            dot(dot(acc[r][v], factor_unsigned(low[v]), factor_signed(x)), factor_unsigned(high[v]), factor_signed(x4));
    }
  }
}
#else
// Half of a line at a time, whose weights are loaded again: sums take half of the registers. Instructions are written
// out, and in this order, because the compiler else adds products to each other first or loads what comes later, and
// keeps sums in memory for that.
INLINE ivec add_madd(ivec sum, ivec w, ivec x) {
  ivec product;
  __asm__("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0" : "+v"(sum), "=&v"(product) : "v"(w), "v"(x));
  return sum;
}
INLINE ivec maddubs(ivec w, ivec x) {
  ivec product;
  __asm__ volatile("vpmaddubsw %2, %1, %0" : "=v"(product) : "v"(w), "v"(x));
  return product;
}
INLINE ivec add_maddubs(ivec sum, ivec w, ivec x) {
  ivec product;
  __asm__ volatile("vpmaddubsw %3, %2, %1\n\tvpaddw %1, %0, %0" : "+v"(sum), "=&v"(product) : "v"(w), "v"(x));
  return sum;
}

INLINE void unit_dense_8(const shape s, ivec acc[][2], const uint8_t *a, const uint8_t *b) {
#pragma GCC unroll 2
  for (int i = 0; i < INFC_GROUPED_UNIT; i += 4, b += INFC_GROUPED_LINE)
#pragma GCC unroll 2
    for (int odd = 0; odd < 2; odd++) {
      ivec w[2];
      __asm__("" : "+r"(b));
#pragma GCC unroll 2
      for (int v = 0; v < s.vectors; v++) {
        w[v] = ivec_load(b + v * VECTOR_BYTES);
        w[v] = IVEC(srli_epi16)(odd ? w[v] : IVEC(slli_epi16)(w[v], 8), 8);
      }
#pragma GCC unroll 16
      for (int r = 0; r < s.rows; r++) {
        const ivec x = row_bytes(a + WIDE * (r * INFC_GROUPED_UNIT + i) + 4 * odd);
#pragma GCC unroll 2
        for (int v = 0; v < s.vectors; v++)
          acc[r][v] = add_madd(acc[r][v], w[v], x);
      }
    }
}

// 16 bits hold what 32 along K add up to, 16 * 15 * 128 at most.
INLINE void unit_halves_4(const shape s, ivec sums[][2], const uint8_t *a, const uint8_t *b) {
#pragma GCC unroll 4
  for (int i = 0; i < INFC_GROUPED_UNIT; i += 8, b += INFC_GROUPED_LINE)
#pragma GCC unroll 2
    for (int high = 0; high < 2; high++) {
      ivec w[2];
      __asm__ volatile("" : "+r"(a), "+r"(b));
#pragma GCC unroll 2
      for (int v = 0; v < s.vectors; v++) {
        w[v] = ivec_load(b + v * VECTOR_BYTES);
        w[v] = nibbles(high ? IVEC(srli_epi16)(w[v], 4) : w[v]);
      }
#pragma GCC unroll 16
      for (int r = 0; r < s.rows; r++) {
        const ivec x = row_bytes(a + r * INFC_GROUPED_UNIT + i + 4 * high);
#pragma GCC unroll 2
        for (int v = 0; v < s.vectors; v++)
          sums[r][v] = i + high ? add_maddubs(sums[r][v], w[v], x) : maddubs(w[v], x);
      }
    }
}

INLINE ivec whole_sums(ivec halves) {
  return IVEC(madd_epi16)(halves, IVEC(set1_epi16)(1));
}

INLINE void unit_dense_4(const shape s, ivec acc[][2], const uint8_t *a, const uint8_t *b) {
  ivec halves[DOT_ROWS][2];
  unit_halves_4(s, halves, a, b);
#pragma GCC unroll 16
  for (int r = 0; r < s.rows; r++)
#pragma GCC unroll 2
    for (int v = 0; v < s.vectors; v++)
      acc[r][v] = IVEC(add_epi32)(acc[r][v], whole_sums(halves[r][v]));
}
#endif

// Rows have 128 added, and 128 times the weights' sums are added to `shift`: both factors' signs are then as `dot`
// wants them.
INLINE void unit_sparse_4(const shape s, ivec acc[][2], ivec shift[2], const ivec zeros[2], const uint8_t *a,
                          const uint8_t *b) {
  const ivec three = IVEC(set1_epi8)(3), half = IVEC(set1_epi32)(0x04040000);
  const factor shifts = factor_unsigned(IVEC(set1_epi8)(-128));
  ivec codes[2];
#pragma GCC unroll 2
  for (int v = 0; v < s.vectors; v++)
    codes[v] = ivec_load(b + v * VECTOR_BYTES);
#pragma GCC unroll 4
  for (int i = 0; i < INFC_GROUPED_UNIT; i += 8) {
    factor w[2];
    ivec place[2];
#pragma GCC unroll 2
    for (int v = 0; v < s.vectors; v++) {
      const ivec two = ivec_load(b + (1 + i / 16) * INFC_GROUPED_LINE + v * VECTOR_BYTES);
      w[v] = factor_signed(IVEC(sub_epi8)(nibbles(i % 16 ? IVEC(srli_epi16)(two, 4) : two), zeros[v]));
      shift[v] = dot(shift[v], shifts, w[v]);
      place[v] = ivec_or(ivec_and(codes[v], three), half);
      codes[v] = IVEC(srli_epi32)(codes[v], 2);
    }
#pragma GCC unroll 16
    for (int r = 0; r < s.rows; r++) {
      const ivec x = row_eight(a + r * INFC_GROUPED_UNIT + i);
#pragma GCC unroll 2
      for (int v = 0; v < s.vectors; v++)
        acc[r][v] = dot(acc[r][v], factor_unsigned(IVEC(shuffle_epi8)(x, place[v])), w[v]);
    }
  }
}

// Scales and zeros of one vector of columns, a group's part of the panel starting at b.
INLINE infc_vec group_scales(const infc_gemm_grouped *g, const uint8_t *b, int64_t col) {
  if (g->scale_bytes == 4 * INFC_PANEL)
    return vec_load((const float *)(const void *)b + col);
#if defined(__AVX512F__)
  return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)(b + 2 * col)));
#else
  return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(b + 2 * col)));
#endif
}
INLINE ivec group_zeros(const infc_gemm_grouped *g, const uint8_t *b, int64_t col) {
#if defined(__AVX512F__)
  return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)(b + g->scale_bytes + col)));
#else
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(b + g->scale_bytes + col)));
#endif
}

// sums += row's scale * column's scale * dots of the group with weights less their zeros
INLINE void group_run(const shape s, infc_vec sums[][2], const infc_gemm_grouped *g, const uint8_t *a, const uint8_t *b,
                      int64_t col, uintptr_t ahead, uintptr_t fetched) {
  const row_params *params = (const row_params *)(const void *)a;
  const uint8_t *weights = b + g->scale_bytes + g->zero_bytes + col * 4;
  ivec acc[DOT_ROWS][2], zero[2], shift[2] = {ivec_zero(), ivec_zero()};
  infc_vec scale[2], fine[2];
#pragma GCC unroll 2
  for (int v = 0; v < s.vectors; v++) {
    scale[v] = group_scales(g, b, col + v * LANES);
    zero[v] = g->zero_bytes ? group_zeros(g, b, col + v * LANES) : IVEC(set1_epi32)((int32_t)g->zero);
    if (s.kind == FINE_4)
      fine[v] = IVEC(cvtepi32_ps)(zero[v]);
    if (s.kind == SPARSE_4) // in all four bytes
      zero[v] = IVEC(mullo_epi32)(zero[v], IVEC(set1_epi32)(0x01010101));
  }
#pragma GCC unroll 16
  for (int r = 0; r < s.rows; r++)
#pragma GCC unroll 2
    for (int v = 0; v < s.vectors; v++)
      acc[r][v] = s.kind == SPARSE_4 || s.kind == FINE_4 ? ivec_zero() : IVEC(set1_epi32)(params[r].start);
  if ((s.kind == DENSE_8 || s.kind == DENSE_4) && g->zero_bytes) {
#pragma GCC unroll 16
    for (int r = 0; r < s.rows; r++)
#pragma GCC unroll 2
      for (int v = 0; v < s.vectors; v++) // a product of 16 bits: sums are less than 2^14
        acc[r][v] = IVEC(madd_epi16)(zero[v], acc[r][v]);
  }
  a += s.rows * (int64_t)sizeof *params;
  const uint8_t *end = a + s.rows * g->group * row_width(s.kind);
  do {
    for (const uintptr_t next = ahead + fetched; ahead < next; ahead += CACHE_LINE)
      _mm_prefetch((const char *)ahead, _MM_HINT_T1);
    if (s.kind == DENSE_8)
      unit_dense_8(s, acc, a, weights);
    else if (s.kind == SPARSE_4)
      unit_sparse_4(s, acc, shift, zero, a, weights);
    else
      unit_dense_4(s, acc, a, weights);
    a += s.rows * INFC_GROUPED_UNIT * row_width(s.kind), weights += unit_bytes(s.kind);
  } while (a < end);
#pragma GCC unroll 16
  for (int r = 0; r < s.rows; r++) {
    const infc_vec row_scale = vec_set(params[r].scale);
#pragma GCC unroll 2
    for (int v = 0; v < s.vectors; v++) {
      const ivec dots = s.kind == SPARSE_4 ? IVEC(sub_epi32)(acc[r][v], shift[v]) : acc[r][v];
      infc_vec sum = IVEC(cvtepi32_ps)(dots);
      if (s.kind == FINE_4)
        sum = vec_fma(vec_set(params[r].total), fine[v], sum);
      sums[r][v] = vec_fma(sum, row_scale * scale[v], sums[r][v]);
    }
  }
}

#if HAS_SINGLE
// The same where a group is one unit: no sum of integers lives longer than that.
INLINE void single_run(const shape s, infc_vec sums[][2], const infc_gemm_grouped *g, const uint8_t *a,
                       const uint8_t *b, int64_t col, uintptr_t ahead, uintptr_t fetched) {
  const row_params *params = (const row_params *)(const void *)a;
  infc_vec scale[2], zero[2];
#pragma GCC unroll 2
  for (int v = 0; v < s.vectors; v++) {
    scale[v] = group_scales(g, b, col + v * LANES);
    zero[v] = g->zero_bytes ? IVEC(cvtepi32_ps)(group_zeros(g, b, col + v * LANES)) : vec_set((float)g->zero);
  }
  for (const uintptr_t next = ahead + fetched; ahead < next; ahead += CACHE_LINE)
    _mm_prefetch((const char *)ahead, _MM_HINT_T1);
  ivec halves[DOT_ROWS][2];
  unit_halves_4(s, halves, a + s.rows * (int64_t)sizeof *params, b + g->scale_bytes + g->zero_bytes + col * 4);
#pragma GCC unroll 16
  for (int r = 0; r < s.rows; r++) {
    const infc_vec row_scale = vec_set(params[r].scale), total = vec_set(params[r].total);
#pragma GCC unroll 2
    for (int v = 0; v < s.vectors; v++) {
      const infc_vec sum = vec_fma(total, zero[v], IVEC(cvtepi32_ps)(whole_sums(halves[r][v])));
      sums[r][v] = vec_fma(sum, row_scale * scale[v], sums[r][v]);
    }
  }
}
#endif

// From the col-th column on, as many as a tile has at most.
INLINE epilogue epilogue_from(const epilogue *e, int64_t col) {
  epilogue from = *e;
  from.residual = e->residual ? e->residual + col : NULL;
  from.y += col;
  from.cols = e->cols - col < TILE_COLS ? e->cols - col : TILE_COLS;
  return from;
}

INLINE void tile_run(const shape s, const infc_gemm_grouped *g, const tile_place *p) {
  infc_vec sums[INFC_PANEL / TILE_COLS][DOT_ROWS][2];
#pragma GCC unroll 2
  for (int x = 0; x < s.across; x++)
#pragma GCC unroll 2
    for (int v = 0; v < s.vectors; v++) {
      const int64_t col = x * TILE_COLS + v * LANES, n = p->out.cols - col;
      const infc_vec bias = p->out.bias && n > 0 ? load_cols(p->out.bias + col, n < LANES ? n : LANES) : vec_zero();
#pragma GCC unroll 16
      for (int r = 0; r < s.rows; r++)
        sums[x][r][v] = bias;
    }
  if (s.rows > FEW_ROWS) // with fewer it costs more than it saves
    epilogue_fetch((tile_kind){s.rows, s.vectors}, &p->out);
  const uintptr_t group_fetched = p->fetched * (uintptr_t)(g->group / INFC_GROUPED_UNIT);
  uintptr_t ahead = p->ahead;
  const uint8_t *a = p->a, *b = p->b;
  for (int64_t i = 0; i < g->groups; i++, a += s.rows * (8 + g->group * row_width(s.kind)), b += g->group_bytes) {
#pragma GCC unroll 2
    for (int x = 0; x < s.across; x++)
#if HAS_SINGLE
      if (s.kind == SINGLE_4)
        single_run(s, sums[x], g, a, b, p->col + x * TILE_COLS, ahead, x ? 0 : p->fetched);
      else
#endif
        group_run(s, sums[x], g, a, b, p->col + x * TILE_COLS, ahead, x ? 0 : p->fetched);
    ahead += group_fetched;
  }
#pragma GCC unroll 2
  for (int x = 0; x < s.across; x++) {
    if (x * TILE_COLS >= p->out.cols)
      return;
    if (p->plain) {
#pragma GCC unroll 16
      for (int r = 0; r < s.rows; r++)
#pragma GCC unroll 2
        for (int v = 0; v < s.vectors; v++)
          vec_store(p->out.y + r * p->out.ldy + x * TILE_COLS + v * LANES, sums[x][r][v]);
    } else {
      float tile[TILE_ROWS][TILE_COLS] __attribute__((aligned(64)));
      store_tile((tile_kind){s.rows, s.vectors}, tile, sums[x]);
      const epilogue out = epilogue_from(&p->out, x * TILE_COLS);
      epilogue_activate(&out, s.rows, tile);
    }
  }
}

#define DEFINE_TILE(rows)                                                                                              \
  enum { VECTORS_##rows = rows <= PAIR_ROWS ? 2 : 1 };                                                                 \
  static void tile_dense_8_##rows(const infc_gemm_grouped *g, const tile_place *p) {                                   \
    tile_run((shape){rows, VECTORS_##rows, across_of(rows), DENSE_8}, g, p);                                           \
  }                                                                                                                    \
  static void tile_dense_4_##rows(const infc_gemm_grouped *g, const tile_place *p) {                                   \
    tile_run((shape){rows, VECTORS_##rows, across_of(rows), DENSE_4}, g, p);                                           \
  }                                                                                                                    \
  static void tile_fine_4_##rows(const infc_gemm_grouped *g, const tile_place *p) {                                    \
    tile_run((shape){rows, VECTORS_##rows, across_of(rows), FINE_4}, g, p);                                            \
  }                                                                                                                    \
  static void tile_sparse_4_##rows(const infc_gemm_grouped *g, const tile_place *p) {                                  \
    tile_run((shape){rows, VECTORS_##rows, across_of(rows), SPARSE_4}, g, p);                                          \
  }
#define DEFINE_SINGLE(rows)                                                                                            \
  static void tile_single_4_##rows(const infc_gemm_grouped *g, const tile_place *p) {                                  \
    tile_run((shape){rows, VECTORS_##rows, across_of(rows), SINGLE_4}, g, p);                                          \
  }
#define NAME_DENSE_8(rows) tile_dense_8_##rows,
#define NAME_DENSE_4(rows) tile_dense_4_##rows,
#define NAME_FINE_4(rows) tile_fine_4_##rows,
#define NAME_SPARSE_4(rows) tile_sparse_4_##rows,
#define NAME_SINGLE_4(rows) tile_single_4_##rows,
FOR_DOT_ROWS(DEFINE_TILE)
#if HAS_SINGLE
FOR_DOT_ROWS(DEFINE_SINGLE)
#endif
static void (*const tiles[FORMATS][DOT_ROWS + 1])(const infc_gemm_grouped *, const tile_place *) = {
    {NULL, FOR_DOT_ROWS(NAME_DENSE_8)},  {NULL, FOR_DOT_ROWS(NAME_DENSE_4)},
    {NULL, FOR_DOT_ROWS(NAME_FINE_4)},   {NULL, FOR_DOT_ROWS(NAME_SPARSE_4)},
#if HAS_SINGLE
    {NULL, FOR_DOT_ROWS(NAME_SINGLE_4)},
#endif
};

// Params of one row, `step` bytes from group to group. A sum may be any number: files are not to be
// believed.
static void pack_params(const infc_gemm_grouped *g, int64_t row, uint8_t *to, int64_t step) {
  const bool floats = format_of(g) == FINE_4 || format_of(g) == SINGLE_4;
  const float *params = g->params + row * 2 * g->groups;
  const ivec factor = IVEC(set1_epi32)(g->zero_bytes ? -1 : -(int32_t)g->zero);
  for (int64_t i = 0; i < g->groups; i += LANES / 2) {
    const int64_t n = g->groups - i < LANES / 2 ? g->groups - i : LANES / 2;
    const infc_vec both = load_cols(params + 2 * i, 2 * n);
    float numbers[LANES];
    int32_t starts[LANES];
    vec_store(numbers, both);
    ivec_store(starts, IVEC(mullo_epi32)(IVEC(cvtps_epi32)(both), factor));
    for (int64_t j = 0; j < n; j++, to += step) {
      row_params row = {.scale = numbers[2 * j], .start = starts[2 * j + 1]};
      if (floats)
        row.total = numbers[2 * j + 1] * (g->sixteenths ? -0.0625f : -1.0f);
      memcpy(to, &row, sizeof row);
    }
  }
}

// 32 bytes of a row, those of a line apart by weights' halves where they are widened.
INLINE void pack_unit(int64_t width, __m256i bytes, uint8_t *to) {
  if (width == 1) {
    _mm256_storeu_si256((__m256i *)(void *)to, bytes);
    return;
  }
  const __m256i halves =
      _mm256_shuffle_epi8(bytes, _mm256_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15, 0, 2, 1, 3, 4,
                                                  6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15));
  _mm256_storeu_si256((__m256i *)(void *)to, _mm256_cvtepi8_epi16(_mm256_castsi256_si128(halves)));
  _mm256_storeu_si256((__m256i *)(void *)(to + 32), _mm256_cvtepi8_epi16(_mm256_extracti128_si256(halves, 1)));
}

// Rows from `row` on as a tile of so many reads them: of each group their params, then 32 numbers of one after the
// other.
static void pack_tile(const infc_gemm_grouped *g, int64_t row, int64_t rows, uint8_t *to) {
  const int64_t width = row_width(format_of(g));
  const int64_t params = rows * (int64_t)sizeof(row_params);
  for (int64_t r = 0; r < rows; r++)
    pack_params(g, row + r, to + r * (int64_t)sizeof(row_params), params + rows * g->group * width);
  const int8_t *a = g->a + row * g->lda;
  const __m256i shift = _mm256_set1_epi8(g->sparse ? -128 : 0);
  for (int64_t i = 0; i < g->groups; i++) {
    to += params;
    for (const int8_t *end = a + g->group; a < end; a += INFC_GROUPED_UNIT)
      for (int64_t r = 0; r < rows; r++, to += INFC_GROUPED_UNIT * width) {
        const __m256i bytes = _mm256_loadu_si256((const __m256i *)(const void *)(a + r * g->lda));
        pack_unit(width, _mm256_xor_si256(bytes, shift), to);
      }
  }
}

INLINE int64_t columns_of(int64_t rows) {
  return rows <= PAIR_ROWS ? across_of(rows) * TILE_COLS : LANES;
}

// Columns of one panel for rows row0 to row1, packed at `a`. A panel that one tile passes over is fetched some way
// ahead; else each pass fetches its share of the next panel, if there is one.
static void panel_run(const infc_gemm_grouped *g, int64_t panel, int64_t row0, int64_t row1, bool last,
                      const uint8_t *a) {
  const tiling t = tile_rows_of(row1 - row0, DOT_ROWS);
  const uint8_t *b = g->b + panel * g->groups * g->group_bytes;
  const int64_t cols = g->n - panel * INFC_PANEL < INFC_PANEL ? g->n - panel * INFC_PANEL : INFC_PANEL;
  const int64_t width = columns_of(t.height + (t.taller > 0));
  const int64_t passes = t.count * ((cols + width - 1) / width);
  const int64_t units = g->k / INFC_GROUPED_UNIT;
  const int64_t fetched = passes > 1 && last ? 0 : g->groups * g->group_bytes / (units * passes);
  uintptr_t ahead = (uintptr_t)(passes == 1 ? b + STREAM_AHEAD : b + g->groups * g->group_bytes);
  for (int64_t i = 0, row = row0, rows; i < t.count; i++, row += rows) {
    rows = t.height + (i < t.taller);
    const int64_t step = columns_of(rows);
    for (int64_t col = 0; col < cols; col += step) {
      const int64_t n = cols - col < step ? cols - col : step, at = panel * INFC_PANEL + col;
      const tile_place place = {
          .a = a + (row - row0) * infc_grouped_row(g->k * row_width(format_of(g)), g->groups),
          .b = b,
          .col = col,
          .out = {g->bias ? g->bias + at : NULL, g->residual ? g->residual + row * g->ldr + at : NULL,
                  g->y + row * g->ldy + at, g->ldr, g->ldy, g->activation, g->residual_first, n},
          .plain = n == step && !g->residual && g->activation == INFC_UNARY_IDENTITY,
          .ahead = ahead,
          .fetched = (uintptr_t)fetched,
      };
      tiles[format_of(g)][rows](g, &place);
      ahead += (uintptr_t)(fetched * units);
    }
  }
}

INLINE void gemm_grouped_run(const infc_task *task, const infc_range *range, infc_worker *worker) {
  const infc_gemm_grouped g = infc_gemm_grouped_view(task);
  const int64_t rows = range->row1 - range->row0,
                row_bytes = infc_grouped_row(g.k * row_width(format_of(&g)), g.groups);
  if (rows <= 0 || range->col0 >= range->col1)
    return;
  // Nothing else fetches the first panel for several passes; it comes while rows are packed.
  const int64_t panel_bytes = g.groups * g.group_bytes;
  const char *first = (const char *)g.b + range->col0 * panel_bytes;
  for (int64_t i = 0; rows > PAIR_ROWS && i < panel_bytes && i < FIRST_BYTES; i += CACHE_LINE)
    _mm_prefetch(first + i, _MM_HINT_T1);
  const int64_t block = infc_grouped_block(row_bytes), blocks = (rows + block - 1) / block;
  for (int64_t i = 0; i < blocks; i++) {
    const int64_t row0 = range->row0 + rows * i / blocks, row1 = range->row0 + rows * (i + 1) / blocks;
    const tiling t = tile_rows_of(row1 - row0, DOT_ROWS);
    for (int64_t j = 0, row = row0, height; j < t.count; j++, row += height) {
      height = t.height + (j < t.taller);
      pack_tile(&g, row, height, (uint8_t *)worker->scratch + (row - row0) * row_bytes);
    }
    for (int64_t panel = range->col0; panel < range->col1; panel++)
      panel_run(&g, panel, row0, row1, panel + 1 == range->col1, worker->scratch);
  }
}
