#include "trainer/stoppable_scorer.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "parallel/base/status_macros.h"

namespace deepnet {
namespace {

constexpr int kTag = 0;

}  // namespace

struct StoppableScorer::State : DecoderState {
  int num_rows() const override { return inner != nullptr ? inner->num_rows() : rows; }

  std::unique_ptr<DecoderState> inner;  // null: the model was not asked any more
  int rows = 0;
};

std::unique_ptr<DecoderState> StoppableScorer::Start(
    std::span<const std::vector<int32_t>> sources) {
  auto state = std::make_unique<State>();
  state->rows = static_cast<int>(sources.size());
  if (!is_stopping_()) state->inner = scorer_.Start(sources);
  return state;
}

void StoppableScorer::Reorder(DecoderState& state, std::span<const int32_t> parents) {
  State& own = static_cast<State&>(state);
  own.rows = static_cast<int>(parents.size());
  if (own.inner != nullptr) scorer_.Reorder(*own.inner, parents);
}

void StoppableScorer::Step(DecoderState& state, std::span<const int32_t> tokens, float* log_probs) {
  State& own = static_cast<State&>(state);
  if (own.inner != nullptr && !is_stopping_()) {
    scorer_.Step(*own.inner, tokens, log_probs);
    return;
  }
  std::fill_n(log_probs, static_cast<int64_t>(tokens.size()) * vocabulary_size(),
              std::numeric_limits<float>::quiet_NaN());
}

std::vector<double> StoppableScorer::LogProbabilities(std::span<const IdPair> pairs) {
  if (!is_stopping_()) return pairs_.LogProbabilities(pairs);
  return std::vector<double>(pairs.size(), std::numeric_limits<double>::quiet_NaN());
}

absl::StatusOr<std::unique_ptr<PipelineStop>> PipelineStop::Make(Communicator& pipeline, int driver,
                                                                 deepnet::IsStopping is_stopping) {
  std::unique_ptr<PipelineStop> stop(new PipelineStop(pipeline, driver, std::move(is_stopping)));
  stop->bytes_.resize(static_cast<size_t>(pipeline.size()));
  if (pipeline.rank() != driver) return stop;
  for (int rank = 0; rank < pipeline.size(); ++rank) {
    if (rank == driver) continue;
    ASSIGN_OR_RETURN(auto transfer, pipeline.Receive({&stop->bytes_[rank], 1, {}}, rank, kTag));
    stop->transfers_.push_back(std::move(transfer));
  }
  return stop;
}

bool PipelineStop::IsStopping() {
  stopping_ = stopping_ || is_stopping_();
  if (stopping_ || pipeline_.rank() != driver_) return stopping_;
  for (size_t i = 0; i < transfers_.size(); ++i) {
    const size_t rank = i < static_cast<size_t>(driver_) ? i : i + 1;
    stopping_ = stopping_ || (transfers_[i]->Done() && bytes_[rank] == 1);
  }
  return stopping_;
}

absl::Status PipelineStop::Send(char byte) {
  char& mine = bytes_[static_cast<size_t>(pipeline_.rank())];
  mine = byte;
  ASSIGN_OR_RETURN(auto transfer, pipeline_.Send({&mine, 1, {}}, driver_, kTag));
  transfers_.push_back(std::move(transfer));
  return absl::OkStatus();
}

absl::Status PipelineStop::Tell() {
  if (pipeline_.rank() == driver_ || !transfers_.empty() || !IsStopping()) return absl::OkStatus();
  return Send(1);
}

absl::Status PipelineStop::Finish() {
  if (pipeline_.rank() != driver_ && transfers_.empty()) RETURN_IF_ERROR(Send(0));
  for (const auto& transfer : transfers_) RETURN_IF_ERROR(transfer->Wait());
  return absl::OkStatus();
}

}  // namespace deepnet
