// The weights of a checkpoint as tensors to be written elsewhere.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "proto/model.pb.h"
#include "trainer/checkpoint/tools/tensor_reader.h"
#include "trainer/interop/safetensors_writer.h"

namespace deepnet {

// Reads the weight `parameter`. FAILED_PRECONDITION (ExitCode::kCheckpoint) if the checkpoint has
// none or another shape. `reader` outlives the result.
absl::StatusOr<ElementReader> ReadStoredWeight(TensorReader& reader, const std::string& parameter,
                                               const std::vector<int64_t>& shape);

// All of `model`, in its order, under our names.
absl::StatusOr<std::vector<OutgoingTensor>> StoredWeights(const ModelSpec& model,
                                                          TensorReader& reader);

}  // namespace deepnet
