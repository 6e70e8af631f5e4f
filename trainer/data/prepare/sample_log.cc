// A record for each sentence that is in the log, and one at the end.
#include "trainer/data/prepare/sample_log.h"

#include <fstream>
#include <limits>
#include <utility>

#include "parallel/base/exit_code.h"
#include "trainer/data/line_reader.h"

namespace deepnet {
namespace {

// The sentence follows it; sentences that were left out came before it.
struct Record {
  uint32_t side;  // kEnd: no sentence
  uint32_t bytes;
  uint32_t num_left_out[2];  // of each side
  uint64_t least_left_out[2];
};
constexpr uint32_t kEnd = 2;
constexpr uint32_t kMaxLeftOut = std::numeric_limits<uint32_t>::max();

SentenceSampleSpec WithTwiceTheRoom(SentenceSampleSpec spec) {
  spec.max_sentences *= 2;
  spec.max_bytes *= 2;
  return spec;
}

}  // namespace

SampleLog::SampleLog(std::unique_ptr<FileWriter> file, const SentenceSampleSpec& spec,
                     std::array<std::string, 2> languages)
    : file_(std::move(file)), languages_(std::move(languages)), guess_(WithTwiceTheRoom(spec)) {}

void SampleLog::Write(uint32_t side, std::string_view sentence) {
  const Record record = {side,
                         static_cast<uint32_t>(sentence.size()),
                         {num_left_out_[0], num_left_out_[1]},
                         {least_left_out_[0], least_left_out_[1]}};
  file_->Append({reinterpret_cast<const char*>(&record), sizeof(record)});
  file_->Append(sentence);
  num_left_out_ = {};
  least_left_out_ = {UINT64_MAX, UINT64_MAX};
}

void SampleLog::Add(int side, std::string_view sentence) {
  const auto place = static_cast<size_t>(side);
  const bool taken = guess_.Add(languages_[place], sentence);
  if (taken || num_left_out_[place] == kMaxLeftOut) return Write(place, sentence);
  ++num_left_out_[place];
  least_left_out_[place] =
      std::min(least_left_out_[place], guess_.Priority(languages_[place], sentence));
}

absl::StatusOr<CorpusFile> SampleLog::Finish() {
  Write(kEnd, {});
  return file_->Finish();
}

absl::StatusOr<SampleReplay> ReplaySample(const std::string& path,
                                          const std::array<std::string, 2>& languages,
                                          SentenceSample* sample) {
  std::ifstream file(path, std::ios::binary);
  SampleReplay replay;
  std::string sentence;
  for (Record record; file.read(reinterpret_cast<char*>(&record), sizeof(record));) {
    if (record.side > kEnd || record.bytes > LineReader::kMaxLineBytes) break;
    sentence.resize(record.bytes);
    if (!file.read(sentence.data(), static_cast<std::streamsize>(sentence.size()))) break;
    for (const size_t side : {0, 1}) {
      const bool left_out = record.num_left_out[side] > 0;
      if (left_out && record.least_left_out[side] < sample->Threshold(languages[side])) {
        return replay;
      }
    }
    for (const size_t side : {0, 1}) {
      sample->Skip(languages[side], record.num_left_out[side]);
      replay.num_added += record.num_left_out[side];
    }
    if (record.side == kEnd) {
      replay.complete = true;
      return replay;
    }
    sample->Add(languages[record.side], sentence);
    ++replay.num_added;
  }
  return DataLoss(path, ": damaged");
}

}  // namespace deepnet
