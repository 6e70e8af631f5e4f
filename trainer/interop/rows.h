// Matrices whose rows stand in another order elsewhere: embeddings, where the other program numbers
// its vocabulary otherwise.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/status.h"

namespace deepnet {

// Fills `into` with the elements of a tensor from `first_element` on, in its own order.
using ElementReader = std::function<absl::Status(int64_t first_element, std::span<float> into)>;

// Rows [first, first + count) of a matrix.
struct RowRun {
  int64_t first = 0;
  int64_t count = 0;

  friend bool operator==(const RowRun&, const RowRun&) = default;
};

// As few runs as say the same.
std::vector<RowRun> RunsOf(std::span<const int64_t> rows);

// A reader of the matrix whose rows are `runs`, one after the other, of the matrix [.., width] that
// `matrix` reads.
ElementReader ReadRows(ElementReader matrix, std::vector<RowRun> runs, int64_t width);

}  // namespace deepnet
