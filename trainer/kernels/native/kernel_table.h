// All functions that are compiled once for each instruction set. The kernels_<isa>.cc files include
// this header: nothing here or in what it includes may emit inline functions.
//
// Matrix products: the right operand comes in panels of `panel_width` columns each, the contraction
// running slowest, so that a kernel reads one panel from front to back. A panel holds 4-byte units:
// a float32, or two bfloat16 numbers that are neighbours along the contraction (the earlier in the
// low half). Units outside of the matrix are zero. gemm.inc fills in the table, linear.cc calls it.
//
// All other functions work on the range they are given, in the calling thread. The header that is
// named in the table explains their arguments; its .cc file cuts the work into ranges.
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

// The arithmetic of a product's operands.
enum class Units {
  kFloat32,  // float32 operands
  kWidened,  // bfloat16 operands, panels widened to float32: no bfloat16 arithmetic needed
  kPairs,    // bfloat16 operands and panels of pairs: needs GemmTable::has_pairs
};

// Numbers of the contraction in one 4-byte unit.
constexpr int UnitDepth(Units units) { return units == Units::kPairs ? 2 : 1; }

// c = Gate(Relu(a b + bias)) + (accumulate ? c : 0)
struct ProductArgs {
  Units units;
  const void* a;  // row-major, `depth` columns
  int64_t a_stride;
  int64_t depth;
  const float* panels;
  int64_t panel_stride;  // 4-byte units from one panel to the next
  int64_t cols;          // of c
  const float* bias;     // [cols] or null
  bool relu;
  bool accumulate;   // c is float32
  ConstMatrix gate;  // product zeroed where this is <= 0; data null: no gate
  Matrix c;
};

// c += a^T b, a is [depth, rows of c]
struct OuterProductArgs {
  Units units;
  ConstMatrix a;
  const float* panels;   // of b, one group of panels per block of kRowBlock of its rows
  int64_t panel_stride;  // 4-byte units from one panel to the next, within a block
  int64_t block_stride;  // 4-byte units from one block to the next
  float* c;
  int64_t c_stride;
  int64_t cols;     // of c
  float* col_sums;  // [rows of c] += column sums of a; or null
};

// Rows that a row contraction sums up before it adds to what is there. Fixed: decides bits.
inline constexpr int64_t kRowBlock = 256;

// The source of panels and their layout.
struct PackArgs {
  Units units;
  ConstMatrix source;  // float32 (rounded to bfloat16 unless units is kFloat32) or bfloat16
  float* panels;
  int64_t panel_stride;  // 4-byte units from one panel to the next
};

struct GemmTable {
  int panel_width;        // columns of a panel
  int max_tile_rows;      // rows of c that a kernel holds in registers
  int64_t scratch_units;  // 4-byte units that outer_product needs
  bool has_pairs;         // Units::kPairs works

  // Rows [row_begin, row_end) and panels [panel_begin, panel_end) of c. An element of c is one
  // chain of additions along the contraction, whatever else is computed with it.
  void (*product)(const ProductArgs& args, int64_t row_begin, int64_t row_end, int64_t panel_begin,
                  int64_t panel_end);

  // The same for an outer product: a chain per block of kRowBlock, added to c in order. Adds to
  // col_sums if panel_begin is 0.
  void (*outer_product)(const OuterProductArgs& args, int64_t row_begin, int64_t row_end,
                        int64_t panel_begin, int64_t panel_end, float* scratch);

  // Panels [panel_begin, panel_end) of source; the contraction runs over its rows, of which
  // [row_begin, row_end) are packed, to the panels' beginnings.
  void (*pack_rows)(const PackArgs& args, int64_t row_begin, int64_t row_end, int64_t panel_begin,
                    int64_t panel_end);

  // Panel `panel` of the transpose of source, which is float32: the contraction runs over its
  // columns.
  void (*pack_transposed)(const PackArgs& args, int64_t panel);
};

