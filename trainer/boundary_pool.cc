#include "trainer/boundary_pool.h"

#include <algorithm>
#include <utility>

#include "parallel/base/check.h"
#include "trainer/optim/groups.h"

namespace deepnet {

at::Tensor RowBuffers::Claim() {
  for (const at::Tensor& buffer : buffers_) {
    if (buffer.use_count() == 1) return buffer;
  }
  return buffers_.emplace_back(at::zeros({rows_, width_}, options_));
}

BoundaryPool::BoundaryPool(Transformer& model, std::vector<StageMessages> messages)
    : ops_(model.ops()),
      messages_(std::move(messages)),
      source_(model.capacity().max_source_tokens(), model.spec().d_model(),
              model.ops().ResidualOptions()),
      target_(model.capacity().max_target_tokens(), model.spec().d_model(),
              model.ops().ResidualOptions()),
      encoder_output_(model.capacity().max_source_tokens(), model.spec().d_model(),
                      model.ops().OperandOptions()) {
  messages_.emplace_back();
}

const std::vector<BoundaryTensor>& BoundaryPool::TensorsAt(const Place& place) const {
  const StageMessages& messages = messages_[place.boundary];
  return place.way == Way::kForward ? messages.forward : messages.backward;
}

// All tensors that are not the stream of a stack are the encoder output.
BoundarySet BoundaryPool::Restrict(const Place& place, BoundarySet tensors) const {
  const std::vector<BoundaryTensor>& sent = TensorsAt(place);
  const auto is_stream = [](const BoundaryTensor& tensor) { return tensor.name == kHidden; };
  const bool has_stream = std::ranges::any_of(sent, is_stream);
  tensors.source &= has_stream;
  tensors.target &= has_stream;
  tensors.encoder_output &= !std::ranges::all_of(sent, is_stream);
  return tensors;
}

BoundaryActivations BoundaryPool::Take(const Place& place) {
  const auto found = flows_.extract(place);
  return found.empty() ? BoundaryActivations() : std::move(found.mapped());
}

std::vector<Buffer> BoundaryPool::Buffers(const Place& place, const BoundarySet& tensors,
                                          bool received) {
  if (TensorsAt(place).empty()) return {};
  const auto [found, is_new] = flows_.try_emplace(place);
  BoundaryActivations& flow = found->second;
  if (is_new) {
    DEEPNET_CHECK(received) << "nothing to send lies before chunk " << place.boundary
                            << ", microbatch " << place.microbatch;
    const BoundarySet crossing = Restrict(place, tensors);
    if (crossing.source) flow.source_RD = source_.Claim();
    if (crossing.encoder_output) {
      flow.encoder_output_RD = (place.way == Way::kForward ? encoder_output_ : source_).Claim();
    }
    if (crossing.target) flow.target_RD = target_.Claim();
  }
  std::vector<Buffer> buffers;
  for (const BoundaryTensor& tensor : TensorsAt(place)) {
    const at::Tensor& hidden_RD = flow.source_RD.defined() ? flow.source_RD : flow.target_RD;
    buffers.push_back(BufferOf(ops_, tensor.name == kHidden ? hidden_RD : flow.encoder_output_RD));
  }
  return buffers;
}

}  // namespace deepnet
