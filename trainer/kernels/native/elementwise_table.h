// All kernels that are not matrix products, of one instruction set. Every function works on the
// range it is given, in the calling thread; what the arguments mean stands in the header that is
// named, whose .cc file cuts the work into ranges.
#pragma once

#include <cstdint>

#include "trainer/kernels/native/adam.h"
#include "trainer/kernels/native/attention.h"
#include "trainer/kernels/native/cross_entropy.h"
#include "trainer/kernels/native/dropout.h"
#include "trainer/kernels/native/embedding.h"
#include "trainer/kernels/native/matrix.h"
#include "trainer/kernels/native/residual_norm.h"

namespace deepnet::native {

// AdamArgs after all that is the same for every element has been computed.
struct AdamConstants {
  float beta1, one_minus_beta1, beta2, one_minus_beta2, epsilon;
  float decay;  // weights are multiplied by 1 - decay
  float rate;   // p -= rate * m / (sqrt(v) * root_scale + epsilon)
  float root_scale;
  float gradient_scale;
};

// `keep_scale` is 1 / (1 - rate), or 0 if nothing is dropped and there is no mask.
struct ElementwiseTable {
  // dropout.h. Mask bytes first_block..first_block+num_blocks of `rows` rows; `stride` bytes apart.
  void (*keep_bits)(const DropoutStream& stream, const uint32_t* pair, const uint32_t* position,
                    int64_t rows, int64_t first_block, int64_t num_blocks, uint8_t* mask,
                    int64_t stride);
  void (*apply_mask)(const Matrix& x, const uint8_t* mask, float scale, int64_t begin, int64_t end);

  // residual_norm.h. partial [2, width] receives the rows' sums of the gain's and bias's gradients.
  void (*residual_norm_forward)(const ResidualNormForwardArgs& args, float keep_scale,
                                int64_t begin, int64_t end);
  void (*norm_output)(ConstMatrix xhat, const float* gain, const float* bias, Matrix y,
                      int64_t begin, int64_t end);
  void (*residual_norm_backward)(const ResidualNormBackwardArgs& args, float keep_scale,
                                 int64_t begin, int64_t end, float* partial);
  // y[c] += x[0][c] + x[1][c] + ..., from the left.
  void (*fold_rows)(const float* x, int64_t rows, int64_t stride, float* y, int64_t cols);

  // modulate.h. scale [cols]; partial [2, cols] receives the rows' sums of dy * (x - shift), dx.
  void (*modulate_forward)(const ConstMatrix& x, const float* scale, float shift, const Matrix& y,
                           int64_t begin, int64_t end);
  void (*modulate_backward)(const ConstMatrix& dy, const ConstMatrix& x, const float* scale,
                            float shift, const Matrix& dx, int64_t begin, int64_t end,
                            float* partial);

  // elementwise.h
  void (*add)(const float* x, float* y, int64_t n);
  void (*gelu_forward)(const ConstMatrix& x, const Matrix& y, int64_t begin, int64_t end);
  void (*gelu_backward)(const ConstMatrix& x, const ConstMatrix& dy, const Matrix& dx,
                        int64_t begin, int64_t end);
  void (*exp)(const float* x, float* y, int64_t n);
  void (*cast)(const ConstMatrix& from, const Matrix& to, int64_t begin, int64_t end);

  // attention.h. One (sentence, head); scratch of *_scratch floats for the longest sentence.
  int64_t (*attention_scratch)(int64_t max_keys, int64_t head_dim);
  void (*attention_forward)(const AttentionForwardArgs& args, const DropoutStream& stream,
                            int sentence, int head, float* scratch);
  void (*attention_backward)(const AttentionBackwardArgs& args, const DropoutStream& stream,
                             int sentence, int head, float* scratch);
  // Scratch of the length and of head_dim for each head, both rounded up to 16 floats.
  void (*decode_attention)(const DecodeAttentionArgs& args, int64_t row, float* scratch);

  // cross_entropy.h
  void (*cross_entropy)(const CrossEntropyArgs& args, int64_t begin, int64_t end);
  void (*log_softmax)(const float* logits, int64_t n, float* y);

  // embedding.h. embed_backward: rows order[0..n) all have the same index.
  void (*embed_forward)(const EmbedForwardArgs& args, float keep_scale, int64_t begin, int64_t end);
  void (*embed_backward)(const EmbedBackwardArgs& args, float keep_scale, const int32_t* order,
                         int64_t n);

  // adam.h
  void (*adam)(const AdamConstants& constants, int64_t n, float* weights, const float* gradient,
               float* m, float* v, uint16_t* weights_bfloat16);
  double (*sum_squares)(const float* x, int64_t n);
};

}  // namespace deepnet::native
