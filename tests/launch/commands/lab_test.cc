#include <string>
#include <utility>
#include <vector>

#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include "launch/commands/commands.h"
#include "tests/launch/commands/run_command.h"

namespace deepnet {
namespace {

using testing::Outcome;
using testing::RunCommand;

constexpr char kTiny[] = "tests/golden/describe/tiny.textproto";
constexpr int kTensors = 60;

Outcome RunAudit(std::vector<std::string> words) {
  words.insert(words.begin(), {"audit", "--config", kTiny});
  return RunCommand(MakeLabCommand(), std::move(words));
}

double Number(const google::protobuf::Struct& object, const std::string& key) {
  return object.fields().at(key).number_value();
}

TEST(LabAudit, HasEveryTensorWhereAskedTo) {
  const Outcome outcome = RunAudit({"--tensors"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  google::protobuf::Struct json;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(outcome.out, &json).ok()) << outcome.out;
  const auto& tensors = json.fields().at("tensors").list_value();
  ASSERT_EQ(tensors.values_size(), kTensors);
  const auto& first = tensors.values(0).struct_value();
  EXPECT_EQ(first.fields().at("name").string_value(), "encoder.embed_tokens.weight");
  EXPECT_EQ(Number(first, "std_theory"), 0.25);
  EXPECT_NEAR(Number(first, "std_drawn") - 0.25, Number(first, "difference"), 1e-9);
  EXPECT_EQ(Number(first.fields().at("spread").struct_value(), "looked_at"), 99 * 16);

  const Outcome without = RunAudit({});
  google::protobuf::Struct groups;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(without.out, &groups).ok());
  EXPECT_EQ(groups.fields().count("tensors"), 0u);
  EXPECT_GT(groups.fields().at("groups").list_value().values_size(), 10);
}

TEST(LabModelUpdate, SaysHowFarOneModelMoves) {
  const std::vector<std::string> words = {"model-update",
                                          "--steps",
                                          "1",
                                          "--set",
                                          "model.encoder_layers=1",
                                          "--set",
                                          "model.decoder_layers=1",
                                          "--set",
                                          "data.microbatch.max_source_tokens=160",
                                          "--set",
                                          "data.microbatch.max_target_tokens=160"};
  const Outcome outcome = RunCommand(MakeLabCommand(), words);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  google::protobuf::Struct json;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(outcome.out, &json).ok()) << outcome.out;
  EXPECT_EQ(json.fields().at("parameters").string_value(), "matrices");
  EXPECT_EQ(Number(json, "encoder_layers"), 1);
  EXPECT_EQ(Number(json, "updates"), 1);
  EXPECT_GT(Number(json, "per_token"), 0);
  EXPECT_NEAR(Number(json, "per_element"), Number(json, "per_token") / 8, 1e-9);
}

TEST(LabModelUpdate, TakesNoModelOfOneStack) {
  const Outcome outcome = RunCommand(
      MakeLabCommand(), {"model-update", "--set", "model.architecture=DECODER_ONLY", "--set",
                         "model.encoder_layers=0", "--set", "data.microbatch.max_source_tokens=0"});
  EXPECT_EQ(outcome.code, 2) << outcome.err;
  EXPECT_NE(outcome.err.find("must be ENCODER_DECODER"), std::string::npos) << outcome.err;
}

}  // namespace
}  // namespace deepnet
