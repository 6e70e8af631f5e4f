// The Transformer as a search sees it (scorer.h): incremental decoding with cached keys and values.
//
// A row of the cache is written once and never moves: each hypothesis has a list of the rows it
// looks at, and re-ordering hypotheses copies lists of integers. Batches larger than the model's
// capacity are computed in slices; rows do not influence each other, so slices change nothing. The
// memory of a state's cache serves the next one, so the scorer keeps that of the state that ended
// last.
#pragma once

#include <memory>
#include <vector>

#include "trainer/data/batcher.h"
#include "trainer/decode/score.h"
#include "trainer/decode/scorer.h"
#include "trainer/model/transformer.h"

namespace deepnet {

class ModelScorer : public Scorer {
 public:
  // `model` has current working copies (Refresh) and outlives this.
  explicit ModelScorer(Transformer& model);

  int64_t vocabulary_size() const override { return model_.spec().vocabulary_size(); }
  std::unique_ptr<DecoderState> Start(std::span<const std::vector<int32_t>> sources) override;
  void Reorder(DecoderState& state, std::span<const int32_t> parents) override;
  void Step(DecoderState& state, std::span<const int32_t> tokens, float* log_probs) override;

 private:
  struct State;

  Transformer& model_;
  std::unique_ptr<Activations> kept_;
  std::vector<KeyValueCache> spare_caches_;  // a layer each, of a state that is gone; or none
};

// Log-probabilities through the training forward pass: all positions of a target at once.
class ModelPairScorer : public PairScorer {
 public:
  explicit ModelPairScorer(Transformer& model);

  std::vector<double> LogProbabilities(std::span<const IdPair> pairs) override;

 private:
  Transformer& model_;
  std::unique_ptr<Activations> kept_;
};

}  // namespace deepnet
