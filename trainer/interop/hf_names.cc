#include "trainer/interop/hf_names.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"

namespace deepnet {

std::string HfName(std::string_view parameter) {
  if (parameter == "lm_head.weight") return std::string(parameter);
  return absl::StrCat("model.", std::string(parameter));
}

bool IsRepeatedInHf(std::string_view name) {
  static constexpr std::string_view kRepeated[] = {
      "lm_head.weight",
      "model.encoder.embed_tokens.weight",
      "model.decoder.embed_tokens.weight",
      "model.encoder.embed_positions.weights",
      "model.decoder.embed_positions.weights",
  };
  return std::find(std::begin(kRepeated), std::end(kRepeated), name) != std::end(kRepeated);
}

}  // namespace deepnet
