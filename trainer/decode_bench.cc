// The search is the one of `translate`; between it and the model stands a scorer that decides when
// a sentence ends. Below the wanted length </s> is impossible, there it is certain: all hypotheses
// of the sentence end together, after as many steps as the real target has tokens.
#include "trainer/decode_bench.h"

#include <algorithm>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "parallel/base/clock.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/philox.h"
#include "parallel/base/process_memory.h"
#include "parallel/base/status_macros.h"
#include "trainer/bench_lengths.h"
#include "trainer/decode/model_scorer.h"
#include "trainer/decode/search.h"
#include "trainer/decode/translator.h"
#include "trainer/kernels/compute.h"
#include "trainer/model/flops.h"
#include "trainer/model/transformer.h"
#include "trainer/step_bench.h"

namespace deepnet {
namespace {

constexpr int kRowsPerPass = 512;    // hypotheses computed together
constexpr int kWarmUpSentences = 8;  // searched before the clock starts
constexpr int32_t kFirstPiece = 4;   // ids below are special

class FixedLengthScorer : public Scorer {
 public:
  explicit FixedLengthScorer(Scorer& model) : model_(model) {}

  // Output tokens, </s> included, of each source of the next Start.
  void SetTargets(std::vector<int> tokens) { targets_ = std::move(tokens); }

  int64_t vocabulary_size() const override { return model_.vocabulary_size(); }

  std::unique_ptr<DecoderState> Start(std::span<const std::vector<int32_t>> sources) override {
    auto state = std::make_unique<State>();
    state->of_model = model_.Start(sources);
    state->targets = targets_;
    return state;
  }

  void Reorder(DecoderState& decoder_state, std::span<const int32_t> parents) override {
    auto& state = static_cast<State&>(decoder_state);
    model_.Reorder(*state.of_model, parents);
    std::vector<int> targets;
    for (const int32_t parent : parents) targets.push_back(state.targets[parent]);
    state.targets = std::move(targets);
  }

  void Step(DecoderState& decoder_state, std::span<const int32_t> tokens,
            float* log_probs) override {
    auto& state = static_cast<State&>(decoder_state);
    model_.Step(*state.of_model, tokens, log_probs);
    ++state.steps;
    for (size_t row = 0; row < tokens.size(); ++row) {
      float* of_row = log_probs + static_cast<int64_t>(row) * vocabulary_size();
      of_row[SpecialId::kEnd] =
          state.steps < state.targets[row] ? -std::numeric_limits<float>::infinity() : 0.0f;
    }
  }

 private:
  struct State : public DecoderState {
    int num_rows() const override { return of_model->num_rows(); }

    std::unique_ptr<DecoderState> of_model;
    std::vector<int> targets;  // of each row
    int steps = 0;
  };

  Scorer& model_;
  std::vector<int> targets_;
};

std::vector<int32_t> RandomSource(uint64_t seed, int sentence, int tokens, int64_t vocabulary) {
  std::vector<int32_t> source;
  for (int position = 0; position + 1 < tokens; ++position) {
    const PhiloxBlock block =
        Philox(MakeKey(seed, RandomPurpose::kSampling),
               {static_cast<uint32_t>(sentence), static_cast<uint32_t>(position), 0, 0});
    source.push_back(kFirstPiece + static_cast<int32_t>(
                                       block[0] % static_cast<uint32_t>(vocabulary - kFirstPiece)));
  }
  source.push_back(SpecialId::kEnd);
  return source;
}

class Bench {
 public:
  Bench(const RunSpec& run, const DecodeBenchOptions& options, Scorer& model,
        std::vector<std::pair<int, int>> lengths)
      : run_(run), options_(options), scorer_(model), lengths_(std::move(lengths)) {}

