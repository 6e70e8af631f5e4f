// Prepare() is a sequence of stages over one object: find the texts, claim the output folder, hold
// dev and test out, scan the training text, make the tokenizer, encode, assemble the shards,
// publish. In each, ranks do the pieces that are dealt to them and then tell each other what came
// of it. Between the two readings only one bit a line (is it a duplicate?) and a sample of
// sentences are kept, on disk, for each language pair.
//
// What is scanned and encoded is kept under the hash of all that decides it (PreparedPart), so an
// interrupted preparation finds it again, and one that replaces a corpus finds the blocks of that.
// The key of a block has what became of each of its lines in the first reading: a language that is
// added changes dev and test, and thereby only the blocks in which a sentence of these occurs.
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

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include <google/protobuf/text_format.h>
#include <google/protobuf/util/message_differencer.h>
#include <sys/file.h>

#include "parallel/base/check.h"
#include "parallel/base/clock.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/file_system.h"
#include "parallel/base/host.h"
#include "parallel/base/logging.h"
#include "parallel/base/status_macros.h"
#include "parallel/comm/agreement.h"
#include "proto/prepare.pb.h"
#include "trainer/data/cleaning.h"
#include "trainer/data/corpus.h"
#include "trainer/data/corpus_manifest.h"
#include "trainer/data/corpus_passes.h"
#include "trainer/data/file_writer.h"
#include "trainer/data/parallel_text.h"
#include "trainer/data/prepared_parts.h"
#include "trainer/data/sample_log.h"
#include "trainer/data/sentence_pieces.h"
#include "trainer/data/vocabulary.h"

namespace deepnet {
namespace {

namespace fs = std::filesystem;

// Part of what decides the tokenizer's bytes, so not a setting.
constexpr int kTokenizerThreads = 2;

constexpr char kScratch[] = "/scratch";  // in the temporary folder

// Plans count with these figures of one core; the first two were measured (in seconds of CPU time)
// on 78 MB of English with Spanish, French and Dutch.
constexpr double kTextBytesPerSecond = 4.3e6;    // of both sides, both readings, one thread
constexpr double kShardBytesPerTextByte = 0.58;  // vocabularies up to 65,536
constexpr double kTextBytesPerCompressedByte = 3.0;

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

// Adds the lines and pairs of a block to those of its language pair.
void AddCounts(const LanguagePairReport& block, LanguagePairReport* report) {
  report->set_lines(report->lines() + block.lines());
  report->set_kept(report->kept() + block.kept());
  report->set_first_tokens(report->first_tokens() + block.first_tokens());
  report->set_second_tokens(report->second_tokens() + block.second_tokens());
  report->set_longest(std::max(report->longest(), block.longest()));
  for (const DropCount& drop : block.dropped()) {
    const auto found = std::find_if(report->dropped().begin(), report->dropped().end(),
                                    [&](const auto& it) { return it.reason() == drop.reason(); });
    if (found == report->dropped().end()) {
      *report->add_dropped() = drop;
    } else {
      auto& sum = *report->mutable_dropped(static_cast<int>(found - report->dropped().begin()));
      sum.set_lines(sum.lines() + drop.lines());
    }
  }
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
              const ProgressFn& progress, const PrepareOptions& options)
      : spec_(spec),
        root_(root),
        progress_(progress),
        options_(options),
        world_(options.world != nullptr ? *options.world : alone_),
        output_(OutputPath(folder, root)),
        temporary_(output_ + ".tmp"),
        start_(SecondsNow()),
        parts_(Scratch()) {}

  ~Preparation() {
    std::error_code ignored;
    if (owns_temporary_ && !has_parts_) fs::remove_all(temporary_, ignored);
  }

  absl::StatusOr<CorpusReport> Run() {
    RETURN_IF_ERROR(Agree(FindInputs()));
    RETURN_IF_ERROR(CheckSameInputs());
    std::unique_ptr<FolderLock> lock;  // of rank 0
    absl::StatusOr<std::optional<CorpusReport>> existing{std::optional<CorpusReport>()};
    if (IsFirst()) existing = Claim(&lock);
    RETURN_IF_ERROR(Agree(existing.status()));
    ASSIGN_OR_RETURN(const std::string reused,
                     BroadcastText(world_, existing->has_value() ? "reused" : "", 0));
    if (!reused.empty()) return existing->value_or(CorpusReport());
    RETURN_IF_ERROR(Join());
    RETURN_IF_ERROR(ReadTables());
    RETURN_IF_ERROR(HoldOut());
    RETURN_IF_ERROR(Scan());
    RETURN_IF_ERROR(MakeTokenizer());
    RETURN_IF_ERROR(Encode());
    RETURN_IF_ERROR(Assemble());
    RETURN_IF_ERROR(Agree(IsFirst() ? Publish() : absl::OkStatus()));
    return IsFirst() ? manifest_.report() : CorpusReport();
  }

