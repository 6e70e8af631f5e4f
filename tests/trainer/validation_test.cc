// Validation on many ranks (threads) against one rank, and against a plain evaluation of the whole
// model.
#include "trainer/validation.h"

#include <cmath>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include "launch/defaults.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"
#include "parallel/plan/planner.h"
#include "tests/support/fault_communicator.h"
#include "tests/support/run_ranks.h"
#include "tests/trainer/data/prepared_corpus.h"
#include "trainer/decode/model_scorer.h"
#include "trainer/eval/evaluator.h"
#include "trainer/kernels/compute.h"
#include "trainer/model/describe.h"

namespace deepnet {
namespace {

// For a message; rows have four times as long, replicas 16 times. Too short on a busy host is no
// failure: only runs in which a rank is stuck have it.
constexpr double kShortLimitSeconds = 0.01;

struct Layout {
  int stages = 1, replicas = 1;
  std::string schedule = "1f1b";
  int virtual_pipeline_size = 1;
};

// A rank that stands still at one of its calls of the communicator until the job ends.
struct Stuck {
  int rank = 0;
  int64_t at_call = -1;                  // -1: at none
  int64_t first_call = 0, end_call = 0;  // out: those of the validation

  std::vector<Fault> Faults() const {
    if (at_call < 0) return {};
    return {{.kind = Fault::Kind::kDie, .at_call = at_call, .delay = {}}};
  }
};

void WaitForTheEnd(Communicator& world) {
  constexpr int kUnusedTag = 7;
  char byte = 0;
  const int peer = (world.rank() + 1) % world.size();
  const auto never = world.Receive({&byte, 1, {}}, peer, kUnusedTag);
  if (never.ok()) (*never)->Wait().IgnoreError();
}

class ValidationTest : public ::testing::Test {
 protected:
  void SetUp() override {
    testing::WriteOpus(folder_);
    const auto report = testing::PrepareIn(
        folder_, "opus100_folder: 'opus' languages: 'de' languages: 'en' languages: 'fr'");
    ASSERT_TRUE(report.ok()) << report.status();
    auto corpus = Corpus::Open(folder_.Path("out"));
    ASSERT_TRUE(corpus.ok()) << corpus.status();
    corpus_ = std::make_unique<Corpus>(*std::move(corpus));
  }

  RunSpec Run(TiedEmbeddings tied = TIE_ALL) const {
    RunSpec run;
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(
        R"(seed: 3
           model { encoder_layers: 4 decoder_layers: 5 d_model: 16 ffn_dim: 32 num_heads: 2
                   residual: DEEPNORM max_positions: 300 dropout: 0.1 }
           data { folder: 'out' max_sentence_tokens: 150 global_microbatches: 12
                  microbatch { max_source_tokens: 300 max_target_tokens: 40 max_sentences: 16 } }
           optim { virtual_replicas: 2 }
           compute { device: 'cpu' dtype: FLOAT32 matmul: NATIVE threads_per_rank: 1 }
           parallel { recompute: NONE }
           train { validate_sentences: 7 }
           decode { beam_size: 2 max_tokens: 8 })",
        &run));
    run.mutable_model()->set_tied_embeddings(tied);
    run = WithDefaults(run);
    run.mutable_model()->set_vocabulary_size(static_cast<int>(corpus_->vocabulary().size()));
    return run;
  }

  // Returns what each rank of `layout` gets; `break_rank` has weights that are not numbers, and
  // `stuck` never comes back from one of its calls; `stop_rank` is asked to stop.
  std::vector<absl::StatusOr<EvalRecord>> ValidateOnRanks(RunSpec run, const Layout& layout,
                                                          int break_rank = -1,
                                                          Stuck* stuck = nullptr,
                                                          int stop_rank = -1) const {
    ParallelSpec& parallel = *run.mutable_parallel();
    parallel.set_pipeline_parallel_size(layout.stages);
    parallel.set_data_parallel_size(layout.replicas);
    parallel.set_virtual_pipeline_size(layout.virtual_pipeline_size);
    if (layout.stages > 1) parallel.set_schedule(layout.schedule);
    const Inventory whole = Describe(run.model(), run.data().microbatch());
    const auto plan =
        MakePlan(whole, {run.data(), run.optim(), run.compute(), run.cluster(), run.parallel()});
    if (!plan.ok()) return {plan.status()};
    const int ranks = layout.stages * layout.replicas;
    std::vector<absl::StatusOr<EvalRecord>> records(ranks);
    RunRanks(ranks, [&](Communicator& plain) -> absl::Status {
      std::ostringstream lines;
      Logger log({.stream = &lines});
      const bool fails = stuck != nullptr && plain.rank() == stuck->rank;
      FaultCommunicator world(plain, fails ? stuck->Faults() : std::vector<Fault>(),
                              [&plain] { WaitForTheEnd(plain); });
      ASSIGN_OR_RETURN(const auto part, MakeRankContext(run, whole, *plan, world));
      if (fails) stuck->first_call = world.num_calls();
      part->model->parameters().Initialize(run.seed());
      if (world.rank() == break_rank) part->model->parameters().weights().fill_(std::nan(""));
      part->model->Refresh();
      auto& record = records[world.rank()];
      part->model->set_step(30);
      record = Validate(run, *corpus_, *part, log, [&] { return world.rank() == stop_rank; });
      if (fails) stuck->end_call = world.num_calls();
      EXPECT_EQ(record.ok(), lines.str().find("validation at step 30") != std::string::npos);
      if (world.rank() == 0) log_ = lines.str();
      return absl::OkStatus();  // nobody is ended before it has its answer
    });
    return records;
  }

