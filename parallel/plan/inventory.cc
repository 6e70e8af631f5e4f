#include "parallel/plan/inventory.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "parallel/base/check.h"
#include "parallel/base/philox.h"

namespace deepnet {
namespace {

int64_t Product(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

}  // namespace

int64_t Parameter::NumElements() const { return Product(shape); }

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

int64_t ElementsOf(const BoundaryTensor& tensor) { return Product(tensor.shape); }

int64_t BytesOf(const BoundaryTensor& tensor) {
  DEEPNET_CHECK(tensor.dtype == "float32" || tensor.dtype == "bfloat16") << tensor.dtype;
  return ElementsOf(tensor) * (tensor.dtype == "float32" ? 4 : 2);
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

}  // namespace deepnet
