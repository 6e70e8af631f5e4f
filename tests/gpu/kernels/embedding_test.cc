#include <gtest/gtest.h>

#include "tests/gpu/kernels/device_testing.h"
#include "tests/trainer/kernels/native/dropout_testing.h"
#include "tests/trainer/kernels/native/kernel_testing.h"
#include "trainer/kernels/cuda/kernels.h"
#include "trainer/kernels/native/sorted_rows.h"

namespace deepnet::cuda {
namespace {

using native::testing::Floats;
using native::testing::Ids;
using native::testing::RandomFloats;
using testing::AppendBytes;
using testing::DeviceArray;
using testing::DeviceMatrix;
using testing::Element;
using testing::ForThreadOrders;
using testing::Launches;
using testing::Rounded;

struct Case {
  int64_t rows;
  int64_t width;
  int64_t vocabulary;
  double rate;
  Element table;
  Element operand;
  int64_t margin;
};

class GpuEmbedding : public ::testing::TestWithParam<Case> {
 protected:
  GpuEmbedding() : c_(GetParam()), ids_(c_.rows), tokens_(c_.rows) {
    std::mt19937 generator(5);
    for (int32_t& token : tokens_) {
      token = static_cast<int32_t>(generator() % (c_.vocabulary + 1)) - 1;
    }
    key_.rate = c_.rate;
  }
  size_t MaskSize() const { return c_.rows * native::MaskBytes(c_.width); }

  // Bits past the last column are unspecified.
  std::vector<uint8_t> KnownBits(std::vector<uint8_t> mask) const {
    for (int64_t row = 0; row < c_.rows && c_.width % 8 != 0; ++row) {
      mask[(row + 1) * native::MaskBytes(c_.width) - 1] &=
          static_cast<uint8_t>((1 << c_.width % 8) - 1);
    }
    return mask;
  }

