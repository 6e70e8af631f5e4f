#include "trainer/cut_buffers.h"

#include <algorithm>
#include <utility>

#include "parallel/base/check.h"
#include "trainer/optim/groups.h"

namespace deepnet {
namespace {

bool Names(const std::vector<BoundaryTensor>& tensors, bool hidden) {
  return std::any_of(tensors.begin(), tensors.end(),
                     [&](const BoundaryTensor& t) { return (t.name == kHidden) == hidden; });
}

}  // namespace

Flow Only(const CutTensors& tensors, const Flow& flow) {
  Flow only;
  if (tensors.source) only.source_RD = flow.source_RD;
  if (tensors.memory) only.memory_RD = flow.memory_RD;
  if (tensors.target) only.target_RD = flow.target_RD;
  return only;
}

CutBuffers::CutBuffers(Transformer& model, std::vector<StageMessages> crossings)
    : crossings_(std::move(crossings)),
      source_(model.capacity().source_tokens(), model.spec().width(), model.ops().Stream()),
      target_(model.capacity().target_tokens(), model.spec().width(), model.ops().Stream()),
      memory_(model.capacity().source_tokens(), model.spec().width(), model.ops().Operand()) {
  crossings_.emplace_back();
}

const std::vector<BoundaryTensor>& CutBuffers::TensorsAt(const Place& place) const {
  const StageMessages& crossing = crossings_[place.cut];
  return place.way == Way::kForward ? crossing.forward : crossing.backward;
}

CutTensors CutBuffers::Restrict(const Place& place, CutTensors tensors) const {
  const std::vector<BoundaryTensor>& crossing = TensorsAt(place);
  tensors.source &= Names(crossing, /*hidden=*/true);
  tensors.target &= Names(crossing, /*hidden=*/true);
  tensors.memory &= Names(crossing, /*hidden=*/false);
  return tensors;
}

Flow CutBuffers::Take(const Place& place) {
  const auto found = flows_.find(place);
  if (found == flows_.end()) return {};
  Flow flow = std::move(found->second);
  flows_.erase(found);
  return flow;
}

std::vector<Buffer> CutBuffers::Buffers(const Place& place, const CutTensors& tensors,
                                        bool received) {
  if (TensorsAt(place).empty()) return {};
  const auto [found, is_new] = flows_.try_emplace(place);
  Flow& flow = found->second;
  if (is_new) {
    DEEPNET_CHECK(received) << "nothing to send lies before chunk " << place.cut << ", microbatch "
                            << place.microbatch;
    const CutTensors crossing = Restrict(place, tensors);
    if (crossing.source) flow.source_RD = source_.Claim();
    if (crossing.memory) flow.memory_RD = (place.way == Way::kForward ? memory_ : source_).Claim();
    if (crossing.target) flow.target_RD = target_.Claim();
  }
  std::vector<Buffer> buffers;
  for (const BoundaryTensor& tensor : TensorsAt(place)) {
    const at::Tensor& hidden_RD = flow.source_RD.defined() ? flow.source_RD : flow.target_RD;
    buffers.push_back(BufferOf(tensor.name == kHidden ? hidden_RD : flow.memory_RD));
  }
  return buffers;
}

}  // namespace deepnet
