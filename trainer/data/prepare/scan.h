// How much training text there is, and how long its preparation will take.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "trainer/data/prepare/parallel_text.h"

namespace deepnet {

// Returns about how many bytes of training text each language pair has that has some.
std::vector<int64_t> TrainingBytes(const std::vector<LanguagePairTexts>& texts);

// Returns about how many pairs a text has: counted where they are few, else by the first 1,000.
double EstimatePairs(const ParallelFiles& text);

// How long a preparation will take, by rates that were measured, for ranks of one kind.
struct PreparePlan {
  double text_bytes = 0.0;   // of training text, both sides
  double shard_bytes = 0.0;  // on disk
  // The slowest rank is busy so long; learning a tokenizer is not in it.
  double scan_seconds = 0.0;      // first reading: a language pair is read by one rank
  double encode_seconds = 0.0;    // second reading, shared evenly
  double assemble_seconds = 0.0;  // a shard is written by one rank

  double Seconds() const { return scan_seconds + encode_seconds + assemble_seconds; }
};

// `pair_bytes` has the bytes of training text of each language pair.
PreparePlan PlanPreparation(std::span<const int64_t> pair_bytes, int num_ranks,
                            int threads_per_rank);

}  // namespace deepnet