  Case c_;
  Ids ids_;
  std::vector<int32_t> tokens_;  // some are -1
  DropoutSite key_ = {.seed = 8, .step = 1, .site = 1};
  native::Cpu cpu_{1};
};

TEST_P(GpuEmbedding, ForwardHasTheBitsOfTheCpu) {
  const std::vector<float> values = Rounded(c_.table, RandomFloats(c_.vocabulary * c_.width, 2));
  const std::vector<float> positions = RandomFloats(5 * c_.width, 3);
  native::EmbedArgs args = {.rows = ids_.rows(),
                            .table_VD = Floats(values, c_.width),
                            .positions_PD = Floats(positions, c_.width),
                            .scale = 8.3f,
                            .dropout = key_};
  args.rows.tokens = tokens_.data();
  std::vector<float> twin(c_.rows * c_.width), twin_without(c_.rows * c_.width);
  std::vector<uint8_t> twin_mask(MaskSize());
  args.x_RD = twin.data();
  args.mask = twin_mask.data();
  native::EmbedForward(cpu_, args);
  args.positions_PD = {};
  args.x_RD = twin_without.data();
  native::EmbedForward(cpu_, args);

  const DeviceMatrix device_table(c_.table, c_.vocabulary, c_.width, values, 0, c_.margin);
  const DeviceArray<float> device_positions(positions);
  const DeviceArray<int32_t> device_tokens(tokens_);
  const DeviceArray<uint32_t> pair(ids_.pair), position(ids_.position);
  ForThreadOrders([&](GpuStream& gpu) {
    const DeviceArray<float> x(twin.size());
    const DeviceArray<uint8_t> mask(MaskSize());
    const DeviceMatrix operand(c_.operand, c_.rows, c_.width, c_.margin, c_.margin);
    args.rows.tokens = device_tokens.data();
    args.rows.pairs = pair.data();
    args.rows.positions = position.data();
    args.table_VD = device_table.view();
    args.positions_PD = {device_positions.data(), Element::kFloat32, 5, c_.width, c_.width};
    args.x_RD = x.data();
    args.x_operand_RD = operand.view();
    args.mask = mask.data();
    EmbedForward(gpu, args);
    EXPECT_EQ(Launches(gpu), c_.rows == 0 ? 0 : 1);
    EXPECT_TRUE(x.Read(gpu) == twin);
    EXPECT_TRUE(operand.Read(gpu) == Rounded(c_.operand, twin));
    if (key_.rate > 0.0) {
      EXPECT_TRUE(KnownBits(mask.Read(gpu)) == KnownBits(twin_mask));
    }
    args.positions_PD = {};
    args.x_RD = nullptr;
    EmbedForward(gpu, args);
    EXPECT_TRUE(operand.Read(gpu) == Rounded(c_.operand, twin_without));
    std::vector<uint8_t> bytes;
    AppendBytes(bytes, x.Read(gpu));
    return bytes;
  });
}

// Adds to `args.dtable_VD` as the GPU does, by the CPU's kernel: the rows of an index that has more
// than a piece of them are added piece by piece, each from 0, and then the sums of the pieces in
// order.
void AddInPieces(const native::EmbedGradArgs& args, const native::RowsByIndex& rows,
                 native::Cpu& cpu) {
  std::vector<std::vector<int32_t>> index_of_piece;
  std::vector<int32_t> at_once(args.rows.count, -1);
  for (size_t i = 0; i < rows.indices.size(); ++i) {
    const int count = rows.starts[i + 1] - rows.starts[i];
    for (int place = 0; place < count; ++place) {
      const size_t piece = place / kEmbedPieceRows;
      if (piece >= index_of_piece.size())
        index_of_piece.push_back(std::vector(args.rows.count, -1));
      auto& index = count > kEmbedPieceRows ? index_of_piece[piece] : at_once;
      index[rows.order[rows.starts[i] + place]] = rows.indices[i];
    }
  }
  native::EmbedGradArgs some = args;
  some.rows.tokens = at_once.data();
  native::EmbedBackward(cpu, some);
  for (const std::vector<int32_t>& index : index_of_piece) {
    std::vector<float> sums(args.dtable_VD.rows * args.dtable_VD.cols, 0.0f);
    some.rows.tokens = index.data();
    some.dtable_VD.data = sums.data();
    native::EmbedBackward(cpu, some);
    for (size_t i = 0; i < sums.size(); ++i) {
      static_cast<float*>(args.dtable_VD.data)[i] += sums[i];
    }
  }
}

TEST_P(GpuEmbedding, BackwardHasTheBitsOfTheCpu) {
  const std::vector<float> dx = RandomFloats(c_.rows * c_.width, 4);
  const std::vector<float> before = RandomFloats(c_.vocabulary * c_.width, 7);
  std::vector<uint8_t> mask(MaskSize());
  native::DropoutMask(cpu_, key_, ids_.rows(), c_.rows, c_.width, mask.data());
  std::vector<float> twin = before;
  native::EmbedGradArgs args = {.rows = ids_.rows(),
                                .dx_RD = Floats(dx, c_.width),
                                .scale = 3.7f,
                                .dropout_rate = key_.rate,
                                .mask = mask.data(),
                                .dtable_VD = Floats(twin, c_.width)};
  native::RowsByIndex rows;
  native::SortRows(tokens_, c_.vocabulary, rows);
  AddInPieces(args, rows, cpu_);

  const DeviceArray<int32_t> order(rows.order), starts(rows.starts), indices(rows.indices);
  int64_t longest = 0;
  for (size_t i = 0; i < rows.indices.size(); ++i) {
    longest = std::max<int64_t>(longest, rows.starts[i + 1] - rows.starts[i]);
  }
  const SortedRows sorted = {order.data(), starts.data(), indices.data(),
                             static_cast<int64_t>(rows.indices.size()), longest};
  const DeviceArray<float> device_dx(dx);
  const DeviceArray<uint8_t> device_mask(mask);
  ForThreadOrders([&](GpuStream& gpu) {
    const DeviceArray<float> grad(before);
    args.rows.tokens = nullptr;
    args.dx_RD.data = device_dx.data();
    args.mask = device_mask.data();
    args.dtable_VD.data = grad.data();
    EmbedBackward(gpu, args, sorted);
    EXPECT_EQ(Launches(gpu), rows.indices.empty() ? 0 : longest > kEmbedPieceRows ? 2 : 1);
    const std::vector<float> got = grad.Read(gpu);
    EXPECT_TRUE(got == twin);
    std::vector<uint8_t> bytes;
    AppendBytes(bytes, got);
    return bytes;
  });
}

constexpr Element kF32 = Element::kFloat32, kB16 = Element::kBfloat16, kF16 = Element::kFloat16;
INSTANTIATE_TEST_SUITE_P(
    Shapes, GpuEmbedding,
    ::testing::Values(Case{1, 4, 3, 0.0, kF32, kF32, 0}, Case{0, 4, 3, 0.1, kF32, kF32, 0},
                      Case{100, 37, 3, 0.2, kF32, kB16, 3}, Case{150, 16, 60, 0.1, kB16, kB16, 8},
                      Case{90, 64, 50, 0.1, kF32, kF16, 8}, Case{200, 70, 5000, 0.0, kF16, kF32, 1},
                      Case{20, 1030, 7, 0.1, kF32, kB16, 2}, Case{500, 6, 2, 0.1, kF32, kB16, 2},
                      Case{300, 520, 1, 0.0, kF32, kB16, 0}, Case{263, 12, 3, 0.2, kF32, kF32, 0},
                      Case{64, 5, 250000, 0.1, kB16, kF16, 0}));

}  // namespace
}  // namespace deepnet::cuda
