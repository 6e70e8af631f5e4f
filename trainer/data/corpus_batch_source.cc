#include "trainer/data/corpus_batch_source.h"

#include <algorithm>
#include <string>

#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"

namespace deepnet {

PairSize SpareOf(const Capacity& capacity, std::span<const PairRef> pairs) {
  PairSize spare = {capacity.source, capacity.target};
  for (const PairRef& pair : pairs) {
    spare.source -= pair.size.source;
    spare.target -= pair.size.target;
  }
  return spare;
}

absl::StatusOr<std::unique_ptr<CorpusBatchSource>> CorpusBatchSource::Make(
    const DataSpec& spec, uint64_t seed, const Corpus* corpus, Architecture architecture) {
  absl::StatusOr<DataOrder> order = DataOrder::Make(spec, seed, corpus, architecture);
  RETURN_IF_ERROR(WithExitCode(corpus->Intact(), ExitCode::kData));
  RETURN_IF_ERROR(order.status());
  std::optional<SubwordSampler> subwords;
  if (spec.subword_alpha() > 0) {
    ASSIGN_OR_RETURN(subwords, SubwordSampler::Make(spec, seed, &corpus->vocabulary()));
  }
  return std::unique_ptr<CorpusBatchSource>(
      new CorpusBatchSource(*std::move(order), seed, corpus, subwords));
}

CorpusBatchSource::CorpusBatchSource(DataOrder order, uint64_t seed, const Corpus* corpus,
                                     std::optional<SubwordSampler> subwords)
    : order_(std::move(order)),
      corpus_(corpus),
      seed_(seed),
      masking_{order_.spec().mlm_probability(), corpus->vocabulary().first_tag()},
      subwords_(subwords) {
  for (const Direction& direction : corpus->directions()) {
    tags_.push_back({order_.spec().tags(), corpus->vocabulary().TagId(direction.source).value(),
                     corpus->vocabulary().TagId(direction.target).value()});
  }
}

// Returns `pieces` of one side cut anew, where they are sampled: they may take from `*spare`, the
// positions of the microbatch that no pair needs; what it leaves is added there.
std::vector<int32_t> CorpusBatchSource::Pieces(const PairRef& pair, int side,
                                               std::vector<int32_t> pieces, PairSize* spare) const {
  if (!subwords_.has_value() || pieces.empty()) return pieces;
  const Architecture architecture = order_.architecture();
  const PairSize extra = SizeOf(PairLengths(), order_.spec().tags(), architecture);
  const bool is_source = side == 0 && architecture == ENCODER_DECODER;
  const int32_t room =
      is_source ? pair.size.source - extra.source : pair.size.target - extra.target;
  int32_t& left = is_source ? spare->source : spare->target;
  const std::string direction = corpus_->directions()[pair.direction].Name();
  const int32_t most = std::min(room + left, order_.spec().max_sentence_tokens());
  pieces = subwords_->Cut(pieces, static_cast<size_t>(most), {direction, pair.draw, side});
  left += room - static_cast<int32_t>(pieces.size());
  return pieces;
}

EncodedPair CorpusBatchSource::Encode(const PairRef& pair, int64_t step, PairSize* spare) const {
  const DirectionTags& tags = tags_[pair.direction];
  PairTokens tokens = corpus_->Tokens(pair.direction, pair.pair);
  switch (order_.architecture()) {
    case DECODER_ONLY:
      return EncodeTargetSide(tags, Pieces(pair, 1, std::move(tokens.target), spare));
    case ENCODER_ONLY: {
      const std::string direction = corpus_->directions()[pair.direction].Name();
      return EncodeSourceSide(tags, Pieces(pair, 0, std::move(tokens.source), spare), masking_,
                              {seed_, direction, pair.pair, step});
    }
    default: {
      const auto source = Pieces(pair, 0, std::move(tokens.source), spare);
      return EncodePair(tags, source, Pieces(pair, 1, std::move(tokens.target), spare));
    }
  }
}

// A pair takes the spare positions that those before it left. Its length is not what it was if a
// shard was written over after its blocks were checked.
absl::StatusOr<Microbatch> CorpusBatchSource::Pack(std::span<const PairRef> pairs, uint32_t ordinal,
                                                   int64_t step) const {
  MicrobatchBuilder builder(order_.capacity());
  PairSize spare = SpareOf(order_.capacity(), pairs);
  for (const PairRef& pair : pairs) {
    if (order_.Reserved(corpus_->Lengths(pair.direction, pair.pair)) != pair.size) {
      RETURN_IF_ERROR(corpus_->Intact());
      return DataLoss(corpus_->folder(), ": ", corpus_->directions()[pair.direction].Name(),
                      ": pair ", pair.pair,
                      " has another length than a moment ago: its shard was written over");
    }
    builder.Add(ordinal++, Encode(pair, step, &spare));
  }
  return std::move(builder).Build();
}

// Pairs of a shard that is damaged or lost have no pieces, or zeros for them: they are packed as
// others are, and Intact() ends the step.
absl::StatusOr<StepBatch> CorpusBatchSource::ForStep(int64_t step) {
  if (step < 0) return InvalidArgument("step ", step);
  const int64_t number = step / order_.steps_per_window();
  if (number != window_number_) {
    window_ = order_.MakeWindow(number);
    RETURN_IF_ERROR(WithExitCode(corpus_->Intact(), ExitCode::kData));
    window_number_ = number;
  }
  StepBatch batch;
  uint32_t ordinal = 0;
  const int64_t begin = step % order_.steps_per_window() * order_.global_microbatches();
  for (int64_t m = begin; m < begin + order_.global_microbatches(); ++m) {
    ASSIGN_OR_RETURN(Microbatch made,
                     WithExitCode(Pack(window_[m], ordinal, step), ExitCode::kData));
    batch.Add(std::move(made));
    ordinal += static_cast<uint32_t>(window_[m].size());
  }
  RETURN_IF_ERROR(WithExitCode(corpus_->Intact(), ExitCode::kData));
  return batch;
}

Prefetcher::~Prefetcher() {
  if (next_.valid()) next_.wait();
}

absl::StatusOr<StepBatch> Prefetcher::ForStep(int64_t step) {
  if (next_.valid() && next_step_ != step) next_.get().IgnoreError();
  absl::StatusOr<StepBatch> batch = next_.valid() ? next_.get() : source_->ForStep(step);
  next_step_ = step + 1;
  // Where the system gives no thread, the next call does the work.
  next_ = std::async(std::launch::async | std::launch::deferred,
                     [this, step] { return source_->ForStep(step + 1); });
  return batch;
}

}  // namespace deepnet
