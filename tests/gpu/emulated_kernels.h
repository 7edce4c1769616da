// The kernels of the custom operators, compiled for the CPU over plugins/tensorrt/ops/emulate.h.
#ifndef INFC_EMULATED_KERNELS_H
#define INFC_EMULATED_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { EMULATED_ARGUMENTS = 16 };

typedef struct emulated_kernel {
  const char *name;
  uint32_t argument_count;
  struct {
    bool pointer;
    size_t size;
  } arguments[EMULATED_ARGUMENTS];
  void (*run)(void **arguments, unsigned grid, unsigned block); // one at a time
} emulated_kernel;

extern const emulated_kernel emulated_kernels[];
extern const uint32_t emulated_kernel_count;

#ifdef __cplusplus
}
#endif
#endif // INFC_EMULATED_KERNELS_H
