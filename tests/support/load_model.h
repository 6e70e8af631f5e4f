// A model of a run folder or checkpoint, as commands load it, for tests.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"

#include "parallel/base/status_macros.h"
#include "trainer/model_loader.h"

namespace deepnet {

inline absl::StatusOr<std::unique_ptr<LoadedModel>> LoadModel(const std::string& run_or_checkpoint,
                                                              const ComputeSpec& overrides) {
  ASSIGN_OR_RETURN(const FoundModel found, FindModel(run_or_checkpoint, overrides));
  return LoadEnsemble({&found, 1});
}

}  // namespace deepnet
