// Tensors that are read a run of elements at a time: weights of a checkpoint, possibly with rows in
// another order, on their way into another file.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "proto/model.pb.h"
#include "trainer/checkpoint/tools/tensor_reader.h"

namespace deepnet {

// Fills `into` with the elements of a tensor from `first_element` on, in its own order.
using ElementReader = std::function<absl::Status(int64_t first_element, std::span<float> into)>;

// Rows [first, first + count) of a matrix.
struct RowRun {
  int64_t first = 0;
  int64_t count = 0;

  friend bool operator==(const RowRun&, const RowRun&) = default;
};

// Returns the fewest runs that list the same rows.
std::vector<RowRun> RunsOf(std::span<const int64_t> rows);

// Returns a reader of the matrix whose rows are `runs`, one after the other, of the matrix [..,
// width] that `matrix` reads: embeddings, where the other program numbers its vocabulary otherwise.
ElementReader ReadRows(ElementReader matrix, std::vector<RowRun> runs, int64_t width);

// A tensor to be written. `read` is called for its elements in order and in pieces.
struct OutgoingTensor {
  std::string name;
  std::vector<int64_t> shape;
  ElementReader read;

  int64_t NumElements() const;
};

// Returns a reader of the weight `parameter`. Fails with FAILED_PRECONDITION
// (ExitCode::kCheckpoint) if the checkpoint has none or one of another shape. `reader` must outlive
// the result.
absl::StatusOr<ElementReader> ReadStoredWeight(TensorReader& reader, const std::string& parameter,
                                               const std::vector<int64_t>& shape);

// Returns all weights of `model`, in its order, under our names.
absl::StatusOr<std::vector<OutgoingTensor>> StoredWeights(const ModelSpec& model,
                                                          TensorReader& reader);

}  // namespace deepnet
