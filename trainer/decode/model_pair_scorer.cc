// Whole targets at once, through the chunks' training forward pass without dropout.
#include <utility>

#include "parallel/base/check.h"
#include "trainer/data/batcher.h"
#include "trainer/decode/forward_pass.h"
#include "trainer/decode/model_scorer.h"

namespace deepnet {

ModelPairScorer::ModelPairScorer(Transformer& model, PipelineLink* link,
                                 std::function<void()> computed)
    : model_(model),
      link_(link),
      computed_(std::move(computed)),
      kept_(model.MakeActivations(/*shared=*/true)) {}

std::vector<double> ModelPairScorer::LogProbabilities(std::span<const IdPair> pairs) {
  const MicrobatchSpec& spec = model_.capacity();
  const Capacity capacity{spec.source_tokens(), spec.target_tokens(), spec.sentences()};
  std::vector<double> result;
  std::vector<float> token_nll(spec.target_tokens());
  for (size_t begin = 0; begin < pairs.size();) {
    MicrobatchBuilder builder(capacity);
    size_t end = begin;
    for (; end < pairs.size(); ++end) {
      const EncodedPair pair{pairs[end].source, pairs[end].target, pairs[end].input};
      if (!builder.HasRoom(pair)) break;
      builder.Add(static_cast<uint32_t>(end - begin), pair);
    }
    DEEPNET_CHECK(end > begin) << "a pair of " << pairs[begin].source.size() << " and "
                               << pairs[begin].target.size() << " tokens exceeds the capacity";
    const Microbatch mb = std::move(builder).Build();
    Forward(mb, token_nll.data());
    for (int s = 0; s < mb.num_sentences; ++s) {
      double sum = 0.0;
      for (int r = mb.target.offsets[s]; r < mb.target.offsets[s + 1]; ++r) sum -= token_nll[r];
      result.push_back(sum);
    }
    begin = end;
  }
  return result;
}

void ModelPairScorer::Forward(const Microbatch& microbatch, float* token_nll) {
  RunForward(model_, link_, MakePass(microbatch, /*seed=*/0, model_.step(), /*training=*/false),
             *kept_, token_nll);
  if (computed_) computed_();
}

}  // namespace deepnet
