// Prepare() is a sequence of stages over one object: claim the output folder, find the texts, hold
// dev and test out, scan the training text, make the tokenizer, encode, publish. Between the two
// readings only one bit a line (is it a duplicate?) and the sample of sentences are kept; the bits
// wait on disk, one file a language pair.
#include "trainer/data/prepare.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include <google/protobuf/text_format.h>
#include <google/protobuf/util/message_differencer.h>
#include <sys/file.h>

#include "parallel/base/check.h"
#include "parallel/base/clock.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/host.h"
#include "parallel/base/status_macros.h"
#include "trainer/data/cleaning.h"
#include "trainer/data/corpus.h"
#include "trainer/data/corpus_manifest.h"
#include "trainer/data/corpus_passes.h"
#include "trainer/data/parallel_text.h"
#include "trainer/data/sentence_pieces.h"
#include "trainer/data/vocabulary.h"

namespace deepnet {
namespace {

namespace fs = std::filesystem;

// Part of what decides the tokenizer's bytes, so not a setting.
constexpr int kTokenizerThreads = 2;

// Returns the spec without the fields that do not change the result.
PrepareSpec Canonical(PrepareSpec spec) {
  spec.clear_replace();
  spec.clear_threads();
  return spec;
}

absl::Status WriteDurably(const std::string& path, std::string_view bytes) {
  FILE* file = fopen(path.c_str(), "wb");
  const bool written = file != nullptr &&
                       (bytes.empty() || fwrite(bytes.data(), bytes.size(), 1, file) == 1) &&
                       fflush(file) == 0 && fsync(fileno(file)) == 0;
  const int error = errno;
  if (file != nullptr) fclose(file);
  if (written) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("cannot write ", path, ": ", strerror(error)));
}

absl::Status SyncFolder(const std::string& path) {
  const int folder = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const bool synced = folder >= 0 && fsync(folder) == 0;
  if (folder >= 0) close(folder);
  if (synced) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("cannot sync the folder ", path));
}

// An advisory lock on a file, held as long as the object lives.
class FolderLock {
 public:
  // Fails if another process has the lock. On a file system without locks there is none to take:
  // `warn` is told.
  static absl::StatusOr<std::unique_ptr<FolderLock>> Take(
      const std::string& path, const std::function<void(const std::string&)>& warn) {
    const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (file < 0) return absl::UnavailableError(absl::StrCat(path, ": ", strerror(errno)));
    auto lock = std::unique_ptr<FolderLock>(new FolderLock(file));
    if (flock(file, LOCK_EX | LOCK_NB) == 0) return lock;
    switch (const int error = errno) {
      case EWOULDBLOCK:
        return absl::FailedPreconditionError(
            absl::StrCat("another prepare is writing this corpus (it holds ", path, ")"));
      case EINVAL:
      case ENOLCK:
      case ENOSYS:
      case EOPNOTSUPP:
        warn(absl::StrCat("warning: no locks on this file system (", path, ": ", strerror(error),
                          "): run no other prepare of this corpus at the same time"));
        return lock;
      default:
        return absl::UnavailableError(absl::StrCat("cannot lock ", path, ": ", strerror(error)));
    }
  }
  ~FolderLock() { close(file_); }

 private:
  explicit FolderLock(int file) : file_(file) {}
  const int file_;
};

// Notes the pieces of both sides, and of the longest one.
void SetLengths(int64_t first, int64_t second, int32_t longest, LanguagePairReport* report) {
  const double kept = std::max<double>(1.0, static_cast<double>(report->kept()));
  report->set_first_tokens(first);
  report->set_second_tokens(second);
  report->set_first_mean_length(static_cast<double>(first) / kept);
  report->set_second_mean_length(static_cast<double>(second) / kept);
  report->set_longest(longest);
}

LanguagePairReport MakeReport(const LanguagePairTexts& texts, const std::string& split,
                              const EncodedTotals& totals) {
  LanguagePairReport report;
  report.set_first_language(texts.first);
  report.set_second_language(texts.second);
  report.set_split(split);
  report.set_lines(totals.counts.Total());
  report.set_kept(totals.counts.lines[0]);
  for (int reason = 1; reason < kNumDropReasons; ++reason) {
    if (totals.counts.lines[reason] == 0) continue;
    DropCount& drop = *report.add_dropped();
    drop.set_reason(std::string(Name(static_cast<DropReason>(reason))));
    drop.set_lines(totals.counts.lines[reason]);
    drop.set_example(totals.counts.examples[reason]);
  }
  SetLengths(totals.first_tokens, totals.second_tokens, totals.longest, &report);
  return report;
}

