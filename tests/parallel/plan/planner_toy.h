// A small model as a planner sees it: sizes and operations are those of real layers, so that what
// is computed from them can be checked by hand.
#pragma once

#include <string>

#include "parallel/plan/inventory.h"

namespace deepnet::testing {

inline constexpr int64_t kRows = 4, kWidth = 8, kInner = 16;  // of both stacks
inline constexpr int64_t kState = 100;                        // float32 bytes that a layer keeps
inline constexpr double kEncoderFlops = 2.0 * kRows * (4 * kWidth * kWidth + 2 * kWidth * kInner);
inline constexpr double kDecoderFlops =
    kEncoderFlops + 2.0 * kRows * (2 * kWidth * kWidth) + 2.0 * kRows * (2 * kWidth * kWidth);
inline constexpr int64_t kEncoderOperands = kRows * (4 * kWidth + kInner);
inline constexpr int64_t kDecoderOperands = kRows * (8 * kWidth + kInner);

// Source embedding, `num` encoder layers, target embedding, `num` decoder layers, output; one tied
// table [vocabulary, 8]; one matrix [16, 8] a layer.
inline Inventory Toy(int num, int64_t vocabulary = 10) {
  Inventory inventory;
  const BoundaryTensor hidden{.name = "hidden", .shape = {kRows, kWidth}, .dtype = "float32"};
  const BoundaryTensor memory{.name = "memory", .shape = {kRows, kWidth}, .dtype = "float32"};
  inventory.parameters.push_back(
      {.name = "shared", .shape = {vocabulary, kWidth}, .role = Role::kEmbedding});
  const auto add = [&](LayerKind kind, int index, double flops) -> Layer& {
    Layer& layer = inventory.layers.emplace_back();
    layer.name = std::string(LayerKindName(kind)) + " " + std::to_string(index);
    layer.kind = kind;
    layer.index = index;
    layer.position = static_cast<int>(inventory.layers.size()) - 1;
    layer.forward_flops = flops;
    return layer;
  };
  const auto add_block = [&](LayerKind kind, int index, double flops) -> Layer& {
    Layer& layer = add(kind, index, flops);
    layer.parameters = {static_cast<int>(inventory.parameters.size())};
    layer.activation_bytes = kState;
    layer.activation_operands = kind == LayerKind::kEncoder ? kEncoderOperands : kDecoderOperands;
    inventory.parameters.push_back(
        {.name = layer.name, .shape = {kInner, kWidth}, .role = Role::kFeedForward});
    return layer;
  };
  add(LayerKind::kSourceEmbedding, 0, 0).parameters = {0};
  for (int i = 0; i < num; ++i) add_block(LayerKind::kEncoder, i, kEncoderFlops).inputs = {hidden};
  Layer& target = add(LayerKind::kTargetEmbedding, 0, 0);
  target.parameters = {0};
  target.inputs = {memory};
  for (int i = 0; i < num; ++i) {
    add_block(LayerKind::kDecoder, i, kDecoderFlops).inputs = {memory, hidden};
  }
  Layer& output =
      add(LayerKind::kOutput, 0, 2.0 * kRows * kWidth * static_cast<double>(vocabulary));
  output.parameters = {0};
  output.inputs = {hidden};
  output.activation_bytes = 4 * kRows * kWidth;
  return inventory;
}

}  // namespace deepnet::testing
