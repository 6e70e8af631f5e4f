// The sub-layers of a model in chain order: layer by layer, the encoder's first; in a layer
// self-attention, cross-attention where there is one, the feed-forward block.
//
// Stacks are numbered: 0 encoder, 1 decoder. Pure.
#pragma once

#include "proto/model.pb.h"

namespace deepnet {

enum class SublayerKind { kSelfAttention, kCrossAttention, kFeedForward };

struct SublayerPlace {
  int stack = 0;
  int layer = 0;  // from 0, within the stack
  SublayerKind kind = SublayerKind::kSelfAttention;

  friend bool operator==(const SublayerPlace&, const SublayerPlace&) = default;
};

int NumSublayers(const ModelSpec& model, int stack);
int NumSublayers(const ModelSpec& model);  // of all stacks

// From 0 to NumSublayers(model) - 1, and back.
int SublayerIndex(const ModelSpec& model, const SublayerPlace& place);
SublayerPlace SublayerAt(const ModelSpec& model, int index);

}  // namespace deepnet
