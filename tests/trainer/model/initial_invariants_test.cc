// Promises of schemes for a model that has not learnt yet, held against whole stacks as they run.
//
// Letters: R rows, D width.
#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/tiny_model.h"
#include "trainer/kernels/aten.h"
#include "trainer/kernels/compute.h"
#include "trainer/model/architecture.h"
#include "trainer/model/pass.h"
#include "trainer/model/transformer.h"

namespace deepnet {
namespace {

constexpr int kRows = 24;

// Remembers what entered each stack and how branch and stream compare in each sub-layer.
class Watcher : public SublayerProbe {
 public:
  struct Meeting {
    SublayerPlace place;
    double ratio;  // of root mean squares: branch over alpha times the stream
  };

  void AtEnter(const PassContext& pass, const SublayerView& view) override {
    at::Tensor& entered = entered_RD[static_cast<size_t>(view.place.stack)];
    if (!entered.defined()) entered = view.stream_RD.narrow(0, 0, pass.rows->count).clone();
  }
  void AtLeave(const PassContext& pass, const SublayerView& view) override {
    const auto norm = [&](const at::Tensor& x_RD) {
      return x_RD.narrow(0, 0, pass.rows->count).norm().item<double>();
    };
    meetings.push_back(
        {view.place, norm(view.branch_RD) / (view.scheme->alpha * norm(view.stream_RD))});
  }

  std::array<at::Tensor, 2> entered_RD;  // of each stack
  std::vector<Meeting> meetings;         // in chain order
};

// A model with its initial weights after one forward pass in training mode.
struct Passed {
  Passed(const ModelSpec& spec, const MicrobatchSpec& capacity, const Microbatch& microbatch)
      : model(spec, capacity, *ops, /*trainable=*/true) {
    model.parameters().Initialize(5);
    model.Refresh();
    MicrobatchPass pass = MakePass(*ops, microbatch, /*seed=*/3, /*step=*/0, /*training=*/true);
    pass.probe = &watcher;
    kept = model.MakeActivations(/*shared=*/false);
    model.chunks()[0].Forward(pass, kept->values, model.work(), kept->kept,
                              {.dhidden_RD = kept->gradients.target_RD});
  }
  // The rows that left the stack.
  at::Tensor Output(int stack) const {
    const at::Tensor& rows_RD = stack == 0 && IsEncoderDecoder(model.spec())
                                    ? kept->values.encoder_output_RD
                                    : kept->values.target_RD;
    return rows_RD.narrow(0, 0, watcher.entered_RD[static_cast<size_t>(stack)].size(0));
  }