  // Seconds that the searches of the first `count` sentences take.
  double Search(int count) {
    std::vector<int> source_lengths;
    for (int i = 0; i < count; ++i) source_lengths.push_back(lengths_[i].first);
    double seconds = 0.0;
    for (const std::vector<int>& indices :
         PlanBatches(source_lengths, options_.batch_tokens, std::numeric_limits<int64_t>::max())) {
      SearchBatch batch;
      std::vector<int> targets;
      for (const int i : indices) {
        batch.sources.push_back(
            RandomSource(run_.seed(), i, lengths_[i].first, scorer_.vocabulary_size()));
        targets.push_back(lengths_[i].second);
      }
      scorer_.SetTargets(std::move(targets));
      const double start = SecondsNow();
      deepnet::Search(scorer_, batch,
                      {.beam_size = options_.beam_size,
                       .max_tokens = static_cast<int>(run_.model().max_positions()) - 1});
      seconds += SecondsNow() - start;
    }
    return seconds;
  }

 private:
  const RunSpec& run_;
  const DecodeBenchOptions& options_;
  FixedLengthScorer scorer_;
  const std::vector<std::pair<int, int>> lengths_;
};

absl::Status CheckOptions(const DecodeBenchOptions& options) {
  const auto bad = [](const char* flag) {
    return WithExitCode(absl::InvalidArgumentError(absl::StrCat(flag, ": must be at least 1")),
                        ExitCode::kBadConfig);
  };
  if (options.sentences < 1) return bad("sentences");
  if (options.beam_size < 1) return bad("beam");
  if (options.batch_tokens < 1) return bad("batch_tokens");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<BenchRecord> BenchDecode(const DecodeBenchOptions& options) {
  RETURN_IF_ERROR(CheckOptions(options));
  ASSIGN_OR_RETURN(auto lengths, ReadBenchLengths(options.lengths_file));
  ASSIGN_OR_RETURN(const RunSpec run, BenchRun("A"));
  const int count = std::min(options.sentences, static_cast<int>(lengths.size()));
  lengths.resize(count);
  for (const auto& [source, target] : lengths) {
    if (std::max(source, target) >= run.model().max_positions()) {
      return WithExitCode(absl::InvalidArgumentError(absl::StrCat(
                              options.lengths_file, ": ", std::max(source, target),
                              " tokens, but the model takes ", run.model().max_positions())),
                          ExitCode::kData);
    }
  }
  const ComputeSpec compute = ResolveCompute(options.compute);
  ASSIGN_OR_RETURN(const std::unique_ptr<Ops> ops, MakeOps(compute));
  MicrobatchSpec capacity;
  capacity.set_source_tokens(
      std::max(static_cast<int>(run.model().max_positions()), options.batch_tokens));
  capacity.set_target_tokens(kRowsPerPass);
  capacity.set_sentences(capacity.source_tokens());
  Transformer model(run.model(), capacity, *ops, /*trainable=*/false);
  model.parameters().Initialize(run.seed());
  model.Refresh();
  ModelScorer scorer(model);
  Bench bench(run, options, scorer, lengths);
  bench.Search(std::min(count, kWarmUpSentences));
  const double seconds = bench.Search(count);

  double tokens = 0.0, flops = 0.0;
  for (const auto& [source, target] : lengths) {
    tokens += source + target;
    flops += SearchFlops(run.model(), source, target, options.beam_size);
  }
  BenchRecord record;
  record.set_name(
      absl::StrCat("decode/", run.model().encoder_layers(), "-", run.model().decoder_layers()));
  record.set_sentences_per_second(count / seconds);
  record.set_tokens_per_second(tokens / seconds);
  record.set_gflops(flops / seconds * 1e-9);
  record.set_ceiling_gflops(
      MeasureProductCeiling(run.model().width(), compute.threads_per_rank(), 1.0));
  record.set_efficiency(record.gflops() / record.ceiling_gflops());
  record.set_peak_resident_bytes(PeakResidentBytes());
  record.set_dtype(DataType_Name(compute.dtype()));
  record.set_isa(Isa_Name(compute.isa()));
  record.set_threads(compute.threads_per_rank());
  return record;
}

}  // namespace deepnet
