#include "trainer/model/flow.h"

namespace deepnet {

PackedRows RowsOf(const PackedSide& side, const std::vector<uint32_t>& pairs, int num_sentences) {
  return {.count = side.NumTokens(),
          .num_sentences = num_sentences,
          .tokens = side.tokens.data(),
          .positions = side.positions.data(),
          .pairs = pairs.data(),
          .offsets = side.offsets.data()};
}

MicrobatchPass MakePass(const Microbatch& microbatch, uint64_t seed, int64_t step, bool training) {
  return {.source = RowsOf(microbatch.source, microbatch.source_pairs, microbatch.num_sentences),
          .target = RowsOf(microbatch.target, microbatch.target_pairs, microbatch.num_sentences),
          .labels = microbatch.labels.data(),
          .seed = seed,
          .step = step,
          .training = training};
}

CutTensors CutBefore(const Inventory& whole, int position) {
  CutTensors cut;
  if (position == static_cast<int>(whole.layers.size())) return cut;
  const Layer& behind = whole.layers[position];
  for (const BoundaryTensor& tensor : behind.inputs) {
    if (tensor.name != kHidden) {
      cut.memory = true;
    } else if (behind.kind == LayerKind::kEncoder) {
      cut.source = true;
    } else {
      cut.target = true;
    }
  }
  return cut;
}

}  // namespace deepnet
