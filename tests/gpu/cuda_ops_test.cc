// The operations of a GPU against the reference on the CPU, through whole models: losses and every
// gradient. Runs on the emulated GPU, and on a real one where a build links CUDA.
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include "parallel/base/statistics.h"
#include "tests/support/model_pass.h"
#include "trainer/kernels/aten.h"
#include "trainer/kernels/compute.h"
#include "trainer/kernels/kernel_sizes.h"

namespace deepnet {
namespace {

using testing::ExpectClose;
using testing::ForwardBackward;
using testing::GradientError;
using testing::ModelPass;
using testing::OpsVariants;

std::unique_ptr<Ops> MakeGpu(at::ScalarType operand, AttentionKernel attention = OWN) {
  const c10::impl::VirtualGuardImpl guard(GpuType().value());
  guard.setDevice({guard.type(), 0});
  return MakeCudaOps(guard.getDevice(), operand, /*check_launches=*/false, attention);
}

std::unique_ptr<Ops> MakeExact() { return MakeAtenOps(at::kDouble, at::kDouble); }

constexpr double kFloat32 = 1e-5;
// A shift of all rows is gone behind a BatchNorm: the gradients of many biases are 0 by theory.
constexpr double kFloat32OverRows = 3e-5;

bool IsOfTheThree(const ModelSpec& spec) { return spec.residual() <= PRE_LN; }

TEST(CudaOps, EqualsTheReferenceInFloat32) {
  for (const ModelSpec& spec : OpsVariants()) {
    if (!IsOfTheThree(spec)) continue;
    SCOPED_TRACE(spec.ShortDebugString());
    const double tolerance = spec.norm() == BATCH_NORM ? kFloat32OverRows : kFloat32;
    ExpectClose(ForwardBackward(spec, *MakeGpu(at::kFloat)), ForwardBackward(spec, *MakeExact()),
                tolerance);
  }
}

// Roundings amplify in a whole model (tests/trainer/model/native_ops_test.cc): a GPU is asked to be
// as close to the exact gradient as the reference in the same types.
void ExpectAsCloseAsTheReference(const ModelSpec& spec, at::ScalarType operand, double factor,
                                 double floor) {
  std::vector<double> gpu, reference;
  for (const uint64_t seed : {5, 6, 7, 8, 9}) {
    const ModelPass exact = ForwardBackward(spec, *MakeExact(), seed);
    gpu.push_back(GradientError(ForwardBackward(spec, *MakeGpu(operand), seed), exact));
    const auto ops = MakeAtenOps(operand, at::kFloat);
    reference.push_back(GradientError(ForwardBackward(spec, *ops, seed), exact));
  }
  EXPECT_LE(Median(gpu), factor * Median(reference) + floor);
}

TEST(CudaOps, IsAsCloseToTheExactGradientAsTheReference) {
  for (const ModelSpec& spec : OpsVariants()) {
    SCOPED_TRACE(spec.ShortDebugString());
    ExpectAsCloseAsTheReference(spec, at::kFloat, 2, 1e-6);
    ExpectAsCloseAsTheReference(spec, at::kBFloat16, 3, 1e-2);
  }
}

TEST(CudaOps, GivesTheSameBitsInEveryRun) {
  for (const at::ScalarType operand : {at::kFloat, at::kBFloat16}) {
    for (const ModelSpec& spec : OpsVariants()) {
      SCOPED_TRACE(spec.ShortDebugString());
      const ModelPass one = ForwardBackward(spec, *MakeGpu(operand));
      const ModelPass other = ForwardBackward(spec, *MakeGpu(operand));
      EXPECT_EQ(one.loss.loss, other.loss.loss);
      EXPECT_TRUE(at::equal(one.gradient, other.gradient));
    }
  }
}

// A bias may lie anywhere in the flat weights, also behind a scheme's single factor.
TEST(CudaOps, ABiasThatIsNotAlignedIsAdded) {
  for (const at::ScalarType operand : {at::kFloat, at::kBFloat16}) {
    const auto ops = MakeGpu(operand);
    for (const at::ScalarType type : {at::kFloat, operand}) {
      const at::Tensor values = at::arange(20, at::kFloat) / 8;
      const at::Tensor flat = values.to(ops->ResidualOptions());
      const auto weight = ops->MakeWeight(flat.narrow(0, 0, 12).view({3, 4}), /*backward=*/false);
      ops->Refresh(*weight);
      const at::Tensor x = at::ones({2, 4}, operand).to(ops->OperandOptions());
      for (const int64_t begin : {12, 13, 16}) {
        const at::Tensor y = at::zeros({2, 3}, ops->ResidualOptions().dtype(type));
        ops->Linear({.rows = 2,
                     .x_RI = x,
                     .weight_OI = weight.get(),
                     .bias_O = flat.narrow(0, begin, 3),
                     .y_RO = y});
        const at::Tensor sums = values.narrow(0, 0, 12).view({3, 4}).sum(1);
        const at::Tensor expected = (sums + values.narrow(0, begin, 3)).expand({2, 3});
        EXPECT_TRUE(at::equal(y.to(at::kCPU).to(at::kFloat), expected)) << begin;
      }
    }
  }
}

// The loss of hidden rows of 24 features with all that it writes, on the host.
std::vector<at::Tensor> LossOf(Ops& ops, const at::Tensor& hidden, const at::Tensor& weight,
                               const std::vector<int32_t>& labels) {
  const auto on_device = [](const at::Tensor& x, const at::TensorOptions& options) {
    at::Tensor y = at::empty(x.sizes(), options);
    y.copy_(x.to(options.dtype().toScalarType()));
    return y;
  };
  const auto of_ops = ops.MakeWeight(on_device(weight, ops.ResidualOptions()), /*backward=*/true);
  ops.Refresh(*of_ops);
  const at::Tensor dhidden = on_device(at::full_like(hidden, 7.0), ops.ResidualOptions());
  const at::Tensor dweight = on_device(at::ones_like(weight), ops.ResidualOptions());
  const auto sent = ops.session().Upload(std::as_bytes(std::span(labels)));
  LossSums sums;
  at::Tensor row_nll = at::full({hidden.size(0)}, 7.0, at::kFloat);
  ops.CrossEntropy({.rows = hidden.size(0),
                    .hidden_RD = on_device(hidden, ops.OperandOptions()),
                    .weight_VD = of_ops.get(),
                    .labels = reinterpret_cast<const int32_t*>(sent.get()),
                    .smoothing = 0.1,
                    .scale = 0.25,
                    .dhidden_RD = dhidden,
                    .dweight_VD = dweight,
                    .sums = &sums,
                    .row_nll = row_nll.data_ptr<float>()});
  ops.session().ReadBack();
  std::vector<at::Tensor> all = {dhidden, dweight, row_nll, at::tensor({sums.loss, sums.nll})};
  for (at::Tensor& one : all) one = one.to(at::Device(at::kCPU)).to(at::kDouble);
  return all;
}

TEST(CudaOps, LossOfMoreRowsThanLogitsAreKeptOfEqualsTheReference) {
  constexpr int64_t kClasses = 61, kWidth = 24;
  for (const int64_t rows : {int64_t{130}, native::LogitRows(kClasses) + 9}) {
    for (const auto& [operand, tolerance] : {std::pair(at::kFloat, 1e-5), {at::kBFloat16, 1e-2}}) {
      SCOPED_TRACE(std::to_string(rows) + " rows in " + c10::toString(operand));
      at::manual_seed(2);
      const auto rounded = [type = operand](const at::Tensor& x) {
        return x.to(type).to(at::kFloat);
      };
      const at::Tensor hidden = rounded(at::randn({rows, kWidth}));
      const at::Tensor weight = rounded(at::randn({kClasses, kWidth}) * 0.5);
      std::vector<int32_t> labels(rows);
      for (int64_t r = 0; r < rows; ++r) labels[r] = static_cast<int32_t>(r * 7 % 62) - 1;
      const auto got = LossOf(*MakeGpu(operand), hidden, weight, labels);
      const auto expected = LossOf(*MakeExact(), hidden, weight, labels);
      for (size_t i = 0; i < got.size(); ++i) {
        const double off = (got[i] - expected[i]).abs().max().item<double>();
        EXPECT_LE(off, tolerance * expected[i].abs().max().item<double>()) << "result " << i;
      }
    }
  }
}

// Attention of 3 heads over packed sentences, in rows that have room for more: q, k and v are
// column slices, as a layer has them, or q is of other rows than k and v.
class AttentionTest : public ::testing::Test {
 protected:
  static constexpr int kHeads = 3, kRoom = 24;

