// Why DeepNorm trains at 500 + 500 layers and Post-LN does not at 100 + 100: the recipe
// lab/deep_gradients, 200 steps of real text.
//
// The issue is the gradient that reaches the lower layers. Post-LN's loss falls too in so few
// steps, from that of random logits to that of an even guess among all pieces: for that the output
// matrix needs no layer below it.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include "launch/defaults.h"
#include "launch/spec_loader.h"
#include "proto/report.pb.h"
#include "trainer/data/prepare/prepare.h"
#include "trainer/trainer.h"

namespace deepnet {
namespace {

constexpr double kEven = 10.0;  // largest over smallest layer of a stack
constexpr double kVanished = 1e6;
constexpr double kPieces = 1000;  // of the recipe's vocabulary, at least

struct Course {
  std::vector<double> losses;  // means of 50 steps
  double encoder_ratio = 0.0;  // of layers' gradient norms after the last step
  double decoder_ratio = 0.0;
};

double Ratio(const InstrumentRecord& record, const std::string& stack) {
  std::vector<double> norms;
  for (const LayerInstruments& layer : record.layers()) {
    if (layer.name().starts_with(stack)) norms.push_back(layer.gradient_norm());
  }
  const auto [least, most] = std::minmax_element(norms.begin(), norms.end());
  return *most / *least;
}

class DeepGradients : public ::testing::Test {
 protected:
  DeepGradients()
      : root_(
            (std::filesystem::temp_directory_path() / ("deepnet_deep_" + std::to_string(getpid())))
                .string()) {
    std::filesystem::create_directories(root_);
    RunSpec run = Recipe({});
    LanguageTable& table = *run.mutable_prepare()->mutable_table(0);
    table.set_file(std::filesystem::absolute(table.file()).string());
    EXPECT_TRUE(Prepare(run.prepare(), run.data().folder(), root_, [](std::string_view) {}).ok());
  }
  ~DeepGradients() override { std::filesystem::remove_all(root_); }

  static RunSpec Recipe(std::vector<std::string> sets) {
    const auto run =
        ReadRunSpec({.files = {"launch/recipes/lab/deep_gradients.textproto"}, .sets = sets}, {});
    EXPECT_TRUE(run.ok()) << run.status();
    return WithDefaults(run.value_or(RunSpec()));
  }

  Course Train(const RunSpec& run) const {
    std::ostringstream text;
    Logger log({.stream = &text});
    const absl::Status status = deepnet::Train(run, {.root = root_}, log);
    EXPECT_TRUE(status.ok()) << status << text.str();
    return Read(root_ + "/" + run.folder() + "/metrics.jsonl");
  }

  static Course Read(const std::string& file) {
    Course course;
    std::ifstream metrics(file);
    for (std::string line; std::getline(metrics, line);) {
      StepRecord step;
      InstrumentRecord record;
      if (line.find(R"("kind":"train")") != std::string::npos) {
        EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(line, &step).ok()) << line;
        course.losses.push_back(step.loss());
      } else if (line.find(R"("kind":"instruments")") != std::string::npos) {
        EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(line, &record).ok()) << line;
        course.encoder_ratio = Ratio(record, "encoder.layers");
        course.decoder_ratio = Ratio(record, "decoder.layers");
      }
    }
    std::printf("loss %.3f %.3f %.3f %.3f, gradient over depth: encoder %.3g, decoder %.3g\n",
                course.losses.at(0), course.losses.at(1), course.losses.at(2), course.losses.at(3),
                course.encoder_ratio, course.decoder_ratio);
    return course;
  }

  const std::string root_;
};

TEST_F(DeepGradients, ReachEveryLayerOfDeepNormAndVanishInPostNorm) {
  const Course deep = Train(Recipe({}));
  ASSERT_EQ(deep.losses.size(), 4u);
  for (size_t i = 1; i < deep.losses.size(); ++i) EXPECT_LT(deep.losses[i], deep.losses[i - 1]);
  EXPECT_LE(deep.encoder_ratio, kEven);
  EXPECT_LE(deep.decoder_ratio, kEven);
  const Course post = Train(Recipe({"model.residual=POST_LN", "model.encoder_layers=100",
                                    "model.decoder_layers=100", "folder=post"}));
  EXPECT_GE(std::max(post.encoder_ratio, post.decoder_ratio), kVanished);
  // The loss of a model that takes every piece for equally likely.
  EXPECT_LT(deep.losses.back(), std::log(kPieces) - 0.1);
  EXPECT_GT(post.losses.back(), std::log(kPieces));
}

}  // namespace
}  // namespace deepnet
