#include "../../cpu_features.h"
#include "vnni.h"
#include "x86_conv_i8.h"

infc_fault infc_conv_i8__avx512(const infc_task *task, const infc_range *range, infc_worker *worker) {
  if (infc_cpu_features() & INFC_CPU_AVX512_VNNI)
    infc_conv_i8_avx512_vnni(task, range, worker);
  else
    conv_i8_run(task, range, worker);
  return INFC_FAULT_NONE;
}