// All kernels but products. `keep_scale` is 1 / (1 - rate), or 0 if nothing is dropped (no mask).
struct ElementwiseTable {
  // dropout.h. Mask bytes first_block..first_block+num_blocks of `rows` rows; `stride` bytes apart.
  void (*keep_bits)(const DropoutStream& stream, const uint32_t* pair, const uint32_t* position,
                    int64_t rows, int64_t first_block, int64_t num_blocks, uint8_t* mask,
                    int64_t stride);
  void (*apply_mask)(const Matrix& x, const uint8_t* mask, float scale, int64_t begin, int64_t end);

  // residual_norm.h. partial [2, width] receives the rows' sums of the gain's and bias's gradients.
  void (*residual_norm_forward)(const ResidualNormArgs& args, float keep_scale, int64_t begin,
                                int64_t end);
  void (*norm_output)(ConstMatrix xhat, const float* gain, const float* bias, Matrix y,
                      int64_t begin, int64_t end);
  void (*residual_norm_backward)(const ResidualNormGradArgs& args, float keep_scale, int64_t begin,
                                 int64_t end, float* partial);
  // y[c] += x[0][c] + x[1][c] + ..., from the left.
  void (*fold_rows)(const float* x, int64_t rows, int64_t stride, float* y, int64_t cols);

  // elementwise.h. scale [cols]; partial [2, cols] receives the rows' sums of dy * (x - shift), dx.
  void (*scale_shift_forward)(const ConstMatrix& x, const float* scale, float shift,
                              const Matrix& y, int64_t begin, int64_t end);
  void (*scale_shift_backward)(const ConstMatrix& dy, const ConstMatrix& x, const float* scale,
                               float shift, const Matrix& dx, int64_t begin, int64_t end,
                               float* partial);

  void (*add)(const float* x, float* y, int64_t n);
  void (*gelu_forward)(const ConstMatrix& x, const Matrix& y, int64_t begin, int64_t end);
  void (*gelu_backward)(const ConstMatrix& x, const ConstMatrix& dy, const Matrix& dx,
                        int64_t begin, int64_t end);
  // y[i] = e^x[i] within 2 units in the last place; 0 below -87.33, at most 2.4e38; y may be x.
  // The others have it inline.
  void (*exp)(const float* x, float* y, int64_t n);
  void (*cast)(const ConstMatrix& from, const Matrix& to, int64_t begin, int64_t end);

  // attention.h. One (sentence, head); scratch of *_scratch floats for the longest sentence.
  int64_t (*attention_scratch)(int64_t max_keys, int64_t head_dim);
  void (*attention_forward)(const AttentionArgs& args, const DropoutStream& stream, int sentence,
                            int head, float* scratch);
  void (*attention_backward)(const AttentionGradArgs& args, const DropoutStream& stream,
                             int sentence, int head, float* scratch);
  // Scratch of the length and of head_dim for each head, both rounded up to 16 floats.
  void (*decode_attention)(const DecodeAttentionArgs& args, int64_t row, float* scratch);

  // cross_entropy.h
  void (*cross_entropy)(const CrossEntropyArgs& args, int64_t begin, int64_t end);
  void (*log_softmax)(const float* logits, int64_t n, float* y);

  // embedding.h. embed_backward: rows order[0..n) all have the same index.
  void (*embed_forward)(const EmbedArgs& args, float keep_scale, int64_t begin, int64_t end);
  void (*embed_backward)(const EmbedGradArgs& args, float keep_scale, const int32_t* order,
                         int64_t n);

  // adam.h
  void (*adam)(const AdamConstants& constants, const AdamArgs& args, int64_t begin, int64_t end);
  double (*sum_squares)(const float* x, int64_t n);
};

struct KernelTable {
  GemmTable gemm;
  ElementwiseTable elementwise;
};

// One per kernels_<isa>.cc; reach them through Table(Isa) of isa.h.
const KernelTable& BaselineTable();
const KernelTable& Avx2Table();
const KernelTable& Avx512Table();
const KernelTable& Avx512Bf16Table();

}  // namespace deepnet::native
