#include "launch/commands/train_text.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <string_view>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "launch/validate.h"
#include "parallel/base/check.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/file_system.h"
#include "parallel/base/messages.h"
#include "parallel/base/status_macros.h"
#include "parallel/comm/agreement.h"
#include "trainer/data/corpus_shard.h"
#include "trainer/data/prepare/file_writer.h"
#include "trainer/data/prepare/parallel_text.h"
#include "trainer/data/prepare/prepare.h"

namespace deepnet {
namespace {

namespace fs = std::filesystem;

// The model and the batch of launch/recipes/quickstart.textproto, with dropout, since a small text
// is read many times, and a schedule that may end anywhere.
constexpr char kTry[] = R"(
  seed: 1
  model {
    encoder_layers: 12 decoder_layers: 12 d_model: 128 ffn_dim: 512 num_heads: 4
    residual: DEEPNORM dropout: 0.1
  }
  data {
    folder: "corpus" max_sentence_tokens: 120 global_microbatches: 2
    microbatch { max_target_tokens: 300 max_sentences: 60 }
  }
  optim { learning_rate: 1.5e-3 warmup_steps: 600 virtual_replicas: 2 }
  train { steps: 10000 validate_every_steps: 2000 validate_sentences: 100 log_every_steps: 20 }
  decode { max_tokens: 110 }
  prepare {
    cleaning { max_sentence_tokens: 120 }
    tokenizer { character_coverage: 0.9995 }
  })";

constexpr int64_t kBytesPerPiece = 1000;  // of text, for each piece of the vocabulary
constexpr int64_t kMinPieces = 2000, kMaxPieces = 8000;
constexpr int64_t kDevEvery = 20, kMaxDevLines = 1000;
constexpr char kSources[] = ".deepnet-sources";  // in text/: what was cut, and that it was cut here
constexpr int64_t kMaxSourcesBytes = 1024;

struct Side {
  std::string file;      // as typed
  std::string language;  // its tag
};

// SOURCE and TARGET.
using Sides = std::array<Side, 2>;

bool IsCompressed(const fs::path& file) {
  return file.extension() == ".gz" || file.extension() == ".zst";
}

// Returns the ending of a file's name, that of its compression apart: "de" of "train.de.gz".
std::string EndingOf(fs::path file) {
  if (IsCompressed(file)) file.replace_extension();
  const std::string ending = file.extension().string();
  return ending.empty() ? "" : ending.substr(1);
}

absl::StatusOr<Sides> SidesOf(const CommandLine& line) {
  const ParsedFlags& flags = line.flags;
  if (flags.positional().empty()) return ConfigError("--text: two files are needed: SOURCE TARGET");
  if (flags.Switch("require-empty")) return ConfigError("--require-empty: not with --text");
  Sides sides = {Side{flags.Text("text"), flags.Text("from")},
                 Side{flags.positional()[0], flags.Text("to")}};
  for (Side& side : sides) {
    if (side.language.empty()) side.language = EndingOf(side.file);
  }
  if (sides[0].language.empty() || sides[1].language.empty() ||
      sides[0].language == sides[1].language) {
    return ConfigError(
        "--text: ", sides[0].file, " and ", sides[1].file,
        " do not end in two languages, as a.en and a.de do: say them by --from and --to");
  }
  return sides;
}

// Returns the pieces of a vocabulary for the two files.
absl::StatusOr<int32_t> PiecesFor(const CommandLine& line, const Sides& sides) {
  double bytes = 0.0;
  for (const Side& side : sides) {
    const auto file = StatInput(side.file, ResolvePath(line, side.file));
    if (!file.ok()) return WithExitCode(WithPrefix("--text", file.status()), ExitCode::kData);
    bytes += static_cast<double>(file->bytes()) * (IsCompressed(side.file) ? 3 : 1);
  }
  return static_cast<int32_t>(std::clamp<double>(bytes / kBytesPerPiece, kMinPieces, kMaxPieces));
}

absl::StatusOr<RunSpec> LoadTextRun(const CommandLine& line) {
  ASSIGN_OR_RETURN(const Sides sides, SidesOf(line));
  const std::string direction = absl::StrCat(sides[0].language, "-", sides[1].language);
  RunSpec base;
  DEEPNET_CHECK(ParseTextProto(kTry, &base));
  base.set_folder("runs/" + direction);
  ASSIGN_OR_RETURN(const int32_t pieces, PiecesFor(line, sides));
  base.mutable_prepare()->mutable_tokenizer()->set_vocab_size(pieces);
  ASSIGN_OR_RETURN(RunSpec run, LoadConfig(line, std::move(base)));
  // The two files are read, and the corpus goes into the run, whatever a --config says.
  run.mutable_data()->set_folder(run.folder() + "/corpus");
  if (run.data().directions().empty()) run.mutable_data()->add_directions(direction);
  PrepareSpec& prepare = *run.mutable_prepare();
  prepare.clear_opus100_folder();
  prepare.clear_languages();
  prepare.clear_table();
  prepare.clear_text();
  for (const char* split : {"train", "dev"}) {
    TextFiles& text = *prepare.add_text();
    const std::string stem = absl::StrCat(run.folder(), "/text/", split, ".");
    text.set_source_language(sides[0].language);
    text.set_target_language(sides[1].language);
    text.set_source_file(stem + sides[0].language);
    text.set_target_file(stem + sides[1].language);
    text.set_split(split);
  }
  RETURN_IF_ERROR(ValidateForPrepare(run));
  return run;
}

absl::StatusOr<int64_t> CountPairs(const ParallelFiles& sources) {
  ASSIGN_OR_RETURN(const auto reader, PairReader::Open(sources));
  RawPair pair;
  for (int64_t pairs = 0;; ++pairs) {
    ASSIGN_OR_RETURN(const bool more, reader->Next(&pair));
    if (!more) return pairs;
  }
}

// Writes `names` into `folder`: source and target of train, then those of dev.
absl::Status CutPairs(const ParallelFiles& sources, int64_t dev_every, const fs::path& folder,
                      const std::vector<std::string>& names) {
  ASSIGN_OR_RETURN(const auto reader, PairReader::Open(sources));
  std::vector<std::unique_ptr<FileWriter>> files;
  for (const std::string& name : names) {
    ASSIGN_OR_RETURN(files.emplace_back(), FileWriter::Create(folder, name));
  }
  RawPair pair;
  for (int64_t i = 0;; ++i) {
    ASSIGN_OR_RETURN(const bool more, reader->Next(&pair));
    if (!more) break;
    const size_t first = i % dev_every == dev_every / 2 ? 2 : 0;
    files[first]->Append(pair.first);
    files[first]->Append("\n");
    files[first + 1]->Append(pair.second);
    files[first + 1]->Append("\n");
  }
  for (const auto& file : files) RETURN_IF_ERROR(file->Finish().status());
  return absl::OkStatus();
}

// Returns what the files say: a line each with their hash.
absl::StatusOr<std::string> ContentsOf(const std::vector<std::string>& files) {
  std::string contents;
  for (const std::string& file : files) {
    ASSIGN_OR_RETURN(const uint64_t hash, HashFile(file));
    absl::StrAppend(&contents, absl::Hex(hash, absl::kZeroPad16), "\n");
  }
  return contents;
}

// Fails unless `folder` is free, or was made by CutText and holds none of the sources.
absl::Status CheckTextFolder(const ParallelFiles& sources, const fs::path& folder) {
  const auto refuse = [&](const std::string& why) {
    return WithExitCode(FailedPrecondition("--text: ", folder.string(), why,
                                           "; name another run folder by --set folder=..."),
                        ExitCode::kBadConfig);
  };
  for (const std::string& source : {sources.first_file, sources.second_file}) {
    if (LiesIn(source, folder))
      return refuse(absl::StrCat(" would be replaced and holds ", source));
  }
  const auto files = MakePosixFileSystem();
  ASSIGN_OR_RETURN(const FileType type, files->TypeOf(folder));
  if (type == FileType::kNone) return absl::OkStatus();
  ASSIGN_OR_RETURN(const bool ours, Exists(*files, folder / kSources));
  if (type == FileType::kFolder && ours) return absl::OkStatus();
  return refuse(" is there and was not made by --text");
}

// Writes the files that `run.prepare` names, unless they are there; they appear together.
absl::Status CutText(const CommandLine& line, const RunSpec& run) {
  const ParallelFiles sources = {.first_file = ResolvePath(line, line.flags.Text("text")),
                                 .second_file = ResolvePath(line, line.flags.positional()[0])};
  const TextFiles& train = run.prepare().text(0);
  const TextFiles& dev = run.prepare().text(1);
  const fs::path folder = fs::path(ResolvePath(line, train.source_file())).parent_path();
  RETURN_IF_ERROR(CheckTextFolder(sources, folder));
  std::vector<std::string> names, paths;
  for (const TextFiles* text : {&train, &dev}) {
    for (const std::string& file : {text->source_file(), text->target_file()}) {
      names.push_back(fs::path(file).filename());
      paths.push_back(folder / names.back());
    }
  }
  ASSIGN_OR_RETURN(const std::string contents,
                   ContentsOf({sources.first_file, sources.second_file}));
  const auto files = MakePosixFileSystem();
  const std::string noted = ReadWholeFile(*files, folder / kSources, kMaxSourcesBytes).value_or("");
  const auto there = ContentsOf(paths);
  if (there.ok() && noted == contents + *there) return absl::OkStatus();
  std::error_code error;
  if (noted.size() > contents.size() && absl::StartsWith(noted, contents) && there.ok() &&
      !run.prepare().replace()) {
    return DataError(
        "--text: ", folder.string(),
        ": a file was changed since it was cut: remove the folder, or --set prepare.replace=true");
  }
  if (!absl::StartsWith(noted, contents) &&
      fs::exists(ResolvePath(line, run.data().folder()), error) && !run.prepare().replace()) {
    return DataError("--text: ", run.folder(),
                     " is the run of another text: name another by --set folder=...");
  }
  ASSIGN_OR_RETURN(const int64_t pairs, CountPairs(sources));
  if (pairs <= kDevEvery / 2) {
    return DataError("--text: ", line.flags.Text("text"), ": ", pairs,
                     " lines, too few to hold any out as dev: at least ", kDevEvery / 2 + 1,
                     " are needed");
  }
  const int64_t dev_every = std::max(kDevEvery, (pairs + kMaxDevLines - 1) / kMaxDevLines);
  const std::string unfinished = folder.string() + kUnfinishedEnd;
  RETURN_IF_ERROR(DeleteIfThere(*files, unfinished));
  RETURN_IF_ERROR(files->MakeFolder(unfinished));
  RETURN_IF_ERROR(CutPairs(sources, dev_every, unfinished, names));
  for (size_t i = 0; i < names.size(); ++i) paths[i] = JoinPath(unfinished, names[i]);
  ASSIGN_OR_RETURN(const std::string cut, ContentsOf(paths));
  ASSIGN_OR_RETURN(const auto note, FileWriter::Create(unfinished, kSources));
  note->Append(contents + cut);
  RETURN_IF_ERROR(note->Finish().status());
  RETURN_IF_ERROR(DeleteIfThere(*files, folder));
  return files->Rename(unfinished, folder);
}

}  // namespace