 private:
  static std::string OutputPath(const std::string& folder, const std::string& root) {
    const fs::path path = fs::absolute(Rooted(root, folder)).lexically_normal();
    return (path.has_filename() ? path : path.parent_path()).string();
  }

  bool IsFirst() const { return world_.rank() == 0; }
  bool IsMine(size_t piece) const {
    return static_cast<int>(piece % static_cast<size_t>(world_.size())) == world_.rank();
  }
  std::string Scratch() const { return temporary_ + kScratch; }
  std::string OwnFolder() const { return absl::StrCat(Scratch(), "/rank", world_.rank()); }
  double Seconds() const { return SecondsNow() - start_; }
  void Say(const std::string& line) const {
    if (progress_ && IsFirst()) progress_(absl::StrFormat("%7.1f s  %s", Seconds(), line));
  }

  // AgreeOnStatus with the exit code of data. Collective.
  absl::Status Agree(const absl::Status& mine) {
    return AgreeOnStatus(world_, WithExitCode(mine, ExitCode::kData));
  }

  // Returns what every rank has, in rank order. Collective.
  template <typename Message>
  absl::StatusOr<std::vector<Message>> AllGather(const Message& mine) {
    ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                     AllGatherText(world_, mine.SerializeAsString()));
    std::vector<Message> all(texts.size());
    for (size_t i = 0; i < texts.size(); ++i) {
      DEEPNET_CHECK(all[i].ParseFromString(texts[i])) << "a message of rank " << i;
    }
    return all;
  }

  // Returns the parts of all ranks, where part i is the next one of rank owners[i]. Collective.
  absl::StatusOr<std::vector<PreparedPart>> AllGatherParts(const CorpusParts& mine,
                                                           const std::vector<int>& owners) {
    ASSIGN_OR_RETURN(std::vector<CorpusParts> all, AllGather(mine));
    std::vector<int> next(all.size(), 0);
    std::vector<PreparedPart> parts;
    for (const int owner : owners) {
      parts.push_back(std::move(*all[owner].mutable_parts(next[owner]++)));
    }
    return parts;
  }

  absl::Status FindInputs() {
    ASSIGN_OR_RETURN(texts_, FindTexts(spec_, root_));
    return DescribeInputs();
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

  absl::Status CheckSameInputs() {
    std::string list;
    for (const auto& [path, input] : inputs_) {
      absl::StrAppend(&list, input.name(), " of ", input.bytes(), " bytes\n");
    }
    const Fact facts[] = {{"output folder", output_}, {"list of input files", list}};
    return CheckSameEverywhere(world_, facts);
  }

  // Makes the place for the corpus, unless it is there already: then returns its report.
  absl::StatusOr<std::optional<CorpusReport>> Claim(std::unique_ptr<FolderLock>* lock) {
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
    ASSIGN_OR_RETURN(*lock,
                     FolderLock::Take(lock_file, [this](const std::string& line) { Say(line); }));
    // A process that was killed between the two renamings of Publish.
    if (!fs::exists(output_) && fs::exists(OldPath())) fs::rename(OldPath(), output_);
    ASSIGN_OR_RETURN(std::optional<CorpusReport> existing, FindExisting());
    if (existing.has_value()) return existing;
    fs::create_directories(Scratch());
    owns_temporary_ = true;
    for (const auto& entry : fs::directory_iterator(temporary_)) {
      if (entry.path() != Scratch()) fs::remove_all(entry);
    }
    for (const auto& entry : fs::directory_iterator(Scratch())) {
      const std::string name = entry.path().filename().string();
      has_parts_ = has_parts_ || absl::EndsWith(name, ".part");
      if (absl::StartsWith(name, "table") || entry.is_directory()) fs::remove_all(entry);
    }
    return std::nullopt;
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
        fs::remove_all(output_ + kScratch);  // what a killed Publish left
        return report;
      }
    }
    if (spec_.replace() || options_.extend) return std::nullopt;
    return absl::FailedPreconditionError(absl::StrCat(
        "data.folder: ", output_, " holds another corpus (", difference,
        "); choose another folder, replace it with --set prepare.replace=true, or keep its "
        "tokenizer and what is the same in it with --extend"));
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

  absl::Status Join() {
    if (spec_.threads() > 0) num_threads_ = spec_.threads();
    if (world_.size() > 1) {
      const auto file_system = MakePosixFileSystem();
      RETURN_IF_ERROR(CheckSameFolder(world_, *file_system, temporary_));
    }
    fs::create_directories(OwnFolder());
    ASSIGN_OR_RETURN(const std::vector<std::string> hosts, AllGatherText(world_, HostName()));
    ASSIGN_OR_RETURN(const std::vector<std::string> cores, AllGatherText(world_, UsableCoreList()));
    std::vector<std::string> beside;  // the cores of the ranks of this host
    for (size_t i = 0; i < hosts.size(); ++i) {
      if (hosts[i] == HostName()) beside.push_back(cores[i]);
    }
    if (world_.size() > 1) {
      num_threads_ = std::min(num_threads_, ThreadsPerRank(beside, UsableCoreList()));
    }
    return absl::OkStatus();
  }

