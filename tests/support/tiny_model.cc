#include "tests/support/tiny_model.h"

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

namespace deepnet::testing {

ModelSpec TinySpec() {
  ModelSpec spec;
  spec.set_encoder_layers(2);
  spec.set_decoder_layers(3);
  spec.set_d_model(8);
  spec.set_ffn_dim(12);
  spec.set_num_heads(2);
  spec.set_residual(DEEPNORM);
  spec.set_vocabulary_size(11);
  spec.set_max_positions(32);
  spec.set_layer_norm_epsilon(1e-5);
  return spec;
}

std::vector<Residual> AllResiduals() {
  std::vector<Residual> all;
  for (int value = Residual_MIN; value <= Residual_MAX; ++value) {
    if (Residual_IsValid(value) && value != RESIDUAL_UNSPECIFIED) {
      all.push_back(static_cast<Residual>(value));
    }
  }
  return all;
}

bool CanBeCut(Residual residual) { return residual != DLCL && residual != RESIDUAL_DUAL; }

ModelSpec WithResidual(ModelSpec spec, Residual residual) {
  spec.set_residual(residual);
  if (residual == MIX_LN) spec.mutable_scheme()->set_mix_ln_fraction(0.5);
  if (residual == RESIDUAL_DUAL) spec.mutable_scheme()->set_residual_dual_scale(0.05);
  if (residual == BRANCH_NORM) spec.mutable_scheme()->set_branch_norm_steps(5);
  return spec;
}

double WeightScale(const ModelSpec& spec) { return spec.residual() == RESIDUAL_ONLY ? 0.5 : 1.0; }

MicrobatchSpec TinyCapacity() {
  MicrobatchSpec capacity;
  capacity.set_max_source_tokens(20);
  capacity.set_max_target_tokens(16);
  capacity.set_max_sentences(4);
  return capacity;
}

ModelSpec WithArchitecture(ModelSpec spec, Architecture architecture) {
  spec.set_architecture(architecture);
  if (architecture == ENCODER_DECODER) return spec;
  spec.set_encoder_layers(architecture == ENCODER_ONLY ? 3 : 0);
  spec.set_decoder_layers(architecture == ENCODER_ONLY ? 0 : 3);
  return spec;
}

MicrobatchSpec TinyCapacityOf(const ModelSpec& spec) {
  MicrobatchSpec capacity = TinyCapacity();
  if (spec.architecture() != ENCODER_DECODER) capacity.set_max_source_tokens(0);
  return capacity;
}

Microbatch TinyMicrobatch(const ModelSpec& spec, uint32_t seed) {
  const MicrobatchSpec capacity = TinyCapacityOf(spec);
  std::vector<std::pair<int, int>> lengths = {{5, 4}, {1, 6}, {9, 3}};
  if (spec.architecture() != ENCODER_DECODER) lengths = {{0, 4}, {0, 6}, {0, 3}};
  std::mt19937 random(seed);
  const auto draw = [&] {
    return static_cast<int32_t>(4 + random() % (static_cast<uint32_t>(spec.vocabulary_size()) - 4));
  };
  Microbatch mb;
  mb.source.offsets = {0};
  mb.target.offsets = {0};
  for (uint32_t pair = 0; pair < lengths.size(); ++pair) {
    for (int i = 0; i < lengths[pair].first; ++i) {
      mb.source.tokens.push_back(i + 1 < lengths[pair].first ? draw() : 2);
      mb.source.positions.push_back(static_cast<uint32_t>(i));
      mb.source_pairs.push_back(7 + pair);
    }
    for (int i = 0; i < lengths[pair].second; ++i) {
      mb.target.tokens.push_back(i == 0 ? 2 : mb.labels.back());
      mb.labels.push_back(i + 1 < lengths[pair].second ? draw() : 2);
      mb.target.positions.push_back(static_cast<uint32_t>(i));
      mb.target_pairs.push_back(7 + pair);
    }
    mb.source.offsets.push_back(static_cast<int32_t>(mb.source.tokens.size()));
    mb.target.offsets.push_back(static_cast<int32_t>(mb.target.tokens.size()));
  }
  if (spec.architecture() == ENCODER_ONLY) {
    for (size_t row = 0; row < mb.labels.size(); row += 3) mb.labels[row] = -1;
  }
  mb.num_sentences = static_cast<int>(lengths.size());
  mb.num_source_tokens = mb.source.offsets.back();
  mb.num_target_tokens =
      std::count_if(mb.labels.begin(), mb.labels.end(), [](int32_t label) { return label >= 0; });
  mb.source.offsets.resize(static_cast<size_t>(capacity.max_sentences()) + 1,
                           mb.source.offsets.back());
  mb.target.offsets.resize(static_cast<size_t>(capacity.max_sentences()) + 1,
                           mb.target.offsets.back());
  mb.source.tokens.resize(static_cast<size_t>(capacity.max_source_tokens()), 1);
  mb.source.positions.resize(mb.source.tokens.size(), 0);
  mb.source_pairs.resize(mb.source.tokens.size(), 0);
  mb.target.tokens.resize(static_cast<size_t>(capacity.max_target_tokens()), 1);
  mb.target.positions.resize(mb.target.tokens.size(), 0);
  mb.target_pairs.resize(mb.target.tokens.size(), 0);
  mb.labels.resize(mb.target.tokens.size(), -1);
  return mb;
}

}  // namespace deepnet::testing
