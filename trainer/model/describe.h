// ModelSpec -> Inventory: all that the rest of the program knows of the Transformer, without a
// tensor. 500 + 500 layers take milliseconds and a few megabytes.
//
// Names are those of Hugging Face's M2M-100 without "model.". Layers, and with them the flat order
// of parameters, run: source embedding, encoder layers, target embedding, decoder layers, output.
// Inside an attention block the q, k and v matrices are adjacent, then their biases (cross
// attention: q and its bias, then k, v, then their biases), so that a fused product needs no copy.
//
//   shared.weight                                   TIE_ALL: source, target and output
//   encoder.embed_tokens.weight                     otherwise: source
//   decoder.embed_tokens.weight                     otherwise: target (TIE_DECODER: and output)
//   lm_head.weight                                  TIE_NONE: output
//   {encoder,decoder}.embed_positions.weight        LEARNED only
//   encoder.layers.3.{self_attn,self_attn_layer_norm,fc1,fc2,final_layer_norm}...
//   decoder.layers.3.{... encoder_attn,encoder_attn_layer_norm ...}
//   {encoder,decoder}.layer_norm.{weight,bias}      of a norm behind the stack; in its last layer
//
// A model of one stack (trainer/model/architecture.h) has the names of that stack alone, without
// encoder_attn; its embed_tokens.weight is the output's too unless TIE_NONE.
//
// Initial values: matrices Xavier normal, sqrt(2 / (in + out)) times a gain (scheme.h); embeddings
// and positions N(0, 1 / width), row of <pad> zero where tokens are looked up; gains 1, biases 0.
//
// A level of recomputation (proto/plan.proto) names what is not kept but computed again in the
// backward pass, with the same kernels on the same numbers, so that every level gives the same bits
// (docs/design/recomputation.md).
#pragma once

#include "parallel/plan/inventory.h"
#include "proto/data.pb.h"
#include "proto/model.pb.h"
#include "trainer/model/architecture.h"

namespace deepnet {

// `model` has passed validation (positive sizes, heads divide width) and both have their defaults
// filled in. Costs and boundary tensors are those of a full microbatch; a capacity of 0 gives 0.
Inventory Describe(const ModelSpec& model, const MicrobatchSpec& microbatch);

}  // namespace deepnet
