// Maximum and average in f32 on vectors of channels; everything else goes to the reference.
#include "../gemm/x86_vector.h"
#include "pooling.h"

enum { POOL_VECTORS = 4 };

INLINE infc_vec load_some(const float *from, int64_t n) {
  return n == LANES ? vec_load(from) : vec_load_first(from, n, vec_zero());
}

// `vectors` vectors of channels from c on, the last with n.
INLINE void channels_run(const int vectors, const bool maximum, const infc_pooling *p, const infc_pixel *pixel,
                         const infc_pool_taps *t, float *y, int64_t c, int64_t n) {
  infc_vec acc[POOL_VECTORS];
#pragma GCC unroll 4
  for (int v = 0; v < vectors; v++)
    acc[v] = vec_set(maximum ? -__builtin_inff() : 0.0f);
  const int64_t first = t->axis[2].first, step = infc_tap_step(&p->window, 2) * p->ldx;
  const int64_t lines = first < t->axis[2].end ? t->axis[1].end : 0; // none where no tap of a line is inside
  for (int64_t i = t->axis[0].first; i < t->axis[0].end; i++)
    for (int64_t j = t->axis[1].first; j < lines; j++) {
      const int64_t tap[INFC_AXES] = {i, j, first};
      const float *x = (const float *)p->x + infc_tap_pixel(&p->window, pixel, tap) * p->ldx + c;
      for (int64_t l = first; l < t->axis[2].end; l++, x += step) {
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) {
          const infc_vec a = load_some(x + v * LANES, v + 1 < vectors ? LANES : n);
          if (maximum)
            acc[v] = vec_if_nan(acc[v], acc[v], vec_max(acc[v], a));
          else
            acc[v] = acc[v] + a;
        }
      }
    }
#pragma GCC unroll 4
  for (int v = 0; v < vectors; v++) {
    infc_vec result = acc[v];
    if (!maximum)
      result = result / vec_set((float)t->divisor);
    if (v + 1 < vectors || n == LANES)
      vec_store(y + c + v * LANES, result);
    else
      vec_store_first(y + c + v * LANES, n, result);
  }
}

INLINE void pixels_run(const bool maximum, const infc_pooling *p, const infc_range *range) {
  for (int64_t row = range->row0; row < range->row1; row++) {
    const infc_pixel pixel = infc_pixel_of(&p->window, row);
    const infc_pool_taps t = infc_pool_taps_of(p, &pixel);
    float *y = (float *)p->y + row * p->ldy;
    int64_t c = 0;
    for (; c + POOL_VECTORS * LANES <= p->channels; c += POOL_VECTORS * LANES)
      channels_run(POOL_VECTORS, maximum, p, &pixel, &t, y, c, LANES);
    for (; c < p->channels; c += LANES)
      channels_run(1, maximum, p, &pixel, &t, y, c, p->channels - c < LANES ? p->channels - c : LANES);
  }
}

static infc_fault pool_run(const infc_task *task, const infc_range *range, infc_worker *worker) {
  const infc_pooling p = infc_pooling_view(task);
  if (task->operands[0].dtype != INFC_DTYPE_F32 || p.kind == INFC_POOL_LP || p.argmax)
    return infc_pool__scalar(task, range, worker);
  if (p.kind == INFC_POOL_MAX)
    pixels_run(true, &p, range);
  else
    pixels_run(false, &p, range);
  return INFC_FAULT_NONE;
}