// Adds the pieces of one side of a dev or test text, returns their number.
absl::StatusOr<int64_t> CountPieces(const std::string& path, const Vocabulary& vocabulary,
                                    int32_t* longest) {
  ASSIGN_OR_RETURN(auto reader, LineReader::Open(path));
  int64_t sum = 0;
  std::string_view line;
  for (;;) {
    ASSIGN_OR_RETURN(const bool more, reader->Next(&line));
    if (!more) return sum;
    const auto pieces = static_cast<int64_t>(vocabulary.Encode(line).size());
    sum += pieces;
    *longest = std::max(*longest, static_cast<int32_t>(pieces));
  }
}

class Preparation {
 public:
  Preparation(const PrepareSpec& spec, const std::string& folder, const std::string& root,
              const ProgressFn& progress)
      : spec_(spec),
        root_(root),
        progress_(progress),
        output_(OutputPath(folder, root)),
        temporary_(output_ + ".tmp"),
        start_(SecondsNow()) {}

  ~Preparation() {
    std::error_code ignored;
    if (owns_temporary_) fs::remove_all(temporary_, ignored);
  }

  absl::StatusOr<CorpusReport> Run() {
    ASSIGN_OR_RETURN(texts_, FindTexts(spec_, root_));
    RETURN_IF_ERROR(DescribeInputs());
    const fs::path output = output_;
    std::error_code error;
    fs::create_directories(output.parent_path(), error);
    if (error) {
      return absl::FailedPreconditionError(absl::StrCat("data.folder: cannot make the folder ",
                                                        output.parent_path().string(), ": ",
                                                        error.message()));
    }
    const std::string lock_file =
        (output.parent_path() / absl::StrCat(".", output.filename().string(), ".lock")).string();
    ASSIGN_OR_RETURN(const auto lock,
                     FolderLock::Take(lock_file, [this](const std::string& line) { Say(line); }));
    ASSIGN_OR_RETURN(const std::optional<CorpusReport> existing, FindExisting());
    if (existing.has_value()) return *existing;
    fs::remove_all(temporary_);  // what an interrupted prepare left
    fs::create_directories(Scratch());
    owns_temporary_ = true;
    RETURN_IF_ERROR(SplitTables(spec_, root_, Scratch(), NoteInput(), &texts_));
    languages_ = LanguagesOf(texts_);
    RETURN_IF_ERROR(HoldOut());
    RETURN_IF_ERROR(Scan());
    RETURN_IF_ERROR(MakeTokenizer());
    RETURN_IF_ERROR(Encode());
    RETURN_IF_ERROR(Publish());
    return manifest_.report();
  }

 private:
  static std::string OutputPath(const std::string& folder, const std::string& root) {
    const fs::path path = fs::absolute(Rooted(root, folder)).lexically_normal();
    return (path.has_filename() ? path : path.parent_path()).string();
  }

  std::string Scratch() const { return temporary_ + "/scratch"; }
  std::string BitsPath(const LanguagePairTexts& texts) const {
    return absl::StrCat(Scratch(), "/", texts.Name(), ".bits");
  }
  double Seconds() const { return SecondsNow() - start_; }
  void Say(const std::string& line) const {
    if (progress_) progress_(absl::StrFormat("%7.1f s  %s", Seconds(), line));
  }

  // Notes every file named by the spec, with size and time; hashes follow as files are read.
  absl::Status DescribeInputs() {
    std::vector<std::string> paths;
    for (const LanguagePairTexts& pair : texts_) {
      for (const auto* split : {&pair.train, &pair.dev, &pair.test}) {
        for (const ParallelFiles& text : *split) {
          for (const std::string& path :
               {text.first_file, text.second_file, text.tsv_file, text.score_file}) {
            if (!path.empty()) paths.push_back(path);
          }
        }
      }
    }
    for (const LanguageTable& table : spec_.table()) paths.push_back(Rooted(root_, table.file()));
    const std::string& model = spec_.tokenizer().model_file();
    if (!model.empty()) paths.push_back(Rooted(root_, model));
    for (const std::string& path : paths) {
      const std::string name = fs::path(path).lexically_proximate(root_).string();
      ASSIGN_OR_RETURN(inputs_[path], DescribeInput(name, path));
    }
    return absl::OkStatus();
  }

