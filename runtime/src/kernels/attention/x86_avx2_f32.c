#include "x86_attention.h"

infc_fault infc_attention_f32__avx2(const infc_task *task, const infc_range *range, infc_worker *worker) {
  return attention_run(task, range, worker);
}