  absl::Status ReadTables() {
    for (int i = 0; i < spec_.table_size(); ++i) {
      if (IsMine(static_cast<size_t>(i))) {
        RETURN_IF_ERROR(SplitTable(spec_, i, root_, Scratch(), NoteInput()));
      }
    }
    RETURN_IF_ERROR(world_.Barrier());
    RETURN_IF_ERROR(AddTables(spec_, root_, Scratch(), &texts_));
    languages_ = LanguagesOf(texts_);
    for (const LanguagePairTexts& texts : texts_) {
      if (!texts.train.empty()) trained_.push_back(&texts);
    }
    return absl::OkStatus();
  }

  // Notes the hash of an input once it was read to its end.
  FileSeenFn NoteInput() {
    return [this](const LineReader& reader) {
      const auto found = inputs_.find(reader.path());
      if (found != inputs_.end()) found->second.set_hash(reader.file_hash());
    };
  }

  absl::Status HoldOut() {
    for (const std::string split : {"dev", "test"}) {
      for (const LanguagePairTexts& texts : texts_) {
        if (!(split == "dev" ? texts.dev : texts.test).empty()) {
          held_out_texts_.emplace_back(split, &texts);
        }
      }
    }
    const TextFilter filter(spec_.cleaning(), languages_, &held_out_);
    for (size_t i = 0; i < held_out_texts_.size(); ++i) {
      if (!IsMine(i)) continue;
      const auto& [split, texts] = held_out_texts_[i];
      PreparedPart part;
      EncodedTotals totals;
      ASSIGN_OR_RETURN(totals.counts, CopyHeldOut(*texts, split, filter, temporary_, NoteInput(),
                                                  part.mutable_files()));
      *part.mutable_counts() = MakeReport(*texts, split, totals);
      own_held_out_.push_back(std::move(part));
    }
    RETURN_IF_ERROR(world_.Barrier());
    for (const auto& [split, texts] : held_out_texts_) {
      for (const std::string& language : {texts->first, texts->second}) {
        RETURN_IF_ERROR(ReadHeldOut(split, *texts, language));
      }
    }
    held_out_.Seal();
    return absl::OkStatus();
  }

  absl::Status ReadHeldOut(const std::string& split, const LanguagePairTexts& texts,
                           const std::string& language) {
    const std::string name = TextFileName(split, texts.first, texts.second, language);
    ASSIGN_OR_RETURN(auto reader, LineReader::Open(absl::StrCat(temporary_, "/", name)));
    std::string_view line;
    for (;;) {
      ASSIGN_OR_RETURN(const bool more, reader->Next(&line));
      if (!more) return absl::OkStatus();
      held_out_.Add(language, line);
    }
  }

  bool LearnsTokenizer() const {
    return spec_.tokenizer().model_file().empty() && KeptTokenizer().empty();
  }

  // Returns the path of the tokenizer of the corpus that is extended; empty: there is none.
  std::string KeptTokenizer() const {
    const std::string path = absl::StrCat(output_, "/", kTokenizerFile);
    return options_.extend && spec_.tokenizer().model_file().empty() && fs::exists(path) ? path
                                                                                         : "";
  }

  SentenceSampleSpec SampleSpec() const {
    const TokenizerSpec& tokenizer = spec_.tokenizer();
    SentenceSampleSpec sample;
    if (tokenizer.input_sentence_size() > 0) {
      sample.max_sentences = tokenizer.input_sentence_size();
    }
    if (tokenizer.sample_temperature() > 0) sample.temperature = tokenizer.sample_temperature();
    sample.seed = spec_.seed();
    return sample;
  }

  // Returns the identity of the file of a text: the table behind it, if it is of one.
  std::string Identity(const ParallelFiles& text) const {
    std::string identity;
    for (const std::string& path :
         {text.first_file, text.second_file, text.tsv_file, text.score_file, text.origin}) {
      const auto found = inputs_.find(path);
      if (found == inputs_.end()) continue;
      absl::StrAppend(&identity, path, " ", found->second.bytes(), " ", found->second.modified_ns(),
                      "\n");
    }
    absl::StrAppend(&identity, text.tsv_swapped, " ", text.score_threshold.value_or(-1.0), " ",
                    text.score_threshold.has_value());
    return identity;
  }

  uint64_t ScanKey(const LanguagePairTexts& texts) const {
    std::vector<std::string> facts = {
        "scan 1",
        texts.Name(),
        spec_.cleaning().SerializeAsString(),
        absl::StrJoin(languages_, " "),
        absl::StrCat(held_out_.Digest(), " ", options_.block_lines),
        LearnsTokenizer() ? spec_.tokenizer().SerializeAsString() : "",
        absl::StrCat(spec_.seed())};
    for (const LanguageTable& table : spec_.table()) facts.push_back(table.SerializeAsString());
    for (const ParallelFiles& text : texts.train) facts.push_back(Identity(text));
    return KeyOf(facts);
  }

