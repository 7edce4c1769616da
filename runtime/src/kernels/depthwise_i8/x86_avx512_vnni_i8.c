#include "vnni.h"
#include "x86_depthwise_i8.h"

void infc_depthwise_i8_avx512_vnni(const infc_task *task, const infc_range *range, infc_worker *worker) {
  depthwise_i8_run(task, range, worker);
}
