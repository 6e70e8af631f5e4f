#include "trainer/data/scan_pass.h"

#include <stdio.h>
#include <unistd.h>

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"

#include "parallel/base/status_macros.h"
#include "trainer/data/content_hash.h"
#include "trainer/data/corpus.h"
#include "trainer/data/duplicate_finder.h"

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
  ~TextWriter() { fclose(file_); }

  void AddLine(std::string_view line) {
    for (const std::string_view part : {line, std::string_view("\n")}) {
      hasher_.Update(part);
      num_bytes_ += static_cast<int64_t>(fwrite(part.data(), 1, part.size(), file_));
      num_wanted_ += static_cast<int64_t>(part.size());
    }
  }

  absl::StatusOr<CorpusFile> Finish() {
    if (fflush(file_) != 0 || fsync(fileno(file_)) != 0 || num_bytes_ != num_wanted_) {
      return absl::ResourceExhaustedError(absl::StrCat("cannot write ", name_));
    }
    CorpusFile file;
    file.set_name(name_);
    file.set_bytes(num_bytes_);
    file.set_hash(hasher_.Digest());
    return file;
  }

 private:
  TextWriter(std::string name, FILE* file) : name_(std::move(name)), file_(file) {}

  const std::string name_;
  FILE* const file_;
  int64_t num_bytes_ = 0;
  int64_t num_wanted_ = 0;
  ContentHasher hasher_;
};

void Count(DropReason reason, const PairReader& reader, int64_t line, DropCounts* counts) {
  const auto place = static_cast<size_t>(reason);
  if (counts->lines[place]++ == 0) counts->examples[place] = reader.Location(line);
}

}  // namespace

TextFilter::LanguagePair FilterPair(const LanguagePairTexts& texts, const ParallelFiles& files) {
  TextFilter::LanguagePair pair;
  pair.first_hash = HeldOutSentences::LanguageHash(texts.first);
  pair.second_hash = HeldOutSentences::LanguageHash(texts.second);
  pair.score_threshold = files.score_threshold.value_or(0.0);
  return pair;
}

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

}  // namespace deepnet
