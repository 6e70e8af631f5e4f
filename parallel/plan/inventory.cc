#include "parallel/plan/inventory.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "parallel/base/check.h"
#include "parallel/base/philox.h"

namespace deepnet {

int64_t Parameter::NumElements() const { return ElementsOf(shape); }

int64_t Inventory::NumElements() const {
  int64_t elements = 0;
  for (const Parameter& parameter : parameters) elements += parameter.NumElements();
  return elements;
}

std::string Inventory::Hash() const {
  std::string text;
  for (const Parameter& parameter : parameters) {
    absl::StrAppend(&text, parameter.name, " ", absl::StrJoin(parameter.shape, "x"), "\n");
  }
  return absl::StrCat(absl::Hex(HashName(text), absl::kZeroPad16));
}

Inventory Select(const Inventory& inventory, std::span<const LayerSpan> spans) {
  Inventory part{.parameters = {},
                 .layers = {},
                 .stacks = inventory.stacks,
                 .batch_bytes = inventory.batch_bytes,
                 .work = inventory.work};
  std::vector<int> index(inventory.parameters.size(), -1);  // in `part`
  int64_t offset = 0;
  int reached = 0;
  for (const LayerSpan& span : spans) {
    DEEPNET_CHECK(reached <= span.first && span.first <= span.end &&
                  span.end <= static_cast<int>(inventory.layers.size()))
        << "layers [" << span.first << ", " << span.end << ") after " << reached;
    reached = span.end;
    for (int l = span.first; l < span.end; ++l) {
      Layer& layer = part.layers.emplace_back(inventory.layers[l]);
      for (int& parameter : layer.parameters) {
        int& here = index[parameter];
        if (here < 0) {
          here = static_cast<int>(part.parameters.size());
          Parameter& added = part.parameters.emplace_back(inventory.parameters[parameter]);
          added.offset = offset;
          offset += added.NumElements();
        }
        parameter = here;
      }
    }
  }
  return part;
}

int64_t GradientElements(const Inventory& inventory, const Layer& layer) {
  int64_t elements = 0;
  for (const int p : layer.parameters) elements += inventory.parameters[p].NumElements();
  return elements;
}

int64_t ElementsOf(std::span<const int64_t> shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

int64_t BytesOf(const BoundaryTensor& tensor) {
  DEEPNET_CHECK(tensor.dtype == "float32" || tensor.dtype == "bfloat16") << tensor.dtype;
  return ElementsOf(tensor.shape) * (tensor.dtype == "float32" ? kFloatBytes : 2);
}

const BoundaryTensor* InputNamed(const Layer& layer, std::string_view name) {
  const auto found = std::ranges::find(layer.inputs, name, &BoundaryTensor::name);
  return found == layer.inputs.end() ? nullptr : &*found;
}

const BoundaryTensor* SideInput(const Layer& layer) {
  const auto is_side = [](const BoundaryTensor& tensor) { return tensor.name != kHidden; };
  const auto found = std::ranges::find_if(layer.inputs, is_side);
  return found == layer.inputs.end() ? nullptr : &*found;
}

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
