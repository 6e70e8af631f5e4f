// The rows of a microbatch as operations read them: sentences packed one after another.
#pragma once

#include <cstdint>
#include <memory>

namespace deepnet {

// Holds what an implementation has made of the rows of a side for itself, with
// DeviceSession::Upload.
class RowIndex {
 public:
  virtual ~RowIndex() = default;
};

// The tokens of one packed side. The arrays are in the memory that the Ops reads
// (DeviceSession::Upload) and outlive the call.
struct PackedRows {
  int64_t count = 0;                    // real rows
  int num_sentences = 0;                // real sentences
  const int32_t* tokens = nullptr;      // [count]
  const uint32_t* positions = nullptr;  // [count] index within the sentence
  const uint32_t* pairs = nullptr;      // [count] the pair's ordinal in the step
  const int32_t* offsets = nullptr;     // [num_sentences + 1] first row of each sentence
  const RowIndex* index = nullptr;      // null: none is needed
};

// The rows of a microbatch. A side without rows has a count of 0.
struct MicrobatchRows {
  PackedRows source, target;
  int64_t step = 0;                    // DropoutSite::step of passes on these rows
  const int32_t* labels = nullptr;     // [target.count]; -1: no loss; null: there are none
  std::shared_ptr<const void> memory;  // keeps the arrays; null: somebody else does
};

}  // namespace deepnet
