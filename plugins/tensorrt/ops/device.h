// What the kernels share. The same source compiles with nvcc and, over emulate.h, with a C++ compiler.
#ifndef INFC_OPS_DEVICE_H
#define INFC_OPS_DEVICE_H

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#else
#include "emulate.h"
#endif
#include <cstdint>

constexpr unsigned ALL_LANES = 0xffffffffu;
constexpr int WARP = 32;

// 16 bytes as four pairs of elements.
template <class Pair> struct Eight {
  Pair pair[4];
};

template <class Pair> __device__ __forceinline__ Pair pair_of(unsigned bits) {
  return *reinterpret_cast<const Pair *>(&bits);
}

template <class Pair> __device__ __forceinline__ unsigned bits_of(Pair pair) {
  return *reinterpret_cast<const unsigned *>(&pair);
}

template <class Pair> __device__ __forceinline__ Eight<Pair> eight_of(uint4 v) {
  return {{pair_of<Pair>(v.x), pair_of<Pair>(v.y), pair_of<Pair>(v.z), pair_of<Pair>(v.w)}};
}

template <class Pair> __device__ __forceinline__ uint4 bits_of(const Eight<Pair> &v) {
  return make_uint4(bits_of(v.pair[0]), bits_of(v.pair[1]), bits_of(v.pair[2]), bits_of(v.pair[3]));
}

__device__ __forceinline__ float2 widen(__half2 pair) {
  return __half22float2(pair);
}
__device__ __forceinline__ float2 widen(__nv_bfloat162 pair) {
  return __bfloat1622float2(pair);
}
__device__ __forceinline__ void narrow(float2 v, __half2 *out) {
  *out = __float22half2_rn(v);
}
__device__ __forceinline__ void narrow(float2 v, __nv_bfloat162 *out) {
  *out = __float22bfloat162_rn(v);
}

__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int offset = WARP / 2; offset; offset /= 2)
    value += __shfl_xor_sync(ALL_LANES, value, offset);
  return value;
}

#endif // INFC_OPS_DEVICE_H
