#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include "launch/commands/commands.h"
#include "tests/launch/commands/run_command.h"

namespace deepnet {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::Outcome;
using testing::RunCommand;

constexpr char kTiny[] = "tests/golden/describe/tiny.textproto";
constexpr int kTensors = 60;

Outcome RunAudit(std::vector<std::string> words) {
  words.insert(words.begin(), {"--config", kTiny});
  return RunCommand(MakeLabAuditCommand(), std::move(words));
}

double Number(const google::protobuf::Struct& object, const std::string& key) {
  return object.fields().at(key).number_value();
}

TEST(LabAudit, PrintsTheScalingOfTheSchemeAndGroupsOfTensors) {
  const Outcome deepnorm = RunAudit({});
  EXPECT_EQ(deepnorm.code, 0) << deepnorm.err;
  EXPECT_THAT(deepnorm.out, ContainsRegex("decoder +1[.]3161 +0[.]5373 +1[.]0000"));
  EXPECT_THAT(deepnorm.out, HasSubstr("All as theory wants."));
  EXPECT_THAT(deepnorm.out, Not(HasSubstr("difference")));
  const Outcome keel = RunAudit({"--set", "model.residual=KEEL"});
  EXPECT_EQ(keel.code, 0) << keel.err;
  EXPECT_THAT(keel.out, ContainsRegex("encoder +4[.]0000 +1[.]0000 +1[.]0000"));
}

TEST(LabAudit, ListsEveryTensorWhereAskedTo) {
  const Outcome outcome = RunAudit({"--tensors"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out,
              ContainsRegex("encoder.layers.1.self_attn.v_proj.weight +value +256 +0[.]1[0-9]+ "
                            "+0[.]182895 +[+-][0-9.]+ %"));
  EXPECT_THAT(outcome.out, ContainsRegex("decoder.layers.0.fc2.bias +feed-forward +16 +0[.]000000 "
                                         "+0[.]000000 +exact"));
}

TEST(LabAudit, JsonHasEveryTensorWhereAskedTo) {
  const Outcome outcome = RunAudit({"--tensors", "--json"});
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
  EXPECT_NEAR(Number(json.fields().at("encoder").struct_value(), "least_beta"), 0.731579, 1e-6);

  const Outcome without = RunAudit({"--json"});
  google::protobuf::Struct groups;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(without.out, &groups).ok());
  EXPECT_EQ(groups.fields().count("tensors"), 0u);
  EXPECT_GT(groups.fields().at("groups").list_value().values_size(), 10);
}

}  // namespace
}  // namespace deepnet