  absl::StatusOr<PreparedPart> ScanPair(const LanguagePairTexts& texts) {
    PreparedPart part;
    part.set_key(ScanKey(texts));
    const std::string name = absl::StrCat("scan.", texts.Name());
    if (auto found = parts_.Find(name, part.key())) {
      for (const InputFile& input : found->inputs()) {
        const auto place = inputs_.find(input.name());
        if (place != inputs_.end()) place->second.set_hash(input.hash());
      }
      Say(absl::StrCat("scanned before: ", texts.Name()));
      return *std::move(found);
    }
    const TextFilter filter(spec_.cleaning(), languages_, &held_out_);
    std::unique_ptr<SampleLog> sample;
    if (LearnsTokenizer()) {
      ASSIGN_OR_RETURN(sample, SampleLog::Create(Scratch(), name + ".sample", SampleSpec(),
                                                 {texts.first, texts.second}));
    }
    const ScanSpec scan = {OwnFolder(), !spec_.cleaning().keep_duplicates(), sample.get(),
                           options_.block_lines};
    ASSIGN_OR_RETURN(const ScanResult result,
                     ScanTraining(texts, filter, scan, [&](const LineReader& reader) {
                       NoteInput()(reader);
                       InputFile& input = *part.add_inputs();
                       input.set_name(reader.path());
                       input.set_hash(reader.file_hash());
                     }));
    *part.mutable_blocks() = {result.blocks.begin(), result.blocks.end()};
    ASSIGN_OR_RETURN(auto bits, FileWriter::Create(Scratch(), name + ".bits"));
    bits->Append({reinterpret_cast<const char*>(result.duplicate_bits.data()),
                  result.duplicate_bits.size() * sizeof(uint64_t)});
    ASSIGN_OR_RETURN(*part.add_files(), bits->Finish());
    if (sample != nullptr) {
      ASSIGN_OR_RETURN(*part.add_files(), sample->Finish());
    }
    RETURN_IF_ERROR(Keep(name, part));
    Say(absl::StrCat("scanned ", texts.Name(), ": ", result.num_lines, " lines"));
    return part;
  }

  absl::Status Keep(const std::string& name, const PreparedPart& part) {
    has_parts_ = true;
    return parts_.Keep(name, part);
  }

  // Says what is ahead, with `text_bytes` on disk of training text.
  void SayPlan(double text_bytes) const {
    const double seconds =
        text_bytes / (kTextBytesPerSecond * num_threads_ * static_cast<double>(world_.size()));
    Say(absl::StrFormat(
        "planned: %.3g GB of training text of %d language pairs; shards of about %.3g GB in about "
        "%s on %d x %d threads%s",
        text_bytes / 1e9, trained_.size(), text_bytes * kShardBytesPerTextByte / 1e9,
        ClockText(seconds), world_.size(), num_threads_,
        LearnsTokenizer() ? ", and a tokenizer" : ""));
  }

  absl::Status Scan() {
    std::vector<int64_t> costs;
    double text_bytes = 0.0;
    for (const LanguagePairTexts* texts : trained_) {
      costs.push_back(0);
      for (const ParallelFiles& text : texts->train) {
        for (const std::string& path : {text.first_file, text.second_file, text.tsv_file}) {
          std::error_code ignored;
          if (path.empty()) continue;
          const auto bytes = static_cast<double>(fs::file_size(path, ignored));
          const bool compressed = absl::EndsWith(path, ".gz") || absl::EndsWith(path, ".zst");
          text_bytes += bytes * (compressed ? kTextBytesPerCompressedByte : 1.0);
          costs.back() += static_cast<int64_t>(bytes);
        }
      }
    }
    SayPlan(text_bytes);
    const std::vector<int> owners = Deal(costs, world_.size());
    CorpusParts mine;
    for (size_t i = 0; i < trained_.size(); ++i) {
      if (owners[i] != world_.rank()) continue;
      ASSIGN_OR_RETURN(*mine.add_parts(), ScanPair(*trained_[i]));
    }
    ASSIGN_OR_RETURN(scans_, AllGatherParts(mine, owners));
    const bool none = std::all_of(scans_.begin(), scans_.end(),
                                  [](const PreparedPart& scan) { return scan.blocks().empty(); });
    return Agree(none ? absl::InvalidArgumentError("prepare: there is no training text")
                      : absl::OkStatus());
  }

  // Returns what one process would have sampled that reads all pairs in their order.
  absl::StatusOr<std::vector<std::string>> Sample() {
    SentenceSample sample(SampleSpec());
    for (size_t i = 0; i < trained_.size(); ++i) {
      const LanguagePairTexts& texts = *trained_[i];
      ASSIGN_OR_RETURN(const SampleReplay replay,
                       ReplaySample(parts_.Path(scans_[i].files(1).name()),
                                    {texts.first, texts.second}, &sample));
      if (replay.complete) continue;
      Say(absl::StrCat("reading ", texts.Name(), " again for the tokenizer"));
      const TextFilter filter(spec_.cleaning(), languages_, &held_out_);
      RETURN_IF_ERROR(SampleTraining(texts, filter, replay.num_added, &sample));
    }
    return sample.Take();
  }

