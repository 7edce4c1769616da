"""The CPU program's operators: what each one's operands and attribute words are.

One entry here, one folder ``runtime/src/kernels/<family>`` and one lowering make a new operator. Words are
32-bit; a word whose name ends in ``_f32`` holds the bits of a float. Optional operands are announced by a
``has_*`` word and come in the order written. All operands are row-major and dense unless said otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass

# Elementwise functions of one argument (op `unary`, and `activation` of `gemm`). Append only.
UNARY = ("identity", "relu", "gelu_erf", "gelu_tanh", "silu", "tanh", "sigmoid", "exp", "log", "sqrt", "rsqrt", "reciprocal",
         "erf", "abs", "neg", "floor", "ceil", "round", "sin", "cos", "softplus", "sign", "not", "leaky_relu", "clip", "elu",
         "hard_sigmoid", "hard_swish", "square", "quick_gelu", "isnan", "isinf", "relu6", "tan", "asin", "acos",
         "atan", "sinh", "cosh", "asinh", "acosh", "atanh")
# Elementwise functions of two arguments (op `binary`). From `equal` to `xor` the result is bool.
BINARY = ("add", "sub", "mul", "div", "pow", "min", "max", "mod", "prelu", "equal", "less", "less_equal", "greater",
          "greater_equal", "and", "or", "xor", "rem", "bit_and", "bit_or", "bit_xor", "shift_left", "shift_right")
REDUCE = ("sum", "mean", "max", "min", "prod", "l1", "l2", "sum_square", "log_sum_exp")
NORM = ("layer", "rms", "l2")
SEGMENT = ("mean", "sum", "max", "first")
POOL = ("max", "average", "lp")
RECURRENT = ("rnn", "gru", "lstm")
# Functions of op `recurrent`; alpha and beta as ONNX has them for the operators of these names.
RECURRENT_ACTIVATION = ("relu", "tanh", "sigmoid", "affine", "leaky_relu", "thresholded_relu", "scaled_tanh", "hard_sigmoid", "elu",
                        "softsign", "softplus")
RECURRENT_UNITS = 16  # hidden units whose weights lie together
SCATTER = ("none", "add", "mul", "max", "min")
CUMULATE = ("sum", "prod")
SAMPLE = ("nearest", "linear", "cubic")  # interpolation between pixels
BORDER = ("zeros", "border", "reflection")  # what lies outside an image
QUANTIZE_ROWS = ("asymmetric", "symmetric", "shifted")  # kinds of op `quantize_rows`
GEMM_16 = ("bf16", "f16", "f8e4m3")  # formats of the weights of op `gemm_16`
GROUPED_ZEROS = ("none", "bytes", "sixteenths")  # what weights of op `gemm_grouped` have beside scales
# Loop nests of `binary`, `select` and `copy` have exactly this many dimensions, outermost first, filled with 1 from the left.
NEST = 6


@dataclass(frozen=True)
class Op:
    """``inputs`` and ``outputs`` document the operands, ``words`` names the attribute words in order."""

    inputs: str
    outputs: str
    words: tuple[str, ...]
    rows: str  # what a ROWS split divides
    cols: str  # what a COLS split divides; empty: not splittable by columns


def _nest(*names: str) -> tuple[str, ...]:
    return tuple(f"{n}{i}" for n in names for i in range(NEST))


def _window(*more: str) -> tuple[str, ...]:
    """Words of a sliding window over up to three dimensions, missing ones being 1. Output position o and tap k of a dimension meet
    at input position o * stride - pad + k * dilation; pad is signed."""
    return tuple(f"{n}_{axis}" for n in ("in", "out", "kernel", "stride", "dilation", "pad", *more) for axis in "dhw")


OPS: dict[str, Op] = {
    # y = activation(a @ b + bias) + residual; activation(a @ b + bias + residual) where has_residual is 2
    "gemm": Op("a[rows,K] (row_stride free), b[K,N] packed F32_K1N32, bias[N]?, residual[rows,N]? (row_stride free)",
               "y[rows,N] (row_stride free)", ("activation", "has_bias", "has_residual"), "rows", "panels of 32 columns"),
    # layer: (x - mean) / sqrt(var + epsilon) * gamma + beta; rms: x / sqrt(mean(x^2) + epsilon) * gamma + beta;
    # l2: x / max(sqrt(sum(x^2)), epsilon). x is first increased by the residual; `sum` is that sum. x may be [rows,norms,N]: then a
    # row of each operand holds so many norms one after the other.
    "norm": Op("x[rows,N], gamma[N]?, beta[N]?, residual[rows,N]?", "y[rows,N], sum[rows,N]?",
               ("kind", "epsilon_f32", "has_gamma", "has_beta", "has_residual", "has_sum"), "rows", ""),
    # y[r] = sum over i of table_i[ids_i[r]]; an id outside its table is an error at run time
    "embed_sum": Op("count pairs of ids[rows] (i32 or i64), table[V_i,N] (f32, bf16 or f16)", "y[rows,N]", ("count",), "rows", ""),
    # Rows of a [batch, seq] rectangle whose mask is not zero, in order; sets symbol `tokens`. With keep_first, position 0 of
    # each sequence is a row even if masked, and key_start tells that it is no key. No mask: every position is a row.
    "pack_tokens": Op("mask[batch,seq]? (i32, i64, bool, u8 or f32)",
                      "index[tokens] i32 (b*seq+s, seq being the caller's), column[tokens] i32 (s), offsets[batch+1] i32 "
                      "(first row of each sequence, then the number of rows), key_start[batch] i32 (first row that is a key)",
                      ("batch_symbol", "seq_symbol", "tokens_symbol", "has_mask", "keep_first"), "", ""),
    # y[r] = x[index[r]] over whole rows of any 1-, 2-, 4- or 8-byte type; x[batch,seq,...] is read as [batch*seq, ...]
    "gather_rows": Op("x[batch,seq,...], index[rows] i32", "y[rows,...]", ("batch_symbol", "seq_symbol"), "rows", ""),
    # y[index[r]] = x[r], zero where no row goes; index is ascending. y[batch,seq,...] is dense in the caller's batch and seq.
    "scatter_rows": Op("x[rows,...], index[rows] i32", "y[batch,seq,...]", ("batch_symbol", "seq_symbol"), "rows", ""),
    # Per sequence b: softmax(scale * q k^T + bias) v, grouped heads. With segments, queries of b are rows offsets[b] to
    # offsets[b+1] and its keys rows key_start[b] to offsets[b+1]. Without, queries are b*q_len.., keys b*kv_len... A query with
    # no key gets zeros. causal: lower right. bias is f32 added to the scores, or bool (false: not attended), at
    # b*bias_b + h*bias_h + i*bias_q + j elements.
    "attention": Op("q[rows,heads*head_dim], k[.,kv_heads*head_dim], v[.,kv_heads*v_dim] (row_stride free), offsets[batch+1] and "
                    "key_start[batch] i32 if has_segments, bias? f32 or bool",
                    "y[rows,heads*v_dim]",
                    ("heads", "kv_heads", "head_dim", "v_dim", "scale_f32", "causal", "has_segments", "batch_symbol", "batch",
                     "q_len", "kv_len", "has_bias", "bias_b", "bias_h", "bias_q"), "query rows", "heads"),
    # Over the keys of each sequence: mean is sum / max(count, epsilon); first is row offsets[b] whatever key_start says.
    # A sequence with no key gives zeros (first: with no row).
    "segment_reduce": Op("x[tokens,N], offsets[rows+1] i32, key_start[rows] i32", "y[rows,N]", ("kind", "epsilon_f32"),
                         "sequences", ""),
    # f32 and f64, bool for `not`; signed integer types for identity, abs, neg, sign and clip. alpha and beta: leaky_relu(alpha),
    # clip(alpha, beta), elu(alpha), hard_sigmoid(alpha, beta). isnan and isinf give bool.
    "unary": Op("x[rows,...]", "y[rows,...]", ("function", "alpha_f32", "beta_f32"), "rows", ""),
    # y[i0..i5] = f(a[strides], b[strides]); y is dense with dims d. ROWS divides d0, which is the operand's leading dimension when
    # rows_symbol is set. f32, f64, i32, i64, bool by operand type.
    "binary": Op("a, b", "y", ("function", *_nest("d", "sa", "sb")), "d0", ""),
    "select": Op("condition bool, a, b of any 1-, 2-, 4- or 8-byte type", "y", (*_nest("d", "sc", "sa", "sb"),), "d0", ""),
    # y[offset_y + sum(i*sy)] = x[offset_x + sum(i*sx)]: transpose, slice, expand, concat, split, pad's body. Any type.
    # No element of y is written twice.
    "copy": Op("x", "y", (*_nest("d", "sx", "sy"), "offset_x", "offset_y"), "d0", ""),
    # y[i] = the word `value` (or the low and high words for 8-byte types)
    "fill": Op("", "y", ("value", "value_high"), "", ""),
    # over the last dimension; f32 or f64
    "softmax": Op("x[rows,N]", "y[rows,N]", ("log",), "rows", ""),
    # x is read as [rows, reduced, inner]; f32, f64, and i32, i64, u64 for sum, max, min, prod, l1 and sum_square
    "reduce": Op("x", "y[rows,inner]", ("kind", "reduced", "inner"), "rows", ""),
    # data is read as [rows, axis, inner], y as [rows, n, inner]; negative indices count from the end, others outside are errors
    "gather": Op("data (any type), indices[n] i32 or i64", "y", ("axis", "inner"), "rows", ""),
    # y[b,m,n] = alpha * a[b,m,k] b[b,k,n]; batch element b starts at b*stride; trans_b: b is [n,k]. rows = batch. A step with no
    # COLS split may leave cols at 1.
    "matmul": Op("a, b of one type: f32, f64, i32 or i64", "y[rows,M,N]", ("m", "n", "k", "stride_a", "stride_b",
                 "trans_b", "alpha_f32"), "batch", "panels of 32 columns"),
    # Numeric conversion between any two types. Float to integer truncates, out of range is saturated, NaN is 0; integer to narrower
    # integer keeps the low bits, as does float to an integer of 4 or 2 bits; to a float: the nearest, even if halfway. saturate:
    # float8 takes its largest value for what is beyond it, not infinity or NaN. round, for f8e8m0: 0 up, 1 down, 2 to the nearest.
    "cast": Op("x[rows,...]", "y[rows,...]", ("saturate", "round"), "rows", ""),
    # y = activation(convolution + bias) + residual, or as gemm where has_residual is 2; a row is a pixel: images * out_d * out_h *
    # out_w of them, channels innermost. Row
    # tap * C + c of b belongs to input channel c of a group; columns of a group of N / groups channels fill whole panels where
    # there are several groups. With up, x has up - 1 zeros between its pixels: the gather form of a transposed convolution.
    "conv": Op("x[pixels,groups*C] (row_stride free), b[taps*C,N] packed F32_K1N32, bias[N]?, residual[rows,N]? (row_stride free)",
               "y[rows,N] (row_stride free)", ("activation", "has_bias", "has_residual", "groups", *_window("up")), "rows",
               "panels of 32 columns"),
    # A channel of y sees the same one of x: y[r,c] = activation(sum over taps of x[.,c] * w[tap,c] + bias[c])
    "depthwise": Op("x[pixels,C] (row_stride free), w[taps,C], bias[C]?", "y[rows,C] (row_stride free)",
                    ("activation", "has_bias", *_window()), "rows", ""),
    # Over the taps that lie in x; average divides by their number, or by those before position `end` if count_pad. lp:
    # sum(|x|^p)^(1/p). argmax is the place of the maximum in x as [images,C,d,h,w], or with w outermost if by_column.
    # max: f32, f64, u8, i8; others f32.
    "pool": Op("x[pixels,C] (row_stride free)", "y[rows,C] (row_stride free), argmax[rows,C]? i64",
               ("kind", "count_pad", "p_f32", "has_argmax", "by_column", *_window("end")), "rows", ""),
    # y[i] = x[sum(i*sx) + index[sum(i*si)] * stride]; y is dense with dims d. An index counts `size` elements, from the end if
    # negative; others are errors. x of any type.
    "gather_elements": Op("x, indices i32 or i64", "y", (*_nest("d", "sx", "si"), "size", "stride"), "d0", ""),
    # y[sum(i*sy) + index[sum(i*si)] * stride] = combine(what is there, x[sum(i*sx)]) one after the other, over what y holds
    # already. kind none: any type; others: f32, f64 and integers.
    "scatter_elements": Op("x, indices i32 or i64", "y", ("kind", *_nest("d", "sx", "si", "sy"), "size", "stride"), "d0", ""),
    # Row r of y is the `inner` elements at the place in x[rows / tuples, n0, n1 ..., inner] that row r of the indices names
    "gather_nd": Op("x (any type), indices[rows,depth] i32 or i64", "y[rows,inner]", ("tuples", "depth", "inner", *_nest("n")),
                    "rows", ""),
    # y[n0, n1 ..., inner] at the place that row r of the indices names is combined with row r of x, over what y holds already
    "scatter_nd": Op("x[tuples,inner], indices[tuples,depth] i32 or i64", "y", ("kind", "tuples", "depth", "inner", *_nest("n")),
                     "", ""),
    # The place of the largest or smallest; `last` of equal ones, else the first. x is read as [rows, reduced, inner]
    "arg": Op("x f32, f64 or integers", "y[rows,inner] i64", ("smallest", "last", "reduced", "inner"), "rows", ""),
    # The k first of x[rows,n] in order; of equal ones, that of the lower index. NaN is the largest.
    "top_k": Op("x f32, f64 or integers", "values[rows,k], indices[rows,k] i64", ("n", "k", "smallest"), "rows", ""),
    # Sums or products of all elements up to each one along the middle of [rows, n, inner]; exclusive: before each one
    "cumulate": Op("x f32, f64, i32 or i64", "y", ("kind", "n", "inner", "exclusive", "reverse"), "rows", ""),
    # Interpolation along one dimension: x is [images, n, inner], row r of y is sum over t of weights[o,t] * x[r / out, first[o]
    # + t] with o = r % out
    "resample": Op("x f32, first[out] i32, weights[out,taps] f32", "y[rows,inner]", ("n", "out", "taps", "inner"), "rows", ""),
    # y[r] is x at points[r], given in pixels, the innermost dimension first: 1 to 3 of them. align: images end at the centres of
    # their last pixels, for reflection.
    "grid_sample": Op("x[images*d*h*w,C] f32 (row_stride free), points[rows,dims] f32", "y[rows,C]",
                      ("mode", "outside", "align", "points", "dims", "in_d", "in_h", "in_w"), "rows", ""),
    # Bin r of rows = regions * out_h * out_w: mean or maximum of bilinear samples. rois are x1, y1, x2, y2. ratio 0: as many
    # samples as a bin has pixels
    "roi_align": Op("x[images*h*w,C] f32 (row_stride free), rois[regions,4] f32, images[regions] i32 or i64", "y[rows,C]",
                    ("max", "half_pixel", "ratio", "scale_f32", "in_h", "in_w", "out_h", "out_w"), "rows", ""),
    # Determinants of square matrices
    "det": Op("x[rows,n,n] f32", "y[rows]", ("n",), "rows", ""),
    # Control flow: what follows such a step in the table is its region. SERIAL: thread 0 alone goes through a region of SERIAL
    # steps without barriers. ROWS: all threads do, and meet before the step is evaluated and after, at every iteration. Regions
    # nest.
    # The next then_steps steps run if the condition holds, else the else_steps steps after them
    "branch": Op("condition bool", "", ("then_steps", "else_steps"), "", ""),
    # The next `steps` steps run again and again, while the number of iterations done, which `iteration` is set to, is less than
    # the trip count and the condition, read anew each time, holds
    "repeat": Op("trip_count i64?, condition bool?", "iteration i64?",
                 ("steps", "has_trip_count", "has_condition", "has_iteration"), "", ""),
    # y is [rows, axis, inner]: y[:, index, :] = x; an index outside is an error, negative ones count from the end
    "place": Op("x[rows,inner] (any type), index i32 or i64", "y", ("axis", "inner"), "rows", ""),
    # A recurrence over seq steps; gates in ONNX's order. A row is a sequence in one direction: direction * batch + b. gates holds
    # x W^T + all biases but `bias` in row t * batch + b, or b * seq + t if by_batch. r is R^T packed: weights from hidden unit k to
    # gate g of unit j are at [direction][j / 16][k][g][j % 16], zero where no unit is. Sequences of lens[b] < seq leave y zero
    # after their end. bias is that of a GRU's hidden gate within the reset; reverse: bit d is set if direction d runs backwards.
    # Functions f, g, h of two directions, each a code of RECURRENT_ACTIVATION, alpha, beta; clip 0: none.
    "recurrent": Op("gates[.,directions*gates*hidden], r[directions,blocks,hidden,gates,16], bias[directions,hidden]?, "
                    "lens[batch] i32?, h[rows,hidden]?, c[rows,hidden]?, peephole[directions,3*hidden]?",
                    "y[seq,directions,batch,hidden]?, y_h[rows,hidden]?, y_c[rows,hidden]?",
                    ("kind", "seq", "batch", "hidden", "reverse", "by_batch", "input_forget", "clip_f32",
                     "has_bias", "has_lens", "has_h", "has_c", "has_peephole", "has_y", "has_y_h", "has_y_c",
                     *(f"{n}_{f}{d}{t}" for d in "01" for f in "fgh" for n, t in
                       (("function", ""), ("alpha", "_f32"), ("beta", "_f32")))), "sequences", ""),
    # y = (x / scale to the nearest, even if halfway) + zero, held to y's range; to a float type: x / scale + zero, rounded to it.
    # Element (p, a, i) of x has the scale and zero at p * stride_row + (a / block) * stride_block + i * stride_inner.
    "quantize": Op("x[rows,axis,inner] f32, scale f32, zero of y's type?",
                   "y[rows,axis,inner]: integers of up to 16 bits, floats of up to 8",
                   ("has_zero", "axis", "inner", "block", "stride_row", "stride_block", "stride_inner", "saturate"), "rows", ""),
    # y = (x - zero) * scale, with scale and zero as for `quantize`
    "dequantize": Op("x[rows,axis,inner]: i32, integers of up to 16 bits, floats of up to 8, scale f32, zero of x's type?",
                     "y[rows,axis,inner] f32",
                     ("has_zero", "axis", "inner", "block", "stride_row", "stride_block", "stride_inner"), "rows", ""),
    # Discrete Fourier transform of `length` elements, of which x gives the first n: real (parts 1) or complex. The first `out` are
    # kept. real: x is the first half of what is its own mirror image. table is cos and sin of 2 pi i / length.
    "dft": Op("x[rows,n,parts] f32, table[length,2] f64", "y[rows,out,2] f32 (y[rows,out] if real)",
              ("n", "parts", "length", "out", "inverse", "real"), "rows", ""),
    # conv of a 3 x 3 kernel with steps of 1 as Winograd's F(4 x 4, 3 x 3): a row is a tile of 4 x 4 pixels, images * ceil(out_h /
    # 4) * ceil(out_w / 4) of them. Row e * C + c of b belongs to point e = 6 * i + j of the transformed kernel G g G^T, for the
    # points 0, 5/8, -5/8, 3/2, -3/2 and infinity; see runtime/src/kernels/winograd/winograd.h.
    "winograd": Op("x[pixels,C] (row_stride free), b[36*C,N] packed F32_K1N32, bias[N]?, residual[pixels,N]? (row_stride free)",
                   "y[pixels,N] (row_stride free)", ("activation", "has_bias", "has_residual", "in_h", "in_w", "out_h", "out_w",
                                                     "pad_h", "pad_w"), "tiles", "panels of 32 columns"),
    # For row r of a rectangle that lies at index[r], in column[r] of its sequence: the sum of the sequence's elements up to and
    # with it; if counts, the number of those that are not `value` (as i32)
    "sum_until": Op("x[batch,seq] i32 or i64, index[rows] i32, column[rows] i32", "y[rows] i64",
                    ("batch_symbol", "seq_symbol", "counts", "value"), "rows", ""),
    # The caller's rectangle in the corner of one that has the profile's size, zeros around it; and back. A symbol may be -1: that
    # dimension does not vary. Any 1-, 2-, 4- or 8-byte type.
    "grow": Op("x[batch,seq,...]", "y[rows,seq,...] of the profile's size", ("batch_symbol", "seq_symbol"), "rows", ""),
    "crop": Op("x[rows,seq,...] of the profile's size", "y[batch,seq,...]", ("batch_symbol", "seq_symbol"), "rows", ""),
    # Scales of groups of `group` elements of a row (0: all of it) from their extremes, and the elements in them; r = 1 / scale. One
    # below 2^-126 is 1, that of a group with NaN or an infinity NaN.
    # asymmetric: with lo = min(x, 0), hi = max(x, 0), scale (hi - lo) / 255, zero = round(-lo * r): u8 round(x * r) + zero;
    # symmetric: scale max(|x|) / 127: i8 round(x * r), and in the place of zero the sum of the group's q;
    # shifted: u8, as symmetric with 128 added, which is zero.
    "quantize_rows": Op("x[rows,K] (row_stride free)", "q[rows,K] u8 or i8, params[rows,G,2] f32: scale, and zero or sum",
                        ("kind", "group"), "rows", ""),
    # gemm with a row's scale and zero, a column's scale, and sums exact in i32: y = act(a_scale * scales[n] * (a b - a_zero *
    # sums[n]) + bias) + residual. Bytes 128 * i + 4 * c of a panel belong to column c and rows 4 * i to 4 * i + 3 of b, zeros
    # beyond K and N. dynamic: each row has its params. has_out: y is round(y / scale) + zero as u8, held to its range. sparse: of
    # each 4 rows of b a column has 2 that count, and those alone are stored (runtime/src/kernels/gemm_i8/gemm_i8.h).
    "gemm_i8": Op("a[rows,K] u8 (row_stride free), params[rows,2] or [2] f32 (scale, zero), b[panels,ceil(K/4)*128] i8, scales[N], "
                  "sums[N] i32, bias[N]?, residual[rows,N]? (row_stride free), out[2]? (scale, zero)",
                  "y[rows,N] f32 or u8 (row_stride free)", ("activation", "has_bias", "has_residual", "has_out", "dynamic", "k",
                                                            "sparse"),
                  "rows", "panels of 32 columns"),
    # gemm with weights of 16 or 8 bits: y = act(scales[n] * (a b) + bias) + residual, in f32. a is f32 for weights in f16, else
    # bf16. Where weights lie in a panel is in runtime/src/kernels/gemm_16/gemm_16.h. sparse, for bf16: of each 4 rows of b a column
    # has 2 that count, and those alone are stored; K is a multiple of 32.
    "gemm_16": Op("a[rows,K] bf16 or f32 (row_stride free), b[panels,bytes of a panel] u8, scales[N]?, bias[N]?, residual[rows,N]? "
                  "(row_stride free)", "y[rows,N] f32 (row_stride free)",
                  ("activation", "has_bias", "has_residual", "has_scales", "format", "sparse", "k", "n"), "rows",
                  "panels of 32 columns"),
    # gemm of rows and weights that both have a scale each `group` elements of K; within a group sums are exact in i32. y = act(sum
    # over groups g of a_scale[g] * b_scale[g,n] * sum(a * (b - zero[g,n])) + bias) + residual; without zeros they are 8 of 4 bits
    # and 128 of 8. zeros: of GROUPED_ZEROS, bytes; sixteenths, of 4 bits, count parts of one. sparse, 4 bits only: b keeps at most
    # two of each four weights along K, and has no sixteenths. How a panel of 32 columns lies in one stream:
    # runtime/src/kernels/gemm_grouped/gemm_grouped.h. wide: b's scales are f32, else f16.
    "gemm_grouped": Op("a[rows,K] i8 (row_stride free), params[rows,G,2] f32 (scale, sum of a's group), b[panels,bytes] u8, "
                       "bias[N]?, residual[rows,N]? (row_stride free)", "y[rows,N] (row_stride free)",
                       ("activation", "has_bias", "has_residual", "bits", "wide", "zeros", "sparse", "group", "k", "n"), "rows",
                       "panels of 32 columns"),
    # conv of bytes, whose sums are exact in i32: v = (sum of x b + offsets[n]) * scales[n] + bias[n] + residual * residual_scale;
    # y = v held to low and high, and rounded where has_out, as u8. With an activation v is activation(v) first, and activation(v) *
    # step + shift where has_out. So a zero of x is in the offsets, and scale and zero of a quantised y are in scales and bias.
    # Taps outside x read `zero`. b as gemm_i8's, groups as conv's. has_residual: 1 for f32, 2 for u8.
    "conv_i8": Op("x[pixels,groups*C] u8 (row_stride free), b[panels,ceil(taps*C/4)*128] i8, scales[N], offsets[N] i32, bias[N], "
                  "residual[rows,N]? f32 or u8 (row_stride free)", "y[rows,N] f32 or u8 (row_stride free)",
                  ("has_residual", "residual_scale_f32", "groups", "zero", "activation", "has_out", "step_f32", "shift_f32",
                   "low_f32", "high_f32", *_window()), "rows", "panels of 32 columns"),
    # depthwise in the same way. Four taps of a channel lie together, and 64 channels in an order of their own, which
    # runtime/src/kernels/depthwise_i8/depthwise_i8.h has; zeros beyond the taps and C.
    "depthwise_i8": Op("x[pixels,C] u8 (row_stride free), w[chunks,ceil(taps/4)*256] i8, scales[chunks*64], "
                       "offsets[chunks*64] i32, bias[chunks*64]", "y[rows,C] f32 or u8 (row_stride free)",
                       ("zero", "activation", "has_out", "step_f32", "shift_f32", "low_f32", "high_f32", *_window()), "rows", ""),
    # Puts keys and values into the layer's cache, each row at the next place of its sequence, and hands on the queries. With rope,
    # elements of queries and keys are rotated first: (a, b) becomes (a cos - b sin, b cos + a sin), for the pairs (i, i + R) of a
    # head, or (2i, 2i + 1) if interleaved, i < R; what lies beyond 2R stays. How a cache lies: runtime/src/kernels/cache/cache.h.
    "cache_write": Op("q[rows,heads*k_dim], k[rows,kv_heads*k_dim], v[rows,kv_heads*v_dim] (row_stride free), cos[rows,R]?, "
                      "sin[rows,R]? (row_stride free)", "y[rows,heads*k_dim]",
                      ("layer", "heads", "kv_heads", "k_dim", "v_dim", "has_rope", "interleaved"), "rows", ""),
    # softmax(softcap(scale * q k^T)) v of each row over the layer's cache: the places of its sequence up to its own that lie in the
    # layer's window; softcap(x) = c tanh(x / c), none if c is 0. Rows of no sequence are zero. What cache_write has put there must
    # be there: all threads meet before.
    "cache_attention": Op("q[rows,heads*k_dim] (row_stride free)", "y[rows,heads*v_dim]",
                          ("layer", "heads", "kv_heads", "k_dim", "v_dim", "scale_f32", "softcap_f32"), "", "shares of the work"),
}


def c_ops() -> list[str]:
    """C lines: an enumerator for each operator, function code and word."""
    out = ["typedef enum infc_op {", *(f"  INFC_OP_{n.upper()}," for n in OPS), "  INFC_OP_COUNT", "} infc_op;", ""]
    for prefix, names in (("UNARY", UNARY), ("BINARY", BINARY), ("REDUCE", REDUCE), ("NORM", NORM), ("SEGMENT", SEGMENT),
                          ("POOL", POOL), ("SCATTER", SCATTER), ("CUMULATE", CUMULATE), ("SAMPLE", SAMPLE), ("BORDER", BORDER),
                          ("RECURRENT", RECURRENT), ("RECURRENT_ACTIVATION", RECURRENT_ACTIVATION),
                          ("QUANTIZE_ROWS", QUANTIZE_ROWS), ("GEMM_16", GEMM_16),
                          ("GROUPED_ZEROS", GROUPED_ZEROS)):
        out += ["enum {", *(f"  INFC_{prefix}_{n.upper()}," for n in names), f"  INFC_{prefix}_COUNT", "};", ""]
    out += [f"#define INFC_NEST {NEST}", f"#define INFC_RECURRENT_UNITS {RECURRENT_UNITS}", ""]
    for name, op in OPS.items():
        words = [w.removesuffix("_f32").upper() for w in op.words]
        out += ["enum {", *(f"  INFC_W_{name.upper()}_{w}," for w in words), f"  INFC_WORDS_{name.upper()}", "};", ""]
    return out
