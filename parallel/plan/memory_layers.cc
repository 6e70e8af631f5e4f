#include "parallel/plan/memory_layers.h"

#include <algorithm>

namespace deepnet {
namespace {

// Operands that attention keeps: q, context of `rows` rows, k and v, in every attention.
int64_t AttentionOperands(const Layer& layer, const LayerSizes& s) {
  const int64_t self = 4 * s.rows * s.width;
  if (!ReadsMemory(layer)) return self;
  return self + 2 * (s.rows + s.memory_rows) * s.width;
}

// Of those, what products made: all but the contexts.
int64_t AttentionProducts(const Layer& layer, const LayerSizes& s) {
  const int64_t contexts = ReadsMemory(layer) ? 2 : 1;
  return AttentionOperands(layer, s) - contexts * s.rows * s.width;
}

// Outputs of the feed-forward block's first product, in all forms that are kept.
int64_t InnerOperands(const Layer& layer, const LayerSizes& s) {
  return std::max<int64_t>(0, layer.activation_operands - AttentionOperands(layer, s));
}

// The stream and the first input that Describe counts with an embedding belong to the rank and to
// the stack; its mask remains.
int64_t KeptByLayer(const Inventory& inventory, const Layer& layer, Recompute level,
                    const MemoryRules& rules) {
  if (LooksUp(layer)) return layer.activation_bytes - kFloatBytes * layer.activation_operands;
  int64_t bytes = layer.activation_bytes, operands = layer.activation_operands;
  if (IsBlock(layer) && (level == FFN || level == GEMM)) {
    const LayerSizes sizes = SizesOf(inventory, layer);
    bytes -= layer.inner_bytes;
    operands -= InnerOperands(layer, sizes);
    if (level == GEMM) operands -= AttentionProducts(layer, sizes);
  }
  return bytes + operands * rules.operand_bytes;
}

// The first layer of `kind` on a rank, and how many of them its longest chunk has.
struct Found {
  const Layer* layer = nullptr;
  int most = 0;
};

Found FindLayers(const Inventory& inventory, const RankUse& rank, LayerKind kind) {
  Found found;
  for (const ChunkUse& chunk : rank.chunks) {
    int count = 0;
    for (int l = chunk.layers.first; l < chunk.layers.end; ++l) {
      if (inventory.layers[l].kind != kind) continue;
      if (found.layer == nullptr) found.layer = &inventory.layers[l];
      ++count;
    }
    found.most = std::max(found.most, count);
  }
  return found;
}

}  // namespace

LayerSizes SizesOf(const Inventory& inventory, const Layer& layer) {
  LayerSizes sizes;
  for (const BoundaryTensor& tensor : layer.inputs) {
    (tensor.name == kHidden ? sizes.rows : sizes.memory_rows) = tensor.shape[0];
    sizes.width = tensor.shape[1];
  }
  for (const int i : layer.parameters) {
    const Parameter& parameter = inventory.parameters[i];
    if (parameter.role == Role::kFeedForward && parameter.shape.size() == 2) {
      sizes.inner = std::max(sizes.inner, parameter.shape[0]);
      break;  // the first of the two: [inner, width]
    }
  }
  return sizes;
}

bool IsBlock(const Layer& layer) {
  return layer.kind == LayerKind::kEncoder || layer.kind == LayerKind::kDecoder;
}

bool LooksUp(const Layer& layer) {
  return layer.kind == LayerKind::kSourceEmbedding || layer.kind == LayerKind::kTargetEmbedding;
}

KeptByKind KeptOf(const Inventory& inventory, LayerSpan span, const RecomputeChoice& recompute,
                  const MemoryRules& rules) {
  const bool by_segment = recompute.level == LAYER;
  KeptByKind kept;
  int in_stack = 0;  // layers of the same kind so far
  for (int l = span.first; l < span.end; ++l) {
    const Layer& layer = inventory.layers[l];
    if (l > span.first && layer.kind != inventory.layers[l - 1].kind) in_stack = 0;
    if (!IsBlock(layer)) {
      kept.others += KeptByLayer(inventory, layer, NONE, rules);
      continue;
    }
    int64_t& bytes = layer.kind == LayerKind::kEncoder ? kept.encoder : kept.decoder;
    bytes +=
        by_segment ? layer.lasting_bytes : KeptByLayer(inventory, layer, recompute.level, rules);
    if (by_segment ? in_stack % recompute.segment == 0 : in_stack == 0) {
      const LayerSizes sizes = SizesOf(inventory, layer);
      bytes += sizes.rows * sizes.width * (by_segment ? kFloatBytes : rules.operand_bytes);
    }
    ++in_stack;
  }
  return kept;
}

int64_t RecomputedBytes(const Inventory& inventory, const RankUse& rank, LayerKind kind,
                        const LayerSizes& sizes, const MemoryRules& rules) {
  const RecomputeChoice& choice = rank.recompute;
  const bool by_product = choice.level == FFN || choice.level == GEMM;
  if (!by_product && choice.level != LAYER) return 0;
  const Found found = FindLayers(inventory, rank, kind);
  if (by_product) {
    // A rank of decoder layers alone has a workspace for the memory's rows too, as if it had both.
    const LayerKind other = kind == LayerKind::kEncoder ? LayerKind::kDecoder : LayerKind::kEncoder;
    const Layer* layer =
        found.layer != nullptr ? found.layer : FindLayers(inventory, rank, other).layer;
    if (layer == nullptr || sizes.rows == 0) return 0;
    const LayerSizes of_layer = SizesOf(inventory, *layer);
    int64_t operands = InnerOperands(*layer, of_layer) / of_layer.rows;
    if (choice.level == GEMM) operands += 3 * sizes.width;
    return sizes.rows * (operands * rules.operand_bytes + layer->inner_bytes / of_layer.rows);
  }
  if (found.layer == nullptr) return 0;
  const int64_t layers = std::min(choice.segment, found.most);
  const int64_t one =
      KeptByLayer(inventory, *found.layer, NONE, rules) - found.layer->lasting_bytes;
  const int64_t more = rules.operand_bytes == kFloatBytes ? 0 : 2 * rules.operand_bytes;
  return layers * one + sizes.rows * sizes.width * (kFloatBytes + more);
}

int64_t KeptBytes(const Inventory& inventory, LayerSpan span, const RecomputeChoice& recompute,
                  const MemoryRules& rules) {
  return KeptOf(inventory, span, recompute, rules).Total();
}

std::vector<PendingMatrices> MakePendingMatrices(const Inventory& inventory, LayerSpan span,
                                                 const MemoryRules& rules) {
  std::vector<PendingMatrices> pending;
  const auto add = [&](int64_t rows, int64_t columns, int64_t count) {
    auto found = std::find_if(pending.begin(), pending.end(), [&](const PendingMatrices& p) {
      return p.rows == rows && p.columns == columns;
    });
    if (found == pending.end()) found = pending.insert(found, {.rows = rows, .columns = columns});
    found->bytes += count * rows * columns * rules.operand_bytes;
  };
  bool has_memory = false;
  for (int l = span.first; l < span.end; ++l) {
    const Layer& layer = inventory.layers[l];
    if (!IsBlock(layer)) continue;
    const LayerSizes s = SizesOf(inventory, layer);
    // Gradient and input of q, k, v together, of the output, of both feed-forward products.
    add(s.rows, 3 * s.width, 1);
    add(s.rows, s.width, 5);
    add(s.rows, s.inner, 2);
    if (s.memory_rows == 0) continue;
    // Of q and the output; gradients of keys and values, whose input all layers share.
    add(s.rows, s.width, 4);
    add(s.memory_rows, 2 * s.width, 1);
    if (!has_memory) add(s.memory_rows, s.width, 1);
    has_memory = true;
  }
  return pending;
}

int64_t PendingBytes(const Inventory& inventory, LayerSpan span, const MemoryRules& rules) {
  int64_t bytes = 0;
  for (const PendingMatrices& p : MakePendingMatrices(inventory, span, rules)) bytes += p.bytes;
  return bytes;
}

double RecomputeFlops(const Inventory& inventory, const Layer& layer, Recompute level) {
  if (!IsBlock(layer) || level == NONE || level == RECOMPUTE_UNSPECIFIED) return 0;
  if (level == LAYER) return layer.forward_flops;
  const LayerSizes s = SizesOf(inventory, layer);
  const double inner = 2.0 * static_cast<double>(s.rows * s.width * s.inner);
  if (level == FFN) return inner;
  return inner + 2.0 * static_cast<double>(AttentionProducts(layer, s) * s.width);
}

}  // namespace deepnet
