#include "trainer/model/sublayer_order.h"

#include "parallel/base/check.h"
#include "trainer/model/architecture.h"

namespace deepnet {
namespace {

// `count`: sub-layers of a layer, 3 with cross-attention, else 2.
int IndexInLayer(SublayerKind kind, int count) {
  if (kind == SublayerKind::kSelfAttention) return 0;
  return kind == SublayerKind::kCrossAttention ? 1 : count - 1;
}

SublayerKind KindInLayer(int index, int count) {
  if (index == 0) return SublayerKind::kSelfAttention;
  return index + 1 < count ? SublayerKind::kCrossAttention : SublayerKind::kFeedForward;
}

}  // namespace

int NumSublayers(const ModelSpec& model, int stack) {
  return SublayersPerLayer(model, stack) * LayersOf(model, stack);
}

int NumSublayers(const ModelSpec& model) { return NumSublayers(model, 0) + NumSublayers(model, 1); }

int SublayerIndex(const ModelSpec& model, const SublayerPlace& place) {
  const int count = SublayersPerLayer(model, place.stack);
  const int before = place.stack == 0 ? 0 : NumSublayers(model, 0);
  return before + count * place.layer + IndexInLayer(place.kind, count);
}

SublayerPlace SublayerAt(const ModelSpec& model, int index) {
  DEEPNET_CHECK(index >= 0 && index < NumSublayers(model)) << index;
  const int in_encoder = NumSublayers(model, 0);
  const int stack = index < in_encoder ? 0 : 1;
  const int within = stack == 0 ? index : index - in_encoder;
  const int count = SublayersPerLayer(model, stack);
  return {stack, within / count, KindInLayer(within % count, count)};
}

}  // namespace deepnet
