// y = x · (scale · (w - zero))ᵀ for one to eight rows of x; int4_mat_vec.py has the layout of w. A block computes four
// columns; its threads split k, so that a warp reads 512 adjacent bytes of weights at a time. Weights become halves by
// bit tricks, exactly; products and sums are f32.
#include "device.h"

constexpr int COLUMNS = 4;
constexpr int UNIT = 256; // values of k that eight lanes hold between them
constexpr int MAX_WARPS = 4;

// Half 0x6400 | v is 1024 + v, and 0x6400 | v << 4 is 1024 + 16·v: no shift and no conversion for v = 0..15.
static __device__ __forceinline__ void dequantise(unsigned word, __half2 middle, __half2 middle_high, __half2 out[4]) {
  const __half2 sixteenth = __half2half2(__ushort_as_half(0x2c00));
#pragma unroll
  for (int i = 0; i < 4; i += 2, word >>= 8) {
    out[i] = __hsub2(pair_of<__half2>((word & 0x000f000f) | 0x64006400), middle); // 1024 + v - (1024 + zero)
    out[i + 1] = __hfma2(pair_of<__half2>((word & 0x00f000f0) | 0x64006400), sixteenth, middle_high); // 64 + v - …
  }
}

// Sums N values over a warp, halving what a lane holds at each step: lane l ends with the total of value l / (32 / N).
template <int N, int OFFSET = WARP / 2> static __device__ __forceinline__ float reduce_scatter(float *value) {
  if constexpr (N > 1) {
    const bool upper = threadIdx.x & OFFSET;
    float kept[N / 2];
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
      const float give = upper ? value[i] : value[i + N / 2];
      kept[i] = (upper ? value[i + N / 2] : value[i]) + __shfl_xor_sync(ALL_LANES, give, OFFSET);
    }
    return reduce_scatter<N / 2, OFFSET / 2>(kept);
  } else if constexpr (OFFSET > 0) {
    *value += __shfl_xor_sync(ALL_LANES, *value, OFFSET);
    return reduce_scatter<1, OFFSET / 2>(value);
  } else {
    return *value;
  }
}

template <int ROWS>
static __device__ __forceinline__ void int4_mat_vec(const __half *__restrict__ x, const uint4 *__restrict__ w,
                                                    const __half *__restrict__ scales, const int8_t *__restrict__ zeros,
                                                    __half *__restrict__ y, int rows, int k, int n, int group_size) {
  const int shift = 31 - __clz(group_size), groups = k >> shift;
  const int chunks = (k + UNIT - 1) / UNIT * (UNIT / 32); // 16 bytes of a column's weights
  int column[COLUMNS];
  float sum[ROWS * COLUMNS] = {};
#pragma unroll
  for (int c = 0; c < COLUMNS; c++)
    column[c] = min(static_cast<int>(blockIdx.x) * COLUMNS + c, n - 1);

  for (int chunk = threadIdx.x; chunk < chunks; chunk += blockDim.x) {
    const int start = chunk / 8 * UNIT + chunk % 8 * 8;
    uint4 packed[COLUMNS];
#pragma unroll
    for (int c = 0; c < COLUMNS; c++)
      packed[c] = __ldcs(&w[static_cast<int64_t>(column[c]) * chunks + chunk]); // read once: first to be evicted
#pragma unroll(ROWS < 8 ? 4 : 1) // eight rows at once want too many registers
    for (int part = 0; part < 4; part++) {
      const int at = start + part * (UNIT / 4);
      if (at >= k) // the last unit's filling
        break;
      uint4 activations[ROWS];
#pragma unroll
      for (int r = 0; r < ROWS; r++)
        activations[r] = *reinterpret_cast<const uint4 *>(&x[min(r, rows - 1) * k + at]);
#pragma unroll
      for (int c = 0; c < COLUMNS; c++) {
        const int group = column[c] * groups + (at >> shift);
        const float scale = __half2float(scales[group]);
        const int zero = zeros ? zeros[group] : 8;
        // The bits of -(64 + zero) and 1024 + zero: their units in the last place are 1/16 and 1.
        const __half2 middle = __half2half2(__ushort_as_half(static_cast<unsigned short>(0x6400 + zero)));
        const __half2 middle_high = __half2half2(__ushort_as_half(static_cast<unsigned short>(0xd400 + zero * 16)));
        __half2 weights[4];
        dequantise(packed[c].x, middle, middle_high, weights);
        packed[c] = make_uint4(packed[c].y, packed[c].z, packed[c].w, 0);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
          const Eight<__half2> v = eight_of<__half2>(activations[r]);
          float dot = 0;
#pragma unroll
          for (int i = 0; i < 4; i++) {
            const float2 a = __half22float2(v.pair[i]), b = __half22float2(weights[i]);
            dot += a.x * b.x;
            dot += a.y * b.y;
          }
          sum[r * COLUMNS + c] += scale * dot;
        }
      }
    }
  }

  constexpr int VALUES = ROWS * COLUMNS, LANES = WARP / VALUES;
  __shared__ float partial[MAX_WARPS][VALUES];
  const int lane = threadIdx.x % WARP;
  const float total = reduce_scatter<VALUES>(sum);
  if (lane % LANES == 0)
    partial[threadIdx.x / WARP][lane / LANES] = total;
  __syncthreads();
  const int value = threadIdx.x, to = blockIdx.x * COLUMNS + value % COLUMNS;
  if (value < VALUES && value / COLUMNS < rows && to < n) {
    float result = 0;
    for (int warp = 0; warp < static_cast<int>(blockDim.x) / WARP; warp++)
      result += partial[warp][value];
    y[value / COLUMNS * n + to] = __float2half_rn(result);
  }
}

// `blocks` on a multiprocessor hide the latency of memory; it bounds the registers.
#define KERNEL(ROWS, blocks)                                                                                           \
  extern "C" __global__ void __launch_bounds__(MAX_WARPS *WARP, blocks)                                                \
      int4_mat_vec_rows##ROWS(const __half *x, const uint4 *w, const __half *scales, const int8_t *zeros, __half *y,   \
                              int rows, int k, int n, int group_size) {                                                \
    int4_mat_vec<ROWS>(x, w, scales, zeros, y, rows, k, n, group_size);                                                \
  }
KERNEL(1, 6)
KERNEL(2, 4)
KERNEL(4, 4)
KERNEL(8, 3)
