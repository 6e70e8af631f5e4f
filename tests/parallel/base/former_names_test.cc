#include "parallel/base/former_names.h"

#include <string>

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <google/protobuf/util/json_util.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include "proto/run.pb.h"

namespace deepnet {
namespace {

using google::protobuf::TextFormat;
using google::protobuf::util::JsonStringToMessage;
using google::protobuf::util::MessageDifferencer;
using ::testing::StartsWith;

// Field 1 of `model` and of `train` had the same name, which another field of the run has today.
constexpr FormerFieldName kNames[] = {{"ModelSpec", 1, "seed"},
                                      {"TrainSpec", 1, "seed"},
                                      {"RunSpec", 5, "learned_from"},
                                      {"TagStyle", 1, "BOTH_SIDES"},
                                      {"ParallelSpec", 99, "gone"}};

RunSpec Expected() {
  RunSpec run;
  run.set_seed(1);
  run.mutable_model()->set_encoder_layers(2);
  run.mutable_train()->set_steps(3);
  run.mutable_data()->set_tags(M2M);
  run.mutable_data()->add_directions("BOTH_SIDES");
  run.mutable_data()->add_temperature()->set_temperature(-1.5);
  run.mutable_data()->add_temperature()->set_temperature(0x1p-30);
  run.mutable_decode()->set_nbest(-4);
  return run;
}

TEST(FormerNames, ATextInThemReadsAsToday) {
  const std::string text = R"(# seed: of another kind in each block
      seed: 1
      model { seed: 2 }
      learned_from: {
        tags: BOTH_SIDES directions: "BOTH_SIDES"
        temperature { temperature: -1.5 } temperature { temperature: 9.3132257461547852e-10 }
      }
      train { seed: 3 }
      decode { nbest: - 4 })";
  RunSpec run;
  ASSERT_TRUE(TextFormat::ParseFromString(WithTodaysNames(text, *run.descriptor(), kNames), &run));
  EXPECT_TRUE(MessageDifferencer::Equals(run, Expected())) << run.DebugString();
}

TEST(FormerNames, AJsonObjectInThemReadsAsToday) {
  const std::string json = R"({"seed": "1", "model": {"seed": 2}, "learned_from": {
      "tags": "BOTH_SIDES", "directions": ["BOTH_SIDES"],
      "temperature": [{"temperature": -1.5}, {"temperature": 9.3132257461547852e-10}]},
      "train": {"seed": "3"}, "decode": {"nbest": -4}})";
  RunSpec run;
  const auto status = JsonStringToMessage(WithTodaysNames(json, *run.descriptor(), kNames), &run);
  ASSERT_TRUE(status.ok()) << status.ToString();
  EXPECT_TRUE(MessageDifferencer::Equals(run, Expected())) << run.DebugString();
}

TEST(FormerNames, TodaysNamesUnknownOnesAndGarbageStayAsTheyAre) {
  for (const std::string text :
       {"seed: 1  model { encoder_layers: 2 }", "{\"seed\": 1, \"model\": {\"encoder_layers\": 2}}",
        "parallel { gone: 1 }", "nobody { seed: 3 model { seed: 4 } }", "} } seed: {", "\"open",
        "{{{", ""}) {
    EXPECT_EQ(WithTodaysNames(text, *RunSpec::descriptor(), kNames), text);
  }
}

TEST(FormerNames, EachOfTheTableIsOfAFieldOrValueThatIsThere) {
  const google::protobuf::DescriptorPool& pool = *RunSpec::descriptor()->file()->pool();
  for (const FormerFieldName& former : FormerNames()) {
    const std::string type = std::string("deepnet.") + former.type;
    if (const auto* values = pool.FindEnumTypeByName(type)) {
      EXPECT_NE(values->FindValueByNumber(former.number), nullptr) << former.name;
      continue;
    }
    const auto* message = pool.FindMessageTypeByName(type);
    ASSERT_NE(message, nullptr) << type;
    const auto* field = message->FindFieldByNumber(former.number);
    ASSERT_NE(field, nullptr) << type << " " << former.name;
    EXPECT_THAT(WithTodaysNames(std::string(former.name) + ": 1", *message),
                StartsWith(field->name()));
  }
}

}  // namespace
}  // namespace deepnet
