// Which lines repeat an earlier one, among billions, in bounded memory.
//
// Lines are known by 64-bit hashes (with a billion lines the chance that any two different ones are
// taken for equal is 3 %, then one line too many is dropped). Up to `memory_records` of them stay
// in memory; beyond, all go to 256 files by the hash's top byte, and each file is sorted on its
// own, in several rounds if it is larger than memory.
//
// Memory: 16 bytes x memory_records, and the answer: one bit a line.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace deepnet {

class DuplicateFinder {
 public:
  // Spills to files under `folder`, which exists; they are removed by Finish().
  DuplicateFinder(std::string folder, int64_t memory_records);
  ~DuplicateFinder();
  DuplicateFinder(const DuplicateFinder&) = delete;
  DuplicateFinder& operator=(const DuplicateFinder&) = delete;

  // Line `line` (from 0, ascending) has this hash. Lines never added are no duplicates.
  absl::Status Add(int64_t line, uint64_t hash);

  // Bit (line % 64) of word line / 64 is set where an earlier line had the same hash.
  absl::StatusOr<std::vector<uint64_t>> Finish();

 private:
  struct Record {
    uint64_t hash;
    int64_t line;
  };
  static constexpr int kNumFiles = 256;

  std::string FileName(int part) const;
  absl::Status Spill();
  absl::Status FindInFile(int part, std::vector<uint64_t>* duplicates);
  void FindInRecords(std::vector<uint64_t>* duplicates);

  const std::string folder_;
  const int64_t memory_records_;
  std::vector<Record> records_;
  std::vector<int64_t> part_sizes_;  // records per file; empty: nothing was spilled
  int64_t num_lines_ = 0;
};

}  // namespace deepnet
