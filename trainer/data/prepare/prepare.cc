// Prepare() is a sequence of stages over one PrepareContext. In each, ranks do the pieces that are
// dealt to them and then tell each other what came of it. Between the two readings only one bit a
// line (is it a duplicate?) and a sample of sentences are kept, on disk, for each language pair.
//
// What is scanned and encoded is kept under the hash of all that decides it (PreparedPart), so an
// interrupted preparation finds it again, and one that replaces a corpus finds the blocks of that.
// The key of a block has what became of each of its lines in the first reading: a language that is
// added changes dev and test, and thereby only the blocks in which a sentence of these occurs.
#include "trainer/data/prepare/prepare.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "parallel/base/check.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/file_system.h"
#include "parallel/base/host.h"
#include "parallel/base/logging.h"
#include "parallel/base/status_macros.h"
#include "parallel/comm/agreement.h"
#include "trainer/data/corpus_manifest.h"
#include "trainer/data/line_reader.h"
#include "trainer/data/prepare/cleaning.h"
#include "trainer/data/prepare/file_writer.h"
#include "trainer/data/prepare/parallel_text.h"
#include "trainer/data/prepare/scan.h"
#include "trainer/data/prepare/stages.h"
#include "trainer/data/vocabulary.h"

namespace deepnet {
namespace {

namespace fs = std::filesystem;

// Finds the texts and notes every file named by the spec, with size and time; hashes follow as
// files are read.
absl::Status FindInputs(PrepareContext& context) {
  ASSIGN_OR_RETURN(context.texts, FindTexts(context.spec, context.root));
  std::vector<std::string> paths;
  for (const LanguagePairTexts& pair : context.texts) {
    for (const auto* split : {&pair.train, &pair.dev, &pair.test}) {
      for (const ParallelFiles& text : *split) {
        for (const std::string& path :
             {text.first_file, text.second_file, text.tsv_file, text.score_file}) {
          if (!path.empty()) paths.push_back(path);
        }
      }
    }
  }
  for (const LanguageTable& table : context.spec.table()) {
    paths.push_back(Rooted(context.root, table.file()));
  }
  const std::string& model = context.spec.tokenizer().model_file();
  if (!model.empty()) paths.push_back(Rooted(context.root, model));
  for (const std::string& path : paths) {
    const std::string name = fs::path(path).lexically_proximate(context.root).string();
    ASSIGN_OR_RETURN(context.inputs[path], StatInput(name, path));
  }
  const std::string rules = NormalizationFile(context);
  if (rules.empty()) return absl::OkStatus();
  const absl::StatusOr<InputFile> input =
      StatInput(context.spec.tokenizer().normalization(), rules);
  if (input.ok()) context.inputs[rules] = *input;
  return WithPrefix("prepare.tokenizer.normalization: neither nmt_nfkc, nfkc, identity nor a file",
                    input.status());
}

absl::Status Join(PrepareContext& context) {
  if (context.world.size() > 1) {
    RETURN_IF_ERROR(CheckSameFolder(context.world, *context.files, context.temporary));
  }
  RETURN_IF_ERROR(context.files->MakeFolder(context.OwnFolder()));
  ASSIGN_OR_RETURN(const JobHosts hosts, GatherHosts(context.world));
  context.host_cores = hosts.CoresHere();
  if (context.world.size() > 1) {
    context.num_threads = std::min(context.num_threads, hosts.Threads());
  }
  return absl::OkStatus();
}

absl::Status ReadTables(PrepareContext& context) {
  for (int i = 0; i < context.spec.table_size(); ++i) {
    if (!context.IsMine(static_cast<size_t>(i))) continue;
    RETURN_IF_ERROR(SplitTable(context.spec, i, context.root, context.Scratch(),
                               [&](const LineReader& file) { context.NoteInput(file); }));
  }
  RETURN_IF_ERROR(context.world.Barrier());
  RETURN_IF_ERROR(AddTables(context.spec, context.root, context.Scratch(), &context.texts));
  context.languages = LanguagesOf(context.texts);
  for (const LanguagePairTexts& texts : context.texts) {
    if (!texts.train.empty()) context.trained.push_back(&texts);
  }
  return absl::OkStatus();
}

// Copies a text, file by file, and counts its lines. Fails naming file and line at bad UTF-8 or a
// malformed row; pairs with an empty side or a tag in the text are dropped.
absl::StatusOr<PreparedPart> CopyText(PrepareContext& context, const std::string& split,
                                      const LanguagePairTexts& texts) {
  const auto create = [&](const std::string& language) {
    return FileWriter::Create(context.temporary,
                              TextFileName(split, texts.first, texts.second, language));
  };
  ASSIGN_OR_RETURN(const auto first, create(texts.first));
  ASSIGN_OR_RETURN(const auto second, create(texts.second));
  DropCounts counts;
  const auto copy = [&](DropReason reason, const RawPair& pair, const PairReader& reader) {
    if (reason == DropReason::kBadUtf8 || reason == DropReason::kMalformed) {
      return InvalidArgument(reader.Location(pair.line), ": ", std::string(Name(reason)), " in ",
                             split, " text");
    }
    counts.Add(reason, reader, pair.line);
    if (reason != DropReason::kNone) return absl::OkStatus();
    for (const auto& [file, side] : {std::pair(&first, pair.first), {&second, pair.second}}) {
      (*file)->Append(side);
      (*file)->Append("\n");
    }
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(context.JudgeTexts(texts, split, copy));
  PreparedPart part;
  ASSIGN_OR_RETURN(*part.add_files(), first->Finish());
  ASSIGN_OR_RETURN(*part.add_files(), second->Finish());
  *part.mutable_counts() = MakePairReport(texts, split, counts);
  return part;
}

// Calls `visit` with the lines of a copy of one side.
absl::Status ForEachLine(const std::string& folder, const std::string& name,
                         absl::FunctionRef<void(std::string_view)> visit) {
  ASSIGN_OR_RETURN(auto reader, LineReader::Open(JoinPath(folder, name)));
  return reader->ForEach(visit);
}

// Returns the texts of dev and test, with their split.
std::vector<std::pair<std::string, const LanguagePairTexts*>> HeldOutTexts(
    const PrepareContext& context) {
  std::vector<std::pair<std::string, const LanguagePairTexts*>> held_out;
  for (const std::string split : {"dev", "test"}) {
    for (const LanguagePairTexts& texts : context.texts) {
      if (!texts.Of(split).empty()) held_out.emplace_back(split, &texts);
    }
  }
  return held_out;
}

// Copies dev and test into the temporary folder and fills context.held_out. Returns what this rank
// has copied. Collective.
absl::StatusOr<CorpusParts> CopyHeldOut(PrepareContext& context) {
  const auto held_out = HeldOutTexts(context);
  CorpusParts mine;
  for (size_t i = 0; i < held_out.size(); ++i) {
    if (!context.IsMine(i)) continue;
    const auto& [split, texts] = held_out[i];
    ASSIGN_OR_RETURN(*mine.add_parts(), CopyText(context, split, *texts));
  }
  RETURN_IF_ERROR(context.world.Barrier());
  for (const auto& [split, texts] : held_out) {
    for (const std::string& language : {texts->first, texts->second}) {
      RETURN_IF_ERROR(
          ForEachLine(context.temporary, TextFileName(split, texts->first, texts->second, language),
                      [&](std::string_view line) { context.held_out.Add(language, line); }));
    }
  }
  context.held_out.Seal();
  return mine;
}

// Counts the pieces that this rank's copies are cut into. Returns the copies of all ranks, in the
// order of HeldOutTexts. Collective.
absl::StatusOr<std::vector<PreparedPart>> CountHeldOut(PrepareContext& context,
                                                       const Vocabulary& vocabulary,
                                                       CorpusParts mine) {
  for (PreparedPart& part : *mine.mutable_parts()) {
    std::array<int64_t, 2> sums = {};
    int32_t longest = 0;
    for (const int side : {0, 1}) {
      const auto count = [&](std::string_view line) {
        const auto pieces = static_cast<int32_t>(vocabulary.Encode(line).size());
        sums[static_cast<size_t>(side)] += pieces;
        longest = std::max(longest, pieces);
      };
      RETURN_IF_ERROR(ForEachLine(context.temporary, part.files(side).name(), count));
    }
    SetLengths(sums[0], sums[1], longest, part.mutable_counts());
  }
  return context.AllGatherParts(mine, context.OwnersInTurn(HeldOutTexts(context).size()));
}

// Says how large the corpus is going to be.
void SaySize(const PrepareContext& context) {
  int language_pairs = 0, directions = 0;
  double pairs = 0.0;
  std::set<std::string> languages;
  for (const LanguagePairTexts& texts : context.texts) {
    if (texts.train.empty()) continue;
    ++language_pairs;
    for (const ParallelFiles& text : texts.train) pairs += EstimatePairs(text);
    directions += texts.tag.empty() ? 2 : 1;
    languages.insert({texts.first, texts.second});
  }
  context.Say(absl::StrFormat(
      "planned: %d languages, %d language pairs and as many shards, %d directions, about %.4g "
      "pairs (memory: docs/benchmarks/prepare_2026-11-24.md)",
      languages.size(), language_pairs, directions, pairs));
}

// Says what is ahead: for these ranks, or, `dry`, also for others with a thread each.
void SayPlan(const PrepareContext& context, bool dry) {
  if (context.IsFirst()) SaySize(context);
  if (dry && context.spec.table_size() > 0) {
    context.Say("prepare.table: not counted, here and below: a dry run does not read tables");
  }
  const std::vector<int64_t> bytes = TrainingBytes(context.texts);
  const int ranks = context.world.size(), threads = context.num_threads;
  const PreparePlan plan = PlanPreparation(bytes, ranks, threads);
  context.Say(absl::StrFormat(
      "planned: %.3g GB of training text of %d language pairs; shards of about %.3g GB in about "
      "%s on %d x %d threads%s",
      plan.text_bytes / 1e9, bytes.size(), plan.shard_bytes / 1e9, ClockText(plan.Seconds()), ranks,
      threads, LearnsTokenizer(context) ? ", and a tokenizer" : ""));
  for (const int other : {1, 16, 64}) {
    if (!dry) break;
    const PreparePlan it = PlanPreparation(bytes, other, 1);
    context.Say(absl::StrFormat("on %d %s of a thread: %s (first reading %s, second %s, shards %s)",
                                other, other == 1 ? "rank" : "ranks", ClockText(it.Seconds()),
                                ClockText(it.scan_seconds), ClockText(it.encode_seconds),
                                ClockText(it.assemble_seconds)));
  }
}

// Gathers the hashes of inputs and the memory of all ranks.
absl::Status GatherInputs(PrepareContext& context, CorpusManifest* manifest) {
  CorpusManifest mine;
  for (const auto& [path, input] : context.inputs) *mine.add_inputs() = input;
  mine.mutable_report()->set_peak_resident_bytes(PeakResidentBytes());
  ASSIGN_OR_RETURN(const std::vector<CorpusManifest> all, AllGatherMessages(context.world, mine));
  *manifest->mutable_inputs() = mine.inputs();
  int64_t peak_bytes = 0;
  for (const CorpusManifest& other : all) {
    peak_bytes = std::max(peak_bytes, other.report().peak_resident_bytes());
    for (int i = 0; i < other.inputs_size(); ++i) {
      if (other.inputs(i).hash() != 0) {
        manifest->mutable_inputs(i)->set_hash(other.inputs(i).hash());
      }
    }
  }
  manifest->mutable_report()->set_peak_resident_bytes(peak_bytes);
  return absl::OkStatus();
}

// Writes what stands beside the texts, the manifest last.
absl::Status WriteManifest(const PrepareContext& context, const std::string& parts,
                           CorpusManifest* manifest) {
  manifest->set_format_version(kCorpusFormatVersion);
  *manifest->mutable_spec() = CanonicalSpec(context.spec);
  for (const std::string& language : context.languages) manifest->add_languages(language);
  CorpusReport& report = *manifest->mutable_report();
  report.set_folder(context.output);
  report.set_content_hash(ContentHash(*manifest));
  report.set_seconds(context.Seconds());
  const std::string& folder = context.temporary;
  ASSIGN_OR_RETURN(*manifest->add_notes(),
                   FileWriter::Write(folder, kReportFile, ReportJson(report)));
  ASSIGN_OR_RETURN(*manifest->add_notes(), FileWriter::Write(folder, kPartsFile, parts));
  return FileWriter::Write(folder, kCorpusManifest, ManifestText(*manifest)).status();
}

// Adds the files of the corpus and the counts of its texts to the manifest: its shards, and the
// copies of dev and test. Collective.
absl::Status Assemble(PrepareContext& context, std::span<const PreparedPart> shards,
                      std::span<const PreparedPart> copies, const std::string& tokenizer,
                      CorpusManifest* manifest) {
  CorpusReport& report = *manifest->mutable_report();
  for (const PreparedPart& part : copies) {
    for (const CorpusFile& file : part.files()) *manifest->add_files() = file;
  }
  if (context.IsFirst()) {
    ASSIGN_OR_RETURN(*manifest->add_files(),
                     FileWriter::Write(context.temporary, kTokenizerFile, tokenizer));
  }
  for (const PreparedPart& part : shards) {
    *manifest->add_files() = part.files(0);
    *report.add_pairs() = part.counts();
    report.set_lines(report.lines() + part.counts().lines());
    report.set_kept(report.kept() + part.counts().kept());
  }
  for (const PreparedPart& part : copies) {
    if (context.IsFirst()) context.Warn(DropWarning(part.counts()));
    *report.add_pairs() = part.counts();
  }
  return GatherInputs(context, manifest);
}

// Makes the corpus in the place that `folder` of rank 0 has claimed.
absl::StatusOr<CorpusReport> MakeCorpus(PrepareContext& context, CorpusFolder& folder) {
  CorpusManifest manifest;
  CorpusReport& report = *manifest.mutable_report();
  RETURN_IF_ERROR(Join(context));
  RETURN_IF_ERROR(ReadTables(context));
  ASSIGN_OR_RETURN(const CorpusParts copied, CopyHeldOut(context));
  SayPlan(context, /*dry=*/false);
  RETURN_IF_ERROR(ScanTexts(context));
  const double scanned = context.Seconds();
  ASSIGN_OR_RETURN(const std::string tokenizer, MakeTokenizer(context));
  const auto vocabulary = Vocabulary::FromBytes(tokenizer, context.languages);
  RETURN_IF_ERROR(context.Agree(WithPrefix("prepare.tokenizer.model_file", vocabulary.status())));
  context.Say(absl::StrCat("vocabulary of ", vocabulary->size(), ", ", context.languages.size(),
                           " language tags in it"));
  report.set_vocabulary_size(vocabulary->size());
  report.set_tokenizer_hash(vocabulary->hash());
  report.set_tokenizer_seconds(context.Seconds() - scanned);
  ASSIGN_OR_RETURN(const EncodedCorpus encoded, EncodeCorpus(context, tokenizer, *vocabulary));
  ASSIGN_OR_RETURN(const std::vector<PreparedPart> copies,
                   CountHeldOut(context, *vocabulary, copied));
  RETURN_IF_ERROR(Assemble(context, encoded.shards, copies, tokenizer, &manifest));
  absl::Status published;
  if (context.IsFirst()) {
    published = WriteManifest(context, encoded.parts, &manifest);
    if (published.ok()) published = folder.Publish();
  }
  RETURN_IF_ERROR(context.Agree(published));
  return context.IsFirst() ? report : CorpusReport();
}

absl::StatusOr<CorpusReport> RunStages(PrepareContext& context) {
  RETURN_IF_ERROR(context.Agree(FindInputs(context)));
  std::string list;
  for (const auto& [path, input] : context.inputs) {
    absl::StrAppend(&list, input.name(), " of ", input.bytes(), " bytes\n");
  }
  const Fact facts[] = {{"output folder", context.output}, {"list of input files", list}};
  RETURN_IF_ERROR(CheckSameEverywhere(context.world, facts));
  if (context.options.dry_run) {
    SayPlan(context, /*dry=*/true);
    return CorpusReport();
  }
  CorpusFolder folder(context);
  absl::StatusOr<std::optional<CorpusReport>> existing{std::optional<CorpusReport>()};
  if (context.IsFirst()) existing = folder.Claim();
  RETURN_IF_ERROR(context.Agree(existing.status()));
  std::random_device random;
  const std::string token =
      existing->has_value() ? "" : absl::StrFormat("%08x%08x", random(), random());
  ASSIGN_OR_RETURN(context.token, BroadcastText(context.world, token, 0));
  if (context.token.empty()) return existing->value_or(CorpusReport());
  return MakeCorpus(context, folder);
}

}  // namespace

absl::StatusOr<CorpusReport> Prepare(const PrepareSpec& spec, const std::string& folder,
                                     const std::string& root, const ProgressFn& progress,
                                     const PrepareOptions& options) {
  DEEPNET_CHECK(!folder.empty()) << "data.folder";
  std::error_code error;
  const std::string path = fs::absolute(Rooted(root, folder), error).lexically_normal().string();
  ASSIGN_OR_RETURN(const std::string output,
                   WithExitCode(WithPrefix("data.folder", FollowOwnLinks(path)), ExitCode::kData));
  PrepareContext context{spec, output, root, progress, options};
  return WithExitCode(RunStages(context), ExitCode::kData);
}

}  // namespace deepnet