  struct Case {
    std::vector<int> queries, keys;  // lengths of sentences
    int head_dim = 16;
    bool causal = false;
  };

  struct Side {
    explicit Side(const std::vector<int>& lengths) {
      for (const int length : lengths) {
        for (int i = 0; i < length; ++i) positions.push_back(static_cast<uint32_t>(i));
        offsets.push_back(offsets.back() + length);
      }
      tokens.assign(positions.size(), 4);
      pairs.assign(positions.size(), 1);
    }
    PackedRows Rows() const {
      return {.count = static_cast<int64_t>(tokens.size()),
              .num_sentences = static_cast<int>(offsets.size()) - 1,
              .tokens = tokens.data(),
              .positions = positions.data(),
              .pairs = pairs.data(),
              .offsets = offsets.data()};
    }
    std::vector<int32_t> tokens, offsets = {0};
    std::vector<uint32_t> positions, pairs;
  };

  // Context, and the gradients of q, k and v, on the host. Rows that are not real keep a 7.
  static std::vector<at::Tensor> Run(Ops& ops, const Case& c) {
    at::manual_seed(1);
    const int64_t width = int64_t{kHeads} * c.head_dim;
    const bool self = c.keys.empty();
    const auto on_device = [&](const at::Tensor& x) {
      const at::Tensor y = at::empty(x.sizes(), ops.OperandOptions());
      y.copy_(x.to(ops.OperandOptions().dtype().toScalarType()));
      return y;
    };
    const at::Tensor qkv = on_device(at::randn({kRoom, 3 * width}));
    const at::Tensor apart = on_device(at::randn({kRoom, width}));
    const at::Tensor dcontext = on_device(at::randn({kRoom, width}));
    const at::Tensor context = on_device(at::full({kRoom, width}, 7.0));
    const at::Tensor dqkv = on_device(at::full({kRoom, 3 * width}, 7.0));
    const Side queries(c.queries), keys(self ? c.queries : c.keys);
    const MicrobatchRows sent =
        ops.session().Upload({.source = keys.Rows(), .target = queries.Rows()});
    AttentionGradArgs args;
    args.forward = {.q_RD = self ? qkv.narrow(1, 0, width) : apart,
                    .k_RD = qkv.narrow(1, width, width),
                    .v_RD = qkv.narrow(1, 2 * width, width),
                    .queries = &sent.target,
                    .keys = self ? &sent.target : &sent.source,
                    .heads = kHeads,
                    .causal = c.causal,
                    .context_RD = context,
                    .log_sum_exp_RH = at::zeros({kRoom, kHeads}, ops.ResidualOptions())};
    ops.Attention(args.forward);
    args.dcontext_RD = dcontext;
    args.dq_RD = dqkv.narrow(1, 0, width);
    args.dk_RD = dqkv.narrow(1, width, width);
    args.dv_RD = dqkv.narrow(1, 2 * width, width);
    ops.AttentionBackward(args);
    return {context.to(at::Device(at::kCPU)).to(at::kFloat),
            dqkv.to(at::Device(at::kCPU)).to(at::kFloat)};
  }

