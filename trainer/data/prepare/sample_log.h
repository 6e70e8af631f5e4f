// The sentences of one language pair on their way into a SentenceSample that another process fills,
// with the bits that it would have if it had seen every sentence itself.
//
// A log leaves out what the sample will not take, as a sample of its own, with twice the room,
// guesses: the other one's thresholds depend on the pairs before. So the log has the least priority
// of what it leaves out, and a replay notices a wrong guess.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

#include "proto/data.pb.h"
#include "trainer/data/prepare/file_writer.h"
#include "trainer/data/sentence_pieces.h"

namespace deepnet {

class SampleLog {
 public:
  // `file` is empty; `spec` is that of the sample that will be filled.
  SampleLog(std::unique_ptr<FileWriter> file, const SentenceSampleSpec& spec,
            std::array<std::string, 2> languages);

  // Adds a sentence of languages[side].
  void Add(int side, std::string_view sentence);

  // Syncs the file to disk.
  absl::StatusOr<CorpusFile> Finish();

 private:
  void Write(uint32_t side, std::string_view sentence);

  const std::unique_ptr<FileWriter> file_;
  const std::array<std::string, 2> languages_;
  SentenceSample guess_;
  std::array<uint32_t, 2> num_left_out_ = {};
  std::array<uint64_t, 2> least_left_out_ = {UINT64_MAX, UINT64_MAX};
};

struct SampleReplay {
  int64_t num_added = 0;  // sentences that the sample has seen, those left out included
  bool complete = false;  // false: it needs a sentence behind them that the log left out
};

// Adds to `sample` what the log at `path` holds.
absl::StatusOr<SampleReplay> ReplaySample(const std::string& path,
                                          const std::array<std::string, 2>& languages,
                                          SentenceSample* sample);

}  // namespace deepnet
