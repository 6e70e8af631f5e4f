// A forward pass without dropout, through the chunks of one rank or of a pipeline.
#pragma once

#include "trainer/decode/pipeline_link.h"
#include "trainer/model/transformer.h"

namespace deepnet {

// What this rank has to compute of `pass`, whose `training` is false, with what other ranks send
// and what they need. `kept` is model.MakeActivations(shared) and holds on return what the rank's
// last chunk leaves: with the output layer the decoder's output, and `token_nll` (optional,
// [target rows]) is filled. Without a link the model is whole. Errors are the link's: the result is
// worth nothing then.
void RunForward(Transformer& model, PipelineLink* link, const MicrobatchPass& pass,
                Activations& kept, float* token_nll);

}  // namespace deepnet
