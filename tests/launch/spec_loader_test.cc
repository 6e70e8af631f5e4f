#include "launch/spec_loader.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <google/protobuf/util/json_util.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include "launch/defaults.h"
#include "parallel/base/exit_code.h"

namespace deepnet {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class SpecLoader : public ::testing::Test {
 protected:
  SpecLoader() {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = std::filesystem::path(::testing::TempDir()) / "spec_loader" / test->name();
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }

  std::string Write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name) << text;
    return name;
  }

  absl::StatusOr<RunSpec> Read(const std::vector<std::string>& files,
                               const std::vector<std::string>& sets = {}) {
    return ReadRunSpec({.root = folder_, .files = files, .sets = sets}, RunSpec());
  }

  std::string Error(const std::vector<std::string>& files,
                    const std::vector<std::string>& sets = {}) {
    const auto run = Read(files, sets);
    if (run.ok()) return "";
    EXPECT_EQ(GetExitCode(run.status()), ExitCode::kBadConfig);
    return std::string(run.status().message());
  }

  RunSpec Set(const std::string& set) {
    const auto run = Read({}, {set});
    EXPECT_TRUE(run.ok()) << run.status();
    return run.value_or(RunSpec());
  }

  std::filesystem::path folder_;
};

TEST_F(SpecLoader, ReadsATextprotoBelowTheRoot) {
  const auto run = Read({Write("tiny.textproto", "seed: 7 model { width: 64 residual: PRE_LN }")});
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->seed(), 7);
  EXPECT_EQ(run->model().width(), 64);
  EXPECT_EQ(run->model().residual(), PRE_LN);
}

TEST_F(SpecLoader, ARunWithoutANameIsCalledAsItsLastFile) {
  Write("a.textproto", "seed: 1");
  Write("b.textproto", "seed: 2");
  EXPECT_EQ(Read({"a.textproto", "b.textproto"})->name(), "b");
  EXPECT_EQ(Read({"a.textproto"}, {"name=mine"})->name(), "mine");
}

TEST_F(SpecLoader, AllMistakesOfATextprotoAreNamedWithTheirLines) {
  Write("bad.textproto",
        "seed: 1\n"
        "model {\n"
        "  encoder_layerz: 3\n"
        "  residual: DEEPNROM\n"
        "  width: \"wide\"\n"
        "  heads: 4\n"
        "}\n"
        "optimm { rate: 1 }\n");
  EXPECT_EQ(Error({"bad.textproto"}),
            "bad.textproto:3: ModelSpec has no field 'encoder_layerz'; did you mean "
            "'encoder_layers'?\n"
            "bad.textproto:4: residual has no value 'DEEPNROM'; did you mean 'DEEPNORM'?\n"
            "bad.textproto:5: Expected integer, got: \"wide\"\n"
            "bad.textproto:8: RunSpec has no field 'optimm'; did you mean 'optim'?");
}

TEST_F(SpecLoader, ATornTextprotoIsRefusedWithItsLine) {
  Write("torn.textproto", "model {\n  width: 64\n");
  EXPECT_THAT(Error({"torn.textproto"}), HasSubstr("torn.textproto:3: Expected"));
}

TEST_F(SpecLoader, AMissingValueIsOneMistake) {
  Write("bad.textproto", "model {\n  width:\n  heads: 4\n}\n");
  EXPECT_EQ(Error({"bad.textproto"}), "bad.textproto:3: Expected integer, got: heads");
}

TEST_F(SpecLoader, MistakesOfAllSourcesAreListedTogether) {
  Write("a.textproto", "sead: 1");
  Write("b.json", R"({"model": {"widht": 3}})");
  EXPECT_EQ(Error({"a.textproto", "b.json", "absent.textproto"}, {"model.headz=3", "seed"}),
            "a.textproto:1: RunSpec has no field 'sead'; did you mean 'seed'?\n"
            "b.json: model.widht: ModelSpec has no field 'widht'; did you mean 'width'?\n"
            "absent.textproto: cannot be read\n"
            "--set model.headz=3: ModelSpec has no field 'headz'; did you mean 'heads'?\n"
            "--set seed: needs the form FIELD=VALUE");
}

TEST_F(SpecLoader, AFieldUnlikeAnyOtherGetsTheWholeList) {
  EXPECT_THAT(Error({}, {"xyzzyxyzzy=1"}), HasSubstr("there are: name, seed, folder, model"));
}

