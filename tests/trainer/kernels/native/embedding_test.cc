#include "trainer/kernels/native/embedding.h"

#include <gtest/gtest.h>

#include "tests/trainer/kernels/native/dropout_testing.h"
#include "tests/trainer/kernels/native/kernel_testing.h"

namespace deepnet::native {
namespace {

using testing::Append;
using testing::Doubles;
using testing::ForEachIsaAndThreads;
using testing::Ids;
using testing::Operand;
using testing::RandomFloats;
using testing::RelativeError;

struct Case {
  int64_t rows;
  int64_t width;
  int64_t vocabulary;
  double rate;
  Element element;
};

class Embedding : public ::testing::TestWithParam<Case> {
 protected:
  Embedding() : ids_(GetParam().rows), tokens_(GetParam().rows) {
    std::mt19937 generator(5);
    for (int32_t& token : tokens_) {
      token = static_cast<int32_t>(generator() % (GetParam().vocabulary + 1)) - 1;
    }
    key_.rate = GetParam().rate;
  }
  double Keep(int64_t row, int64_t c) const {
    if (key_.rate == 0.0) return 1.0;
    return KeepElement(key_, ids_.pair[row], ids_.position[row], c) ? 1.0 / (1.0 - key_.rate) : 0.0;
  }

  PackedRows Rows() const {
    PackedRows rows = ids_.rows();
    rows.tokens = tokens_.data();
    return rows;
  }

  Ids ids_;
  std::vector<int32_t> tokens_;  // some are -1
  DropoutSite key_ = {.seed = 8, .step = 1, .site = 1};
};

TEST_P(Embedding, ForwardIsTheDefinition) {
  const auto [rows, width, vocabulary, rate, element] = GetParam();
  const std::vector<float> positions = RandomFloats(5 * width, 3);
  Operand table_operand =
      Operand::Of(element, vocabulary, width, RandomFloats(vocabulary * width, 2));
  constexpr float kScale = 8.0f;
  std::vector<double> expected;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < width; ++c) {
      expected.push_back(tokens_[r] < 0 ? 0.0
                                        : Keep(r, c) * (kScale * table_operand.At(tokens_[r], c) +
                                                        positions[r % 5 * width + c]));
    }
  }
  ForEachIsaAndThreads([&](Cpu& cpu) {
    std::vector<float> x(rows * width);
    std::vector<uint8_t> mask(rows * MaskBytes(width));
    Operand operand(element, rows, width, 3);
    EmbedForward(cpu, {.rows = Rows(),
                       .table_VD = table_operand.view(),
                       .positions_PD = testing::Floats(positions, width),
                       .scale = kScale,
                       .dropout = key_,
                       .x_RD = x.data(),
                       .x_operand_RD = operand.view(),
                       .mask = mask.data()});
    EXPECT_LT(RelativeError(Doubles(x), expected), 1e-6);
    EXPECT_LT(RelativeError(operand.Values(), expected), testing::Tolerance(element));
    EXPECT_TRUE(operand.MarginIsUntouched());
    return Doubles(x);
  });
}

TEST_P(Embedding, BackwardAddsTheRowsOfEachToken) {
  const auto [rows, width, vocabulary, rate, element] = GetParam();
  const std::vector<float> dx = RandomFloats(rows * width, 4);
  constexpr float kScale = 4.0f;
  std::vector<double> expected(vocabulary * width, 1.0);
  for (int64_t r = 0; r < rows; ++r) {
    if (tokens_[r] < 0) continue;
    for (int64_t c = 0; c < width; ++c) {
      expected[tokens_[r] * width + c] += kScale * Keep(r, c) * dx[r * width + c];
    }
  }
  ForEachIsaAndThreads([&](Cpu& cpu) {
    std::vector<float> grad(vocabulary * width, 1.0f);
    std::vector<uint8_t> mask(rows * MaskBytes(width));
    DropoutMask(cpu, key_, ids_.rows(), rows, width, mask.data());
    EmbedBackward(cpu, {.rows = Rows(),
                        .dx_RD = testing::Floats(dx, width),
                        .scale = kScale,
                        .dropout_rate = key_.rate,
                        .mask = mask.data(),
                        .dtable_VD = testing::Floats(grad, width)});
    EXPECT_LT(RelativeError(Doubles(grad), expected), 1e-5);
    return Doubles(grad);
  });
}

INSTANTIATE_TEST_SUITE_P(Shapes, Embedding,
                         ::testing::Values(Case{1, 4, 3, 0.0, Element::kFloat32},
                                           Case{100, 37, 3, 0.2, Element::kFloat32},
                                           Case{150, 16, 60, 0.1, Element::kBfloat16},
                                           Case{200, 70, 5000, 0.0, Element::kFloat32},
                                           Case{64, 5, 250000, 0.1, Element::kBfloat16}));

TEST(EmbeddingDeathTest, NamesTheRowOfAWrongId) {
  Cpu cpu(1);
  const int32_t id = 9;
  const uint32_t position = 0;
  Operand operand = Operand::Of(Element::kFloat32, 4, 4, std::vector<float>(16));
  EXPECT_DEATH(EmbedForward(cpu, {.rows = {.count = 1, .tokens = &id, .positions = &position},
                                  .table_VD = operand.view()}),
               "row 0 has id 9 of 4");
}

}  // namespace
}  // namespace deepnet::native
