// Matrix-product kernels of one instruction set; filled in by gemm.inc, called by linear.cc.
//
// The right operand of a product comes in panels: `panel_width` columns each, the contraction
// running slowest, so that a kernel reads one panel from front to back. A panel holds 4-byte units:
// a float32, or two bfloat16 numbers that are neighbours along the contraction (the earlier in the
// low half). Units outside of the matrix are zero.
#pragma once

#include <cstdint>

#include "trainer/kernels/native/matrix.h"

namespace deepnet::native {

// What a kernel makes of its operands.
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

// Where to read and how to write panels.
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

}  // namespace deepnet::native
