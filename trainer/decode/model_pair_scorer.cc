// Whole targets at once, through the chunks' training forward pass without dropout.
#include <utility>

#include "parallel/base/check.h"
#include "trainer/data/batcher.h"
#include "trainer/decode/model_scorer.h"

namespace deepnet {

ModelPairScorer::ModelPairScorer(Transformer& model, PipelineLink* link)
    : model_(model), link_(link), kept_(model.MakeActivations(/*shared=*/true)) {}

std::vector<double> ModelPairScorer::LogProbabilities(std::span<const IdPair> pairs) {
  const MicrobatchSpec& spec = model_.capacity();
  const Capacity capacity{spec.source_tokens(), spec.target_tokens(), spec.sentences()};
  std::vector<double> result;
  std::vector<float> token_nll(spec.target_tokens());
  for (size_t begin = 0; begin < pairs.size();) {
    MicrobatchBuilder builder(capacity);
    size_t end = begin;
    for (; end < pairs.size(); ++end) {
      const EncodedPair pair{pairs[end].source, pairs[end].target};
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
  const MicrobatchPass pass = MakePass(microbatch, 0, 0, /*training=*/false);
  const int64_t sources = pass.source.count, targets = pass.target.count;
  const Flow& values = kept_->values;
  bool has_memory = link_ == nullptr;
  for (int i = 0; i < static_cast<int>(model_.chunks().size()); ++i) {
    const Chunk& chunk = model_.chunks()[i];
    has_memory = has_memory || chunk.ends_encoder();
    if (!has_memory && chunk.decoder().size() > 0) {
      link_->ReceiveMemory(sources, values.memory_RD);
      has_memory = true;
    }
    if (link_ && chunk.inputs().source) link_->ReceiveBefore(i, sources, values.source_RD);
    if (link_ && chunk.inputs().target) link_->ReceiveBefore(i, targets, values.target_RD);
    chunk.Forward(pass, values, model_.work(), kept_->kept, {}, {}, token_nll);
    if (link_ && chunk.outputs().source) link_->SendBehind(i, sources, values.source_RD);
    if (link_ && chunk.ends_encoder()) link_->SendMemory(sources, values.memory_RD);
    if (link_ && chunk.outputs().target) link_->SendBehind(i, targets, values.target_RD);
  }
}

}  // namespace deepnet
