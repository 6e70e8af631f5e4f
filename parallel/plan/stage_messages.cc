#include "parallel/plan/stage_messages.h"

#include <set>
#include <string>
#include <utility>

#include "parallel/base/check.h"

namespace deepnet {
std::vector<StageMessages> MakeStageMessages(const Inventory& inventory,
                                             std::span<const int> chunk_ends,
                                             const Placement& placement,
                                             std::string_view operand_type) {
  DEEPNET_CHECK_EQ(static_cast<int>(chunk_ends.size()), placement.NumChunks());
  std::vector<std::set<std::string>> held(placement.NumRanks());  // side inputs
  std::vector<StageMessages> messages(chunk_ends.size());
  for (int chunk = 0, first = 0; chunk < placement.NumChunks(); first = chunk_ends[chunk++]) {
    std::set<std::string>& here = held[placement.rank_of_chunk[chunk]];
    auto& [forward, backward] = messages[chunk];
    for (BoundaryTensor tensor : inventory.layers[first].inputs) {
      if (!placement.Crosses(chunk)) break;
      const bool stream = tensor.name == kHidden;
      if (!stream) tensor.dtype = std::string(operand_type);
      if (stream || !here.contains(tensor.name)) forward.push_back(tensor);
      tensor.dtype = "float32";
      if (tensor.needs_gradient) backward.push_back(std::move(tensor));
    }
    // The rank then holds what these layers take, and what the layer behind them takes anew.
    for (int l = first; l <= chunk_ends[chunk] && l < std::ssize(inventory.layers); ++l) {
      if (const BoundaryTensor* side = SideInput(inventory.layers[l])) here.insert(side->name);
    }
  }
  return messages;
}

int64_t BytesOf(std::span<const BoundaryTensor> tensors) {
  int64_t bytes = 0;
  for (const BoundaryTensor& tensor : tensors) bytes += BytesOf(tensor);
  return bytes;
}

}  // namespace deepnet
