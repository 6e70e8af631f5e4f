// In the second reading lines are read into one chunk a thread; the chunks are tokenized side by
// side, then written in the order in which they were read: the shard is the same for any number of
// threads.
#include "trainer/data/corpus_passes.h"

#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"

#include "parallel/base/status_macros.h"
#include "trainer/data/content_hash.h"
#include "trainer/data/corpus.h"

namespace deepnet {
namespace {

// 64 MiB while duplicates are looked for.
constexpr int64_t kDuplicateRecords = int64_t{1} << 22;

// A text file being written, with its hash.
class TextWriter {
 public:
  static absl::StatusOr<std::unique_ptr<TextWriter>> Create(const std::string& folder,
                                                            const std::string& name) {
    FILE* file = fopen(absl::StrCat(folder, "/", name).c_str(), "wb");
    if (file == nullptr) {
      return absl::ResourceExhaustedError(absl::StrCat("cannot write ", folder, "/", name));
    }
    return std::unique_ptr<TextWriter>(new TextWriter(name, file));
  }

  void AddLine(std::string_view line) {
    for (const std::string_view part : {line, std::string_view("\n")}) {
      hasher_.Update(part);
      num_bytes_ += static_cast<int64_t>(fwrite(part.data(), 1, part.size(), file_.get()));
      num_wanted_ += static_cast<int64_t>(part.size());
    }
  }

  absl::StatusOr<CorpusFile> Finish() {
    if (fflush(file_.get()) != 0 || fsync(fileno(file_.get())) != 0 || num_bytes_ != num_wanted_) {
      return absl::ResourceExhaustedError(absl::StrCat("cannot write ", name_));
    }
    CorpusFile file;
    file.set_name(name_);
    file.set_bytes(num_bytes_);
    file.set_hash(hasher_.Digest());
    return file;
  }

 private:
  TextWriter(std::string name, FILE* file) : name_(std::move(name)), file_(file, fclose) {}

