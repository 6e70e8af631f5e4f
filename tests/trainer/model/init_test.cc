// Initial weights: the deviations of the paper, by role, and nothing that depends on the order in
// which tensors are made.
#include <cmath>
#include <map>
#include <string>

#include <gtest/gtest.h>

#include "parallel/base/philox.h"
#include "tests/support/devices.h"
#include "tests/support/initial_normal.h"
#include "tests/support/tiny_model.h"
#include "trainer/kernels/aten.h"
#include "trainer/model/describe.h"
#include "trainer/model/embedding.h"
#include "trainer/model/parameters.h"
#include "trainer/model/scheme.h"

namespace deepnet {
namespace {

ModelSpec Model(int layers, TiedEmbeddings tied) {
  ModelSpec model;
  model.set_encoder_layers(layers);
  model.set_decoder_layers(layers);
  model.set_d_model(128);
  model.set_ffn_dim(512);
  model.set_num_heads(4);
  model.set_residual(DEEPNORM);
  model.set_vocabulary_size(500);
  model.set_max_positions(150);
  model.set_positions(LEARNED);
  model.set_tied_embeddings(tied);
  return model;
}

struct Weights {
  Inventory inventory;
  at::Tensor flat;

  at::Tensor Get(const std::string& name) const {
    for (const Parameter& p : inventory.parameters) {
      if (p.name == name) return flat.narrow(0, p.offset, p.NumElements()).view(p.shape);
    }
    ADD_FAILURE() << "unknown parameter " << name;
    return {};
  }
};

Weights InitializedBy(Ops& ops, const ModelSpec& model, uint64_t seed) {
  Parameters parameters(Describe(model, {}), ops, /*trainable=*/false);
  parameters.Initialize(seed);
  return {parameters.inventory(), parameters.weights().to(at::kCPU)};
}

// Returns what docs/design/random.md says, element by element.
at::Tensor ByDefinition(const Parameter& p, uint64_t seed) {
  const int64_t n = p.NumElements();
  at::Tensor values = at::full({n}, p.initial_value, at::kFloat);
  const auto std = static_cast<float>(p.initial_std);
  for (int64_t i = 0; i < n && std > 0; ++i) {
    values.data_ptr<float>()[i] = InitialNormal(seed, p.name, i) * std;
  }
  values = values.view(p.shape);
  if (p.zero_row >= 0) values[p.zero_row].zero_();
  return values;
}

class Initialize : public testing::OnDevice {
 protected:
  // The weights of a model, on the host.
  Weights Initialized(const ModelSpec& model, uint64_t seed) const {
    return InitializedBy(*MakeFloat32Ops(), model, seed);
  }
};

// Sums over one tensor or over all of a role.
struct Spread {
  double count = 0.0, squares = 0.0, expected_squares = 0.0;

