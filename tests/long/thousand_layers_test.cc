// 500 + 500 layers for real: the depth trains on real text in bounded memory.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include "launch/defaults.h"
#include "parallel/base/host.h"
#include "proto/report.pb.h"
#include "trainer/data/prepare/prepare.h"
#include "trainer/trainer.h"

namespace deepnet {
namespace {

ModelSpec ThousandLayers() {
  RunSpec run;
  ModelSpec& spec = *run.mutable_model();
  spec.set_encoder_layers(500);
  spec.set_decoder_layers(500);
  spec.set_d_model(64);
  spec.set_ffn_dim(128);
  spec.set_num_heads(2);
  spec.set_residual(DEEPNORM);
  spec.set_vocabulary_size(1000);
  return WithDefaults(run).model();
}

TEST(ThousandLayers, TrainOnRealTextUnderEightGibibytesWithFallingLoss) {
  const std::string root =
      (std::filesystem::temp_directory_path() / ("deepnet_long_" + std::to_string(getpid())))
          .string();
  RunSpec run;
  LanguageTable& table = *run.mutable_prepare()->add_table();
  table.set_file(std::filesystem::absolute("launch/corpora/udhr.tsv").string());
  for (const char* language : {"de", "es", "fr"}) table.add_languages(language);
  run.mutable_prepare()->mutable_tokenizer()->set_vocab_size(1000);
  run.mutable_data()->set_folder("data");
  run.mutable_data()->set_max_sentence_tokens(120);
  run.mutable_data()->mutable_microbatch()->set_max_target_tokens(500);
  run.set_folder("run");
  *run.mutable_model() = ThousandLayers();
  run.mutable_model()->set_vocabulary_size(0);
  run.mutable_model()->set_dropout(0.1);
  run.mutable_optim()->set_learning_rate(1e-3);
  run.mutable_optim()->set_warmup_steps(10);
  run.mutable_train()->set_steps(20);
  run.mutable_train()->set_log_every_steps(5);
  run.mutable_train()->set_validate_every_steps(-1);
  run.mutable_train()->set_validate_sentences(1);
  run.mutable_decode()->set_max_tokens(5);
  run = WithDefaults(run);
  std::filesystem::create_directories(root);
  ASSERT_TRUE(Prepare(run.prepare(), "data", root, [](std::string_view) {}).ok());
  std::ostringstream text;
  Logger log({.stream = &text});
  const absl::Status status = Train(run, {.root = root}, log);
  ASSERT_TRUE(status.ok()) << status << text.str();

  std::vector<double> losses;
  std::ifstream metrics(root + "/run/metrics.jsonl");
  for (std::string line; std::getline(metrics, line);) {
    StepRecord record;
    google::protobuf::util::JsonParseOptions lenient;
    lenient.ignore_unknown_fields = true;
    ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(line, &record, lenient).ok()) << line;
    if (record.kind() == "train") losses.push_back(record.loss());
  }
  ASSERT_EQ(losses.size(), 4u);
  for (size_t i = 1; i < losses.size(); ++i) EXPECT_LT(losses[i], losses[i - 1]);
  const int64_t peak = PeakResidentBytes();
  std::printf("20 steps of 500 + 500 layers: loss %.3f -> %.3f, peak %.2f GiB\n", losses.front(),
              losses.back(), static_cast<double>(peak) / (1 << 30));
  EXPECT_LT(peak, int64_t{8} << 30);
  std::filesystem::remove_all(root);
}

}  // namespace
}  // namespace deepnet
