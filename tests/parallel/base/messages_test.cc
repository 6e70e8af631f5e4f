#include "parallel/base/messages.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <google/protobuf/struct.pb.h>
#include <gtest/gtest.h>

#include "proto/checkpoint.pb.h"
#include "proto/run.pb.h"

namespace deepnet {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Repeated(const std::string& text, int times) {
  std::string result;
  for (int i = 0; i < times; ++i) result += text;
  return result;
}

class Collector final : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int line, int, const std::string& message) override {
    errors.push_back(std::to_string(line) + " " + message);
  }
  std::vector<std::string> errors;
};

TEST(ToBytes, MakesAMessageOfNamesThatAreNotUtf8) {
  Manifest manifest;
  manifest.set_step(7);
  manifest.mutable_run()->set_folder("l\xe4ufe");
  manifest.mutable_run()->mutable_data()->add_directions("\xff-en");
  manifest.add_files()->add_extents()->set_name("\xc3\xa4 \xc3");
  Manifest read;
  ASSERT_TRUE(ParseSent(ToBytes(manifest), read).ok());
  EXPECT_EQ(read.step(), 7);
  EXPECT_EQ(read.run().folder(), "l\\xe4ufe");
  EXPECT_EQ(read.run().data().directions(0), "\\xff-en");
  EXPECT_EQ(read.files(0).extents(0).name(), "\xc3\xa4 \\xc3");
  EXPECT_EQ(manifest.run().folder(), "l\xe4ufe");  // as it was

  (*manifest.mutable_run()->mutable_parallel()).set_schedule("line\nline");
  ASSERT_TRUE(ParseSent(ToBytes(manifest), read).ok());
  EXPECT_EQ(read.run().parallel().schedule(), "line\nline");
}

TEST(ToIndentedJson, HasEveryFieldByItsNameAndNoBytesThatAreNotUtf8) {
  TensorExtent extent;
  extent.set_name("l\xe4ufe");
  EXPECT_EQ(ToIndentedJson(extent),
            "{\n \"name\": \"l\\\\xe4ufe\",\n \"shape\": [],\n \"first_element\": \"0\",\n"
            " \"num_elements\": \"0\",\n \"offset\": \"0\",\n \"dtype\": \"F32\"\n}\n");
}

TEST(ParseSent, NamesTheTypeOfWhatIsNoMessage) {
  Manifest manifest;
  const absl::Status status = ParseSent("\xff", manifest);
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(status.message(), "a Manifest did not survive being sent");
}

TEST(TextProto, IsReadToItsDepthAndRefusedBelow) {
  google::protobuf::ListValue list;
  const auto nested = [](int messages) {
    return Repeated("values { list_value { ", messages / 2) + Repeated("} } ", messages / 2);
  };
  EXPECT_TRUE(ParseTextProto(nested(kMaxTextProtoDepth), &list));
  Collector collector;
  EXPECT_FALSE(ParseTextProto(nested(kMaxTextProtoDepth + 2), &list, {.errors = &collector}));
  EXPECT_THAT(collector.errors, ElementsAre(HasSubstr("too deep")));
}

TEST(TextProto, ANumberThatWouldBeOctalIsAMistake) {
  RunSpec run;
  for (const char* text : {"train { steps: 010 }", "train { steps: -007 }", "seed: 00"}) {
    Collector collector;
    EXPECT_FALSE(ParseTextProto(text, &run, {.errors = &collector})) << text;
    EXPECT_THAT(collector.errors, ElementsAre(HasSubstr("would be octal"))) << text;
  }
  ASSERT_TRUE(
      ParseTextProto("# 010\nname: '010' seed: 0 train { steps: 0x10 } "
                     "optim { learning_rate: 0.010 }",
                     &run));
  EXPECT_EQ(run.train().steps(), 16);
}

// Without a limit each of these ends the process by a signal.
TEST(TextProto, OfAMillionLevelsEndsInAMistakeWhateverIsNested) {
  constexpr int kLevels = 1'000'000;
  for (const char* level : {"a{", "a <", "a: [", "a: [{ b: ", "[x.y] {", "model {"}) {
    for (const bool skips : {false, true}) {
      const std::string text = Repeated(level, kLevels);
      RunSpec run;
      EXPECT_FALSE(ParseTextProto(text, &run, {.skips_unknown_fields = skips})) << level;
      EXPECT_FALSE(ParseTextProto(text, &run, {.skips_unknown_fields = skips, .merges = true}))
          << level;
    }
  }
}

TEST(TextProto, IsOnlySkippedOverWhereAsked) {
  RunSpec run;
  EXPECT_FALSE(ParseTextProto("seed: 1 sead { x: 2 }", &run));
  EXPECT_TRUE(ParseTextProto("seed: 1 sead { x: 2 }", &run, {.skips_unknown_fields = true}));
  EXPECT_EQ(run.seed(), 1);
}

TEST(TextProto, IsMergedOnTopOrReadAlone) {
  RunSpec run;
  run.set_name("a");
  EXPECT_TRUE(ParseTextProto("seed: 1 seed: 0", &run, {.merges = true}));
  EXPECT_EQ(run.name(), "a");
  EXPECT_TRUE(ParseTextProto("seed: 1", &run));
  EXPECT_EQ(run.name(), "");
  EXPECT_FALSE(ParseTextProto("seed: 1 seed: 0", &run));
}

}  // namespace
}  // namespace deepnet