  void Add(const at::Tensor& values, double expected) {
    count += static_cast<double>(values.numel());
    squares += values.to(at::kDouble).square().sum().item<double>();
    expected_squares += static_cast<double>(values.numel()) * expected * expected;
  }
  double Ratio() const { return std::sqrt(squares / expected_squares); }
};

// The deviation of n normal numbers strays by 1 / sqrt(2 n): 0.6 % for the smallest matrix here, so
// that 2 % is more than three deviations; a role has at least 38,000 numbers and is held to 1 %.
TEST_P(Initialize, GivesEveryTensorItsDeviation) {
  const ModelSpec model = Model(6, TIE_ALL);
  const Weights weights = Initialized(model, 1);
  const DepthScaling scaling = MakeDepthScaling(model);
  const double square = std::sqrt(2.0 / 256), wide = std::sqrt(2.0 / 640);
  const auto expected = [&](const Parameter& p) {
    const double beta = p.name.starts_with("encoder") ? scaling.encoder_beta : scaling.decoder_beta;
    switch (p.role) {
      case Role::kEmbedding:
      case Role::kPosition:
        return 1.0 / std::sqrt(128.0);
      case Role::kQuery:
      case Role::kKey:
        return square;
      case Role::kValue:
      case Role::kAttentionOutput:
        return beta * square;
      default:
        return beta * wide;
    }
  };
  std::map<Role, Spread> roles;
  for (const Parameter& p : weights.inventory.parameters) {
    at::Tensor values = weights.Get(p.name);
    if (p.shape.size() == 1) {  // gains and biases
      EXPECT_TRUE(at::equal(values, at::full_like(values, p.role == Role::kNormGain ? 1.0 : 0.0)))
          << p.name;
      continue;
    }
    if (p.zero_row >= 0) {
      EXPECT_EQ(values[p.zero_row].abs().max().item<float>(), 0.0f) << p.name;
      values = values.narrow(0, p.zero_row + 1, p.shape[0] - p.zero_row - 1);
    }
    Spread tensor;
    tensor.Add(values, expected(p));
    EXPECT_NEAR(tensor.Ratio(), 1.0, 0.02) << p.name;
    roles[p.role].Add(values, expected(p));
  }
  EXPECT_EQ(roles.size(), 7);
  for (const auto& [role, spread] : roles) {
    EXPECT_NEAR(spread.Ratio(), 1.0, 0.01) << RoleName(role);
  }
}

TEST_P(Initialize, ValuesAreFrozenNormalsTimesTheDeviation) {
  const Weights weights = Initialized(Model(1, TIE_ALL), 9);
  const Parameter& p = weights.inventory.parameters[2];
  const at::Tensor values = weights.Get(p.name).view({-1});
  for (const int64_t i : {0, 1, 77, 5000}) {
    EXPECT_EQ(values[i].item<float>(),
              InitialNormal(9, p.name, i) * static_cast<float>(p.initial_std))
        << p.name;
  }
}

TEST_P(Initialize, EveryElementOfEverySchemeIsTheOneThatIsDefined) {
  for (const Residual residual : testing::AllResiduals()) {
    SCOPED_TRACE(Residual_Name(residual));
    ModelSpec model = Model(1, TIE_NONE);
    model.set_residual(residual);
    const Weights weights = Initialized(model, 0x123456789ABCDEF0);
    for (const Parameter& p : weights.inventory.parameters) {
      EXPECT_TRUE(at::equal(weights.Get(p.name), ByDefinition(p, 0x123456789ABCDEF0))) << p.name;
    }
  }
}

TEST_P(Initialize, ATensorDoesNotDependOnWhichOthersThereAre) {
  const Weights deep = Initialized(Model(6, TIE_ALL), 4);
  const Weights shallow = Initialized(Model(2, TIE_NONE), 4);
  int compared = 0;
  for (const Parameter& p : shallow.inventory.parameters) {
    if (p.role != Role::kQuery && p.role != Role::kKey && p.role != Role::kPosition) continue;
    EXPECT_TRUE(at::equal(deep.Get(p.name), shallow.Get(p.name))) << p.name;  // beta is not in them
    ++compared;
  }
  EXPECT_EQ(compared, (2 + 2 * 2) * 4 + 2);  // attentions times q, k with biases; positions
}

TEST_P(Initialize, AnotherSeedOrNameGivesOtherValues) {
  const Weights a = Initialized(Model(1, TIE_ALL), 1), b = Initialized(Model(1, TIE_ALL), 2);
  const std::string q = "encoder.layers.0.self_attn.q_proj.weight";
  const std::string k = "encoder.layers.0.self_attn.k_proj.weight";
  EXPECT_FALSE(at::equal(a.Get(q), b.Get(q)));
  EXPECT_FALSE(at::equal(a.Get(q), a.Get(k)));
}

INSTANTIATE_TEST_SUITE_P(Parameters, Initialize, ::testing::ValuesIn(testing::Devices()),
                         testing::DeviceName);

TEST(InitializeByNativeOps, HasTheSameBitsWithAnyNumberOfThreads) {
  const ModelSpec model = Model(2, TIE_ALL);
  const at::Tensor reference = InitializedBy(*MakeAtenOps(at::kFloat, at::kFloat), model, 5).flat;
  for (const int threads : {1, 2, 3}) {
    ComputeSpec compute;
    compute.set_threads_per_rank(threads);
    EXPECT_TRUE(at::equal(InitializedBy(*MakeNativeOps(compute), model, 5).flat, reference))
        << threads;
  }
}

TEST(SinusoidalPositions, AreThoseOfFairseq) {
  const at::Tensor table = SinusoidalPositions(3, 8);
  for (int64_t p = 0; p < 3; ++p) {
    for (int64_t k = 0; k < 4; ++k) {
      const double angle = static_cast<double>(p + 2) * std::pow(1e4, -static_cast<double>(k) / 3);
      EXPECT_NEAR(table[p][k].item<double>(), std::sin(angle), 1e-7);
      EXPECT_NEAR(table[p][4 + k].item<double>(), std::cos(angle), 1e-7);
    }
  }
}

TEST(SinusoidalPositions, LeaveAnOddLastColumnAtZero) {
  EXPECT_EQ(SinusoidalPositions(2, 5).select(1, 4).abs().sum().item<double>(), 0.0);
}

}  // namespace
}  // namespace deepnet