  const testing::TempFolder folder_;
  mutable std::string log_;  // rank 0's
  std::unique_ptr<Corpus> corpus_;
};

std::string LineOf(const std::string& path, int64_t number) {
  std::ifstream file(path);
  std::string line;
  for (int64_t i = 0; i < number; ++i) EXPECT_TRUE(std::getline(file, line)) << path;
  return line;
}

std::string WithoutTime(EvalRecord record) {
  record.clear_seconds();
  return record.DebugString();
}

// The obvious twin: the whole model and nobody else.
absl::StatusOr<EvalRecord> EvaluateWhole(const RunSpec& run, const Corpus& corpus,
                                         const std::string& output_folder = "") {
  ASSIGN_OR_RETURN(const auto ops, MakeOps(run.compute()));
  Transformer model(run.model(), run.data().microbatch(), *ops, /*trainable=*/false);
  model.parameters().Initialize(run.seed());
  model.Refresh();
  ModelScorer scorer(model);
  ModelPairScorer pair_scorer(model);
  return Evaluate(scorer, pair_scorer, corpus, corpus.vocabulary(),
                  {.split = "dev",
                   .sentences = run.train().validate_sentences(),
                   .max_positions = static_cast<int>(run.data().microbatch().max_target_tokens()),
                   .samples = run.train().sample_translations(),
                   .output_folder = output_folder,
                   .run = run});
}

TEST_F(ValidationTest, EveryRankOfEveryLayoutGetsTheScoresOfOneModelBitForBit) {
  for (const TiedEmbeddings tied : {TIE_ALL, TIE_NONE}) {
    const RunSpec run = Run(tied);
    auto expected = EvaluateWhole(run, *corpus_);
    ASSERT_TRUE(expected.ok()) << expected.status();
    EXPECT_EQ(expected->directions_size(), 4);
    EXPECT_GT(expected->nll(), 0.0);
    EXPECT_GT(expected->chrf(), 0.0);
    expected->set_kind("validation");
    expected->set_step(30);
    for (const Layout& layout : {Layout{1, 1}, Layout{2, 1}, Layout{3, 1}, Layout{1, 2},
                                 Layout{2, 2}, Layout{3, 2}, Layout{2, 1, "interleaved", 2},
                                 Layout{3, 2, "interleaved", 2}, Layout{2, 2, "zb-v", 2}}) {
      SCOPED_TRACE(::testing::Message()
                   << layout.stages << " stages x " << layout.replicas << " " << layout.schedule);
      for (const auto& record : ValidateOnRanks(run, layout)) {
        ASSERT_TRUE(record.ok()) << record.status();
        EXPECT_EQ(WithoutTime(*record), WithoutTime(*expected));
      }
    }
  }
}

// Pairs longer than the microbatch, of all directions.
TEST_F(ValidationTest, WhereNoPairFitsThereIsNoNllAndTheDirectionsAreNamed) {
  for (const char* bound : {"max_source_tokens: 3", "max_target_tokens: 3"}) {
    RunSpec run = Run();
    ASSERT_TRUE(google::protobuf::TextFormat::MergeFromString(
        bound, run.mutable_data()->mutable_microbatch()));
    const auto records = ValidateOnRanks(run, {1, 1});
    ASSERT_TRUE(records[0].ok()) << records[0].status();
    EXPECT_FALSE(records[0]->has_nll());
    for (const DirectionScore& score : records[0]->directions()) {
      EXPECT_FALSE(score.has_nll()) << score.direction();
      EXPECT_EQ(score.too_long(), score.sentences());
    }
    EXPECT_TRUE(records[0]->has_chrf());
    EXPECT_THAT(log_, ::testing::AllOf(::testing::HasSubstr("validation at step 30: no nll, BLEU"),
                                       ::testing::HasSubstr("warning: pairs that are too long"),
                                       ::testing::HasSubstr("de-en 7 of 7 (no nll)")));
  }
}

TEST_F(ValidationTest, AStopThatOneRankIsAskedForEndsItOnAll) {
  for (int rank = 0; rank < 4; ++rank) {
    for (const auto& record : ValidateOnRanks(Run(), {2, 2}, -1, nullptr, rank)) {
      EXPECT_TRUE(absl::IsCancelled(record.status())) << rank << record.status();
    }
  }
}

