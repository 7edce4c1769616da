// depthwise_i8: a convolution of bytes of as many groups as channels. The scalar reference and what all its kernels
// rely on.
#include "depthwise_i8.h"

static bool fits(const infc_operand *operand, uint8_t dtype, int64_t count) {
  return operand->dtype == dtype && operand->rows_symbol < 0 && infc_operand_dense(operand) &&
         infc_operand_inner(operand, 0) == count;
}

bool infc_depthwise_i8_validate(const infc_task *task, uint32_t symbol_count) {
  (void)symbol_count;
  const infc_step *step = task->step;
  const uint32_t *words = task->words;
  if (step->word_count != INFC_WORDS_DEPTHWISE_I8 || step->rows_symbol >= 0 || !infc_step_has_no_cols(step) ||
      !infc_step_has(step, 5, 1, INFC_WORDS_DEPTHWISE_I8))
    return false;
  const infc_operand *of = task->operands;
  const infc_window w = infc_window_read(words + INFC_W_DEPTHWISE_I8_IN_D);
  const int64_t channels = of->dims[1], pixels = infc_window_pixels(&w, step->rows);
  if (pixels <= 0 || infc_window_taps(&w) > INFC_DW_MAX_TAPS || words[INFC_W_DEPTHWISE_I8_ZERO] > 255 ||
      !infc_requantise_fits(words + INFC_W_DEPTHWISE_I8_ACTIVATION))
    return false;
  const int64_t chunks = infc_dw_chunks(channels), places = chunks * INFC_DW_CHUNK;
  return of->dtype == INFC_DTYPE_U8 && infc_pixel_stride(of, pixels, channels) > 0 &&
         of[5].dtype == (words[INFC_W_DEPTHWISE_I8_HAS_OUT] ? INFC_DTYPE_U8 : INFC_DTYPE_F32) &&
         infc_pixel_stride(of + 5, step->rows, channels) > 0 &&
         fits(of + 1, INFC_DTYPE_I8, chunks * infc_dw_quads(infc_window_taps(&w)) * INFC_DW_BYTES) &&
         fits(of + 2, INFC_DTYPE_F32, places) && fits(of + 3, INFC_DTYPE_I32, places) &&
         fits(of + 4, INFC_DTYPE_F32, places);
}

// A line of zeros, and where the taps of a pixel lie.
size_t infc_depthwise_i8_scratch(const infc_task *task) {
  const infc_depthwise_i8 d = infc_depthwise_i8_view(task);
  return (size_t)(infc_dw_chunks(d.channels) * INFC_DW_CHUNK + 2 * d.quads * INFC_DW_QUAD * (int64_t)sizeof(uintptr_t));
}

infc_fault infc_depthwise_i8__scalar(const infc_task *task, const infc_range *range, infc_worker *worker) {
  (void)worker;
  const infc_depthwise_i8 d = infc_depthwise_i8_view(task);
  const infc_window *w = &d.window;
  for (int64_t row = range->row0; row < range->row1; row++) {
    const infc_pixel p = infc_pixel_of(w, row);
    for (int64_t c = 0; c < d.channels; c++) {
      const int64_t chunk = c / INFC_DW_CHUNK, place = infc_dw_place(c), at = chunk * INFC_DW_CHUNK + place;
      const int8_t *weights = d.w + chunk * d.quads * INFC_DW_BYTES + place * INFC_DW_QUAD;
      int64_t sum = d.offsets[at];
      for (int64_t tap = 0; tap < d.taps; tap++) {
        const int64_t taps[INFC_AXES] = {tap / w->kernel[2] / w->kernel[1], tap / w->kernel[2] % w->kernel[1],
                                         tap % w->kernel[2]};
        bool inside = true;
        for (int i = 0; i < INFC_AXES; i++) {
          const int64_t q = p.at[i] * w->stride[i] - w->pad[i] + taps[i] * w->dilation[i];
          inside = inside && q >= 0 && q < w->in[i];
        }
        sum += (inside ? d.x[infc_tap_pixel(w, &p, taps) * d.ldx + c] : d.zero) *
               weights[tap / INFC_DW_QUAD * INFC_DW_BYTES + tap % INFC_DW_QUAD];
      }
      const float v = infc_requantise_ref(&d.out, fmaf((float)(int32_t)(uint32_t)sum, d.scales[at], d.bias[at]));
      if (d.out.quantised)
        d.yq[row * d.ldy + c] = infc_requantise_byte(v);
      else
        d.y[row * d.ldy + c] = v;
    }
  }
  return INFC_FAULT_NONE;
}