std::vector<Flag> TextFlags() {
  return {TextFlag("text", "SOURCE TARGET",
                   "Train on two files, line by line translations, without --config and `prepare`: "
                   "of them the run's folder (runs/en-de of a.en and a.de) gets a corpus with a "
                   "small vocabulary, every 20th pair, at most 1,000, held out as dev. The model "
                   "is small (--dump-config prints it); --config and --set change it."),
          TextFlag("from", "LANGUAGE",
                   "With --text: language of SOURCE; default: the ending of its name."),
          TextFlag("to", "LANGUAGE",
                   "With --text: language of TARGET; default: the ending of its name.")};
}

absl::StatusOr<RunSpec> LoadTrainConfig(const CommandLine& line) {
  if (line.flags.Given("text")) return LoadTextRun(line);
  for (const char* name : {"from", "to"}) {
    if (line.flags.Given(name)) return ConfigError("--", name, ": only with --text");
  }
  if (!line.flags.positional().empty()) {
    return ConfigError(line.flags.positional()[0], ": a word only follows --text SOURCE");
  }
  if (!line.flags.Given("config")) {
    return ConfigError(
        "--config: required, or --text SOURCE TARGET; complete ones are in launch/recipes");
  }
  return LoadConfig(line);
}

absl::Status PrepareText(const CommandLine& line, const RunSpec& run, Communicator& world,
                         Logger& log) {
  RETURN_IF_ERROR(AgreeOnStatus(world, world.rank() == 0
                                           ? WithExitCode(CutText(line, run), ExitCode::kData)
                                           : absl::OkStatus()));
  const auto progress = [&log](std::string_view text) { log.Info(std::string(text)); };
  ASSIGN_OR_RETURN(
      const CorpusReport report,
      Prepare(run.prepare(), run.data().folder(), RootFolder(line), progress, {.world = &world}));
  if (world.rank() != 0) return absl::OkStatus();
  log.Info(absl::StrCat(report.reused() ? "already prepared: " : "prepared: ", report.kept(),
                        " training pairs in ", report.folder()));
  return absl::OkStatus();
}

}  // namespace deepnet
