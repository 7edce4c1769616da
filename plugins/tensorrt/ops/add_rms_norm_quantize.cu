// sum = x + residual; y = quantise(sum / rms(sum) * gamma / scale). Each element is read once and written once: a
// thread keeps its part of the row in registers between the reduction and the output.
#include "device.h"

struct Int8 {
  // NaN gives 0.
  static __device__ __forceinline__ unsigned one(float v) {
    return static_cast<unsigned>(min(max(__float2int_rn(v), -128), 127)) & 0xff;
  }
  static __device__ __forceinline__ unsigned two(float low, float high) { return one(low) | one(high) << 8; }
};

struct Fp8 { // E4M3, finite: saturates at 448; NaN gives 0x7f
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  static __device__ __forceinline__ unsigned two(float low, float high) {
    unsigned short bits;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(bits) : "f"(high), "f"(low));
    return bits;
  }
#else
  static __device__ __forceinline__ unsigned one(float v) {
    const unsigned bits = __float_as_uint(v), sign = bits >> 24 & 0x80;
    const float magnitude = fabsf(v);
    if (!(magnitude <= 448.f))
      return magnitude > 448.f ? sign | 0x7e : 0x7f;
    if (magnitude < 0.015625f) // below 2^-6 the step is 2^-9
      return sign | static_cast<unsigned>(__float2int_rn(magnitude * 512.f));
    const unsigned rounded = (bits & 0x7fffffff) + 0x7ffff + (bits >> 20 & 1); // to three bits of mantissa
    return sign | ((rounded >> 20) - (120 << 3));
  }
  static __device__ __forceinline__ unsigned two(float low, float high) { return one(low) | one(high) << 8; }
#endif
};

template <class Pair> static __device__ __forceinline__ uint4 add(uint4 a, uint4 b, float *squares) {
  const Eight<Pair> x = eight_of<Pair>(a), y = eight_of<Pair>(b);
  Eight<Pair> out;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const float2 u = widen(x.pair[i]), v = widen(y.pair[i]);
    narrow(make_float2(u.x + v.x, u.y + v.y), &out.pair[i]);
    const float2 s = widen(out.pair[i]); // what the residual stream holds is what is normalised
    *squares += s.x * s.x + s.y * s.y;
  }
  return bits_of(out);
}

template <class Pair, class Q>
static __device__ __forceinline__ uint2 normalise(uint4 sum, uint4 gamma, float factor, float inverse) {
  const Eight<Pair> s = eight_of<Pair>(sum), g = eight_of<Pair>(gamma);
  unsigned out[4];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const float2 u = widen(s.pair[i]), v = widen(g.pair[i]);
    out[i] = Q::two(u.x * factor * v.x * inverse, u.y * factor * v.y * inverse);
  }
  return make_uint2(out[0] | out[1] << 16, out[2] | out[3] << 16);
}

// Sum over the threads that share a row: a warp, or the whole block.
template <bool BLOCK> static __device__ __forceinline__ float row_sum(float value) {
  value = warp_sum(value);
  if (!BLOCK)
    return value;
  __shared__ float partial[WARP];
  if (threadIdx.x % WARP == 0)
    partial[threadIdx.x / WARP] = value;
  __syncthreads();
  return warp_sum(threadIdx.x % WARP < blockDim.x / WARP ? partial[threadIdx.x % WARP] : 0.f);
}

template <class Pair, class Q, bool BLOCK>
static __device__ __forceinline__ void
add_rms_norm_quantize(const uint4 *__restrict__ x, const uint4 *__restrict__ residual, const uint4 *__restrict__ gamma,
                      const float *__restrict__ scale, uint2 *__restrict__ y, uint4 *__restrict__ sum, int rows,
                      int hidden, float epsilon) {
  constexpr int KEPT = 4; // vectors of eight that a thread keeps; a row too long for that reads its own sums again
  const int vectors = hidden / 8;
  const int row = BLOCK ? blockIdx.x : blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
  const int first = BLOCK ? threadIdx.x : threadIdx.x % WARP, step = BLOCK ? blockDim.x : WARP;
  if (row >= rows) // a whole warp
    return;
  const int start = row * vectors;
  uint4 kept[KEPT];
  float squares = 0;
#pragma unroll
  for (int i = 0; i < KEPT; i++) {
    const int v = first + i * step;
    if (v < vectors)
      sum[start + v] = kept[i] = add<Pair>(x[start + v], residual[start + v], &squares);
  }
  for (int v = first + KEPT * step; v < vectors; v += step)
    sum[start + v] = add<Pair>(x[start + v], residual[start + v], &squares);

  const float factor = rsqrtf(row_sum<BLOCK>(squares) / static_cast<float>(hidden) + epsilon);
  const float inverse = 1.f / *scale;
#pragma unroll
  for (int i = 0; i < KEPT; i++) {
    const int v = first + i * step;
    if (v < vectors)
      y[start + v] = normalise<Pair, Q>(kept[i], gamma[v], factor, inverse);
  }
  for (int v = first + KEPT * step; v < vectors; v += step)
    y[start + v] = normalise<Pair, Q>(sum[start + v], gamma[v], factor, inverse);
}

#define KERNEL(t, pair, q, Q, where, threads)                                                                          \
  extern "C" __global__ void __launch_bounds__(threads, 768 / threads)                                                 \
      add_rms_norm_##t##_##q##_##where(const uint4 *x, const uint4 *residual, const uint4 *gamma, const float *scale,  \
                                       uint2 *y, uint4 *sum, int rows, int hidden, float epsilon) {                    \
    add_rms_norm_quantize<pair, Q, threads == 256>(x, residual, gamma, scale, y, sum, rows, hidden, epsilon);          \
  }
#define KERNELS(t, pair)                                                                                               \
  KERNEL(t, pair, int8, Int8, warp, 128)                                                                               \
  KERNEL(t, pair, int8, Int8, block, 256)                                                                              \
  KERNEL(t, pair, fp8, Fp8, warp, 128)                                                                                 \
  KERNEL(t, pair, fp8, Fp8, block, 256)
KERNELS(f16, __half2)
KERNELS(bf16, __nv_bfloat162)
