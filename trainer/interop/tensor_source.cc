#include "trainer/interop/tensor_source.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "parallel/base/check.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/model/describe.h"

namespace deepnet {

std::vector<RowRun> RunsOf(std::span<const int64_t> rows) {
  std::vector<RowRun> runs;
  for (const int64_t row : rows) {
    if (!runs.empty() && runs.back().first + runs.back().count == row) {
      ++runs.back().count;
    } else {
      runs.push_back({row, 1});
    }
  }
  return runs;
}

ElementReader ReadRows(ElementReader matrix, std::vector<RowRun> runs, int64_t width) {
  return [matrix = std::move(matrix), runs = std::move(runs), width](
             int64_t first_element, std::span<float> into) -> absl::Status {
    int64_t begin = 0;  // element of the result with which the run begins
    for (const RowRun& run : runs) {
      const int64_t end = begin + run.count * width;
      if (first_element < end && !into.empty()) {
        const size_t taken = std::min(into.size(), static_cast<size_t>(end - first_element));
        RETURN_IF_ERROR(matrix(run.first * width + first_element - begin, into.first(taken)));
        into = into.subspan(taken);
        first_element += static_cast<int64_t>(taken);
      }
      begin = end;
    }
    DEEPNET_CHECK(into.empty()) << "elements beyond the last row";
    return absl::OkStatus();
  };
}

int64_t OutgoingTensor::NumElements() const {
  int64_t elements = 1;
  for (const int64_t size : shape) elements *= size;
  return elements;
}

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
