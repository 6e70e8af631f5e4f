#include "trainer/decode/forward_pass.h"

namespace deepnet {

void RunForward(Transformer& model, PipelineLink* link, const MicrobatchPass& pass,
                Activations& kept, float* token_nll) {
  const int64_t sources = pass.source.count, targets = pass.target.count;
  const Flow& values = kept.values;
  bool has_memory = link == nullptr;
  for (int i = 0; i < static_cast<int>(model.chunks().size()); ++i) {
    const Chunk& chunk = model.chunks()[i];
    has_memory = has_memory || chunk.ends_encoder();
    if (!has_memory && chunk.reads_memory()) {
      link->ReceiveMemory(sources, values.memory_RD);
      has_memory = true;
    }
    if (link && chunk.inputs().source) link->ReceiveBefore(i, sources, values.source_RD);
    if (link && chunk.inputs().target) link->ReceiveBefore(i, targets, values.target_RD);
    chunk.Forward(pass, values, model.work(), kept.kept, {}, {}, token_nll);
    if (link && chunk.outputs().source) link->SendBehind(i, sources, values.source_RD);
    if (link && chunk.ends_encoder()) link->SendMemory(sources, values.memory_RD);
    if (link && chunk.outputs().target) link->SendBehind(i, targets, values.target_RD);
  }
}

}  // namespace deepnet
