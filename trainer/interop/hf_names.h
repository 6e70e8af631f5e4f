// Names of parameters in Hugging Face's M2M-100 and Marian: ours after "model.", but for the output
// projection (docs/design/names.md).
#pragma once

#include <string>
#include <string_view>

namespace deepnet {

// "encoder.layers.0.fc1.weight" -> "model.encoder.layers.0.fc1.weight".
std::string HfName(std::string_view parameter);

// Whether a tensor of a Hugging Face folder says nothing new where all embeddings are one and
// positions are computed: copies of the embedding, tables of positions.
bool IsRepeatedInHf(std::string_view name);

}  // namespace deepnet
