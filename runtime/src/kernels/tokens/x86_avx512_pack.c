#include "tokens.h"

#include <immintrin.h>

// Which of the 16 mask elements from `at` on are not zero; only the lanes asked for are read.
static inline __attribute__((always_inline)) __mmask16 nonzero(const void *mask, uint8_t dtype, int64_t at,
                                                               __mmask16 lanes) {
  switch (dtype) {
  case INFC_DTYPE_I64: {
    const int64_t *p = (const int64_t *)mask + at;
    __m512i low = _mm512_maskz_loadu_epi64((__mmask8)lanes, p);
    __m512i high = _mm512_maskz_loadu_epi64((__mmask8)(lanes >> 8), p + 8);
    return (__mmask16)(_mm512_test_epi64_mask(low, low) | _mm512_test_epi64_mask(high, high) << 8);
  }
  case INFC_DTYPE_I32: {
    __m512i x = _mm512_maskz_loadu_epi32(lanes, (const int32_t *)mask + at);
    return _mm512_test_epi32_mask(x, x);
  }
  case INFC_DTYPE_F32:
    return _mm512_cmp_ps_mask(_mm512_maskz_loadu_ps(lanes, (const float *)mask + at), _mm512_setzero_ps(), _CMP_NEQ_UQ);
  default: {
    __m128i x = _mm_maskz_loadu_epi8(lanes, (const uint8_t *)mask + at);
    return _mm_test_epi8_mask(x, x);
  }
  }
}

static inline __attribute__((always_inline)) int32_t pack_rows(const infc_pack *pack, uint8_t dtype) {
  const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const int64_t seq = pack->seq;
  int32_t rows = 0; // never ahead of the position: whole vectors may be stored, masked at a sequence's end only
  for (int64_t b = 0; b < pack->batch; b++) {
    int32_t kept = 0;
    pack->offsets[b] = rows;
    for (int64_t s = 0; s < seq; s += 16) {
      __mmask16 lanes = seq - s < 16 ? (__mmask16)((1u << (seq - s)) - 1) : 0xFFFF;
      __mmask16 taken = pack->mask ? nonzero(pack->mask, dtype, b * seq + s, lanes) : lanes;
      if (s == 0) {
        kept = pack->keep_first && !(taken & 1);
        taken = (__mmask16)(taken | kept);
      }
      __m512i column = _mm512_maskz_compress_epi32(taken, _mm512_add_epi32(lane, _mm512_set1_epi32((int32_t)s)));
      __m512i index = _mm512_add_epi32(column, _mm512_set1_epi32((int32_t)(b * seq)));
      _mm512_mask_storeu_epi32(pack->column + rows, lanes, column);
      _mm512_mask_storeu_epi32(pack->index + rows, lanes, index);
      rows += __builtin_popcount(taken);
    }
    pack->key_start[b] = pack->offsets[b] + kept;
  }
  return rows;
}

infc_fault infc_pack_tokens_any__avx512(const infc_task *task, const infc_range *range, infc_worker *worker) {
  (void)range;
  infc_pack pack = infc_pack_open(task, worker);
  int32_t rows;
  switch (pack.dtype) {
  case INFC_DTYPE_I64:
    rows = pack_rows(&pack, INFC_DTYPE_I64);
    break;
  case INFC_DTYPE_I32:
    rows = pack_rows(&pack, INFC_DTYPE_I32);
    break;
  case INFC_DTYPE_F32:
    rows = pack_rows(&pack, INFC_DTYPE_F32);
    break;
  default:
    rows = pack_rows(&pack, INFC_DTYPE_BOOL);
  }
  infc_pack_close(&pack, task, worker, rows);
  return INFC_FAULT_NONE;
}
