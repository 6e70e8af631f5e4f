// Dev and test of a corpus, shared between ranks.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "proto/prepare.pb.h"
#include "trainer/data/prepare/context.h"
#include "trainer/data/vocabulary.h"

namespace deepnet {

class HeldOutTexts {
 public:
  explicit HeldOutTexts(PrepareContext& context) : context_(context) {}

  // Copies the texts into the temporary folder and fills context.held_out. Collective.
  absl::Status Copy();

  // Returns for every text its files and counts, with the pieces that it is cut into. Collective,
  // once.
  absl::StatusOr<std::vector<PreparedPart>> Count(const Vocabulary& vocabulary);

 private:
  PrepareContext& context_;
  std::vector<std::pair<std::string, const LanguagePairTexts*>> texts_;  // with the split
  CorpusParts own_;                                                      // of this rank
};

}  // namespace deepnet