  static std::vector<Case> Cases() {
    return {{.queries = {5, 1, 9}},
            {.queries = {5, 1, 9}, .causal = true},
            {.queries = {1}, .head_dim = 8},
            {.queries = {4, 6, 3}, .keys = {5, 1, 9}},
            {.queries = {7, 13}, .keys = {3, 2}, .head_dim = 40}};
  }
};

TEST_F(AttentionTest, OfLibTorchEqualsTheOwnOne) {
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    // Both round results to the operand type once, and the own kernel adds in float32.
    const double tolerance = type == at::kHalf ? 0x1p-10 : 0x1p-7;
    for (const Case& c : Cases()) {
      SCOPED_TRACE(::testing::PrintToString(c.queries) + " of " + ::testing::PrintToString(c.keys));
      const auto own = Run(*MakeGpu(type, OWN), c), flash = Run(*MakeGpu(type, FLASH), c);
      for (size_t i = 0; i < own.size(); ++i) {
        EXPECT_LE(((own[i] - flash[i]).abs() / own[i].abs().clamp_min(1.0)).max().item<float>(),
                  tolerance)
            << i;
      }
    }
  }
}

TEST_F(AttentionTest, KeysThatNoQueryReadsHaveNoGradient) {
  for (const AttentionKernel kernel : {OWN, FLASH}) {
    const Case none = {.queries = {0, 0}, .keys = {3, 2}};
    const at::Tensor gradient = Run(*MakeGpu(at::kBFloat16, kernel), none)[1];
    const int64_t width = int64_t{kHeads} * none.head_dim;
    EXPECT_TRUE(gradient.narrow(0, 0, 5).narrow(1, width, 2 * width).eq(0.0).all().item<bool>());
    EXPECT_TRUE(gradient.narrow(0, 5, kRoom - 5).eq(7.0).all().item<bool>());
  }
}

// Heads of TinySpec have 4 features, which LibTorch's attention does not take.
TEST(CudaOps, WithLibTorchsAttentionIsAsCloseToTheExactGradient) {
  for (ModelSpec spec : OpsVariants()) {
    if (!IsOfTheThree(spec)) continue;
    spec.set_d_model(16);
    spec.set_attention_dropout(0.0);
    SCOPED_TRACE(spec.ShortDebugString());
    const ModelPass exact = ForwardBackward(spec, *MakeExact());
    const double own = GradientError(ForwardBackward(spec, *MakeGpu(at::kBFloat16)), exact);
    const ModelPass flash = ForwardBackward(spec, *MakeGpu(at::kBFloat16, FLASH));
    EXPECT_LE(GradientError(flash, exact), 2 * own + 1e-2);
    EXPECT_TRUE(
        at::equal(flash.gradient, ForwardBackward(spec, *MakeGpu(at::kBFloat16, FLASH)).gradient));
  }
}

TEST_F(AttentionTest, BadRowsAreRefusedBeforeAKernelReadsThem) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto ops = MakeGpu(at::kFloat);
  const auto upload = [&](auto spoil) {
    Side side({3, 2});
    spoil(side);
    ops->session().Upload({.target = side.Rows()});
  };
  EXPECT_DEATH(upload([](Side& side) {
                 side.offsets = {0, 3, 4};
               }),
               "offsets from 0 to 4 of 5 rows");
  EXPECT_DEATH(upload([](Side& side) { side.offsets[1] = 6; }), "offsets of sentence 1");
  EXPECT_DEATH(upload([](Side& side) { side.tokens[4] = -2; }), "row 4 has id -2");
  EXPECT_DEATH(upload([](Side& side) { side.positions[1] = 0xffffff00; }), "row 1 has position");
  const Side one({2, 0}), two({1, 1});
  EXPECT_DEATH(ops->session().Upload({.source = one.Rows(), .target = two.Rows()}),
               "sentence 1 has no keys");
}

