#include "trainer/decode/ensemble_scorer.h"

#include <algorithm>
#include <cmath>

#include "parallel/base/check.h"
#include "trainer/kernels/aten.h"

namespace deepnet {

struct EnsembleScorer::State : public DecoderState {
  int num_rows() const override { return members.front()->num_rows(); }

  std::vector<std::unique_ptr<DecoderState>> members;
  std::vector<uint8_t> host_kinds;         // of tokens
  std::shared_ptr<const std::byte> kinds;  // the same, where the Ops reads them
};

EnsembleScorer::EnsembleScorer(std::span<Transformer* const> models) : ops_(models.front()->ops()) {
  for (Transformer* const model : models) {
    DEEPNET_CHECK(&model->ops() == &ops_) << "members of an ensemble have the same Ops";
    DEEPNET_CHECK_EQ(model->spec().vocabulary_size(), models.front()->spec().vocabulary_size());
    members_.push_back(std::make_unique<ModelScorer>(*model));
  }
}

std::unique_ptr<DecoderState> EnsembleScorer::Start(std::span<const std::vector<int32_t>> sources) {
  auto state = std::make_unique<State>();
  for (const auto& member : members_) state->members.push_back(member->Start(sources));
  return state;
}

void EnsembleScorer::Reorder(DecoderState& state, std::span<const int32_t> parents) {
  auto& states = static_cast<State&>(state).members;
  for (size_t i = 0; i < members_.size(); ++i) members_[i]->Reorder(*states[i], parents);
}

void EnsembleScorer::Step(DecoderState& decoder_state, std::span<const int32_t> tokens,
                          const native::TokenChoices& choices) {
  auto& state = static_cast<State&>(decoder_state);
  const int64_t rows = std::ssize(tokens);
  at::Tensor average_RV, member_RV;  // undefined: nothing is chosen
  if (choices.count > 0) {
    average_RV = FirstRows(average_RV_, rows, vocabulary_size(), ops_);
    member_RV = FirstRows(member_RV_, rows, vocabulary_size(), ops_);
  }
  for (size_t i = 0; i < members_.size(); ++i) {
    members_[i]->StepLogProbs(*state.members[i], tokens, i == 0 ? average_RV : member_RV);
    if (choices.count > 0 && i > 0) {
      ops_.AverageLogProbs(static_cast<int>(i) + 1, member_RV, average_RV);
    }
  }
  if (choices.count == 0) return;
  if (state.kinds == nullptr) {
    state.host_kinds.assign(choices.kinds, choices.kinds + vocabulary_size());
    state.kinds = ops_.session().Upload(std::as_bytes(std::span(state.host_kinds)));
  }
  const std::span wanted(choices.choices, static_cast<size_t>(choices.count));
  const std::shared_ptr<const std::byte> sent = ops_.session().Upload(std::as_bytes(wanted));
  native::TokenChoices here = choices;
  here.choices = reinterpret_cast<const native::TokenChoice*>(sent.get());
  here.kinds = reinterpret_cast<const uint8_t*>(state.kinds.get());
  ops_.ChooseTokens(average_RV, here);
  ops_.session().ReadBack();
}

EnsemblePairScorer::EnsemblePairScorer(std::span<Transformer* const> models) {
  DEEPNET_CHECK(!models.empty());
  for (Transformer* const model : models) {
    members_.push_back(std::make_unique<ModelPairScorer>(*model));
  }
}

std::vector<double> EnsemblePairScorer::LogProbabilities(std::span<const EncodedPair> pairs) {
  std::vector<std::vector<std::vector<float>>> nll;  // of each member, pair, target token
  for (const auto& member : members_) nll.push_back(member->TokenNll(pairs));
  const double n = static_cast<double>(members_.size());
  std::vector<double> result(pairs.size(), 0.0);
  for (size_t i = 0; i < pairs.size(); ++i) {
    for (size_t t = 0; t < nll.front()[i].size(); ++t) {
      double least = nll.front()[i][t];
      for (const auto& of_member : nll) least = std::min<double>(least, of_member[i][t]);
      double sum = 0.0;  // of probabilities, relative to the largest
      for (const auto& of_member : nll) sum += std::exp(least - of_member[i][t]);
      result[i] -= least - std::log(sum / n);
    }
  }
  return result;
}

}  // namespace deepnet
