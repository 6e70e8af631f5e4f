// The Transformer as a search sees it (scorer.h): incremental decoding with cached keys and values.
//
// A row of the cache is written once and never moves: each hypothesis has a list of the rows it
// attends to, and re-ordering hypotheses copies lists of integers. Lists, tokens and choices of a
// step go to the device in one copy; the tokens chosen come back in one. Batches larger than the
// model's capacity are computed in slices, which change nothing.
//
// A rank of a pipeline is the same scorer over its own chunks, with a PipelineLink to the others:
// all ranks get the same calls, and only the one with the output layer has results
// (pipeline_scorer.h).
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "trainer/data/batcher.h"
#include "trainer/decode/pipeline_link.h"
#include "trainer/decode/scorer.h"
#include "trainer/model/transformer.h"

namespace deepnet {

// Computes this rank's part of a forward pass without dropout (`pass.training` is false), receiving
// from other ranks and sending to them through `link`; without a link the model is complete. `kept`
// is model.MakeActivations(shared) and holds on return the output of the rank's last chunk: with
// the output layer the decoder's output, and `token_nll` (optional, [target rows]) is filled. After
// an error of the link the result is invalid.
void RunForward(Transformer& model, PipelineLink* link, const MicrobatchPass& pass,
                Activations& kept, float* token_nll);

// Returns the first `rows` rows of `buffer` (residual), which is made anew where it is too small.
at::Tensor FirstRows(at::Tensor& buffer, int64_t rows, int64_t width, Ops& ops);

class ModelScorer : public Scorer {
 public:
  // `model` has current working copies (Refresh) and, like `link`, outlives this. Without a link
  // the model is complete, in one chunk or several.
  explicit ModelScorer(Transformer& model, PipelineLink* link = nullptr);

  int64_t vocabulary_size() const override { return model_.spec().vocabulary_size(); }
  std::unique_ptr<DecoderState> Start(std::span<const std::vector<int32_t>> sources) override;
  void Reorder(DecoderState& state, std::span<const int32_t> parents) override;
  // Ranks without the output layer make no choices.
  void Step(DecoderState& state, std::span<const int32_t> tokens,
            const native::TokenChoices& choices) override;
  // Step, but all log-probabilities are the result, and nothing waits for them: they are written to
  // log_probs_RV (residual, on the device, without gaps), a row for each of `tokens`; undefined:
  // none are computed.
  void StepLogProbs(DecoderState& state, std::span<const int32_t> tokens,
                    const at::Tensor& log_probs_RV);

 private:
  struct State;
  struct StepArrays;

  template <typename Compute>
  void ComputeStep(State& state, std::span<const int32_t> tokens,
                   const native::TokenChoices& choices, const Compute& compute);
  void GrowCaches(State& state) const;
  StepArrays SendStep(State& state, std::span<const int32_t> tokens,
                      const native::TokenChoices& choices);
  void StepSlice(State& state, const StepArrays& sent, int64_t begin, int64_t count,
                 const at::Tensor& logits_RV);

  Transformer& model_;
  PipelineLink* const link_;
  const int num_layers_;  // of the decoder, on this rank
  std::unique_ptr<Activations> kept_;
  std::vector<KeyValueCache> spare_caches_;  // one per layer, of a state that ended; or none
  std::vector<std::byte> step_bytes_;        // of SendStep
  at::Tensor logits_RV_;                     // of a slice
};

// Log-probabilities through the training forward pass: all positions of a target at once.
class ModelPairScorer : public PairScorer {
 public:
  // As above. `computed`, if given, is called after every microbatch.
  explicit ModelPairScorer(Transformer& model, PipelineLink* link = nullptr,
                           std::function<void()> computed = {});

  // Zeros on ranks without the output layer.
  std::vector<double> LogProbabilities(std::span<const EncodedPair> pairs) override;

  // The terms of these sums, negated: result[i][t] belongs to pairs[i].labels[t].
  std::vector<std::vector<float>> TokenNll(std::span<const EncodedPair> pairs);

 private:
  Transformer& model_;
  PipelineLink* const link_;
  const std::function<void()> computed_;
  std::unique_ptr<Activations> kept_;
};

}  // namespace deepnet
