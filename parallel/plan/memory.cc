#include "parallel/plan/memory.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

namespace deepnet {
namespace {

constexpr int64_t kFloatBytes = 4;
constexpr int64_t kMomentBytes = 8;  // two float32

int64_t BytesOf(const BoundaryTensor& tensor) {
  int64_t elements = 1;
  for (const int64_t extent : tensor.shape) elements *= extent;
  return elements * (tensor.dtype == "bfloat16" ? 2 : kFloatBytes);
}

int64_t KeptBytes(const Layer& layer, const MemoryRules& rules) {
  return layer.activation_bytes + layer.activation_operands * rules.operand_bytes;
}

bool LooksUp(const Layer& layer) {
  return layer.kind == LayerKind::kSourceEmbedding || layer.kind == LayerKind::kTargetEmbedding;
}

// Parameters of the layers: each once for weights and moments, each use for gradients.
void AddParameters(const Inventory& inventory, int first, int end, const MemoryRules& rules,
                   MemoryEstimate& memory) {
  std::vector<char> counted(inventory.parameters.size(), 0);
  int64_t elements = 0, uses = 0, packed = 0;
  for (int l = first; l < end; ++l) {
    for (const int i : inventory.layers[l].parameters) {
      const Parameter& parameter = inventory.parameters[i];
      const int64_t size = parameter.NumElements();
      uses += size;
      if (parameter.shape.size() == 2 && !LooksUp(inventory.layers[l])) packed += size;
      if (counted[i]) continue;
      counted[i] = 1;
      elements += size;
    }
  }
  memory.set_weights(elements * kFloatBytes);
  memory.set_working_copies(packed * rules.operand_bytes * rules.num_packed_copies);
  memory.set_gradients(uses * kFloatBytes * rules.num_gradient_partials);
  memory.set_moments(elements * kMomentBytes);
}

// Bytes of boundary tensors that layers [first, end) share: each name but the stream's once.
int64_t SharedBoundaryBytes(const Inventory& inventory, int first, int end) {
  std::vector<std::string_view> names;
  int64_t bytes = 0;
  for (int l = first; l < end; ++l) {
    for (const BoundaryTensor& tensor : inventory.layers[l].inputs) {
      if (tensor.name == kHidden) continue;
      if (std::find(names.begin(), names.end(), tensor.name) != names.end()) continue;
      names.push_back(tensor.name);
      bytes += BytesOf(tensor);
    }
  }
  return bytes;
}

// One layer's gradients mirror what it keeps, and layers of a kind share one set of buffers.
int64_t WorkspaceBytes(const Inventory& inventory, int first, int end, const MemoryRules& rules) {
  std::array<int64_t, 5> largest_of_kind = {};
  int64_t stream = 0, logits = 0;
  for (int l = first; l < end; ++l) {
    const Layer& layer = inventory.layers[l];
    int64_t& largest = largest_of_kind[static_cast<size_t>(layer.kind)];
    largest = std::max(largest, KeptBytes(layer, rules));
    for (const BoundaryTensor& tensor : layer.inputs) {
      if (tensor.name == kHidden) stream = std::max(stream, BytesOf(tensor));
    }
    if (layer.kind == LayerKind::kOutput) {
      const int64_t vocabulary = inventory.parameters[layer.parameters.front()].shape.front();
      const int64_t rows = std::min(kLogitRows, layer.inputs.front().shape.front());
      logits = 2 * rows * vocabulary * kFloatBytes;
    }
  }
  const int64_t layers = largest_of_kind[static_cast<size_t>(LayerKind::kEncoder)] +
                         largest_of_kind[static_cast<size_t>(LayerKind::kDecoder)];
  return layers + stream + logits + SharedBoundaryBytes(inventory, first, end);
}

}  // namespace

MemoryRules MakeMemoryRules(const ComputeSpec& compute) {
  MemoryRules rules;
  rules.operand_bytes = compute.dtype() == BFLOAT16 ? 2 : 4;
  const bool on_cpu = compute.device().empty() || compute.device() == "cpu";
  const bool library =
      compute.matmul() == LIBRARY || (compute.matmul() == MATMUL_UNSPECIFIED && !on_cpu);
  if (library) rules.num_packed_copies = rules.operand_bytes == 2 ? 1 : 0;
  return rules;
}

MemoryEstimate EstimateMemory(const Inventory& inventory, int first, int end,
                              const MemoryRules& rules) {
  MemoryEstimate memory;
  AddParameters(inventory, first, end, rules, memory);
  int64_t kept = SharedBoundaryBytes(inventory, first, end);
  for (int l = first; l < end; ++l) kept += KeptBytes(inventory.layers[l], rules);
  memory.set_activations(kept * rules.num_microbatches_alive);
  memory.set_workspace(WorkspaceBytes(inventory, first, end, rules));
  memory.set_total(memory.weights() + memory.working_copies() + memory.gradients() +
                   memory.moments() + memory.activations() + memory.workspace());
  return memory;
}

}  // namespace deepnet
