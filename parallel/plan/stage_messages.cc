#include "parallel/plan/stage_messages.h"

#include <set>
#include <string>
#include <utility>

#include "parallel/base/check.h"

namespace deepnet {
namespace {

// Names of boundary tensors other than the hidden stream that a rank holds once it has computed
// layers [first, end): those they take, and those that the layer behind them takes anew.
void AddHeld(const Inventory& inventory, int first, int end, std::set<std::string>& held) {
  for (int l = first; l <= end && l < static_cast<int>(inventory.layers.size()); ++l) {
    for (const BoundaryTensor& input : inventory.layers[l].inputs) {
      if (input.name != kHidden) held.insert(input.name);
    }
  }
}

// The tensors of `inputs` that a rank holding `held` still needs, in the types they travel in.
std::vector<BoundaryTensor> Missing(const std::vector<BoundaryTensor>& inputs,
                                    const std::set<std::string>& held,
                                    std::string_view operand_type) {
  std::vector<BoundaryTensor> missing;
  for (BoundaryTensor tensor : inputs) {
    if (tensor.name != kHidden) {
      if (held.count(tensor.name) > 0) continue;
      tensor.dtype = std::string(operand_type);
    }
    missing.push_back(std::move(tensor));
  }
  return missing;
}

std::vector<BoundaryTensor> Gradients(const std::vector<BoundaryTensor>& inputs) {
  std::vector<BoundaryTensor> gradients;
  for (BoundaryTensor tensor : inputs) {
    if (!tensor.needs_gradient) continue;
    tensor.dtype = "float32";
    gradients.push_back(std::move(tensor));
  }
  return gradients;
}

}  // namespace

std::vector<StageMessages> MakeStageMessages(const Inventory& inventory,
                                             std::span<const int> chunk_ends,
                                             const Placement& placement,
                                             std::string_view operand_type) {
  DEEPNET_CHECK_EQ(static_cast<int>(chunk_ends.size()), placement.NumChunks());
  std::vector<std::set<std::string>> held(placement.NumRanks());
  std::vector<StageMessages> messages(chunk_ends.size());
  for (int chunk = 0, first = 0; chunk < placement.NumChunks(); first = chunk_ends[chunk++]) {
    std::set<std::string>& here = held[placement.rank_of_chunk[chunk]];
    if (placement.Crosses(chunk)) {
      const std::vector<BoundaryTensor>& inputs = inventory.layers[first].inputs;
      messages[chunk] = {Missing(inputs, here, operand_type), Gradients(inputs)};
    }
    AddHeld(inventory, first, chunk_ends[chunk], here);
  }
  return messages;
}

int64_t BytesOf(std::span<const BoundaryTensor> tensors) {
  int64_t bytes = 0;
  for (const BoundaryTensor& tensor : tensors) bytes += BytesOf(tensor);
  return bytes;
}

}  // namespace deepnet
