#include "trainer/data/corpus_batch_source.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "parallel/base/check.h"
#include "parallel/base/status_macros.h"

namespace deepnet {
namespace {

std::vector<int32_t> ToIds(const TokenSpan& tokens) {
  std::vector<int32_t> ids(tokens.size());
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = tokens[i];
  return ids;
}

}  // namespace

absl::StatusOr<std::unique_ptr<CorpusBatchSource>> CorpusBatchSource::Make(
    const DataSpec& spec, uint64_t seed, const Corpus* corpus, Architecture architecture) {
  ASSIGN_OR_RETURN(DataOrder order, DataOrder::Make(spec, seed, corpus, architecture));
  std::vector<DirectionTags> tags;
  for (const Direction& direction : corpus->directions()) {
    const auto source = corpus->vocabulary().TagId(direction.source);
    const auto target = corpus->vocabulary().TagId(direction.target);
    DEEPNET_CHECK(source.has_value() && target.has_value()) << direction.Name();
    tags.push_back({spec.tags(), *source, *target});
  }
  const MaskingRule masking = {spec.mlm_probability(), corpus->vocabulary().first_tag()};
  return std::unique_ptr<CorpusBatchSource>(new CorpusBatchSource(
      std::move(order), std::move(tags), corpus, architecture, seed, masking));
}

EncodedPair CorpusBatchSource::Encode(const PairRef& pair, int64_t step) const {
  const PairTokens tokens = corpus_->Tokens(pair.direction, pair.pair);
  const DirectionTags& tags = tags_[pair.direction];
  switch (architecture_) {
    case DECODER_ONLY:
      return EncodeTargetSide(tags, ToIds(tokens.target));
    case ENCODER_ONLY: {
      const std::string direction = corpus_->directions()[pair.direction].Name();
      return EncodeSourceSide(tags, ToIds(tokens.source), masking_,
                              {seed_, direction, pair.pair, step});
    }
    default:
      return EncodePair(tags, ToIds(tokens.source), ToIds(tokens.target));
  }
}

absl::StatusOr<StepBatch> CorpusBatchSource::ForStep(int64_t step) {
  if (step < 0) return absl::InvalidArgumentError(absl::StrCat("step ", step));
  const int64_t number = step / order_.steps_per_window();
  if (number != window_number_) {
    window_ = order_.MakeWindow(number);
    window_number_ = number;
  }
  StepBatch batch;
  uint32_t ordinal = 0;
  const int64_t begin = step % order_.steps_per_window() * order_.global_microbatches();
  for (int64_t m = begin; m < begin + order_.global_microbatches(); ++m) {
    MicrobatchBuilder builder(order_.capacity());
    for (const PairRef& pair : window_.microbatches[m]) {
      builder.Add(ordinal++, Encode(pair, step));
    }
    const Microbatch& made = batch.microbatches.emplace_back(std::move(builder).Build());
    batch.num_source_tokens += made.num_source_tokens;
    batch.num_target_tokens += made.num_target_tokens;
  }
  return batch;
}

Prefetcher::~Prefetcher() {
  if (next_.valid()) next_.wait();
}

absl::StatusOr<StepBatch> Prefetcher::ForStep(int64_t step) {
  if (next_.valid() && next_step_ != step) next_.get().IgnoreError();
  absl::StatusOr<StepBatch> batch = next_.valid() ? next_.get() : source_->ForStep(step);
  next_step_ = step + 1;
  next_ = std::async(std::launch::async, [this, step] { return source_->ForStep(step + 1); });
  return batch;
}

}  // namespace deepnet
