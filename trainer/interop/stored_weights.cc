#include "trainer/interop/stored_weights.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/model/describe.h"

namespace deepnet {

absl::StatusOr<ElementReader> ReadStoredWeight(TensorReader& reader, const std::string& parameter,
                                               const std::vector<int64_t>& shape) {
  const StoredTensor* const tensor = reader.Find(absl::StrCat(kWeightPrefix, parameter));
  if (tensor == nullptr || tensor->shape != shape) {
    const std::string found =
        tensor == nullptr ? "is missing" : absl::StrCat("is ", absl::StrJoin(tensor->shape, "x"));
    return WithExitCode(absl::FailedPreconditionError(
                            absl::StrCat("'", reader.folder(), "': the weight '", parameter, "' ",
                                         found, "; its model has ", absl::StrJoin(shape, "x"))),
                        ExitCode::kCheckpoint);
  }
  return ElementReader([&reader, tensor](int64_t first_element, std::span<float> into) {
    return reader.Read(*tensor, first_element, into);
  });
}

absl::StatusOr<std::vector<OutgoingTensor>> StoredWeights(const ModelSpec& model,
                                                          TensorReader& reader) {
  std::vector<OutgoingTensor> tensors;
  for (const Parameter& parameter : Describe(model, {}).parameters) {
    ASSIGN_OR_RETURN(ElementReader read, ReadStoredWeight(reader, parameter.name, parameter.shape));
    tensors.push_back({.name = parameter.name, .shape = parameter.shape, .read = std::move(read)});
  }
  return tensors;
}

}  // namespace deepnet
