#include "launch/commands/rehearse.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include "launch/commands/command.h"
#include "launch/defaults.h"
#include "launch/spec_loader.h"
#include "parallel/plan/simulator.h"
#include "tests/launch/commands/run_command.h"
#include "tests/support/thread_limit.h"
#include "tests/trainer/data/prepared_corpus.h"
#include "tests/trainer/data/temp_folder.h"
#include "trainer/data/corpus_batch_source.h"
#include "trainer/model/describe.h"

namespace deepnet {
namespace {

using ::testing::HasSubstr;
using testing::Outcome;
using testing::RunCommand;

constexpr char kTiny[] = "tests/golden/describe/tiny.textproto";  // 6 layers, m = 4

// Two ranks, one step, actions of milliseconds.
Outcome RunRehearse(std::vector<std::string> words) {
  words.insert(words.begin(),
               {"--config", kTiny, "--set", "parallel.pipeline_parallel_size=2", "--steps", "1"});
  return RunCommand(MakeRehearseCommand(), std::move(words));
}

google::protobuf::Struct Parse(const std::string& text) {
  google::protobuf::Struct json;
  EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(text, &json).ok()) << text;
  return json;
}

std::string WriteTemporary(const std::string& name, const std::string& text) {
  std::string path = ::testing::TempDir() + "/" + name;
  std::ofstream(path) << text;
  return path;
}

TEST(RehearseCommand, ShowsEveryScheduleThatTheShapeAllows) {
  // Each in its own placement, whatever that of the run is.
  const Outcome outcome =
      RunRehearse({"--compare", "--time-scale", "100", "--set", "parallel.placement=V"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("2 ranks (threads), 4 microbatches, payload small"));
  for (const char* row : {"\n1f1b ", "\ninterleaved, v=2 ", "\nzb-h1 ", "\nzb-v, v=2 "}) {
    EXPECT_THAT(outcome.out, HasSubstr(row));
  }
  EXPECT_EQ(outcome.out.find("v=4"), std::string::npos);  // 6 layers make no 8 chunks
}

TEST(RehearseCommand, JsonHoldsTheFiguresOfEachSchedule) {
  const Outcome outcome =
      RunRehearse({"--schedule", "1f1b", "--json", "--payload", "full", "--time-scale", "100"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto json = Parse(outcome.out);
  const auto& rows = json.fields().at("schedules").list_value();
  ASSERT_EQ(rows.values_size(), 1);
  const auto& row = rows.values(0).struct_value().fields();
  EXPECT_EQ(row.at("schedule").string_value(), "1f1b");
  EXPECT_GT(row.at("step_seconds").number_value(), 0.0);
  EXPECT_GT(row.at("planned_step_seconds").number_value(), 0.0);
  EXPECT_NEAR(row.at("difference").number_value(),
              row.at("rehearsed_bubble").number_value() - row.at("simulated_bubble").number_value(),
              2e-6);
}

TEST(RehearseCommand, RunsAScheduleFromAFileAndWritesItsTrace) {
  WriteTemporary("by_hand.txt",
                 "rank 0: 0F0 0F1 0F2 0F3 0B0 0B1 0B2 0B3\n"
                 "rank 1: 1F0 1B0 1F1 1B1 1F2 1B2 1F3 1B3\n");
  const std::string root = ::testing::TempDir(), trace = root + "/rehearsal.json";
  std::filesystem::remove(trace);
  std::filesystem::copy_file(kTiny, root + "/rehearsed.textproto",
                             std::filesystem::copy_options::overwrite_existing);
  const Outcome outcome = RunCommand(
      MakeRehearseCommand(), {"--root", root, "--config", "rehearsed.textproto", "--set",
                              "parallel.pipeline_parallel_size=2", "--steps", "1", "--schedule",
                              "by_hand.txt", "--trace", "rehearsal.json", "--time-scale", "100"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  std::stringstream text;
  text << std::ifstream(trace).rdbuf();
  EXPECT_GT(Parse(text.str()).fields().at("traceEvents").list_value().values_size(), 16);
}

TEST(RehearseCommand, AllReplicasRunAndAStepIsMoreThanItsPipeline) {
  const Outcome outcome =
      RunRehearse({"--schedule", "1f1b", "--json", "--time-scale", "100", "--set",
                   "parallel.data_parallel_size=2", "--set", "cluster.devices_per_node=4"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto json = Parse(outcome.out);
  EXPECT_EQ(json.fields().at("ranks").number_value(), 4);
  EXPECT_EQ(json.fields().at("replicas").number_value(), 2);
  EXPECT_EQ(json.fields().at("microbatches").number_value(), 2);
  EXPECT_TRUE(json.fields().at("corpus").has_null_value());
  const auto& row = json.fields().at("schedules").list_value().values(0).struct_value().fields();
  EXPECT_GT(row.at("step_seconds").number_value(), row.at("pipeline_seconds").number_value());
  EXPECT_GE(row.at("step_seconds").number_value(),
            0.999 * row.at("simulated_step_seconds").number_value());
  EXPECT_EQ(row.at("data_wait_seconds").list_value().values_size(), 0);
}

// Four microbatches on three replicas: the first has two, the others one, each with a schedule of
// its own.
TEST(RehearseCommand, ReplicasWithFewerMicrobatchesFollowTheirOwnSchedule) {
  const std::string trace = ::testing::TempDir() + "/uneven.json";
  const std::vector<std::string> words = {"--schedule",   "1f1b",
                                          "--time-scale", "100",
                                          "--set",        "parallel.data_parallel_size=3",
                                          "--set",        "cluster.devices_per_node=6",
                                          "--trace",      trace};
  const Outcome outcome = RunRehearse(words);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out,
              HasSubstr("6 ranks (threads) = 2 stages x 3 replicas, 2 or 1 microbatches"));
  std::stringstream text;
  text << std::ifstream(trace).rdbuf();
  std::vector<int> forwards(6, 0);
  const auto json = Parse(text.str());
  for (const auto& value : json.fields().at("traceEvents").list_value().values()) {
    const auto& event = value.struct_value().fields();
    if (event.at("name").string_value().find('F') == std::string::npos) continue;
    if (event.count("cat") == 0 || event.at("cat").string_value() != "compute") continue;
    ++forwards[static_cast<size_t>(event.at("pid").number_value())];
  }
  EXPECT_THAT(forwards, ::testing::ElementsAre(2, 2, 1, 1, 1, 1));
}

TEST(RehearseCommand, SaysThatThereIsNoCorpus) {
  const Outcome outcome = RunRehearse({"--schedule", "1f1b", "--time-scale", "100"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("\ndata: no corpus in \"\": steps fetch nothing\n"));
  EXPECT_THAT(outcome.out, HasSubstr("\nthis host wakes a rank "));
}

TEST(RehearseCommand, StepsFetchTheBatchesOfACorpus) {
  const testing::TempFolder folder;
  testing::WriteOpus(folder);
  ASSERT_TRUE(testing::PrepareIn(folder, "opus100_folder: \"opus\"").ok());
  const auto corpus = Corpus::Open(folder.Path("out"));
  ASSERT_TRUE(corpus.ok()) << corpus.status();
  const auto run = [&](int64_t vocabulary, const std::string& more) {
    return RunRehearse({"--schedule", "1f1b", "--steps", "2", "--time-scale", "100", more, "--set",
                        "data.folder=" + folder.Path("out"), "--set",
                        "model.vocabulary_size=" + std::to_string(vocabulary)});
  };
  const int64_t size = corpus->vocabulary().size();
  const Outcome text = run(size, "--payload=small");
  ASSERT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("the first step waited"));
  EXPECT_THAT(text.out, HasSubstr("later ones at most"));
  const Outcome json = run(size, "--json");
  ASSERT_EQ(json.code, 0) << json.err;
  const auto parsed = Parse(json.out);
  const auto& rows = parsed.fields().at("schedules").list_value();
  const auto& waits = rows.values(0).struct_value().fields().at("data_wait_seconds").list_value();
  ASSERT_EQ(waits.values_size(), 2);
  EXPECT_GT(waits.values(0).number_value(), 0.0);
  const Outcome refused = run(size + 1, "--json");
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("model.vocabulary_size"));
}

TEST(RehearsalData, IsTheTrainersBatchOfTheStep) {
  const testing::TempFolder folder;
  testing::WriteOpus(folder);
  ASSERT_TRUE(testing::PrepareIn(folder, "opus100_folder: \"opus\"").ok());
  const auto corpus = Corpus::Open(folder.Path("out"));
  ASSERT_TRUE(corpus.ok()) << corpus.status();
  const auto read = ReadRunSpec({.root = ".", .files = {kTiny}}, RunSpec());
  ASSERT_TRUE(read.ok()) << read.status();
  RunSpec run = WithDefaults(*read);
  run.mutable_model()->set_vocabulary_size(static_cast<int>(corpus->vocabulary().size()));
  run.mutable_data()->set_folder(folder.Path("out"));
  DataSpec data = run.data();
  ASSERT_TRUE(ResolveDataSpec(*corpus, &data).ok());
  const auto trainers = CorpusBatchSource::Make(data, run.seed(), &*corpus);
  ASSERT_TRUE(trainers.ok()) << trainers.status();
  const auto opened = RehearsalData::Open(run, folder.Path("out"));
  ASSERT_TRUE(opened.ok()) << opened.status();
  for (const int64_t step : {0, 1, 5, 5}) {
    EXPECT_EQ((*opened)->Fetch(step).value_or(-1), (*trainers)->ForStep(step)->num_target_tokens);
  }
  const auto none = RehearsalData::Open(run, folder.Path("nothing_here"));
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_EQ(*none, nullptr);
}

TEST(RehearseCommand, RefusesWhatCannotBe) {
  const auto error = [](std::vector<std::string> words) {
    const Outcome outcome = RunRehearse(std::move(words));
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    return outcome.err;
  };
  EXPECT_THAT(error({"--schedule", "2f2b"}), HasSubstr("2f2b"));
  EXPECT_THAT(error({"--steps", "0"}), HasSubstr("--steps"));
  EXPECT_THAT(error({"--steps", "4294967297"}), HasSubstr("--steps: must be from 1 to 1000000"));
  EXPECT_THAT(error({"--time-scale", "1e300"}), HasSubstr("--time-scale: must be above 0 and at"));
  EXPECT_THAT(error({"--compare", "--trace", "t.json"}), HasSubstr("--trace"));
  EXPECT_THAT(error({"--compare", "--schedule", "1f1b"}), HasSubstr("--compare"));
  EXPECT_THAT(error({"--schedule", "interleaved", "--set", "parallel.virtual_pipeline_size=9"}),
              HasSubstr("parallel.virtual_pipeline_size"));
  const std::string stuck = WriteTemporary("stuck.txt", "rank 0: 0B0 0F0\nrank 1: 1F0 1B0\n");
  EXPECT_THAT(error({"--schedule", stuck, "--set", "data.global_microbatches=1"}),
              HasSubstr("0B0"));
}

TEST(RehearseCommand, RanksWithoutAThreadEndTheOthersWithTheirCode) {
  const testing::ThreadLimit limit(1);
  const Outcome outcome = RunRehearse({"--schedule", "1f1b"});
  EXPECT_EQ(outcome.code, 6) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("refuses another thread"));
}

// The exchanges of a case are those that the plan's own figure is made of.
TEST(RehearsalCases, TakeTheirExchangesFromThePlan) {
  const auto read =
      ReadRunSpec({.root = ".",
                   .files = {"launch/recipes/deepnet_1000l.textproto"},
                   .sets = {"data.global_microbatches=32", "cluster.devices_per_node=8",
                            "parallel.pipeline_parallel_size=4", "parallel.data_parallel_size=2",
                            "parallel.schedule=1f1b"}},
                  RunSpec());
  ASSERT_TRUE(read.ok()) << read.status();
  const RunSpec run = WithDefaults(*read);
  const auto made = PlannedCase(run, Describe(run.model(), run.data().microbatch()));
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->microbatches, 16);
  const ExchangeJob& exchange = made->job.exchange;
  EXPECT_EQ(made->job.NumRanks(), 8);
  ASSERT_EQ(exchange.stages.size(), 4u);
  for (int stage = 0; stage < 4; ++stage) {  // one chunk each
    EXPECT_EQ(exchange.stages[stage].gradient_bytes, exchange.gradient_bytes[stage]);
    EXPECT_GT(exchange.stages[stage].reduce_seconds, 0.0);
    EXPECT_GT(exchange.stages[stage].gather_seconds, 0.0);
  }
  const auto simulated =
      Simulate(made->job.ScheduleOf(0), made->job.placement, made->job.costs, made->job.network);
  ASSERT_TRUE(simulated.ok()) << simulated.status();
  const double step = StepSeconds(exchange, *simulated);
  EXPECT_GT(step, simulated->makespan);
  EXPECT_LE(step, made->planned_step_seconds * (1 + 1e-9));
}

// The shape that a step of the largest recipe is designed for: p = 8, m = 32.
TEST(RehearsalCases, AThousandLayersIdleAtMostSixPercentWithTheBestSchedule) {
  const auto read =
      ReadRunSpec({.root = ".",
                   .files = {"launch/recipes/deepnet_1000l.textproto"},
                   .sets = {"data.global_microbatches=32", "cluster.devices_per_node=8",
                            "parallel.pipeline_parallel_size=8"}},
                  RunSpec());
  ASSERT_TRUE(read.ok()) << read.status();
  const RunSpec run = WithDefaults(*read);
  const auto cases = ComparedCases(run, Describe(run.model(), run.data().microbatch()));
  ASSERT_TRUE(cases.ok()) << cases.status();
  double best = 1.0;
  for (const RehearsalCase& each : *cases) {
    const auto simulated =
        Simulate(each.job.ScheduleOf(0), each.job.placement, each.job.costs, each.job.network);
    ASSERT_TRUE(simulated.ok()) << each.name << simulated.status();
    best = std::min(best, simulated->bubble);
  }
  EXPECT_EQ(cases->size(), 6u);
  EXPECT_LE(best, 0.06);
}

}  // namespace
}  // namespace deepnet