  // Returns the report of a corpus that is there already, if it is the one asked for; nothing if
  // the place is free or may be replaced.
  absl::StatusOr<std::optional<CorpusReport>> FindExisting() {
    if (fs::is_regular_file(output_)) {
      return absl::FailedPreconditionError(
          absl::StrCat("data.folder: ", output_, " is a file, not a folder"));
    }
    if (!fs::exists(output_) || fs::is_empty(output_)) return std::nullopt;
    const absl::StatusOr<Corpus> corpus = Corpus::Open(output_);
    if (absl::IsNotFound(corpus.status()) &&
        !fs::exists(absl::StrCat(output_, "/", kCorpusManifest))) {
      return absl::FailedPreconditionError(
          absl::StrCat("data.folder: ", output_, " exists and is no prepared corpus"));
    }
    std::string difference = std::string(corpus.status().message());
    if (corpus.ok()) {
      ASSIGN_OR_RETURN(difference, DifferenceFrom(corpus->manifest()));
      if (difference.empty()) {
        Say(absl::StrCat("reusing ", output_, ": same spec, same input files"));
        CorpusReport report = corpus->manifest().report();
        report.set_folder(output_);
        report.set_reused(true);
        return report;
      }
    }
    if (spec_.replace()) return std::nullopt;
    return absl::FailedPreconditionError(
        absl::StrCat("data.folder: ", output_, " holds another corpus (", difference,
                     "); choose another folder, or replace it with --set prepare.replace=true"));
  }

  // Returns how this preparation differs from the one behind `manifest`; empty: not at all.
  absl::StatusOr<std::string> DifferenceFrom(const CorpusManifest& manifest) const {
    std::string text;
    google::protobuf::util::MessageDifferencer differencer;
    differencer.ReportDifferencesToString(&text);
    if (!differencer.Compare(manifest.spec(), Canonical(spec_))) {
      std::replace(text.begin(), text.end(), '\n', ' ');
      return absl::StrCat("spec: ", text);
    }
    std::map<std::string, InputFile> before;
    for (const InputFile& input : manifest.inputs()) before[input.name()] = input;
    if (before.size() != inputs_.size()) return std::string("other input files");
    for (const auto& [path, input] : inputs_) {
      const auto found = before.find(input.name());
      if (found == before.end()) return absl::StrCat("new input ", input.name());
      if (found->second.bytes() != input.bytes()) return absl::StrCat(input.name(), " has changed");
      if (found->second.modified_ns() == input.modified_ns()) continue;
      ASSIGN_OR_RETURN(const uint64_t hash, HashFile(path));
      if (hash != found->second.hash()) return absl::StrCat(input.name(), " has changed");
    }
    return std::string();
  }

  // Notes the hash of an input once it was read to its end.
  FileSeenFn NoteInput() {
    return [this](const LineReader& reader) {
      const auto found = inputs_.find(reader.path());
      if (found != inputs_.end()) found->second.set_hash(reader.file_hash());
    };
  }

  absl::Status HoldOut() {
    const TextFilter filter(spec_.cleaning(), languages_, &held_out_);
    for (const std::string split : {"dev", "test"}) {
      for (const LanguagePairTexts& texts : texts_) {
        if ((split == "dev" ? texts.dev : texts.test).empty()) continue;
        EncodedTotals totals;
        ASSIGN_OR_RETURN(totals.counts, CopyHeldOut(texts, split, filter, temporary_, NoteInput(),
                                                    &held_out_, manifest_.mutable_files()));
        held_out_reports_.push_back(MakeReport(texts, split, totals));
      }
    }
    held_out_.Seal();
    return absl::OkStatus();
  }