TEST_F(AttentionTest, RowsOfAnotherVocabularyAreRefusedBeforeAKernelReadsThem) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto ops = MakeGpu(at::kFloat);
  Side side({3, 2});
  const std::vector<int32_t> labels = {1, -1, 9, 2, 2};
  const MicrobatchRows sent =
      ops->session().Upload({.target = side.Rows(), .labels = labels.data()});
  const auto floats = [&](int64_t rows) { return at::zeros({rows, 8}, ops->ResidualOptions()); };
  const auto embed = [&](int64_t vocabulary, int64_t positions) {
    ops->Embed({.rows = &sent.target,
                .table_VD = floats(vocabulary),
                .positions_PD = floats(positions),
                .x_RD = floats(5)});
  };
  embed(5, 3);
  EXPECT_DEATH(embed(4, 3), "4 against 4.*id is not in the vocabulary");
  EXPECT_DEATH(embed(5, 2), "2 against 2.*position is not in the table");
  const auto loss = [&](int64_t vocabulary) {
    const auto weight = ops->MakeWeight(floats(vocabulary), /*backward=*/false);
    ops->Refresh(*weight);
    ops->CrossEntropy({.rows = 5,
                       .hidden_RD = floats(5),
                       .weight_VD = weight.get(),
                       .labels = sent.labels,
                       .index = sent.target.index});
    ops->session().ReadBack();
  };
  loss(10);
  EXPECT_DEATH(loss(9), "9 against 9.*target is not in the vocabulary");
}

// LibTorch allocates and copies on the stream of the operations that were made last, while they
// live.
TEST(CudaOps, TheThreadsStreamIsThatOfTheOperations) {
  const c10::impl::VirtualGuardImpl guard(GpuType().value());
  const auto current = [&] { return guard.getStream(guard.getDevice()).native_handle(); };
  auto first = MakeGpu(at::kFloat);
  EXPECT_EQ(current(), first->session().stream());
  auto second = MakeGpu(at::kFloat);
  EXPECT_EQ(current(), second->session().stream());
  EXPECT_NE(first->session().stream(), second->session().stream());
  first = nullptr;
  EXPECT_EQ(current(), second->session().stream());
  second = nullptr;
  EXPECT_EQ(guard.getStream(guard.getDevice()), guard.getDefaultStream(guard.getDevice()));
}

}  // namespace
}  // namespace deepnet
