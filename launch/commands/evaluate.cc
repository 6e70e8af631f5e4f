#include <limits>
#include <memory>

#include "launch/commands/commands.h"
#include "launch/commands/decoding.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/logging.h"
#include "parallel/base/status_macros.h"
#include "trainer/data/corpus.h"
#include "trainer/eval/evaluator.h"
#include "trainer/eval/score_table.h"
#include "trainer/metrics.h"
#include "trainer/model/architecture.h"
#include "trainer/model_loader.h"

namespace deepnet {
namespace {

// An imported checkpoint was trained on a corpus that nobody here knows.
absl::StatusOr<std::string> CorpusFolder(const CommandLine& line, const RunSpec& run) {
  const std::string& given = line.flags.Text("data");
  const std::string& folder = given.empty() ? run.data().folder() : given;
  if (!folder.empty()) return ResolvePath(line, folder);
  return BadFlag("--data: required; the checkpoint names no corpus");
}

absl::Status RunEvaluate(const CommandLine& line) {
  if (line.flags.Text("checkpoint").empty()) return BadFlag("--checkpoint: required");
  const int64_t sentences = line.flags.Integer("sentences");
  if (sentences < 0 || sentences > std::numeric_limits<int>::max()) {
    return BadFlag(absl::StrCat("--sentences: ", sentences, ": must be at least 1, or 0: all"));
  }
  RETURN_IF_ERROR(CheckSearchFlags(line.flags));
  ASSIGN_OR_RETURN(const ComputeSpec compute, ComputeOverrides(line));
  ASSIGN_OR_RETURN(const std::unique_ptr<LoadedModel> model,
                   LoadModel(ResolvePath(line, line.flags.Text("checkpoint")), compute));
  ASSIGN_OR_RETURN(const RunSpec run, DecodingRunSpec(line, model->run));
  ASSIGN_OR_RETURN(const std::string data, CorpusFolder(line, run));
  for (const char* flag : {"spm", "output", "any-to-any"}) {  // for translations
    if (line.flags.Given(flag)) {
      RETURN_IF_ERROR(CheckTranslates(run.model(), absl::StrCat("evaluate --", flag)));
    }
  }
  auto corpus = Corpus::Open(data);
  if (!corpus.ok()) return WithExitCode(corpus.status(), ExitCode::kData);

  const auto path = [&](const char* flag) {
    const std::string& given = line.flags.Text(flag);
    return given.empty() ? given : ResolvePath(line, given);
  };
  const EvaluateOptions options{.split = line.flags.Text("split"),
                                .directions = line.flags.List("direction"),
                                .any_to_any = line.flags.Switch("any-to-any"),
                                .sentences = static_cast<int>(sentences),
                                .max_positions = run.model().max_positions(),
                                .spm_file = path("spm"),
                                .output_folder = path("output"),
                                .translates = IsEncoderDecoder(run.model()),
                                .tags = run.data().tags(),
                                .architecture = run.model().architecture(),
                                .mlm_probability = run.data().mlm_probability(),
                                .decode = run.decode()};
  LoggerOptions log_options = StderrOptions();
  log_options.stream = &line.err;
  log_options.plain_seconds = 5;
  Logger log(log_options);
  ASSIGN_OR_RETURN(
      EvalRecord record,
      Evaluate(*model->scorer, *model->pair_scorer, *corpus, *model->vocabulary, options,
               [&log](const std::string& direction, double fraction) {
                 log.Show({.label = "evaluate", .fraction = fraction, .figures = direction});
               }));
  log.EndProgress();
  record.set_kind("evaluate");
  record.set_step(model->step);
  record.set_checkpoint(model->folder);
  line.out << (line.flags.Switch("json") ? ToJson(record) + "\n" : ScoreTable(record));
  return absl::OkStatus();
}

std::vector<Flag> EvaluateFlags() {
  std::vector<Flag> flags = {
      TextFlag("checkpoint", "PATH",
               "Run folder, checkpoint folder or pointer file such as runs/a/best-bleu; required."),
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
          "Of a language model: nats a token and perplexity, of a masked one over hidden tokens.",
      .spec = SpecUse::kOptional,
      .flags = EvaluateFlags(),
      .run = RunEvaluate};
}

}  // namespace deepnet
