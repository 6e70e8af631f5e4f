#include "trainer/interop/rows.h"

#include <algorithm>
#include <utility>

#include "parallel/base/check.h"
#include "parallel/base/status_macros.h"

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

}  // namespace deepnet
