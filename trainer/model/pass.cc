#include "trainer/model/pass.h"

#include <ATen/ATen.h>

#include "trainer/model/roles.h"

namespace deepnet {

ResidualStream MakeResidualStream(const Ops& ops, int64_t capacity, int64_t width) {
  ResidualStream stream;
  stream.value_RD = at::zeros({capacity, width}, ops.ResidualOptions());
  stream.operand_RD =
      SameTypes(ops) ? stream.value_RD : at::zeros({capacity, width}, ops.OperandOptions());
  return stream;
}

void FillOperand(const PassContext& pass, const ResidualStream& stream) {
  if (stream.one_tensor()) return;
  pass.ops->Copy(pass.rows->count, stream.value_RD, stream.operand_RD);
}

PackedRows RowsOf(const PackedSide& side, const std::vector<uint32_t>& pairs, int num_sentences) {
  return {.count = side.NumTokens(),
          .num_sentences = num_sentences,
          .tokens = side.tokens.data(),
          .positions = side.positions.data(),
          .pairs = pairs.data(),
          .offsets = side.offsets.data()};
}

MicrobatchPass MakePass(Ops& ops, const Microbatch& microbatch, uint64_t seed, int64_t step,
                        bool training) {
  const int sentences = microbatch.num_sentences;
  return {
      .rows = ops.Upload({.source = RowsOf(microbatch.source, microbatch.source_pairs, sentences),
                          .target = RowsOf(microbatch.target, microbatch.target_pairs, sentences),
                          .labels = microbatch.labels.data()}),
      .seed = seed,
      .step = step,
      .training = training};
}

BoundarySet BoundaryBefore(const Inventory& whole, int position) {
  BoundarySet set;
  if (position == static_cast<int>(whole.layers.size())) return set;
  const Layer& next = whole.layers[position];
  for (const BoundaryTensor& tensor : next.inputs) {
    if (tensor.name != kHidden) {
      set.encoder_output = true;
    } else if (next.kind == LayerKind::kEncoder) {
      set.source = true;
    } else {
      set.target = true;
    }
  }
  return set;
}

}  // namespace deepnet
