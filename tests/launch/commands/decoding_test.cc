#include "launch/commands/decoding.h"

#include <cstdio>
#include <fstream>
#include <map>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launch/defaults.h"
#include "parallel/base/exit_code.h"

namespace deepnet {
namespace {

using ::testing::HasSubstr;

// The command that TranslateLines and ScoreLines are part of, without a model.
Command TestCommand() {
  Command command{.name = "test", .max_arguments = 2, .spec = SpecUse::kOptional};
  command.flags = ModelFlags();
  for (Flag& flag : SearchFlags()) command.flags.push_back(std::move(flag));
  return command;
}

ParsedFlags Parse(const std::vector<std::string>& words) {
  auto flags = ParseFlags(AllFlags(TestCommand()), words, 2);
  EXPECT_TRUE(flags.ok()) << flags.status();
  return *std::move(flags);
}

std::string Message(const absl::Status& status) {
  EXPECT_EQ(GetExitCode(status), ExitCode::kBadConfig);
  return std::string(status.message());
}

TEST(CheckModelFlags, ListsWhatIsMissing) {
  EXPECT_EQ(Message(CheckModelFlags(Parse({"--from=de"}))),
            "--checkpoint: required\n--to: required");
  EXPECT_TRUE(CheckModelFlags(Parse({"--from=de", "--to=en", "--checkpoint=run"})).ok());
}

TEST(CheckSearchFlags, RefusesWhatContradicts) {
  EXPECT_TRUE(CheckSearchFlags(Parse({"--beam-size=4", "--nbest=2"})).ok());
  EXPECT_TRUE(CheckSearchFlags(Parse({"--sample=0.7", "--seed=3", "--nbest=9"})).ok());
  EXPECT_THAT(Message(CheckSearchFlags(Parse({"--greedy", "--beam-size=4"}))),
              HasSubstr("--greedy: contradicts"));
  EXPECT_THAT(Message(CheckSearchFlags(Parse({"--sample=1", "--greedy"}))),
              HasSubstr("--sample: contradicts"));
  EXPECT_THAT(Message(CheckSearchFlags(Parse({"--sample=0"}))), HasSubstr("must be above 0"));
  EXPECT_THAT(Message(CheckSearchFlags(Parse({"--seed=1"}))), HasSubstr("only with --sample"));
  EXPECT_THAT(Message(CheckSearchFlags(Parse({"--nbest=0"}))), HasSubstr("--nbest: 0"));
}

TEST(WithSearchFlags, ChangesOnlyWhatWasTyped) {
  DecodeSpec decode = WithDefaults({}).decode();
  decode.set_max_tokens(77);
  const DecodeSpec same = WithSearchFlags(decode, Parse({}));
  EXPECT_EQ(same.SerializeAsString(), decode.SerializeAsString());
  const DecodeSpec changed =
      WithSearchFlags(decode, Parse({"--length-penalty=0", "--greedy", "--batch-tokens=9"}));
  EXPECT_EQ(changed.length_penalty(), 0.0);
  EXPECT_EQ(changed.beam_size(), 1);
  EXPECT_EQ(changed.batch_tokens(), 9);
  EXPECT_EQ(changed.max_tokens(), 77);
}

TEST(WithSearchFlags, AskingForABeamEndsTheSamplingOfTheRun) {
  DecodeSpec decode = WithDefaults({}).decode();
  decode.set_sampling_temperature(1.0);
  EXPECT_EQ(WithSearchFlags(decode, Parse({"--beam-size=2"})).sampling_temperature(), 0.0);
  EXPECT_EQ(WithSearchFlags(decode, Parse({})).sampling_temperature(), 1.0);
}

TEST(DecodingRunSpec, ChangesDecodingButNeitherModelNorTags) {
  const Command command = TestCommand();
  std::istringstream in;
  std::ostringstream out, err;
  RunSpec base = WithDefaults({});
  base.mutable_model()->set_width(64);
  const auto with = [&](const std::vector<std::string>& words) {
    return DecodingRunSpec(CommandLine{command, Parse(words), in, out, err}, base);
  };
  const auto changed = with({"--set", "decode.max_tokens=50", "--nbest=3"});
  ASSERT_TRUE(changed.ok()) << changed.status();
  EXPECT_EQ(changed->decode().max_tokens(), 50);
  EXPECT_EQ(changed->decode().nbest(), 3);
  EXPECT_EQ(changed->model().width(), 64);
  EXPECT_THAT(Message(with({"--set", "model.width=128"}).status()),
              HasSubstr("model: is given by the checkpoint"));
  EXPECT_THAT(Message(with({"--set", "data.tags=M2M"}).status()),
              HasSubstr("data.tags: is given by the checkpoint"));
}

TEST(ComputeOverrides, HoldsOnlyWhatTheCommandLineNames) {
  const Command command = TestCommand();
  std::istringstream in;
  std::ostringstream out, err;
  const auto compute =
      ComputeOverrides({command, Parse({"--set", "compute.threads_per_rank=1"}), in, out, err});
  ASSERT_TRUE(compute.ok()) << compute.status();
  EXPECT_EQ(compute->threads_per_rank(), 1);
  EXPECT_EQ(compute->device(), "");
}

}  // namespace
}  // namespace deepnet