  const std::string name_;
  const std::unique_ptr<FILE, int (*)(FILE*)> file_;
  int64_t num_bytes_ = 0;
  int64_t num_wanted_ = 0;
  ContentHasher hasher_;
};

void Count(DropReason reason, const PairReader& reader, int64_t line, DropCounts* counts) {
  const auto place = static_cast<size_t>(reason);
  if (counts->lines[place]++ == 0) counts->examples[place] = reader.Location(line);
}

// Returns what TextFilter needs to know of one text.
TextFilter::LanguagePair FilterPair(const LanguagePairTexts& texts, const ParallelFiles& files) {
  return {.first_hash = HeldOutSentences::LanguageHash(texts.first),
          .second_hash = HeldOutSentences::LanguageHash(texts.second),
          .score_threshold = files.score_threshold.value_or(0.0)};
}

}  // namespace

absl::StatusOr<DropCounts> CopyHeldOut(const LanguagePairTexts& texts, std::string_view split,
                                       const TextFilter& filter, const std::string& folder,
                                       const FileSeenFn& seen, HeldOutSentences* held_out,
                                       google::protobuf::RepeatedPtrField<CorpusFile>* files) {
  const auto create = [&](const std::string& language) {
    return TextWriter::Create(folder, TextFileName(split, texts.first, texts.second, language));
  };
  ASSIGN_OR_RETURN(auto first, create(texts.first));
  ASSIGN_OR_RETURN(auto second, create(texts.second));
  DropCounts counts;
  for (const ParallelFiles& text : split == "dev" ? texts.dev : texts.test) {
    ASSIGN_OR_RETURN(auto reader, PairReader::Open(text));
    TextFilter::LanguagePair languages = FilterPair(texts, text);
    languages.is_training = false;
    RawPair pair;
    for (;;) {
      ASSIGN_OR_RETURN(const bool more, reader->Next(&pair));
      if (!more) break;
      const DropReason reason = filter.Judge(languages, &pair);
      if (reason == DropReason::kBadUtf8 || reason == DropReason::kMalformed) {
        return absl::InvalidArgumentError(absl::StrCat(reader->Location(pair.line), ": ",
                                                       std::string(Name(reason)), " in ",
                                                       std::string(split), " text"));
      }
      Count(reason, *reader, pair.line, &counts);
      if (reason != DropReason::kNone) continue;
      first->AddLine(pair.first);
      second->AddLine(pair.second);
      held_out->Add(texts.first, pair.first);
      held_out->Add(texts.second, pair.second);
    }
    reader->ForEachFile(seen);
  }
  ASSIGN_OR_RETURN(CorpusFile first_file, first->Finish());
  ASSIGN_OR_RETURN(CorpusFile second_file, second->Finish());
  files->Add(std::move(first_file));
  files->Add(std::move(second_file));
  return counts;
}

absl::StatusOr<ScanResult> ScanTraining(const LanguagePairTexts& texts, const TextFilter& filter,
                                        const ScanSpec& spec, const FileSeenFn& seen) {
  ScanResult result;
  DuplicateFinder finder(spec.folder, kDuplicateRecords);
  for (const ParallelFiles& text : texts.train) {
    ASSIGN_OR_RETURN(auto reader, PairReader::Open(text));
    const TextFilter::LanguagePair languages = FilterPair(texts, text);
    RawPair pair;
    for (;; ++result.num_lines) {
      ASSIGN_OR_RETURN(const bool more, reader->Next(&pair));
      if (!more) break;
      if (filter.Judge(languages, &pair) != DropReason::kNone) continue;
      if (spec.find_duplicates) {
        const uint64_t hash = HashBytes(pair.second, HashBytes(pair.first));
        RETURN_IF_ERROR(finder.Add(result.num_lines, hash));
      }
      if (spec.sample != nullptr) {
        spec.sample->Add(texts.first, pair.first);
        spec.sample->Add(texts.second, pair.second);
      }
    }
    reader->ForEachFile(seen);
  }
  ASSIGN_OR_RETURN(result.duplicate_bits, finder.Finish());
  return result;
}

namespace {

constexpr size_t kChunkLines = 8192;
constexpr size_t kChunkBytes = size_t{4} << 20;

// The pairs of a chunk after filters and tokenizer.
struct EncodedChunk {
  std::vector<int32_t> tokens;                     // of the kept pairs, first then second
  std::vector<std::pair<size_t, size_t>> lengths;  // pieces of each kept pair
  std::array<int64_t, kNumDropReasons> lines = {};
  std::array<int64_t, kNumDropReasons> example = {};  // line number of the first of each reason
};

// Pairs in the order of their text, with a copy of it.
class Chunk {
 public:
  struct Line {
    RawPair pair;  // views of text_
    bool duplicate;
  };

  bool IsFull() const { return lines_.size() >= kChunkLines || text_.size() >= kChunkBytes; }

  void Add(RawPair pair, bool duplicate) {
    text_.reserve(kChunkBytes + 2 * LineReader::kMaxLineBytes);  // so that views stay valid
    pair.first = Copy(pair.first);
    pair.second = Copy(pair.second);
    lines_.push_back({pair, duplicate});
  }

  const std::vector<Line>& lines() const { return lines_; }

 private:
  std::string_view Copy(std::string_view side) {
    return {text_.append(side).data() + text_.size() - side.size(), side.size()};
  }