TEST_F(SpecLoader, JsonReadsTheSameRunByEitherSpelling) {
  Write("a.textproto",
        "seed: 9 model { encoder_layers: 3 residual: DEEPNORM dropout: 0.1 }"
        "data { directions: 'de-en' temperature { temperature: 5 } } optim { warmup_steps: 0 }");
  Write("a.json",
        R"({"seed": "9", "model": {"encoderLayers": 3, "residual": "DEEPNORM", "dropout": 0.1},
            "data": {"directions": ["de-en"], "temperature": [{"temperature": 5}]},
            "optim": {"warmup_steps": 0}})");
  const auto text = Read({"a.textproto"}), json = Read({"a.json"});
  ASSERT_TRUE(text.ok()) << text.status();
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(*text, *json));
}

TEST_F(SpecLoader, AllMistakesOfAJsonFileAreNamedByTheirPaths) {
  Write("bad.json", R"({"model": {"width": "wide", "residual": "POSTLN", "heads": 2.5},
                        "data": {"directions": "de-en"}, "seed": true})");
  EXPECT_EQ(Error({"bad.json"}),
            "bad.json: data.directions: a list is needed\n"
            "bad.json: model.heads: a whole number is needed\n"
            "bad.json: model.residual: residual has no value 'POSTLN'; did you mean 'POST_LN'?\n"
            "bad.json: model.width: a whole number is needed\n"
            "bad.json: seed: a whole number is needed");
  Write("torn.json", R"({"model": {)");
  EXPECT_THAT(Error({"torn.json"}), HasSubstr("torn.json: not JSON: "));
}

TEST_F(SpecLoader, ALaterFileWinsFieldByFieldAndReplacesLists) {
  Write("a.textproto", "model { width: 64 heads: 4 } data { directions: ['de-en', 'en-de'] }");
  Write("b.textproto", "model { width: 128 } data { directions: 'fr-en' }");
  Write("c.json", R"({"model": {"heads": 8}, "data": {"directions": ["it-en"]}})");
  const auto run = Read({"a.textproto", "b.textproto"});
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->model().width(), 128);
  EXPECT_EQ(run->model().heads(), 4);
  EXPECT_THAT(run->data().directions(), ElementsAre("fr-en"));
  const auto with_json = Read({"a.textproto", "c.json"});
  EXPECT_EQ(with_json->model().heads(), 8);
  EXPECT_EQ(with_json->model().width(), 64);
  EXPECT_THAT(with_json->data().directions(), ElementsAre("it-en"));
}

TEST_F(SpecLoader, AWrittenZeroReplacesAnEarlierValue) {
  Write("a.textproto", "model { dropout: 0.1 } optim { label_smoothing: 0.1 }");
  Write("b.textproto", "model { dropout: 0 }");
  Write("b.json", R"({"model": {"dropout": 0}})");
  EXPECT_EQ(Read({"a.textproto", "b.textproto"})->model().dropout(), 0.0);
  EXPECT_EQ(Read({"a.textproto", "b.json"})->model().dropout(), 0.0);
  EXPECT_EQ(Read({"a.textproto"}, {"model.dropout=0"})->model().dropout(), 0.0);
}

TEST_F(SpecLoader, SetChangesEveryKindOfField) {
  EXPECT_EQ(Set("model.encoder_layers=50").model().encoder_layers(), 50);
  EXPECT_EQ(Set("optim.rate=1.5e-3").optim().rate(), 1.5e-3);
  EXPECT_EQ(Set("model.residual=POST_LN").model().residual(), POST_LN);
  EXPECT_TRUE(Set("model.unscaled_embedding=true").model().unscaled_embedding());
  EXPECT_EQ(Set("folder=runs/my run").folder(), "runs/my run");
  EXPECT_EQ(Set("folder=\"runs/a\"").folder(), "runs/a");
  EXPECT_EQ(Set("folder=a=b").folder(), "a=b");
  EXPECT_THAT(Set("data.directions=de-en, en-de").data().directions(),
              ElementsAre("de-en", "en-de"));
  EXPECT_THAT(Set("data.directions=[\"de-en\"]").data().directions(), ElementsAre("de-en"));
}

