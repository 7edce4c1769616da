// As much of CUDA as the kernels use, on the CPU: the threads of a block are fibers of one thread of the machine, which
// take turns at __syncthreads and at shuffles. A barrier that not all threads reach aborts the program.
#ifndef INFC_OPS_EMULATE_H
#define INFC_OPS_EMULATE_H

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <ucontext.h>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static // one block runs at a time
#define __launch_bounds__(...)

struct uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct float2 {
  float x, y;
};
struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};
inline uint2 make_uint2(unsigned x, unsigned y) {
  return {x, y};
}
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
  return {x, y, z, w};
}
inline float2 make_float2(float x, float y) {
  return {x, y};
}

inline dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace emulate {
struct Fiber {
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  bool done;
};
struct Barrier {
  unsigned arrived, passed;
};
constexpr size_t STACK = 64 * 1024;
constexpr unsigned LANES = 32;
inline ucontext_t scheduler;
inline std::vector<Fiber> fibers;
inline std::vector<Barrier> warps;
inline std::vector<float> exchange;
inline Barrier block;
inline bool progress;
inline std::function<void()> body;

inline void wait(Barrier &barrier, unsigned threads) {
  const unsigned passed = barrier.passed, self = threadIdx.x;
  progress = true;
  if (++barrier.arrived == threads) {
    barrier.arrived = 0;
    barrier.passed++;
    return;
  }
  while (barrier.passed == passed)
    swapcontext(&fibers[self].context, &scheduler);
  progress = true;
}

inline void wait_warp() {
  const unsigned first = threadIdx.x / LANES * LANES, rest = blockDim.x - first;
  wait(warps[threadIdx.x / LANES], rest < LANES ? rest : LANES);
}

inline void start() {
  const unsigned self = threadIdx.x;
  body();
  fibers[self].done = progress = true;
  swapcontext(&fibers[self].context, &scheduler);
}

inline void run_block() {
  fibers.resize(blockDim.x);
  exchange.resize(blockDim.x);
  warps.assign((blockDim.x + LANES - 1) / LANES, {});
  block = {};
  for (Fiber &fiber : fibers) {
    if (!fiber.stack)
      fiber.stack.reset(new char[STACK]);
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = STACK;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, start, 0);
    fiber.done = false;
  }
  for (size_t left = fibers.size(); left;) {
    progress = false;
    left = 0;
    for (unsigned t = 0; t < fibers.size(); t++)
      if (!fibers[t].done) {
        threadIdx.x = t;
        swapcontext(&scheduler, &fibers[t].context);
        left += !fibers[t].done;
      }
    if (!progress) {
      fputs("emulated kernel: a barrier that not all threads reach\n", stderr);
      abort();
    }
  }
}

inline void launch(unsigned grid, unsigned threads, const std::function<void()> &kernel) {
  body = kernel;
  gridDim.x = grid;
  blockDim.x = threads;
  for (blockIdx.x = 0; blockIdx.x < grid; blockIdx.x++)
    run_block();
}

} // namespace emulate

inline void __syncthreads() {
  emulate::wait(emulate::block, blockDim.x);
}

inline float __shfl_xor_sync(unsigned, float value, int mask) {
  const unsigned self = threadIdx.x;
  emulate::exchange[self] = value;
  emulate::wait_warp();
  const float other = emulate::exchange[self ^ mask];
  emulate::wait_warp(); // nobody overwrites what another has yet to read
  return other;
}

// Scalars.
template <class T> T __ldcs(const T *p) {
  return *p;
}
inline int __clz(int v) {
  return v ? __builtin_clz(v) : 32;
}
inline int min(int a, int b) {
  return a < b ? a : b;
}
inline int max(int a, int b) {
  return a > b ? a : b;
}
inline float rsqrtf(float v) {
  return 1.f / sqrtf(v);
}
inline unsigned __float_as_uint(float v) {
  unsigned bits;
  memcpy(&bits, &v, sizeof bits);
  return bits;
}
inline float __uint_as_float(unsigned bits) {
  float v;
  memcpy(&v, &bits, sizeof v);
  return v;
}
// To the nearest, ties to even; saturates; NaN gives 0.
inline int __float2int_rn(float v) {
  if (v != v)
    return 0;
  return v >= 2147483648.f ? INT32_MAX : v <= -2147483648.f ? INT32_MIN : static_cast<int>(nearbyintf(v));
}

// Halves.
struct __half {
  uint16_t bits;
};
struct alignas(4) __half2 {
  __half x, y;
};
inline __half __ushort_as_half(unsigned short bits) {
  return {bits};
}
inline __half2 __half2half2(__half v) {
  return {v, v};
}
inline float __half2float(__half h) {
  const unsigned sign = (h.bits & 0x8000u) << 16, rest = h.bits & 0x7fffu;
  if (rest >= 0x7c00) // infinity, NaN
    return __uint_as_float(sign | 0x7f800000 | (rest & 0x3ff) << 13);
  const float magnitude =
      rest < 0x400 ? static_cast<float>(rest) * 0x1p-24f : __uint_as_float((rest << 13) + (112u << 23));
  return __uint_as_float(sign | __float_as_uint(magnitude));
}
inline __half __float2half_rn(float v) {
  const unsigned bits = __float_as_uint(v), sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;
  unsigned out;
  if (rest > 0x7f800000)
    return {0x7fff};
  if (rest >= 0x477ff000) // rounds to more than 65504
    out = 0x7c00;
  else if (rest < 0x38800000) // below 2^-14 the step is 2^-24
    out = static_cast<unsigned>(nearbyintf(__uint_as_float(rest) * 0x1p24f));
  else
    out = (rest + 0xfff + (rest >> 13 & 1) - (112u << 23)) >> 13;
  return {static_cast<uint16_t>(sign | out)};
}
inline float2 __half22float2(__half2 v) {
  return {__half2float(v.x), __half2float(v.y)};
}
inline __half2 __float22half2_rn(float2 v) {
  return {__float2half_rn(v.x), __float2half_rn(v.y)};
}
inline __half2 __hsub2(__half2 a, __half2 b) {
  const float2 u = __half22float2(a), v = __half22float2(b);
  return __float22half2_rn({u.x - v.x, u.y - v.y});
}
// The product of two halves is exact in f32; so is the sum for the values of dequantise.
inline __half2 __hfma2(__half2 a, __half2 b, __half2 c) {
  const float2 u = __half22float2(a), v = __half22float2(b), w = __half22float2(c);
  return __float22half2_rn({u.x * v.x + w.x, u.y * v.y + w.y});
}

struct __nv_bfloat16 {
  uint16_t bits;
};
struct alignas(4) __nv_bfloat162 {
  __nv_bfloat16 x, y;
};
inline float2 __bfloat1622float2(__nv_bfloat162 v) {
  return {__uint_as_float(static_cast<unsigned>(v.x.bits) << 16),
          __uint_as_float(static_cast<unsigned>(v.y.bits) << 16)};
}
inline __nv_bfloat16 __float2bfloat16_rn(float v) {
  const unsigned bits = __float_as_uint(v);
  return {static_cast<uint16_t>(v != v ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}
inline __nv_bfloat162 __float22bfloat162_rn(float2 v) {
  return {__float2bfloat16_rn(v.x), __float2bfloat16_rn(v.y)};
}

#endif // INFC_OPS_EMULATE_H
