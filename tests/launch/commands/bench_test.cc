#include "trainer/bench/bench.h"

#include <fstream>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include "launch/commands/command.h"
#include "parallel/base/exit_code.h"
#include "proto/report.pb.h"
#include "tests/launch/commands/run_command.h"
#include "trainer/model/describe.h"

namespace deepnet {
namespace {

using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::Outcome;
using testing::RunCommand;

Outcome RunBench(std::vector<std::string> words) {
  return RunCommand(MakeBenchCommand(), std::move(words));
}

TEST(BenchCommand, NamesEveryNumberThatIsOutOfRange) {
  const Outcome outcome = RunBench({"step", "--steps", "0", "--segment", "0"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("--steps: 0: must be from 1"));
  EXPECT_THAT(outcome.err, HasSubstr("--segment: 0: must be from 1"));
}

TEST(BenchCommand, LengthsThatNoSentenceHasAreRefused) {
  const std::string file = ::testing::TempDir() + "odd_lengths.json";
  for (const char* text :
       {"[]", "[[3, 4], [1e300, 5]]", "[[0.5, 5]]", "[[1.5, 5]]", "[[-1, 5]]", "[[1]]", "3"}) {
    std::ofstream(file) << text;
    const auto lengths = ReadBenchLengths(file);
    EXPECT_EQ(GetExitCode(lengths.status()), ExitCode::kData) << text;
    EXPECT_THAT(std::string(lengths.status().message()), HasSubstr(file)) << text;
  }
}

TEST(BenchCommand, RefusesALevelThatIsNone) {
  const Outcome outcome = RunBench({"step", "--recompute", "everything"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("recompute"));
}

// The functions of a step on a CPU, each as often as its layers call it; they are most of the step.
TEST(BenchCommand, TimesEveryKernelOfAStep) {
  const Outcome outcome = RunBench({"kernels", "--layers", "2", "--width", "64", "--tokens", "300",
                                    "--steps", "2", "--dtype", "float32", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  KernelsRecord record;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(outcome.out, &record).ok());
  EXPECT_EQ(record.name(), "kernels/A layers=2 width=64 tokens=300");
  EXPECT_EQ(record.device(), "cpu");
  std::map<std::string, double> calls;
  double share = 0.0;
  for (const KernelRecord& kernel : record.kernels()) {
    calls[kernel.name()] = kernel.calls_per_step();
    EXPECT_GT(kernel.seconds_per_call(), 0.0) << kernel.name();
    share += kernel.share();
  }
  EXPECT_EQ(calls["Attention"], 6);  // two in a layer of the decoder, one in one of the encoder
  EXPECT_EQ(calls["AttentionBackward"], 6);
  EXPECT_EQ(calls["Embed"], 2);
  EXPECT_EQ(calls["CrossEntropy"], 1);
  EXPECT_GT(calls["Adam"], 0);
  EXPECT_GT(share, 0.3);
  EXPECT_LE(share, 1.0);
  EXPECT_THAT(RunBench({"kernels", "--layers", "1", "--tokens", "100", "--steps", "1"}).out,
              HasSubstr("LinearBackwardWeight"));
}

// On a CPU: functions of Ops, whose products have the names of what they are for.
TEST(BenchCommand, TimesOfProductsAreByWhatTheyAreFor) {
  const Outcome outcome = RunBench({"kernels", "--layers", "2", "--width", "64", "--tokens", "300",
                                    "--steps", "2", "--dtype", "float32", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  KernelsRecord record;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(outcome.out, &record).ok());
  std::map<std::string, double> calls;
  double seconds = 0.0;
  for (const KernelRecord& product : record.products()) {
    calls[product.name()] = product.calls_per_step();
    seconds += product.calls_per_step() * product.seconds_per_call();
  }
  const std::map<std::string, double> of_form = {{"kv projection", 2},
                                                 {"qkv projection", 4},
                                                 {"fc1", 4},
                                                 {"fc2", 4},
                                                 {"output projection, query projection", 8}};
  for (const auto& [label, count] : of_form) {
    for (const char* form : {" forward", " input gradient", " weight gradient"}) {
      EXPECT_EQ(calls[label + form], count) << label << form;
    }
  }
  EXPECT_EQ(calls.size(), 15u);
  double whole = 0.0;
  for (const KernelRecord& kernel : record.kernels()) {
    if (kernel.name().starts_with("Linear")) {
      whole += kernel.calls_per_step() * kernel.seconds_per_call();
    }
  }
  EXPECT_NEAR(seconds, whole, 1e-9);
}

TEST(BenchCommand, ProductsAreTimedInAllWaysOfACpu) {
  const auto ways_of = [](const char* dtype) {
    const Outcome outcome = RunBench({"products", "--layers", "1", "--width", "32", "--tokens",
                                      "100", "--dtype", dtype, "--repeats", "3", "--json"});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    ProductsRecord record;
    EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(outcome.out, &record).ok());
    EXPECT_EQ(record.name(), "products/A layers=1 width=32 tokens=100");
    EXPECT_EQ(record.repeats(), 3);
    std::map<std::string, std::set<std::string>> ways;  // by the product
    for (const ProductRecord& product : record.products()) {
      EXPECT_GT(product.rows() * product.columns() * product.depth(), 0) << product.name();
      if (product.name() == "fc1 forward") {
        EXPECT_EQ(product.calls_per_step(), 2);  // one in each stack
      }
      for (const ProductTime& way : product.ways()) {
        ways[product.name()].insert(way.way());
        EXPECT_GT(way.seconds_per_call(), 0.0) << product.name() << ", " << way.way();
        EXPECT_EQ(way.unequal(), 0) << product.name() << ", " << way.way();
      }
    }
    EXPECT_EQ(ways.size(), 21u);  // six matrices and the loss's, in three forms
    return ways;
  };
  EXPECT_THAT(ways_of("float32")["fc1 forward"], ElementsAre("MKL", "NATIVE", "oneDNN"));
  EXPECT_THAT(ways_of("bfloat16")["logits weight gradient"], ElementsAre("NATIVE", "oneDNN"));
  const Outcome text = RunBench({"products", "--layers", "1", "--width", "32", "--tokens", "100",
                                 "--dtype", "float32", "--repeats", "1"});
  EXPECT_THAT(text.out, HasSubstr("kv projection input gradient"));
  EXPECT_THAT(text.out, HasSubstr("ms a step  NATIVE "));
}

TEST(BenchCommand, AStepHasAsManyMicrobatchesAsAsked) {
  const auto step = [](const std::string& more) {
    const Outcome outcome = RunBench({"kernels", "--layers", "1", "--width", "32", "--tokens", "90",
                                      "--steps", "1", "--microbatches", more, "--json"});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    KernelsRecord record;
    EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(outcome.out, &record).ok());
    std::map<std::string, double> calls;
    for (const KernelRecord& kernel : record.kernels()) {
      calls[kernel.name()] = kernel.calls_per_step();
    }
    return calls;
  };
  std::map<std::string, double> one = step("1"), three = step("3");
  EXPECT_EQ(three["CrossEntropy"], 3 * one["CrossEntropy"]);
  EXPECT_EQ(three["Adam"], one["Adam"]);
}

TEST(BenchCommand, SettingsOfAGpuAreRefusedOnACpu) {
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{"--graphs"},
        {"--attention", "FLASH"},
        {"--graphs", "--device", "cuda", "--library"}}) {  // which is the CPU's
    std::vector<std::string> words = {"step", "--device", "cpu", "--steps", "1"};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome outcome = RunBench(words);
    EXPECT_EQ(outcome.code, 2);
    EXPECT_THAT(outcome.err, HasSubstr("works on \"cuda\" only"));
  }
}

// Other sizes than its own: the paper's models are too large for a test.
TEST(BenchCommand, ThePapersShapesAreThereByName) {
  const absl::StatusOr<RunSpec> paper = BenchRun("paper");
  ASSERT_TRUE(paper.ok()) << paper.status();
  const Inventory inventory = Describe(paper->model(), paper->data().microbatch());
  double weights = 0.0;
  for (const Parameter& parameter : inventory.parameters) {
    weights += static_cast<double>(parameter.NumElements());
  }
  EXPECT_NEAR(weights, 3.8e9, 0.05e9);
  EXPECT_EQ(paper->data().microbatch().max_target_tokens(), 4096);
  const Outcome outcome =
      RunBench({"step", "--shape", "paper-100", "--layers", "1", "--width", "16", "--tokens", "60",
                "--steps", "1", "--residual", "PRE_LN"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("step/paper-100 layers=1 width=16 tokens=60 residual=PRE_LN"));
}

TEST(BenchCommand, DecodesInBatchesAsAsked) {
  const auto decode = [](const char* tokens) {
    return RunBench({"decode", "--layers", "1", "--width", "16", "--sentences", "4", "--beam", "2",
                     "--batch-tokens", tokens});
  };
  EXPECT_EQ(decode("1").code, 0);
  EXPECT_EQ(decode("100000").code, 0);
  EXPECT_EQ(decode("-1").code, 2);
}

// The longest target that the model takes, whose search ends at its length, and one token more.
TEST(BenchCommand, DecodesTheLengthsOfAFile) {
  const std::string file = ::testing::TempDir() + "decode_lengths.json";
  const auto decode = [&](const char* lengths) {
    std::ofstream(file) << lengths;
    return RunBench({"decode", "--layers", "1", "--width", "16", "--beam", "1", "--dtype",
                     "float32", "--lengths", file, "--json"});
  };
  const Outcome outcome = decode("[[7, 1023], [3, 5]]");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  BenchRecord record;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(outcome.out, &record).ok());
  EXPECT_NEAR(record.tokens_per_second() / record.sentences_per_second(), (7 + 1023 + 3 + 5) / 2,
              1e-6);
  for (const char* lengths : {"[[7, 1024]]", "[[1024, 7]]"}) {
    const Outcome refused = decode(lengths);
    EXPECT_EQ(refused.code, 4) << lengths;
    EXPECT_THAT(refused.err, HasSubstr(": 1024 tokens, but the model takes 1024"));
  }
}

// The pairs that fit on both sides are trained on, and layers run again where they recompute.
TEST(BenchCommand, ALongSourceIsLeftOutAndLayersRunTwiceWhereTheyRecompute) {
  const std::string file = ::testing::TempDir() + "step_lengths.json";
  std::ofstream(file) << "[[90, 5], [5, 6]]";
  const auto calls = [&](const char* level) {
    const Outcome outcome =
        RunBench({"kernels", "--layers", "2", "--width", "16", "--tokens", "40", "--steps", "1",
                  "--dtype", "float32", "--lengths", file, "--recompute", level, "--json"});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    KernelsRecord record;
    EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(outcome.out, &record).ok());
    double attention = 0.0;
    for (const KernelRecord& kernel : record.kernels()) {
      if (kernel.name() == "Attention") attention = kernel.calls_per_step();
    }
    return attention;
  };
  EXPECT_EQ(calls("NONE"), 6);
  EXPECT_GT(calls("FULL"), 6);
}

TEST(BenchCommand, ShapesCanBeChanged) {
  const Outcome outcome =
      RunBench({"step", "--layers", "1", "--width", "66", "--tokens", "200", "--steps", "1"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("step/A layers=1 width=66 tokens=200"));
  EXPECT_THAT(outcome.out, Not(HasSubstr("recomputing")));
  EXPECT_EQ(RunBench({"step", "--width", "257"}).code, 2);  // four heads do not divide it
  EXPECT_EQ(RunBench({"step", "--tokens", "1"}).code, 4);   // no sentence is that short
}

TEST(BenchCommand, ADeviceThatIsNotThereIsSaid) {
  const Outcome outcome = RunBench({"step", "--device", "cuda"});
  EXPECT_EQ(outcome.code, 3);
  EXPECT_THAT(outcome.err, HasSubstr("compute.device: \"cuda\""));
}

TEST(BenchCommand, MeasuresWhatRecomputationAddsToAStep) {
  const Outcome outcome = RunBench({"step", "--layers", "2", "--width", "64", "--steps", "1",
                                    "--recompute", "FULL", "--segment", "2", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  BenchRecord record;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(outcome.out, &record).ok());
  EXPECT_EQ(record.recompute(), "FULL");
  EXPECT_EQ(record.recompute_segment(), 2);
  EXPECT_NE(record.recompute_share(), 0.0);  // how much is a matter of the machine's other work
  EXPECT_GT(record.seconds_per_step(), 0.0);
  const auto text = [](const char* segment) {
    return RunBench({"step", "--layers", "2", "--width", "16", "--steps", "1", "--tokens", "60",
                     "--recompute", "FULL", "--segment", segment})
        .out;
  };
  EXPECT_THAT(text("2"), ContainsRegex("\n  recomputing FULL by 2: [+-].* % of the time of a step "
                                       "without\n$"));
  EXPECT_THAT(text("1"), ContainsRegex("\n  recomputing FULL: [+-]"));
}

}  // namespace
}  // namespace deepnet
