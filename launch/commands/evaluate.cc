#include <limits>

#include "launch/commands/command.h"
#include "launch/commands/decoding.h"
#include "launch/commands/load_model.h"
#include "launch/job.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/logging.h"
#include "parallel/base/status_macros.h"
#include "parallel/comm/agreement.h"
#include "trainer/data/corpus.h"
#include "trainer/eval/evaluator.h"
#include "trainer/eval/score_table.h"
#include "trainer/eval/tokenizers.h"
#include "trainer/model/architecture.h"
#include "trainer/telemetry/metrics.h"

namespace deepnet {
namespace {

absl::Status CheckFlags(const ParsedFlags& flags) {
  const int64_t sentences = flags.Integer("sentences");
  if (sentences < 0 || sentences > std::numeric_limits<int>::max()) {
    return ConfigError("--sentences: ", sentences, ": must be at least 1, or 0: all");
  }
  return CheckSearchFlags(flags);
}

absl::StatusOr<Corpus> OpenCorpus(const CommandLine& line, const RunSpec& run) {
  const std::string& given = line.flags.Text("data");
  const std::string& folder = given.empty() ? run.data().folder() : given;
  // An imported checkpoint was trained on a corpus that nobody here knows.
  if (folder.empty()) return ConfigError("--data: required; the checkpoint names no corpus");
  return WithExitCode(Corpus::Open(ResolvePath(line, folder)), ExitCode::kData);
}

EvaluateOptions OptionsOf(const CommandLine& line, const RunSpec& run, const BatchLimits& limits,
                          Communicator& world) {
  const auto path = [&](const char* flag) {
    const std::string& given = line.flags.Text(flag);
    return given.empty() ? given : ResolvePath(line, given);
  };
  const auto gather =
      [&world](
          const absl::StatusOr<std::string>& mine) -> absl::StatusOr<std::vector<std::string>> {
    RETURN_IF_ERROR(AgreeOnStatus(world, mine.status()));
    return AllGatherText(world, *mine);
  };
  return {.split = line.flags.Text("split"),
          .directions = line.flags.List("direction"),
          .any_to_any = line.flags.Switch("any-to-any"),
          .sentences = static_cast<int>(line.flags.Integer("sentences")),
          .max_positions = run.model().max_positions(),
          .spm_file = path("spm"),
          .output_folder = path("output"),
          .translates = IsEncoderDecoder(run.model()),
          .run = run,
          .limits = limits,
          .share = {.part = world.rank(), .num_parts = world.size(), .gather = gather}};
}

absl::Status EvaluateOnAllRanks(const CommandLine& line, Communicator& world) {
  RETURN_IF_ERROR(AgreeOnStatus(world, CheckFlags(line.flags)));
  const auto check = [&line](const RunSpec& run) -> absl::Status {
    for (const char* flag : {"spm", "output", "any-to-any"}) {  // for translations
      if (!line.flags.Given(flag)) continue;
      RETURN_IF_ERROR(CheckTranslates(run.model(), absl::StrCat("evaluate --", flag)));
    }
    return absl::OkStatus();
  };
  ASSIGN_OR_RETURN(const DecodingModel model, LoadDecodingModel(line, world, check));
  const LoadedModel& loaded = *model.loaded;
  ASSIGN_OR_RETURN(const Corpus corpus, AgreeOn(world, OpenCorpus(line, model.run)));
  const Fact facts[] = {{"the corpus", corpus.content_hash()}};
  RETURN_IF_ERROR(CheckSameEverywhere(world, facts));
  if (line.flags.Given("spm")) {
    const auto pieces = MakeSentencePieceTokenizer(ResolvePath(line, line.flags.Text("spm")));
    RETURN_IF_ERROR(AgreeOnStatus(world, WithPrefix("--spm", pieces.status())));
  }

  ASSIGN_OR_RETURN(const BatchLimits limits, AgreeOnLimits(model, world));
  LoggerOptions log_options = StderrOptions();
  log_options.stream = &line.err;
  log_options.warnings_only = world.rank() != 0;
  log_options.plain_seconds = 5;
  Logger log(log_options);
  EvaluateOptions options = OptionsOf(line, model.run, limits, world);
  options.progress = [&log](const std::string& direction, double fraction) {
    log.Show({.label = "evaluate", .fraction = fraction, .figures = direction});
  };
  absl::StatusOr<EvalRecord> record =
      Evaluate(*loaded.scorer, *loaded.pair_scorer, corpus, *loaded.vocabulary, options);
  // An error of one rank alone meets the others in the gathering of the next scores.
  RETURN_IF_ERROR(IsAgreed(record.status()) ? record.status()
                                            : AgreeOnStatus(world, record.status()));
  log.EndProgress();
  if (world.rank() != 0) return absl::OkStatus();
  if (const std::string text = TooLongText(*record); !text.empty()) log.Warning(text);
  record->set_kind("evaluate");
  record->set_step(loaded.step);
  record->set_checkpoint(loaded.folder);
  line.out << (line.flags.Switch("json") ? ToJson(*record) + "\n" : ScoreTable(*record));
  return absl::OkStatus();
}

std::vector<Flag> EvaluateFlags() {
  std::vector<Flag> flags = {
      CheckpointFlag(),
      TextFlag("data", "DIR", "Prepared corpus; default: the one the model was trained on."),
      ChoiceFlag("split", "SPLIT", {"dev", "test"}, "Sentences that are scored.", "test"),
      ListFlag("direction", "XX-YY", "Only this direction; default: every one that has sentences."),
      SwitchFlag(
          "any-to-any",
          "Score every pair of languages, joined over English where they have no text together."),
      IntegerFlag("sentences", "Sentences of each direction, the first ones; 0: all.", "0"),
      TextFlag("spm", "FILE", "SentencePiece model; adds spBLEU."),
      TextFlag("output", "DIR", "Write <direction>.hyp and .ref there."),
      JsonFlag()};
  for (Flag& flag : SearchFlags()) flags.push_back(std::move(flag));
  return flags;
}

}  // namespace

Command MakeEvaluateCommand() {
  return {
      .name = "evaluate",
      .summary = "Print BLEU, chrF and log-likelihood on a corpus's dev or test set.",
      .description =
          "Translates with the same search as `translate` and scores as sacreBLEU 2 does: 13a "
          "tokens, zh for Chinese, characters for Japanese, Korean, Thai, Khmer, Lao and Burmese. "
          "Of a language model: nats a token and perplexity, of a masked one over hidden tokens.\n"
          "`mpirun -n R deepnet evaluate ...` shares the sentences between R ranks, each with the "
          "whole model: the scores are the same.",
      .spec = SpecUse::kOptional,
      .flags = EvaluateFlags(),
      .run = [](const CommandLine& line) { return RunOnRanks(line, EvaluateOnAllRanks); }};
}

}  // namespace deepnet