  std::string text_;
  std::vector<Line> lines_;
};

EncodedChunk Encode(const Chunk& chunk, const TextFilter::LanguagePair& languages,
                    const EncodeSpec& spec) {
  EncodedChunk result;
  for (auto [pair, duplicate] : chunk.lines()) {
    DropReason reason = spec.filter->Judge(languages, &pair);
    if (reason == DropReason::kNone && duplicate) reason = DropReason::kDuplicate;
    if (reason == DropReason::kNone) {
      const std::vector<int32_t> first = spec.vocabulary->Encode(pair.first);
      const std::vector<int32_t> second = spec.vocabulary->Encode(pair.second);
      reason = JudgeLengths(spec.cleaning, static_cast<int64_t>(first.size()),
                            static_cast<int64_t>(second.size()));
      if (reason == DropReason::kNone) {
        result.tokens.insert(result.tokens.end(), first.begin(), first.end());
        result.tokens.insert(result.tokens.end(), second.begin(), second.end());
        result.lengths.emplace_back(first.size(), second.size());
      }
    }
    const auto place = static_cast<size_t>(reason);
    if (result.lines[place]++ == 0) result.example[place] = pair.line;
  }
  return result;
}

// Fills chunks up from `reader`; false at the end of the text.
absl::StatusOr<bool> Fill(const std::vector<uint64_t>& duplicate_bits, PairReader* reader,
                          size_t* line, Chunk* chunk) {
  RawPair pair;
  while (!chunk->IsFull()) {
    ASSIGN_OR_RETURN(const bool more, reader->Next(&pair));
    if (!more) return false;
    const bool duplicate =
        *line / 64 < duplicate_bits.size() && (duplicate_bits[*line / 64] >> (*line % 64) & 1) != 0;
    chunk->Add(pair, duplicate);
    ++*line;
  }
  return true;
}

absl::Status Write(const EncodedChunk& chunk, const PairReader& reader, ShardWriter* shard,
                   EncodedTotals* totals) {
  std::span<const int32_t> rest = chunk.tokens;
  for (const auto& [first, second] : chunk.lengths) {
    RETURN_IF_ERROR(shard->Add(rest.first(first), rest.subspan(first, second)));
    rest = rest.subspan(first + second);
    totals->first_tokens += static_cast<int64_t>(first);
    totals->second_tokens += static_cast<int64_t>(second);
    totals->longest = std::max(totals->longest, static_cast<int32_t>(std::max(first, second)));
  }
  for (size_t reason = 0; reason < chunk.lines.size(); ++reason) {
    if (chunk.lines[reason] > 0 && totals->counts.lines[reason] == 0) {
      totals->counts.examples[reason] = reader.Location(chunk.example[reason]);
    }
    totals->counts.lines[reason] += chunk.lines[reason];
  }
  return absl::OkStatus();
}

std::vector<EncodedChunk> EncodeSideBySide(const std::vector<Chunk>& chunks,
                                           const TextFilter::LanguagePair& languages,
                                           const EncodeSpec& spec) {
  std::vector<EncodedChunk> results(chunks.size());
  std::vector<std::thread> threads;
  for (size_t i = 1; i < chunks.size(); ++i) {
    threads.emplace_back([&, i] { results[i] = Encode(chunks[i], languages, spec); });
  }
  results[0] = Encode(chunks[0], languages, spec);
  for (std::thread& thread : threads) thread.join();
  return results;
}

}  // namespace

absl::StatusOr<EncodedTotals> EncodeTraining(const LanguagePairTexts& texts, const EncodeSpec& spec,
                                             const std::vector<uint64_t>& duplicate_bits,
                                             ShardWriter* shard) {
  EncodedTotals totals;
  size_t line = 0;
  for (const ParallelFiles& text : texts.train) {
    ASSIGN_OR_RETURN(auto reader, PairReader::Open(text));
    const TextFilter::LanguagePair languages = FilterPair(texts, text);
    for (bool more = true; more;) {
      std::vector<Chunk> chunks(static_cast<size_t>(spec.num_threads));
      for (Chunk& chunk : chunks) {
        if (!more) break;
        ASSIGN_OR_RETURN(more, Fill(duplicate_bits, reader.get(), &line, &chunk));
      }
      for (const EncodedChunk& chunk : EncodeSideBySide(chunks, languages, spec)) {
        RETURN_IF_ERROR(Write(chunk, *reader, shard, &totals));
      }
    }
  }
  return totals;
}

}  // namespace deepnet
