#include "trainer/model/pass.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "trainer/model/architecture.h"

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
  const auto rows_of = [&](const PackedSide& side, const std::vector<uint32_t>& pairs) {
    PackedRows rows = RowsOf(side, pairs, microbatch.num_sentences);
    if (!training || !ops.session().RepeatsPasses()) return rows;
    rows.count = static_cast<int64_t>(side.tokens.size());
    rows.num_sentences = std::max(0, static_cast<int>(side.offsets.size()) - 1);
    return rows;
  };
  return {
      .rows = ops.session().Upload({.source = rows_of(microbatch.source, microbatch.source_pairs),
                                    .target = rows_of(microbatch.target, microbatch.target_pairs),
                                    .step = step,
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
