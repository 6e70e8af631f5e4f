#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include "launch/commands/command.h"
#include "launch/defaults.h"
#include "launch/spec_loader.h"
#include "tests/launch/commands/run_command.h"
#include "trainer/data/corpus.h"
#include "trainer/data/corpus_batch_source.h"
#include "trainer/data/data_order.h"
#include "trainer/instruments/meters.h"
#include "trainer/kernels/compute.h"
#include "trainer/model/transformer.h"

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

constexpr char kCorpus[] = "tests/golden/run-v1/corpus";

TEST(LabModelUpdate, LearnsFromACorpusWhereThereIsOne) {
  const auto per_token = [](std::vector<std::string> more) {
    std::vector<std::string> words = {"model-update", "--steps", "1"};
    for (const char* set : {"model.encoder_layers=1", "model.decoder_layers=1",
                            "data.max_sentence_tokens=150", "data.microbatch.max_source_tokens=200",
                            "data.microbatch.max_target_tokens=200", "optim.warmup_steps=1"}) {
      words.insert(words.end(), {"--set", set});
    }
    words.insert(words.end(), more.begin(), more.end());
    const Outcome outcome = RunCommand(MakeLabCommand(), words);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    google::protobuf::Struct json;
    EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(outcome.out, &json).ok());
    return Number(json, "per_token");
  };
  const double of_corpus = per_token({"--data", kCorpus});
  EXPECT_GT(of_corpus, 0.0);
  EXPECT_EQ(per_token({"--data", kCorpus}), of_corpus);
  EXPECT_NE(per_token({"--data", kCorpus, "--parameters", "all"}), of_corpus);
  EXPECT_NE(per_token({}), of_corpus);
  const std::string rows =
      absl::StrCat("model.vocabulary_size=", Corpus::Open(kCorpus)->vocabulary().size());
  EXPECT_EQ(per_token({"--data", kCorpus, "--set", rows}), of_corpus);
  EXPECT_NE(per_token({"--set", rows}), of_corpus);  // made-up sentences of as many pieces
  const Outcome none = RunCommand(
      MakeLabCommand(), {"model-update", "--data", kCorpus, "--set", "data.directions=de-xx"});
  EXPECT_EQ(none.code, 2) << none.err;
  EXPECT_NE(none.err.find("data.directions"), std::string::npos) << none.err;
}

// The profile of the batch that training begins with, whatever profile the run has.
TEST(LabAdminProfile, PrintsWhatTheFirstBatchGives) {
  const std::vector<std::string> sets = {
      "seed=4",
      "folder=unused",
      "model.residual=ADMIN",
      "data.max_sentence_tokens=150",
      "data.microbatch={max_source_tokens: 200 max_target_tokens: 200}",
      "train.steps=1",
      "compute.device=cpu",
      absl::StrCat("data.folder=", kCorpus)};
  const auto profile = [&sets](const std::vector<std::string>& more) {
    std::vector<std::string> words = {"admin-profile", "--config", kTiny};
    for (const std::string& set : sets) words.insert(words.end(), {"--set", set});
    for (const std::string& set : more) words.insert(words.end(), {"--set", set});
    return RunCommand(MakeLabCommand(), words);
  };
  const Outcome outcome = profile({});
  ASSERT_EQ(outcome.code, 0) << outcome.err;

  const Corpus corpus = *Corpus::Open(kCorpus);
  RunSpec run = WithDefaults(*ReadRunSpec({".", {kTiny}, sets}, {}));
  run.mutable_model()->set_vocabulary_size(corpus.vocabulary().size());
  ASSERT_TRUE(ResolveDataSpec(corpus, run.mutable_data()).ok());
  const auto batches = *CorpusBatchSource::Make(run.data(), run.seed(), &corpus);
  const auto ops = *MakeOps(ResolveCompute(run.compute()));
  Transformer model(run.model(), run.data().microbatch(), *ops, /*trainable=*/true);
  model.parameters().Initialize(run.seed());
  model.Refresh();
  const std::vector<double> omegas =
      ProfileAdmin(model, batches->ForStep(0)->microbatches[0], run.seed());
  ASSERT_EQ(omegas.size(), 2u * 2 + 3 * 1);
  std::string expected;
  for (const double omega : omegas) {
    absl::StrAppendFormat(&expected, "%s%.6g", expected.empty() ? "" : ", ", omega);
  }
  EXPECT_EQ(outcome.out, "model { scheme { admin_omega: [" + expected + "] } }\n");
  EXPECT_EQ(profile({"model.scheme=admin_omega: [9, 9, 9, 9, 9, 9, 9]"}).out, outcome.out);

  const Outcome other = profile({"model.residual=DEEPNORM"});
  EXPECT_EQ(other.code, 2);
  EXPECT_EQ(other.err,
            "error: model.residual: DEEPNORM: must be ADMIN: no other scheme has a profile\n");
  EXPECT_EQ(profile({"data.folder=nowhere"}).code, 4);
  EXPECT_EQ(profile({"data.directions=de-xx"}).code, 2);
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