  absl::Status Scan() {
    const TokenizerSpec& tokenizer = spec_.tokenizer();
    SentenceSampleSpec sample_spec;
    if (tokenizer.input_sentence_size() > 0)
      sample_spec.max_sentences = tokenizer.input_sentence_size();
    if (tokenizer.sample_temperature() > 0)
      sample_spec.temperature = tokenizer.sample_temperature();
    sample_spec.seed = spec_.seed();
    SentenceSample sample(sample_spec);
    const TextFilter filter(spec_.cleaning(), languages_, &held_out_);
    const ScanSpec scan = {Scratch(), !spec_.cleaning().keep_duplicates(),
                           tokenizer.model_file().empty() ? &sample : nullptr};
    int64_t num_lines = 0;
    for (const LanguagePairTexts& texts : texts_) {
      if (texts.train.empty()) continue;
      ASSIGN_OR_RETURN(const ScanResult result, ScanTraining(texts, filter, scan, NoteInput()));
      num_lines += result.num_lines;
      const auto* bytes = reinterpret_cast<const char*>(result.duplicate_bits.data());
      RETURN_IF_ERROR(
          WriteDurably(BitsPath(texts), {bytes, result.duplicate_bits.size() * sizeof(uint64_t)}));
      Say(absl::StrCat("scanned ", texts.Name(), ": ", result.num_lines, " lines"));
    }
    if (num_lines == 0) return absl::InvalidArgumentError("prepare: there is no training text");
    if (scan.sample != nullptr) sentences_ = sample.Take();
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> LearnTokenizer() {
    const TokenizerSpec& tokenizer = spec_.tokenizer();
    PieceTraining training;
    if (tokenizer.vocab_size() > 0) training.pieces = tokenizer.vocab_size();
    if (tokenizer.character_coverage() > 0) {
      training.character_coverage = tokenizer.character_coverage();
    }
    if (!tokenizer.type().empty()) training.type = tokenizer.type();
    training.threads = kTokenizerThreads;
    Say(absl::StrCat("learning ", training.pieces, " pieces from ", sentences_.size(),
                     " sentences"));
    std::string bytes;
    const std::string error = TrainSentencePieces(training, sentences_, &bytes);
    sentences_ = {};
    if (error.empty()) return bytes;
    return absl::InvalidArgumentError(absl::StrCat("prepare.tokenizer: SentencePiece: ", error));
  }

  absl::StatusOr<std::string> ReadTokenizer() {
    const std::string path = Rooted(root_, spec_.tokenizer().model_file());
    const absl::StatusOr<MappedFile> file = MappedFile::Open(path);
    if (!file.ok()) {
      return absl::NotFoundError(absl::StrCat("prepare.tokenizer.model_file: cannot read ", path));
    }
    ASSIGN_OR_RETURN(const uint64_t hash, HashFile(path));
    inputs_[path].set_hash(hash);
    return std::string(file->bytes());
  }

  absl::Status MakeTokenizer() {
    const double begin = Seconds();
    const bool given = !spec_.tokenizer().model_file().empty();
    ASSIGN_OR_RETURN(const std::string bytes, given ? ReadTokenizer() : LearnTokenizer());
    absl::StatusOr<Vocabulary> vocabulary = Vocabulary::FromBytes(bytes, languages_);
    if (!vocabulary.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("prepare.tokenizer.model_file: ", vocabulary.status().message()));
    }
    vocabulary_.emplace(*std::move(vocabulary));
    RETURN_IF_ERROR(WriteDurably(absl::StrCat(temporary_, "/", kTokenizerFile), bytes));
    ContentHasher hasher;
    hasher.Update(bytes);
    AddFile(kTokenizerFile, static_cast<int64_t>(bytes.size()), hasher.Digest());
    CorpusReport& report = *manifest_.mutable_report();
    report.set_vocabulary_size(vocabulary_->size());
    report.set_tokenizer_hash(vocabulary_->hash());
    report.set_tokenizer_seconds(Seconds() - begin);
    Say(absl::StrCat("vocabulary of ", vocabulary_->size(), ", ", languages_.size(),
                     " language tags in it"));
    return absl::OkStatus();
  }

  absl::Status Encode() {
    const TextFilter filter(spec_.cleaning(), languages_, &held_out_);
    EncodeSpec encode;
    encode.filter = &filter;
    encode.vocabulary = &*vocabulary_;
    encode.cleaning = WithDefaults(spec_.cleaning());
    if (spec_.threads() > 0) encode.num_threads = spec_.threads();
    for (const LanguagePairTexts& texts : texts_) {
      if (!texts.train.empty()) RETURN_IF_ERROR(EncodePair(texts, encode));
    }
    for (LanguagePairReport& report : held_out_reports_) {
      RETURN_IF_ERROR(CountHeldOut(&report));
      *manifest_.mutable_report()->add_pairs() = report;
    }
    return absl::OkStatus();
  }

