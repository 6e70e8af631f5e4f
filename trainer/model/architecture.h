// States which stacks a model has, and whose rows have the labels.
//
//   ENCODER_DECODER  the encoder reads source rows, the decoder target rows and the
//                    encoder's output
//   DECODER_ONLY     a decoder without cross-attention; self-attention is causal
//   ENCODER_ONLY     an encoder, whose rows have labels where a token is hidden
//
// A model of one stack is the target half of the chain, whichever stack it is: target embedding,
// layers of kind kDecoder, output layer, all on the target rows of a microbatch, whose source is
// empty. Names, gains and whether self-attention is causal follow from the stack.
//
// The sub-layers of a model in chain order: layer by layer, the encoder's first; in a layer
// self-attention, cross-attention where there is one, the feed-forward block.
//
// Stacks are numbered: 0 encoder, 1 decoder. Pure.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"

#include "parallel/plan/inventory.h"
#include "proto/model.pb.h"
#include "proto/plan.pb.h"

namespace deepnet {

// The names behind the Inventory's opaque values say what parameters and layers of a Transformer
// are for. Initial scale follows from a role, never from a parameter's name.
enum class Role : int {
  kEmbedding,        // rows of tokens: source, target, output, or tied
  kPosition,         // rows of learned positions
  kQuery,            // q_proj and its bias
  kKey,              // k_proj and its bias
  kValue,            // v_proj and its bias: scaled by beta
  kAttentionOutput,  // out_proj and its bias: scaled by beta
  kFeedForward,      // fc1, fc2 and their biases: scaled by beta
  kNormGain,         // starts at 1
  kNormBias,         // starts at 0
  kResidualScale,    // a trained factor of a residual scheme: on a stream, a branch or a head
  kResidualShift,    // a trained number that a residual scheme subtracts
};

// The chain: source embedding, encoder layers, target embedding, decoder layers, output. A model of
// one stack has the latter three alone. kTargetEmbedding and kDecoder stand for the stack whose
// rows the output layer reads.
enum class LayerKind : int { kSourceEmbedding, kEncoder, kTargetEmbedding, kDecoder, kOutput };

// "kValue" -> "value"; "kEncoder" -> "encoder layer": for tables.
std::string_view RoleName(Role role);
std::string_view LayerKindName(LayerKind kind);

// Returns whether there are two stacks, the second of which reads the encoder's output.
bool IsEncoderDecoder(const ModelSpec& model);
// Returns the stack whose rows have the labels.
int LabelledStack(const ModelSpec& model);
// Returns the number of layers; 0 for a stack that the model does not have.
int LayersOf(const ModelSpec& model, int stack);
// Returns the number of sub-layers in every layer of `stack`: 3 with cross-attention, else 2.
int SublayersPerLayer(const ModelSpec& model, int stack);

// Returns the stack of a layer of that kind; of the output layer: LabelledStack.
int StackOfKind(const ModelSpec& model, LayerKind kind);
// Returns LayerKindName, except that an encoder that stands alone is called an encoder.
std::string KindNameIn(const ModelSpec& model, LayerKind kind);

// Returns why LibTorch's flash attention cannot compute the attention of `model` with operands of
// `dtype`, with the field; empty: it can.
std::string FlashObstacle(const ModelSpec& model, DataType dtype);
// Returns the kernels that compute.attention becomes in a run of `model`, once all else of
// `compute` is resolved.
AttentionKernel ChooseAttention(const ModelSpec& model, const ComputeSpec& compute);

// Returns "12 encoder and 6 decoder layers", "12 decoder layers".
std::string LayersText(const ModelSpec& model);

// OK for a model that translates; otherwise what `command` cannot do with this one and why, with
// ExitCode::kCheckpoint.
absl::Status CheckTranslates(const ModelSpec& model, const std::string& command);

// In the order of a layer.
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
