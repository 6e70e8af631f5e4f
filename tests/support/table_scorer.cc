#include "tests/support/table_scorer.h"

#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "parallel/base/check.h"
#include "parallel/base/philox.h"
#include "tests/support/initial_normal.h"

namespace deepnet::testing {
namespace {

constexpr double kTemptation = 3.0;

struct Row {
  std::vector<int32_t> source;
  std::vector<int32_t> history;
};

class TableState : public DecoderState {
 public:
  int num_rows() const override { return static_cast<int>(rows.size()); }

  std::vector<Row> rows;
};

}  // namespace

std::unique_ptr<DecoderState> TableScorer::Start(std::span<const std::vector<int32_t>> sources) {
  auto state = std::make_unique<TableState>();
  for (const std::vector<int32_t>& source : sources) {
    DEEPNET_CHECK(!source.empty());
    state->rows.push_back({.source = source, .history = {}});
  }
  return state;
}

void TableScorer::Reorder(DecoderState& state, std::span<const int32_t> parents) {
  std::vector<Row>& rows = static_cast<TableState&>(state).rows;
  std::vector<Row> reordered;
  for (const int32_t parent : parents) reordered.push_back(rows.at(static_cast<size_t>(parent)));
  rows = std::move(reordered);
}

void TableScorer::StepRows(DecoderState& state, std::span<const int32_t> tokens, float* log_probs) {
  std::vector<Row>& rows = static_cast<TableState&>(state).rows;
  DEEPNET_CHECK_EQ(tokens.size(), rows.size());
  rows_per_step_.push_back(static_cast<int>(rows.size()));
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i].history.push_back(tokens[i]);
    for (const float log_prob : LogProbs(rows[i].source, rows[i].history)) *log_probs++ = log_prob;
  }
}

std::vector<float> TableScorer::LogProbs(std::span<const int32_t> source,
                                         std::span<const int32_t> history) const {
  const std::string name =
      absl::StrCat(absl::StrJoin(source, ","), "|", absl::StrJoin(history, ","));
  std::vector<double> logits;
  for (int64_t token = 0; token < options_.vocabulary_size; ++token) {
    logits.push_back(options_.sharpness * InitialNormal(options_.seed, name, token));
  }
  for (const int32_t token : options_.likely) logits[static_cast<size_t>(token)] += kTemptation;
  double sum = 0.0;
  for (const double logit : logits) sum += std::exp(logit);
  std::vector<float> log_probs;
  for (const double logit : logits) log_probs.push_back(static_cast<float>(logit - std::log(sum)));
  return log_probs;
}

}  // namespace deepnet::testing
