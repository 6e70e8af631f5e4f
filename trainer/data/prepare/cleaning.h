// Decides which pairs are dropped, and why: every input line is either kept or counted for one
// reason, and reports have the counts.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "parallel/base/file_system.h"
#include "proto/data.pb.h"
#include "trainer/data/prepare/parallel_text.h"

namespace deepnet {

// In the order in which they are checked; the first that applies is counted.
enum class DropReason {
  kNone,         // kept
  kMalformed,    // a row without two columns, a score that is no number
  kBadUtf8,      // also a NUL byte
  kEmptySide,    // nothing but blanks
  kTagInText,    // a side spells a language tag of this corpus, as "__de__"
  kEqualSides,   // source == target
  kBelowScore,   // score < score_threshold
  kHeldOut,      // a side is a sentence of dev or test, in any language pair
  kDuplicate,    // both sides as in an earlier pair that passed all the above
  kTooLong,      // more than max_tokens pieces, or LineReader::kMaxLineBytes bytes
  kLengthRatio,  // one side is max_length_ratio times longer than the other
};
inline constexpr int kNumDropReasons = static_cast<int>(DropReason::kLengthRatio) + 1;

// Returns the name that reports use: "duplicate", "too long".
std::string_view Name(DropReason reason);

// Hashes of the sentences of dev and test, by HashBytes of the language. 8 bytes a sentence.
class HeldOutSentences {
 public:
  void Add(std::string_view language, std::string_view sentence);
  void Seal();  // once, after the last Add and before the first Contains
  bool Contains(uint64_t language_hash, std::string_view sentence) const;
  uint64_t Digest() const;  // of all of them, once sealed

 private:
  std::vector<uint64_t> hashes_;  // sorted once sealed
};

// Judges what can be judged before tokenization: everything but kDuplicate, kTooLong by pieces and
// kLengthRatio. Immutable, safe from several threads.
class TextFilter {
 public:
  // `languages`: all tags of the corpus. `held_out` is sealed and outlives the filter.
  TextFilter(const CleaningSpec& spec, std::vector<std::string> languages,
             const HeldOutSentences* held_out);

  struct LanguagePair {
    uint64_t first_hash = 0;  // HashBytes of the language
    uint64_t second_hash = 0;
    double score_threshold = 0.0;  // only where the pair has a score
    bool is_training = true;       // dev and test are only checked for being text

    static LanguagePair Of(const LanguagePairTexts& texts, const ParallelFiles& files);
  };

  // Trims both sides of `pair` in place.
  DropReason Judge(const LanguagePair& languages, RawPair* pair) const;

  // Returns kTooLong, kEmptySide, kLengthRatio or kNone for the numbers of pieces of both sides.
  DropReason JudgeLengths(int64_t first_pieces, int64_t second_pieces) const;

  const CleaningSpec& spec() const { return spec_; }  // its defaults filled in

 private:
  bool HasTag(std::string_view text) const;

  CleaningSpec spec_;                         // with its defaults
  const std::vector<std::string> languages_;  // sorted
  const HeldOutSentences* const held_out_;
};

// Lines of one text by reason, with the first place of each.
struct DropCounts {
  std::array<int64_t, kNumDropReasons> lines = {};  // [kNone] = kept
  std::array<std::string, kNumDropReasons> examples;

  void Add(DropReason reason, const PairReader& reader, int64_t line);
  void Add(const DropCounts& later);  // of lines behind all of these
  int64_t Total() const;
};

LanguagePairReport MakePairReport(const LanguagePairTexts& texts, std::string_view split,
                                  const DropCounts& counts);

// Sets the pieces of both sides, their means by kept pair, and the pieces of the longest side.
void SetLengths(int64_t first, int64_t second, int32_t longest, LanguagePairReport* report);

// Adds the lines and pairs of a block to those of its language pair; means are left out.
void AddCounts(const LanguagePairReport& block, LanguagePairReport* report);

// Returns what a person is told of a text that loses more than half of its lines; empty of any
// other.
std::string DropWarning(const LanguagePairReport& counts);

// Finds the lines that repeat an earlier one, among billions, by 64-bit hashes: with a billion
// lines the chance that any two different ones are taken for equal is 3 %. Up to `memory_records`
// of them stay in memory, 16 bytes each; beyond, all go to 256 files by the hash's top byte, and
// each file is sorted on its own, in several rounds if it is larger than memory.
class DuplicateFinder {
 public:
  // Spills to files under `folder`, which exists; they are removed by Finish().
  DuplicateFinder(std::string folder, int64_t memory_records);
  ~DuplicateFinder();
  DuplicateFinder(const DuplicateFinder&) = delete;
  DuplicateFinder& operator=(const DuplicateFinder&) = delete;

  // Adds line `line` (from 0, ascending). Lines never added are no duplicates.
  absl::Status Add(int64_t line, uint64_t hash);

  // Returns a bit a line: bit (line % 64) of word line / 64 is set for a duplicate.
  absl::StatusOr<std::vector<uint64_t>> Finish();

 private:
  struct Record {
    uint64_t hash;
    int64_t line;

    auto operator<=>(const Record&) const = default;
  };
  static constexpr int kNumFiles = 256;

  std::string FileName(int part) const;
  absl::Status Spill();
  absl::Status FindInFile(int part, std::vector<uint64_t>* duplicates);
  void FindInRecords(std::vector<uint64_t>* duplicates);

  const std::unique_ptr<FileSystem> files_ = MakePosixFileSystem();
  const std::string folder_;
  const int64_t memory_records_;
  std::vector<Record> records_;
  std::vector<int64_t> part_sizes_;  // records per file; empty: nothing was spilled
  int64_t num_lines_ = 0;
};

}  // namespace deepnet
