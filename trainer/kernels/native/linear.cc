// Cuts products into pieces for the threads; the arithmetic is in gemm.inc. How a product is cut
// may depend on the number of threads, because it changes no element's chain of additions. A piece
// is a rectangle of the result: about 2 microseconds of work or more, so that taking it costs
// little; few enough panels that they stay in the second-level cache while its rows pass by.
#include "trainer/kernels/native/linear.h"

#include <algorithm>
#include <cstring>

#include "parallel/base/check.h"
#include "trainer/kernels/native/check_elements.h"

namespace deepnet::native {
namespace {

constexpr int64_t kMinPieceProducts = 150'000;  // multiply-adds worth a piece
constexpr int64_t kPanelBytesPerPiece = 512 << 10;
constexpr int64_t kFewRowTiles = 4;
constexpr int64_t kPiecesPerThread = 8;
constexpr int64_t kOuterPieceEdge = 128;
constexpr int64_t kMinOuterPieceRows = 6;
constexpr int64_t kRowsPerPacking = 64;  // divides kRowBlock

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

Units UnitsOf(const KernelTable& table, Element element) {
  if (element == Element::kFloat32) return Units::kFloat32;
  return table.gemm.has_pairs ? Units::kPairs : Units::kWidened;
}

// `size` cut into `count` parts, equal give or take one.
struct Cut {
  int64_t size;
  int64_t count;
  int64_t Begin(int64_t i) const { return size * i / count; }
  int64_t End(int64_t i) const { return size * (i + 1) / count; }
};

struct Grid {
  Cut rows;    // in rows
  Cut panels;  // in panels
};

// A result of `rows` x (panels * panel_width), contraction `depth`.
Grid CutProduct(const GemmTable& gemm, int threads, int64_t rows, int64_t panels, int64_t depth) {
  const int64_t panel_bytes = std::max<int64_t>(1, depth) * gemm.panel_width * 4;
  const int64_t total = rows * panels * gemm.panel_width * std::max<int64_t>(1, depth);
  const int64_t wanted =
      std::clamp<int64_t>(total / kMinPieceProducts, 1, threads * kPiecesPerThread);
  const int64_t row_tiles = CeilDiv(rows, gemm.max_tile_rows);
  // Few rows (decoding) are read faster than the panels they meet: each panel by one piece only.
  if (row_tiles <= kFewRowTiles && wanted <= panels) return {{rows, 1}, {panels, wanted}};
  // Otherwise cut rows first: few panels are read from far away, and each piece uses them often.
  int64_t panel_parts = CeilDiv(panels * panel_bytes, kPanelBytesPerPiece);
  const int64_t row_parts = std::min(row_tiles, CeilDiv(wanted, panel_parts));
  panel_parts = std::max(panel_parts, CeilDiv(wanted, row_parts));
  return {{rows, row_parts}, {panels, std::min(panels, panel_parts)}};
}

// The same for c += a^T b with c `rows` x (panels * panel_width). A piece reads all of its columns
// of a and b: few pieces, about as wide as high.
Grid CutOuterProduct(const GemmTable& gemm, int threads, int64_t rows, int64_t panels,
                     int64_t depth) {
  const int64_t cols = panels * gemm.panel_width;
  const int64_t worth = std::max<int64_t>(1, rows * cols * depth / kMinPieceProducts);
  const int64_t roomy = rows * cols / (kOuterPieceEdge * kOuterPieceEdge);
  const int64_t wanted = std::min(worth, std::clamp<int64_t>(roomy, threads * 2, threads * 4));
  const int64_t max_row_parts = CeilDiv(rows, kMinOuterPieceRows);
  Grid best = {{rows, 1}, {panels, 1}};
  int64_t best_read = 0;
  for (int64_t panel_parts = 1; panel_parts <= std::min(panels, wanted); ++panel_parts) {
    const int64_t row_parts = std::min(CeilDiv(wanted, panel_parts), max_row_parts);
    const int64_t read = row_parts * cols + panel_parts * rows;
    const bool enough = row_parts * panel_parts >= wanted;
    const bool best_enough = best.rows.count * best.panels.count >= wanted;
    if ((enough && !best_enough) || (enough == best_enough && read < best_read)) {
      best = {{rows, row_parts}, {panels, panel_parts}};
      best_read = read;
    }
  }
  return best;
}

void RunProduct(Cpu& cpu, const ProductArgs& args) {
  const GemmTable& gemm = cpu.table.gemm;
  const int64_t panels = CeilDiv(args.cols, gemm.panel_width);
  if (args.c.rows == 0 || panels == 0) return;
  const Grid grid = CutProduct(gemm, cpu.pool.num_threads(), args.c.rows, panels, args.depth);
  cpu.pool.ParallelFor(grid.rows.count * grid.panels.count, [&](int64_t piece, int) {
    const int64_t p = piece / grid.rows.count, r = piece % grid.rows.count;
    gemm.product(args, grid.rows.Begin(r), grid.rows.End(r), grid.panels.Begin(p),
                 grid.panels.End(p));
  });
}

void CheckShape(const ConstMatrix& m, int64_t rows, int64_t cols, const char* name) {
  CheckElements(m);
  DEEPNET_CHECK(m.rows >= rows && m.cols == cols && m.stride >= m.cols)
      << name << " is [" << m.rows << ", " << m.cols << "] with stride " << m.stride << ", not ["
      << rows << ", " << cols << "]";
}

Matrix FirstRows(Matrix m, int64_t rows) {
  DEEPNET_CHECK_LE(rows, m.rows);
  m.rows = rows;
  return m;
}

}  // namespace

PackedWeight::PackedWeight(const KernelTable& table, int64_t out, int64_t in, Element element,
                           PackedFor packed_for)
    : table_(&table), out_(out), in_(in), element_(element), units_(UnitsOf(table, element)) {
  DEEPNET_CHECK(out > 0 && in > 0) << "weight of " << out << " x " << in;
  CheckElements(ConstMatrix{.element = element});
  const int64_t width = table.gemm.panel_width;
  forward_panel_stride_ = CeilDiv(in, UnitDepth(units_)) * width;
  backward_panel_stride_ = CeilDiv(out, UnitDepth(units_)) * width;
  const auto zeros = [](int64_t num_floats) {
    AlignedBuffer buffer(num_floats);
    std::memset(buffer.floats(), 0, buffer.bytes());
    return buffer;
  };
  forward_ = zeros(CeilDiv(out, width) * forward_panel_stride_);
  if (packed_for == PackedFor::kTraining) {
    backward_ = zeros(CeilDiv(in, width) * backward_panel_stride_);
  }
}

void PackedWeight::Pack(ThreadPool& pool, const float* weights) {
  const GemmTable& gemm = table_->gemm;
  const ConstMatrix source = {weights, Element::kFloat32, out_, in_, in_};
  const PackArgs forward = {units_, source, forward_.floats(), forward_panel_stride_};
  const PackArgs backward = {units_, source, backward_.floats(), backward_panel_stride_};
  const int64_t forward_panels = CeilDiv(out_, gemm.panel_width);
  const int64_t backward_panels = backward_.bytes() > 0 ? CeilDiv(in_, gemm.panel_width) : 0;
  pool.ParallelFor(forward_panels + backward_panels, [&](int64_t panel, int) {
    if (panel < forward_panels) {
      gemm.pack_transposed(forward, panel);
    } else {
      gemm.pack_rows(backward, 0, out_, panel - forward_panels, panel - forward_panels + 1);
    }
  });
}

ProductArgs PackedWeight::Product(const KernelTable& table, const ConstMatrix& a, bool forward,
                                  const Matrix& c) const {
  DEEPNET_CHECK(&table == table_) << "weight packed for another instruction set";
  DEEPNET_CHECK(a.element == element_) << "operand and weight differ in element";
  DEEPNET_CHECK(forward || backward_.bytes() > 0) << "weight packed for inference only";
  const int64_t depth = forward ? in_ : out_, cols = forward ? out_ : in_;
  CheckShape(a, c.rows, depth, forward ? "x" : "dy");
  CheckShape(c, c.rows, cols, forward ? "y" : "dx");
  return {.units = units_,
          .a = a.data,
          .a_stride = a.stride,
          .depth = depth,
          .panels = forward ? forward_.floats() : backward_.floats(),
          .panel_stride = forward ? forward_panel_stride_ : backward_panel_stride_,
          .cols = cols,
          .c = c};
}

void LinearForward(Cpu& cpu, const LinearArgs& args) {
  ProductArgs product = args.weight_OI->Product(cpu.table, args.x_RI, /*forward=*/true,
                                                FirstRows(args.y_RO, args.rows));
  product.bias = args.bias_O;
  product.relu = args.relu;
  RunProduct(cpu, product);
}

void LinearBackwardInput(Cpu& cpu, const LinearInputGradArgs& args) {
  DEEPNET_CHECK(!args.accumulate || args.dx_RI.element == Element::kFloat32) << "sums are float32";
  ProductArgs product = args.weight_OI->Product(cpu.table, args.dy_RO, /*forward=*/false,
                                                FirstRows(args.dx_RI, args.rows));
  if (args.relu_output_RI.data != nullptr) {
    CheckShape(args.relu_output_RI, args.rows, args.weight_OI->in(), "relu_output");
    product.gate = args.relu_output_RI;
  }
  product.accumulate = args.accumulate;
  RunProduct(cpu, product);
}

void LinearBackwardWeight(Cpu& cpu, ConstMatrix dy, ConstMatrix x, float* dw, float* dbias) {
  DEEPNET_CHECK(dy.element == x.element) << "operands differ in element";
  DEEPNET_CHECK_EQ(dy.rows, x.rows);
  CheckShape(dy, dy.rows, dy.cols, "dy");
  CheckShape(x, x.rows, x.cols, "x");
  if (x.rows == 0 || dy.cols == 0 || x.cols == 0) return;
  const GemmTable& gemm = cpu.table.gemm;
  const Units units = UnitsOf(cpu.table, x.element);
  const int64_t panels = CeilDiv(x.cols, gemm.panel_width);
  const int64_t blocks = CeilDiv(x.rows, kRowBlock);
  const int64_t panel_stride = kRowBlock / UnitDepth(units) * gemm.panel_width;
  const int64_t block_stride = panels * panel_stride;
  float* packed =
      cpu.scratch.Reserve(blocks * block_stride + cpu.pool.num_threads() * gemm.scratch_units);
  float* thread_scratch = packed + blocks * block_stride;

  cpu.pool.ParallelFor(CeilDiv(x.rows, kRowsPerPacking), [&](int64_t piece, int) {
    const int64_t row = piece * kRowsPerPacking;
    float* out = packed + row / kRowBlock * block_stride +
                 row % kRowBlock / UnitDepth(units) * gemm.panel_width;
    gemm.pack_rows({units, x, out, panel_stride}, row, std::min(row + kRowsPerPacking, x.rows), 0,
                   panels);
  });

  const OuterProductArgs args = {.units = units,
                                 .a = dy,
                                 .panels = packed,
                                 .panel_stride = panel_stride,
                                 .block_stride = block_stride,
                                 .c = dw,
                                 .c_stride = x.cols,
                                 .cols = x.cols,
                                 .col_sums = dbias};
  const Grid grid = CutOuterProduct(gemm, cpu.pool.num_threads(), dy.cols, panels, x.rows);
  cpu.pool.ParallelFor(grid.rows.count * grid.panels.count, [&](int64_t piece, int thread) {
    const int64_t p = piece / grid.rows.count, r = piece % grid.rows.count;
    gemm.outer_product(args, grid.rows.Begin(r), grid.rows.End(r), grid.panels.Begin(p),
                       grid.panels.End(p), thread_scratch + thread * gemm.scratch_units);
  });
}

}  // namespace deepnet::native
