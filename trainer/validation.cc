#include "trainer/validation.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_format.h"

#include "parallel/base/status_macros.h"
#include "trainer/eval/evaluator.h"

namespace deepnet {
namespace {

EvaluateOptions OptionsOf(const RunSpec& run, const Corpus& corpus) {
  EvaluateOptions options{.split = "dev",
                          .sentences = run.train().validate_sentences(),
                          .tags = run.data().tags(),
                          .decode = run.decode()};
  const MicrobatchSpec& capacity = run.data().microbatch();
  options.max_positions =
      std::min({run.model().max_positions(), capacity.source_tokens(), capacity.target_tokens()});
  const auto& wanted = run.data().directions();
  for (const Direction& direction : corpus.TextDirections("dev")) {
    if (wanted.empty() ||
        std::find(wanted.begin(), wanted.end(), direction.Name()) != wanted.end()) {
      options.directions.push_back(direction.Name());
    }
  }
  return options;
}

}  // namespace

absl::StatusOr<EvalRecord> Validate(const RunSpec& run, const Corpus& corpus, Scorer& scorer,
                                    PairScorer& pair_scorer, int64_t step, Logger& log) {
  EvalRecord record;
  const EvaluateOptions options = OptionsOf(run, corpus);
  if (!options.directions.empty()) {
    ASSIGN_OR_RETURN(
        record,
        Evaluate(scorer, pair_scorer, corpus, corpus.vocabulary(), options,
                 [&log](const std::string& direction, double fraction) {
                   log.Show({.label = "validate", .fraction = fraction, .figures = direction});
                 }));
    log.Info(absl::StrFormat(
        "validation at step %s: nll %.3f, BLEU %.2f (to English %.2f, from %.2f), chrF %.2f, "
        "%d directions, %s",
        WithCommas(step), record.nll(), record.bleu(), record.bleu_to_english(),
        record.bleu_from_english(), record.chrf(), record.directions_size(),
        ClockText(record.seconds())));
  }
  record.set_kind("validation");
  record.set_step(step);
  return record;
}

}  // namespace deepnet
