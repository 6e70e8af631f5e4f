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

inline constexpr int64_t kPackedRows = 256;  // of the toy's kernel buffers

// A layer that keeps kState bytes and, but for one context a product group, gives up operands level
// by level: q, k and v and inner rows.
inline void KeepAndRepeat(bool has_side, Layer& layer) {
  const int64_t contexts = has_side ? 2 : 1;
  const int64_t products = kRows * kWidth * (has_side ? 6 : 3), inner = kRows * kInner;
  const int64_t context = contexts * kRows * kWidth;
  layer.kept[NONE] = {.bytes = kState, .operands = context + products + inner};
  layer.kept[SELECTIVE_FFN] = {.bytes = kState, .operands = context + products};
  layer.kept[SELECTIVE_GEMM] = {.bytes = kState, .operands = context};
  layer.recompute_flops[SELECTIVE_FFN] = 2.0 * kRows * kWidth * kInner;
  layer.recompute_flops[SELECTIVE_GEMM] =
      layer.recompute_flops[SELECTIVE_FFN] + 2.0 * products * kWidth;
  layer.recompute_flops[FULL] = layer.forward_flops;
  layer.pending = {{.rows = kRows, .columns = 3 * kWidth},
                   {.rows = kRows, .columns = kWidth, .count = 5},
                   {.rows = kRows, .columns = kInner, .count = 2}};
  if (!has_side) return;
  layer.pending.push_back({.rows = kRows, .columns = kWidth, .count = 4});
  layer.pending.push_back({.rows = kRows, .columns = 2 * kWidth});
  layer.pending.push_back({.rows = kRows, .columns = kWidth, .shared = true});
}

inline Stack ToyStack() {
  Stack stack{.stream_elements = kRows * kWidth};
  stack.workspace = {.bytes = 4 * kRows * 2 * kWidth,
                     .operands = kRows * (6 * kWidth + kInner),
                     .copies = kRows * kWidth};
  stack.kernel_buffers = {.operands = kPackedRows * kInner};
  stack.temporaries = {{.bytes = 28 * kRows * kWidth}, {.bytes = 13 * kRows * kInner}};
  stack.reader_temporaries = stack.temporaries;
  stack.recomputed[SELECTIVE_FFN] = {.operands = kRows * kInner};
  stack.recomputed[SELECTIVE_GEMM] = {.operands = kRows * (kInner + 3 * kWidth)};
  stack.recomputed[FULL] = {.bytes = 4 * kRows * kWidth, .copies = 2 * kRows * kWidth};
  return stack;
}

// Two stacks of `num` layers, each behind a layer that looks rows up, and one with a loss. The
// second stack reads what the first has made. One tied table [vocabulary, 8]; one matrix [16, 8] a
// layer.
inline Inventory Toy(int num, int64_t vocabulary = 10) {
  Inventory inventory{.stacks = {ToyStack(), ToyStack()}};
  const BoundaryTensor side{.name = "side", .shape = {kRows, kWidth}, .dtype = "float32"};
  inventory.parameters.push_back({.name = "shared", .shape = {vocabulary, kWidth}});
  const auto hidden = [](int stack) {
    return BoundaryTensor{
        .name = "hidden", .shape = {kRows, kWidth}, .dtype = "float32", .stack = stack};
  };
  const auto add = [&](const std::string& name, int index) -> Layer& {
    Layer& layer = inventory.layers.emplace_back();
    layer.name = name + " " + std::to_string(index);
    layer.index = index;
    layer.position = static_cast<int>(inventory.layers.size()) - 1;
    return layer;
  };
  const auto add_table = [&](const std::string& name) -> Layer& {
    Layer& layer = add(name, 0);
    layer.parameters = {0};
    return layer;
  };
  const auto add_block = [&](int stack, int index) {
    Layer& layer = add(stack == 0 ? "encoder layer" : "decoder layer", index);
    layer.parameters = {static_cast<int>(inventory.parameters.size())};
    layer.stack = stack;
    layer.forward_flops = stack == 0 ? kEncoderFlops : kDecoderFlops;
    if (stack == 1) layer.inputs = {side};
    layer.inputs.push_back(hidden(stack));
    KeepAndRepeat(/*has_side=*/stack == 1, layer);
    inventory.parameters.push_back({.name = layer.name, .shape = {kInner, kWidth}});
  };
  add_table("source embedding").looks_up = true;
  for (int i = 0; i < num; ++i) add_block(0, i);
  Layer& target = add_table("target embedding");
  target.looks_up = true;
  target.inputs = {side};
  for (int i = 0; i < num; ++i) add_block(1, i);
  Layer& output = add_table("output layer");
  output.computes_loss = true;
  output.forward_flops = 2.0 * kRows * kWidth * static_cast<double>(vocabulary);
  output.inputs = {hidden(1)};
  for (ActivationBytes& kept : output.kept) kept.bytes = 4 * kRows * kWidth;
  output.native_loss = {{.bytes = 4 * kRows * vocabulary, .copies = kRows * vocabulary}};
  output.library_loss = {{.bytes = 24 * kRows * vocabulary},
                         {.bytes = 4 * (3 * kRows * vocabulary + vocabulary * kWidth)}};
  return inventory;
}

}  // namespace deepnet::testing