  const std::unique_ptr<Ops> ops = MakeAtenOps(at::kFloat, at::kFloat);
  Transformer model;
  Watcher watcher;
  std::unique_ptr<Activations> kept;
};

// Branches are there and dropped out of; only what they add is nothing.
TEST(InitialInvariants, AStackOfReZeroOrRFixupIsTheIdentity) {
  for (const Residual residual : {REZERO, R_FIXUP}) {
    for (const Architecture architecture : {ENCODER_DECODER, DECODER_ONLY, ENCODER_ONLY}) {
      SCOPED_TRACE(Residual_Name(residual) + " " + Architecture_Name(architecture));
      ModelSpec spec = testing::WithArchitecture(
          testing::WithResidual(testing::TinySpec(), residual), architecture);
      spec.set_dropout(0.3);
      const Passed passed(spec, testing::TinyCapacityOf(spec), testing::TinyMicrobatch(spec, 3));
      for (const int stack : {0, 1}) {
        if (LayersOf(spec, stack) == 0) continue;
        const at::Tensor& entered_RD = passed.watcher.entered_RD[static_cast<size_t>(stack)];
        EXPECT_GT(entered_RD.abs().max().item<double>(), 0);
        EXPECT_TRUE(at::equal(passed.Output(stack), entered_RD)) << StackName(stack);
      }
    }
  }
}

// Every sentence is one token, so that attention has one key and averages nothing away.
Microbatch SingleTokens() {
  Microbatch mb;
  for (int row = 0; row < kRows; ++row) {
    for (PackedSide* side : {&mb.source, &mb.target}) {
      side->tokens.push_back(4 + row);
      side->positions.push_back(0);
      side->offsets.push_back(row);
    }
    mb.source_pairs.push_back(static_cast<uint32_t>(row));
    mb.target_pairs.push_back(static_cast<uint32_t>(row));
    mb.labels.push_back(2);
  }
  for (PackedSide* side : {&mb.source, &mb.target}) side->offsets.push_back(kRows);
  mb.num_sentences = kRows;
  mb.num_source_tokens = mb.num_target_tokens = kRows;
  return mb;
}

MicrobatchSpec SingleCapacity() {
  MicrobatchSpec capacity;
  capacity.set_max_source_tokens(kRows);
  capacity.set_max_target_tokens(kRows);
  capacity.set_max_sentences(kRows);
  return capacity;
}

ModelSpec Deep(Residual residual, int encoder_layers, int decoder_layers, int width) {
  ModelSpec spec = testing::WithResidual(testing::TinySpec(), residual);
  spec.set_encoder_layers(encoder_layers);
  spec.set_decoder_layers(decoder_layers);
  spec.set_d_model(width);
  spec.set_ffn_dim(4 * width);
  spec.set_vocabulary_size(4 + kRows);
  return spec;
}

// A branch of two matrices of gain beta, drawn independently, is beta^2 times as long as what it
// reads where both are square; so it is beta^2 / alpha of the stream it joins. In a feed-forward
// block Xavier's deviation of a d x f matrix and the half that ReLU takes leave sqrt(2 d f) / (d +
// f) of that, 0.57 with f = 4 d. N != M, and alpha and beta from the paper's figure 2.
TEST(InitialInvariants, BranchesOfDeepNormStartAsBetaSquaredOverAlphaOfTheStream) {
  constexpr double kSampling = 0.10;  // of one draw of 128 x 128, on 24 rows
  const double n = 6, m = 4, depth = std::pow(n * n * n * n * m, 1.0 / 16);
  const std::array<double, 2> expected = {std::pow(0.87 / depth, 2) / (0.81 * depth),
                                          std::pow(12 * m, -0.5) / std::pow(3 * m, 0.25)};
  const Passed passed(Deep(DEEPNORM, 6, 4, 128), SingleCapacity(), SingleTokens());
  ASSERT_EQ(passed.watcher.meetings.size(), 2u * 6 + 3 * 4);
  const double block = std::sqrt(2.0 * 4) / (1 + 4);
  for (const Watcher::Meeting& meeting : passed.watcher.meetings) {
    const double shape = meeting.place.kind == SublayerKind::kFeedForward ? block : 1.0;
    EXPECT_NEAR(meeting.ratio / (shape * expected[static_cast<size_t>(meeting.place.stack)]), 1.0,
                kSampling)
        << BlockName(meeting.place);
  }
}

// Mean cosine between the rows of `x_RD` and `y_RD`, each without its mean.
double Likeness(const at::Tensor& x_RD, const at::Tensor& y_RD) {
  const auto unit = [](const at::Tensor& z_RD) {
    const at::Tensor centred_RD = z_RD.to(at::kDouble) - z_RD.to(at::kDouble).mean(1, true);
    return centred_RD / centred_RD.norm(2, {1}, /*keepdim=*/true);
  };
  return (unit(x_RD) * unit(y_RD)).sum(1).mean().item<double>();
}

// 80 and 120 sub-layers: with ratios of 0.029 and 0.014 they turn a row by 0.21 and 0.13 together,
// where Post-LN's leave little of it.
TEST(InitialInvariants, AStackOfDeepNormIsNearlyTheNormOfWhatEntersIt) {
  const Passed deep(Deep(DEEPNORM, 40, 40, 32), SingleCapacity(), SingleTokens());
  const Passed post(Deep(POST_LN, 40, 40, 32), SingleCapacity(), SingleTokens());
  for (const int stack : {0, 1}) {
    const size_t i = static_cast<size_t>(stack);
    EXPECT_GT(Likeness(deep.Output(stack), deep.watcher.entered_RD[i]), 0.95) << StackName(stack);
    EXPECT_LT(Likeness(post.Output(stack), post.watcher.entered_RD[i]), 0.5) << StackName(stack);
  }
}

TEST(InitialInvariants, RowsOfDlclsMixtureSumToOne) {
  constexpr double kRounding = 1e-6;  // of float32, over 9 numbers
  const ModelSpec spec = Deep(DLCL, 8, 3, 8);
  const Passed passed(spec, SingleCapacity(), SingleTokens());
  const Parameters& parameters = passed.model.parameters();
  for (const int stack : {0, 1}) {
    for (int row = 0; row <= LayersOf(spec, stack); ++row) {
      const bool output = row == LayersOf(spec, stack);
      const std::string name =
          (output ? StackName(stack) : LayerPrefix(stack, row)) + kHistoryWeight;
      const at::Tensor weights = parameters.Get(name);
      EXPECT_EQ(weights.size(0), row + 1) << name;
      EXPECT_NEAR(weights.sum().item<double>(), 1.0, kRounding) << name;
      EXPECT_EQ(weights.min().item<double>(), weights.max().item<double>()) << name;
    }
  }
}

}  // namespace
}  // namespace deepnet
