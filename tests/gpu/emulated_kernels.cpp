// KERNELS_FILE names a generated file: the CUDA sources, and EMULATED_KERNELS(X), X(name) for each kernel.
#include "emulated_kernels.h"

#include KERNELS_FILE

#include <type_traits>
#include <utility>

template <auto kernel> struct Emulated;
template <class... A, void (*kernel)(A...)> struct Emulated<kernel> {
  template <size_t... I>
  static void spread(void **arguments, unsigned grid, unsigned block, std::index_sequence<I...>) {
    emulate::launch(grid, block, [=] { kernel(*static_cast<A *>(arguments[I])...); });
  }
  static void run(void **arguments, unsigned grid, unsigned block) {
    spread(arguments, grid, block, std::index_sequence_for<A...>{});
  }
  static constexpr emulated_kernel described(const char *name) {
    return {name, sizeof...(A), {{std::is_pointer_v<A>, sizeof(A)}...}, run};
  }
};

#define DESCRIBED(kernel) Emulated<kernel>::described(#kernel),
const emulated_kernel emulated_kernels[] = {EMULATED_KERNELS(DESCRIBED)};
const uint32_t emulated_kernel_count = sizeof emulated_kernels / sizeof *emulated_kernels;