TEST_F(SpecLoader, SetReadsMessagesWithOrWithoutBraces) {
  EXPECT_EQ(Set("model.deepnorm=beta_rule: TORCHSCALE").model().deepnorm().beta_rule(), TORCHSCALE);
  EXPECT_EQ(Set("data.microbatch={target_tokens: 500}").data().microbatch().target_tokens(), 500);
  const RunSpec run =
      Set("data.temperature=[{from_step: 0 temperature: 1}, {from_step: 9 temperature: 5}]");
  ASSERT_EQ(run.data().temperature_size(), 2);
  EXPECT_EQ(run.data().temperature(1).from_step(), 9);
}

TEST_F(SpecLoader, SetReplacesAListAndAnEmptyValueClearsAField) {
  Write("a.textproto", "data { directions: ['de-en', 'en-de'] max_tokens: 7 }");
  EXPECT_THAT(Read({"a.textproto"}, {"data.directions=fr-en"})->data().directions(),
              ElementsAre("fr-en"));
  const auto cleared = Read({"a.textproto"}, {"data.directions=", "data.max_tokens="});
  EXPECT_EQ(cleared->data().directions_size(), 0);
  EXPECT_EQ(cleared->data().max_tokens(), 0);
}

TEST_F(SpecLoader, SetExplainsWhatIsWrong) {
  EXPECT_EQ(
      Error({}, {"model.width=wide", "model.residual=POSTLN", "seed.x=1", "model={width: x}"}),
      "--set model.width=wide: Expected integer, got: wide\n"
      "--set model.residual=POSTLN: residual has no value 'POSTLN'; did you mean "
      "'POST_LN'?\n"
      "--set seed.x=1: 'seed' has no fields of its own\n"
      "--set model={width: x}: Expected integer, got: x");
}

TEST_F(SpecLoader, WhatIsPrintedReadsBack) {
  Write("a.textproto", "seed: 3 model { width: 64 dropout: 0.1 } optim { beta1: 0 }");
  const RunSpec run = WithDefaults(*Read({"a.textproto"}));
  Write("copy.textproto", ToTextproto(run));
  const auto copy = Read({"copy.textproto"});
  ASSERT_TRUE(copy.ok()) << copy.status();
  EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(run, *copy));
}

TEST(Defaults, FillWhatIsUnsetAndKeepWhatIsNot) {
  RunSpec run;
  run.mutable_data()->mutable_microbatch()->set_target_tokens(1000);
  run.mutable_optim()->set_warmup_steps(0);
  run.mutable_optim()->set_label_smoothing(0.0);
  run.mutable_decode()->set_beam_size(3);
  run = WithDefaults(run);
  EXPECT_EQ(run.data().microbatch().source_tokens(), 0);  // the corpus decides
  EXPECT_EQ(run.data().microbatch().sentences(), 250);
  EXPECT_EQ(run.optim().warmup_steps(), 0);
  EXPECT_EQ(run.optim().label_smoothing(), 0.0);
  EXPECT_EQ(run.optim().beta2(), 0.98);
  EXPECT_EQ(run.decode().beam_size(), 3);
  EXPECT_EQ(run.train().log_every_steps(), 10);
  EXPECT_EQ(run.compute().dtype(), DATA_TYPE_UNSPECIFIED);
}

TEST(Defaults, InstrumentsAreOffUntilNamed) {
  EXPECT_EQ(WithDefaults(RunSpec()).instruments().every_steps(), 0);
  RunSpec run;
  run.mutable_instruments();
  EXPECT_EQ(WithDefaults(run).instruments().every_steps(), 100);
  run.mutable_instruments()->set_every_steps(0);
  EXPECT_EQ(WithDefaults(run).instruments().every_steps(), 0);
}

TEST(Defaults, FillingTwiceChangesNothing) {
  const RunSpec once = WithDefaults(RunSpec());
  EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(once, WithDefaults(once)));
}

TEST(Defaults, LeaveRanksAndVirtualReplicasToTheJob) {
  const RunSpec run = WithDefaults(RunSpec());
  EXPECT_EQ(run.cluster().nodes(), 0);
  EXPECT_EQ(run.cluster().devices_per_node(), 0);
  EXPECT_EQ(run.optim().virtual_replicas(), 0);
}

}  // namespace
}  // namespace deepnet
