#include "x86_conv.h"

infc_fault infc_conv_f32_6x16__avx2(const infc_task *task, const infc_range *range, infc_worker *worker) {
  return conv_run(task, range, worker);
}