  absl::Status EncodePair(const LanguagePairTexts& texts, const EncodeSpec& encode) {
    const std::string name = ShardFileName(texts.first, texts.second);
    const std::string path = absl::StrCat(temporary_, "/", name);
    ASSIGN_OR_RETURN(const std::vector<uint64_t> duplicate_bits, ReadBits(texts));
    ASSIGN_OR_RETURN(auto shard, ShardWriter::Create(path, vocabulary_->size()));
    ASSIGN_OR_RETURN(const EncodedTotals totals,
                     EncodeTraining(texts, encode, duplicate_bits, shard.get()));
    RETURN_IF_ERROR(shard->Finish());
    AddFile(name, static_cast<int64_t>(fs::file_size(path)), shard->content_hash());
    CorpusReport& report = *manifest_.mutable_report();
    const LanguagePairReport& pair = *report.add_pairs() = MakeReport(texts, "train", totals);
    report.set_lines(report.lines() + pair.lines());
    report.set_kept(report.kept() + pair.kept());
    Say(absl::StrCat("encoded ", texts.Name(), ": ", pair.kept(), " pairs of ", pair.lines(),
                     " lines"));
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<uint64_t>> ReadBits(const LanguagePairTexts& texts) const {
    ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(BitsPath(texts)));
    std::vector<uint64_t> bits(file.bytes().size() / sizeof(uint64_t));
    if (!bits.empty()) std::memcpy(bits.data(), file.bytes().data(), file.bytes().size());
    return bits;
  }

  absl::Status CountHeldOut(LanguagePairReport* report) const {
    int32_t longest = 0;
    const auto count = [&](const std::string& language) {
      const std::string name = TextFileName(report->split(), report->first_language(),
                                            report->second_language(), language);
      return CountPieces(absl::StrCat(temporary_, "/", name), *vocabulary_, &longest);
    };
    ASSIGN_OR_RETURN(const int64_t first, count(report->first_language()));
    ASSIGN_OR_RETURN(const int64_t second, count(report->second_language()));
    SetLengths(first, second, longest, report);
    return absl::OkStatus();
  }

  void AddFile(const std::string& name, int64_t bytes, uint64_t hash) {
    CorpusFile& file = *manifest_.add_files();
    file.set_name(name);
    file.set_bytes(bytes);
    file.set_hash(hash);
  }

  absl::Status Publish() {
    manifest_.set_format_version(kCorpusFormatVersion);
    *manifest_.mutable_spec() = Canonical(spec_);
    for (const std::string& language : languages_) manifest_.add_languages(language);
    for (const auto& [path, input] : inputs_) *manifest_.add_inputs() = input;
    CorpusReport& report = *manifest_.mutable_report();
    report.set_folder(output_);
    report.set_content_hash(ContentHash(manifest_));
    report.set_seconds(Seconds());
    report.set_peak_resident_bytes(PeakResidentBytes());
    std::string text;
    google::protobuf::TextFormat::PrintToString(manifest_, &text);
    RETURN_IF_ERROR(WriteDurably(absl::StrCat(temporary_, "/", kReportFile), ReportJson(report)));
    RETURN_IF_ERROR(WriteDurably(absl::StrCat(temporary_, "/", kCorpusManifest), text));
    fs::remove_all(Scratch());
    RETURN_IF_ERROR(SyncFolder(temporary_));
    if (fs::exists(output_)) fs::remove_all(output_);  // empty, or to be replaced
    fs::rename(temporary_, output_);
    owns_temporary_ = false;
    return SyncFolder(fs::path(output_).parent_path().string());
  }

  const PrepareSpec& spec_;
  const std::string& root_;
  const ProgressFn& progress_;
  const std::string output_;
  const std::string temporary_;
  const double start_;  // of SecondsNow()
  bool owns_temporary_ = false;
  std::vector<LanguagePairTexts> texts_;
  std::map<std::string, InputFile> inputs_;  // by path
  std::vector<std::string> languages_;       // sorted
  HeldOutSentences held_out_;
  std::vector<LanguagePairReport> held_out_reports_;
  std::vector<std::string> sentences_;  // the tokenizer's sample
  std::optional<Vocabulary> vocabulary_;
  CorpusManifest manifest_;
};

}  // namespace

absl::StatusOr<CorpusReport> Prepare(const PrepareSpec& spec, const std::string& folder,
                                     const std::string& root, const ProgressFn& progress) {
  DEEPNET_CHECK(!folder.empty()) << "data.folder";
  absl::StatusOr<CorpusReport> report = Preparation(spec, folder, root, progress).Run();
  if (report.ok()) return report;
  return WithExitCode(report.status(), ExitCode::kData);
}

}  // namespace deepnet