TEST_F(ValidationTest, SamplesAreLinesOfWhatTheScoresAreOf) {
  RunSpec run = Run();
  run.mutable_train()->set_sample_translations(6);
  const std::string output = folder_.Path("translations");
  ASSERT_TRUE(EvaluateWhole(run, *corpus_, output).ok());
  const auto records = ValidateOnRanks(run, {1, 2});
  ASSERT_TRUE(records[0].ok()) << records[0].status();
  ASSERT_EQ(records[0]->samples_size(), 6);
  std::set<std::string> directions;
  for (const SampleTranslation& sample : records[0]->samples()) {
    directions.insert(sample.direction());
    const std::string name = output + "/" + sample.direction();
    EXPECT_EQ(sample.translation(), LineOf(name + ".hyp", sample.line()));
    EXPECT_EQ(sample.reference(), LineOf(name + ".ref", sample.line()));
    EXPECT_FALSE(sample.source().empty());
    EXPECT_NE(sample.source(), sample.reference());
  }
  EXPECT_EQ(directions.size(), 4u);
}

TEST_F(ValidationTest, DirectionsThatARunDoesNotLearnAreLeftOut) {
  RunSpec run = Run();
  run.mutable_data()->add_directions("fr-*");
  const auto records = ValidateOnRanks(run, {1, 1});
  ASSERT_TRUE(records[0].ok()) << records[0].status();
  ASSERT_EQ(records[0]->directions_size(), 1);
  EXPECT_EQ(records[0]->directions(0).direction(), "fr-en");
}

TEST_F(ValidationTest, ADirectionWithFewerSentencesThanReplicasCountsEachOnce) {
  RunSpec run = Run();
  run.mutable_train()->set_validate_sentences(1);
  const auto alone = ValidateOnRanks(run, {1, 1}), shared = ValidateOnRanks(run, {1, 2});
  for (const auto& record : shared) {
    ASSERT_TRUE(record.ok()) << record.status();
    EXPECT_EQ(WithoutTime(*record), WithoutTime(*alone[0]));
  }
}

TEST_F(ValidationTest, WeightsThatAreNoNumbersOnOneReplicaAreEveryRanksError) {
  const auto records = ValidateOnRanks(Run(), {2, 2}, /*break_rank=*/2);
  ASSERT_EQ(records.size(), 4u);
  for (const auto& record : records) {
    EXPECT_EQ(GetExitCode(record.status()), ExitCode::kDiverged);
    EXPECT_THAT(std::string(record.status().message()),
                ::testing::ContainsRegex("diverged: in the validation of ..-..: .*no finite "
                                         "log-probability"));
  }
}

// Replicas of one rank each have no messages of a pipeline: every call is for all ranks or for the
// gather of scores.
TEST_F(ValidationTest, AReplicaThatIsStuckAtAnyCallEndsEveryRankWithItsCode) {
  RunSpec run = Run();
  Stuck stuck{.rank = 1};
  for (const auto& record : ValidateOnRanks(run, {1, 2}, -1, &stuck)) ASSERT_TRUE(record.ok());
  const Stuck whole = stuck;
  run.mutable_parallel()->set_comm_timeout_seconds(kShortLimitSeconds);
  ASSERT_GT(whole.end_call - whole.first_call, 10);
  for (int64_t call = whole.first_call; call < whole.end_call; ++call) {
    SCOPED_TRACE(call - whole.first_call);
    stuck.at_call = call;
    const auto records = ValidateOnRanks(run, {1, 2}, -1, &stuck);
    EXPECT_EQ(GetExitCode(records[0].status()), ExitCode::kHang) << records[0].status();
    if (absl::IsAborted(records[0].status())) continue;  // of a Split: its monitor spoke
    EXPECT_THAT(std::string(records[0].status().message()),
                ::testing::AllOf(::testing::HasSubstr("rank 0, validation: "),
                                 ::testing::HasSubstr("nothing has moved for"),
                                 ::testing::HasSubstr(" rank 1 ")));
  }
}

// Another driver or the rank's own pipeline notices it, depending on the call. In the last two
// calls ranks are told the record; a rank that has it may go on, so those calls are left out.
TEST_F(ValidationTest, ADriverThatIsStuckEndsEveryRankOfEveryPipeline) {
  RunSpec run = Run();
  Stuck stuck{.rank = 3};
  for (const auto& record : ValidateOnRanks(run, {2, 2}, -1, &stuck)) ASSERT_TRUE(record.ok());
  run.mutable_parallel()->set_comm_timeout_seconds(kShortLimitSeconds);
  const int64_t first = stuck.first_call, last = stuck.end_call - 3;
  constexpr int kPlaces = 8;
  for (int i = 0; i < kPlaces; ++i) {
    stuck.at_call = first + (last - first) * i / (kPlaces - 1);
    SCOPED_TRACE(stuck.at_call - first);
    const auto records = ValidateOnRanks(run, {2, 2}, -1, &stuck);
    for (const int rank : {0, 1, 2}) {
      EXPECT_EQ(GetExitCode(records[rank].status()), ExitCode::kHang) << records[rank].status();
    }
  }
}

}  // namespace
}  // namespace deepnet
