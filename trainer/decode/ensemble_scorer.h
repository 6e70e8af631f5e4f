// Several models as one: the probabilities that they give to the next token are averaged,
//   log p(token) = log(1/n * sum over the n models of p_i(token)),
// as fairseq's ensembles are. Models may differ in everything but the vocabulary. n times the same
// model has the bits of that model. Beside weights and caches of all models, an ensemble holds two
// arrays of log-probabilities of all rows of a step, whatever n is.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "trainer/decode/model_scorer.h"
#include "trainer/decode/scorer.h"
#include "trainer/model/transformer.h"

namespace deepnet {

class EnsembleScorer : public Scorer {
 public:
  // As for ModelScorer, each model complete. At least one, all with the same Ops, in an order that
  // counts for rounding.
  explicit EnsembleScorer(std::span<Transformer* const> models);

  int64_t vocabulary_size() const override { return members_.front()->vocabulary_size(); }
  std::unique_ptr<DecoderState> Start(std::span<const std::vector<int32_t>> sources) override;
  void Reorder(DecoderState& state, std::span<const int32_t> parents) override;
  void Step(DecoderState& state, std::span<const int32_t> tokens,
            const native::TokenChoices& choices) override;

 private:
  struct State;

  Ops& ops_;
  std::vector<std::unique_ptr<ModelScorer>> members_;
  at::Tensor average_RV_, member_RV_;  // of the largest step so far
};

// The average is taken token by token, as in a search.
class EnsemblePairScorer : public PairScorer {
 public:
  // As above.
  explicit EnsemblePairScorer(std::span<Transformer* const> models);

  std::vector<double> LogProbabilities(std::span<const EncodedPair> pairs) override;

 private:
  std::vector<std::unique_ptr<ModelPairScorer>> members_;
};

}  // namespace deepnet