  absl::StatusOr<std::string> LearnTokenizer() {
    const TokenizerSpec& tokenizer = spec_.tokenizer();
    std::vector<std::string> facts = {"tokenizer 1", tokenizer.SerializeAsString(),
                                      absl::StrCat(spec_.seed())};
    for (const PreparedPart& scan : scans_) facts.push_back(absl::StrCat(scan.key()));
    PreparedPart part;
    part.set_key(KeyOf(facts));
    if (const auto found = parts_.Find("tokenizer", part.key())) {
      Say("learned the tokenizer before");
      ASSIGN_OR_RETURN(const MappedFile file,
                       MappedFile::Open(parts_.Path(found->files(0).name())));
      return std::string(file.bytes());
    }
    ASSIGN_OR_RETURN(const std::vector<std::string> sentences, Sample());
    PieceTraining training;
    if (tokenizer.vocab_size() > 0) training.pieces = tokenizer.vocab_size();
    if (tokenizer.character_coverage() > 0) {
      training.character_coverage = tokenizer.character_coverage();
    }
    if (!tokenizer.type().empty()) training.type = tokenizer.type();
    training.threads = kTokenizerThreads;
    Say(absl::StrCat("learning ", training.pieces, " pieces from ", sentences.size(),
                     " sentences"));
    std::string bytes;
    const std::string error = TrainSentencePieces(training, sentences, &bytes);
    if (!error.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("prepare.tokenizer: SentencePiece: ", error));
    }
    ASSIGN_OR_RETURN(auto file, FileWriter::Create(Scratch(), kTokenizerFile));
    file->Append(bytes);
    ASSIGN_OR_RETURN(*part.add_files(), file->Finish());
    RETURN_IF_ERROR(Keep("tokenizer", part));
    return bytes;
  }

  absl::StatusOr<std::string> ReadTokenizer() {
    const std::string kept = KeptTokenizer();
    const std::string path = kept.empty() ? Rooted(root_, spec_.tokenizer().model_file()) : kept;
    const absl::StatusOr<MappedFile> file = MappedFile::Open(path);
    if (!file.ok()) {
      return absl::NotFoundError(absl::StrCat("prepare.tokenizer.model_file: cannot read ", path));
    }
    ASSIGN_OR_RETURN(const uint64_t hash, HashFile(path));
    if (kept.empty()) inputs_[path].set_hash(hash);
    return std::string(file->bytes());
  }

  absl::Status MakeTokenizer() {
    const double begin = Seconds();
    absl::StatusOr<std::string> bytes = "";
    if (IsFirst()) bytes = LearnsTokenizer() ? LearnTokenizer() : ReadTokenizer();
    RETURN_IF_ERROR(Agree(bytes.status()));
    ASSIGN_OR_RETURN(tokenizer_, BroadcastText(world_, *bytes, 0));
    absl::StatusOr<Vocabulary> vocabulary = Vocabulary::FromBytes(tokenizer_, languages_);
    RETURN_IF_ERROR(Agree(WithPrefix("prepare.tokenizer.model_file", vocabulary.status())));
    vocabulary_.emplace(*std::move(vocabulary));
    CorpusReport& report = *manifest_.mutable_report();
    report.set_vocabulary_size(vocabulary_->size());
    report.set_tokenizer_hash(vocabulary_->hash());
    report.set_tokenizer_seconds(Seconds() - begin);
    Say(absl::StrCat("vocabulary of ", vocabulary_->size(), ", ", languages_.size(),
                     " language tags in it"));
    return absl::OkStatus();
  }

  // A block on its way into a shard.
  struct Block {
    size_t pair = 0;  // of trained_
    const TextBlock* block = nullptr;
    PreparedPart part = {};  // with nothing but a key: yet to be encoded
  };

  const LanguagePairTexts& TextsOf(const Block& it) const { return *trained_[it.pair]; }

  // The place is part of the key because the counts name it.
  uint64_t EncodeKey(const Block& it) const {
    const CleaningSpec cleaning = WithDefaults(spec_.cleaning());
    const ParallelFiles& text = TextsOf(it).train[static_cast<size_t>(it.block->text())];
    const std::string facts[] = {
        "encode 1",
        TextsOf(it).Name(),
        tokenizer_,
        absl::StrCat(cleaning.max_sentence_tokens(), " ", cleaning.max_length_ratio()),
        absl::StrCat(text.first_file, " ", text.second_file, " ",
                     text.origin.empty() ? text.tsv_file : text.origin),
        absl::StrCat(it.block->line(), " ", it.block->lines(), " ", it.block->judged())};
    return KeyOf(facts);
  }

  static std::string NameOf(const PreparedPart& part) {
    return absl::StrFormat("%016x", part.key());
  }

  // Lists all blocks, and finds what is encoded already: in the scratch folder, or in the corpus
  // that is replaced.
  absl::Status FindBlocks() {
    for (size_t pair = 0; pair < scans_.size(); ++pair) {
      for (const TextBlock& block : scans_[pair].blocks()) {
        blocks_.push_back({pair, &block});
        blocks_.back().part.set_key(EncodeKey(blocks_.back()));
      }
    }
    earlier_ = ReadEarlierParts(output_);
    CorpusParts mine;
    std::vector<int> owners;
    for (size_t i = 0; i < blocks_.size(); ++i) {
      owners.push_back(static_cast<int>(i % static_cast<size_t>(world_.size())));
      if (!IsMine(i)) continue;
      const PreparedPart& wanted = blocks_[i].part;
      const auto earlier = earlier_.find(wanted.key());
      auto found = parts_.Find(NameOf(wanted), wanted.key());
      if (!found.has_value() && earlier != earlier_.end()) found = earlier->second.part;
      *mine.add_parts() = found.value_or(wanted);
    }
    ASSIGN_OR_RETURN(std::vector<PreparedPart> found, AllGatherParts(mine, owners));
    int64_t num_found = 0;
    for (size_t i = 0; i < blocks_.size(); ++i) {
      blocks_[i].part = std::move(found[i]);
      num_found += blocks_[i].part.files().empty() ? 0 : 1;
    }
    if (num_found > 0) {
      Say(absl::StrCat(num_found, " of ", blocks_.size(), " blocks are encoded already"));
    }
    return absl::OkStatus();
  }

  absl::Status Encode() {
    RETURN_IF_ERROR(FindBlocks());
    std::vector<size_t> open;  // of blocks_
    std::vector<int64_t> costs;
    for (size_t i = 0; i < blocks_.size(); ++i) {
      if (!blocks_[i].part.files().empty()) continue;
      open.push_back(i);
      costs.push_back(blocks_[i].block->lines());
    }
    const std::vector<int> owners = Deal(costs, world_.size());
    const TextFilter filter(spec_.cleaning(), languages_, &held_out_);
    EncodeSpec encode;
    encode.filter = &filter;
    encode.vocabulary = &*vocabulary_;
    encode.cleaning = WithDefaults(spec_.cleaning());
    encode.num_threads = num_threads_;
    CorpusParts mine;
    std::vector<uint64_t> bits;
    const LanguagePairTexts* bits_of = nullptr;
    for (size_t i = 0; i < open.size(); ++i) {
      if (owners[i] != world_.rank()) continue;
      Block& it = blocks_[open[i]];
      if (bits_of != &TextsOf(it)) {
        bits_of = &TextsOf(it);
        ASSIGN_OR_RETURN(bits, ReadBits(scans_[it.pair]));
      }
      RETURN_IF_ERROR(EncodeOne(encode, bits, &it));
      *mine.add_parts() = it.part;
    }
    ASSIGN_OR_RETURN(std::vector<PreparedPart> parts, AllGatherParts(mine, owners));
    for (size_t i = 0; i < open.size(); ++i) blocks_[open[i]].part = std::move(parts[i]);
    return absl::OkStatus();
  }

  absl::Status EncodeOne(const EncodeSpec& encode, const std::vector<uint64_t>& bits, Block* it) {
    const LanguagePairTexts& texts = TextsOf(*it);
    PreparedPart& part = it->part;
    const std::string name = NameOf(part) + ".pairs";
    ASSIGN_OR_RETURN(auto shard, ShardWriter::Create(parts_.Path(name), vocabulary_->size()));
    ASSIGN_OR_RETURN(const EncodedTotals totals,
                     EncodeBlock(texts, *it->block, encode, bits, shard.get()));
    RETURN_IF_ERROR(shard->Finish());
    ASSIGN_OR_RETURN(const uint64_t hash, HashFile(parts_.Path(name)));
    CorpusFile& file = *part.add_files();
    file.set_name(name);
    file.set_bytes(static_cast<int64_t>(fs::file_size(parts_.Path(name))));
    file.set_hash(hash);
    *part.add_blocks() = *it->block;
    *part.mutable_counts() = MakeReport(texts, "train", totals);
    RETURN_IF_ERROR(Keep(NameOf(part), part));
    Say(absl::StrCat("encoded ", texts.Name(), " from line ", it->block->line() + 1, ": ",
                     part.counts().kept(), " pairs of ", part.counts().lines(), " lines"));
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<uint64_t>> ReadBits(const PreparedPart& scan) const {
    ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(parts_.Path(scan.files(0).name())));
    std::vector<uint64_t> bits(file.bytes().size() / sizeof(uint64_t));
    if (!bits.empty()) std::memcpy(bits.data(), file.bytes().data(), file.bytes().size());
    return bits;
  }

  // Pairs [first, first + count) of a shard.
  struct Pairs {
    std::string path;
    int64_t first = 0;
    int64_t count = 0;
  };

  // Returns where the pairs of an encoded block are.
  Pairs PairsOf(const PreparedPart& part) const {
    const std::string& name = part.files(0).name();
    const int64_t count = part.counts().kept();
    if (name == NameOf(part) + ".pairs") return {parts_.Path(name), 0, count};
    return {absl::StrCat(output_, "/", name), earlier_.at(part.key()).first_pair, count};
  }

  // Writes the shard of a language pair from its blocks.
  absl::StatusOr<CorpusFile> WriteShard(const LanguagePairTexts& texts,
                                        const std::vector<Pairs>& sources) {
    CorpusFile file;
    file.set_name(ShardFileName(texts.first, texts.second));
    const std::string path = absl::StrCat(temporary_, "/", file.name());
    RETURN_IF_ERROR(LinkOrCopy(sources, path));
    ASSIGN_OR_RETURN(const Shard shard, Shard::Open(path));
    file.set_bytes(static_cast<int64_t>(fs::file_size(path)));
    file.set_hash(shard.content_hash());
    return file;
  }

  absl::Status LinkOrCopy(const std::vector<Pairs>& sources, const std::string& path) {
    if (sources.size() == 1) {
      ASSIGN_OR_RETURN(const Shard only, Shard::Open(sources[0].path));
      std::error_code no_links;
      if (only.num_pairs() == sources[0].count) {
        RETURN_IF_ERROR(only.CheckContent());
        fs::create_hard_link(sources[0].path, path, no_links);
        if (!no_links) return absl::OkStatus();
      }
    }
    ASSIGN_OR_RETURN(auto writer, ShardWriter::Create(path, vocabulary_->size()));
    std::optional<Shard> shard;
    std::string open;  // its path
    std::vector<int32_t> first, second;
    for (const Pairs& source : sources) {
      if (open != source.path) {
        ASSIGN_OR_RETURN(shard, Shard::Open(source.path));
        RETURN_IF_ERROR(shard->CheckContent());
        open = source.path;
      }
      for (int64_t pair = source.first; pair < source.first + source.count; ++pair) {
        Widen(shard->First(pair), &first);
        Widen(shard->Second(pair), &second);
        RETURN_IF_ERROR(writer->Add(first, second));
      }
    }
    return writer->Finish();
  }

  static void Widen(const TokenSpan& tokens, std::vector<int32_t>* ids) {
    ids->resize(tokens.size());
    for (size_t i = 0; i < tokens.size(); ++i) (*ids)[i] = tokens[i];
  }

  // Makes shards of the blocks, and gathers what the manifest says.
  absl::Status Assemble() {
    std::vector<std::vector<Pairs>> sources(trained_.size());
    std::vector<LanguagePairReport> reports(trained_.size());
    std::vector<int64_t> costs(trained_.size(), 0);
    for (const Block& it : blocks_) {
      sources[it.pair].push_back(PairsOf(it.part));
      AddCounts(it.part.counts(), &reports[it.pair]);
      costs[it.pair] += it.part.counts().kept();
    }
    const std::vector<int> owners = Deal(costs, world_.size());
    CorpusParts shards, held_out;
    for (size_t i = 0; i < trained_.size(); ++i) {
      if (owners[i] != world_.rank()) continue;
      ASSIGN_OR_RETURN(*shards.add_parts()->add_files(), WriteShard(*trained_[i], sources[i]));
    }
    for (PreparedPart& part : own_held_out_) {
      RETURN_IF_ERROR(CountHeldOut(part.mutable_counts()));
      *held_out.add_parts() = part;
    }
    std::vector<int> held_out_owners;
    for (size_t i = 0; i < held_out_texts_.size(); ++i) {
      held_out_owners.push_back(static_cast<int>(i % static_cast<size_t>(world_.size())));
    }
    ASSIGN_OR_RETURN(const auto all_held_out, AllGatherParts(held_out, held_out_owners));
    ASSIGN_OR_RETURN(const auto all_shards, AllGatherParts(shards, owners));
    CorpusReport& report = *manifest_.mutable_report();
    for (const PreparedPart& part : all_held_out) {
      for (const CorpusFile& file : part.files()) *manifest_.add_files() = file;
    }
    RETURN_IF_ERROR(AddTokenizer());
    for (size_t i = 0; i < trained_.size(); ++i) {
      *manifest_.add_files() = all_shards[i].files(0);
      LanguagePairReport& pair = reports[i];
      pair.set_first_language(trained_[i]->first);
      pair.set_second_language(trained_[i]->second);
      pair.set_split("train");
      SetLengths(pair.first_tokens(), pair.second_tokens(), pair.longest(), &pair);
      report.set_lines(report.lines() + pair.lines());
      report.set_kept(report.kept() + pair.kept());
      *report.add_pairs() = pair;
    }
    for (const PreparedPart& part : all_held_out) *report.add_pairs() = part.counts();
    return GatherInputs();
  }

  absl::Status AddTokenizer() {
    ContentHasher hasher;
    hasher.Update(tokenizer_);
    CorpusFile& file = *manifest_.add_files();
    file.set_name(kTokenizerFile);
    file.set_bytes(static_cast<int64_t>(tokenizer_.size()));
    file.set_hash(hasher.Digest());
    if (!IsFirst()) return absl::OkStatus();
    return WriteDurably(absl::StrCat(temporary_, "/", kTokenizerFile), tokenizer_);
  }

  // Gathers the hashes of inputs and the memory of all ranks.
  absl::Status GatherInputs() {
    CorpusManifest mine;
    for (const auto& [path, input] : inputs_) *mine.add_inputs() = input;
    mine.mutable_report()->set_peak_resident_bytes(PeakResidentBytes());
    ASSIGN_OR_RETURN(const std::vector<CorpusManifest> all, AllGather(mine));
    *manifest_.mutable_inputs() = mine.inputs();
    int64_t peak_bytes = 0;
    for (const CorpusManifest& other : all) {
      peak_bytes = std::max(peak_bytes, other.report().peak_resident_bytes());
      for (int i = 0; i < other.inputs_size(); ++i) {
        if (other.inputs(i).hash() != 0) {
          manifest_.mutable_inputs(i)->set_hash(other.inputs(i).hash());
        }
      }
    }
    manifest_.mutable_report()->set_peak_resident_bytes(peak_bytes);
    return absl::OkStatus();
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

  // Returns the list of blocks that goes with the corpus.
  std::string PartsText() const {
    CorpusParts parts;
    for (const Block& it : blocks_) {
      PreparedPart& part = *parts.add_parts();
      part.set_key(it.part.key());
      part.add_files()->set_name(ShardFileName(TextsOf(it).first, TextsOf(it).second));
      *part.mutable_counts() = it.part.counts();
    }
    std::string text;
    google::protobuf::TextFormat::PrintToString(parts, &text);
    return text;
  }

  std::string OldPath() const { return output_ + ".old"; }

  absl::Status Publish() {
    manifest_.set_format_version(kCorpusFormatVersion);
    *manifest_.mutable_spec() = Canonical(spec_);
    for (const std::string& language : languages_) manifest_.add_languages(language);
    CorpusReport& report = *manifest_.mutable_report();
    report.set_folder(output_);
    report.set_content_hash(ContentHash(manifest_));
    report.set_seconds(Seconds());
    std::string text;
    google::protobuf::TextFormat::PrintToString(manifest_, &text);
    RETURN_IF_ERROR(WriteDurably(absl::StrCat(temporary_, "/", kReportFile), ReportJson(report)));
    RETURN_IF_ERROR(WriteDurably(absl::StrCat(temporary_, "/", kPartsFile), PartsText()));
    RETURN_IF_ERROR(WriteDurably(absl::StrCat(temporary_, "/", kCorpusManifest), text));
    RETURN_IF_ERROR(SyncFolder(temporary_));
    fs::remove_all(OldPath());
    if (fs::exists(output_)) fs::rename(output_, OldPath());  // empty, or to be replaced
    fs::rename(temporary_, output_);
    owns_temporary_ = false;
    fs::remove_all(output_ + kScratch);
    fs::remove_all(OldPath());
    return SyncFolder(fs::path(output_).parent_path().string());
  }

  const PrepareSpec& spec_;
  const std::string& root_;
  const ProgressFn& progress_;
  const PrepareOptions options_;
  SelfCommunicator alone_;
  Communicator& world_;
  const std::string output_;
  const std::string temporary_;
  const double start_;  // of SecondsNow()
  const PartStore parts_;
  int num_threads_ = 2;
  bool owns_temporary_ = false;
  bool has_parts_ = false;  // there is something to continue with
  std::vector<LanguagePairTexts> texts_;
  std::vector<const LanguagePairTexts*> trained_;  // those of texts_ that have training text
  std::map<std::string, InputFile> inputs_;        // by path
  std::vector<std::string> languages_;             // sorted
  std::vector<std::pair<std::string, const LanguagePairTexts*>> held_out_texts_;  // with the split
  std::vector<PreparedPart> own_held_out_;                                        // of this rank
  HeldOutSentences held_out_;
  std::vector<PreparedPart> scans_;  // of trained_
  std::string tokenizer_;            // bytes of the model
  std::optional<Vocabulary> vocabulary_;
  std::map<uint64_t, EarlierPart> earlier_;  // of the corpus that is replaced
  std::vector<Block> blocks_;                // in the order of their pairs
  CorpusManifest manifest_;
};

}  // namespace

absl::StatusOr<CorpusReport> Prepare(const PrepareSpec& spec, const std::string& folder,
                                     const std::string& root, const ProgressFn& progress,
                                     const PrepareOptions& options) {
  DEEPNET_CHECK(!folder.empty()) << "data.folder";
  absl::StatusOr<CorpusReport> report = Preparation(spec, folder, root, progress, options).Run();
  if (report.ok()) return report;
  return WithExitCode(report.status(), ExitCode::kData);
}

}  // namespace deepnet
