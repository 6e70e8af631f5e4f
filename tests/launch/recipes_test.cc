#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "launch/defaults.h"
#include "launch/spec_loader.h"
#include "launch/validate.h"
#include "parallel/plan/planner.h"
#include "trainer/model/describe.h"

namespace deepnet {
namespace {

std::vector<std::string> RecipeFiles() {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator("launch/recipes")) {
    if (entry.path().extension() == ".textproto") files.push_back(entry.path().string());
  }
  return files;
}

RunSpec Recipe(const std::string& name) {
  const auto run = ReadRunSpec({.files = {"launch/recipes/" + name + ".textproto"}}, RunSpec());
  EXPECT_TRUE(run.ok()) << run.status();
  return WithDefaults(run.value_or(RunSpec()));
}

TEST(Recipes, EachParsesAndCanBeTrained) {
  ASSERT_GE(RecipeFiles().size(), 4u);
  for (const std::string& file : RecipeFiles()) {
    const auto run = ReadRunSpec({.files = {file}}, RunSpec());
    ASSERT_TRUE(run.ok()) << run.status();
    EXPECT_EQ(ValidateForTrain(WithDefaults(*run)), absl::OkStatus()) << file;
  }
}

TEST(Recipes, EachIsCalledAsItsFile) {
  for (const std::string& file : RecipeFiles()) {
    EXPECT_EQ(ReadRunSpec({.files = {file}}, RunSpec())->name(),
              std::filesystem::path(file).stem().string());
  }
}

TEST(Recipes, WhatNeedsACorpusOfItsOwnPreparesIt) {
  for (const char* name : {"quickstart", "deepnet_1000l", "deepnet_100l", "paper/languages102"}) {
    EXPECT_EQ(ValidateForPrepare(Recipe(name)), absl::OkStatus()) << name;
  }
}

TEST(Recipes, ThePapersModelsHaveItsVocabularyAndBatch) {
  for (const char* name : {"deepnet_1000l", "deepnet_100l"}) {
    const RunSpec run = Recipe(name);
    EXPECT_EQ(ValidateForPlan(run), absl::OkStatus()) << name;
    EXPECT_EQ(run.model().vocabulary_size(), 250002);
    EXPECT_EQ(run.prepare().tokenizer().vocab_size() + 100, 250002);  // and the tags of OPUS-100
    EXPECT_EQ(run.data().global_microbatches() * run.data().microbatch().max_target_tokens(),
              128 * 4096);
  }
}

TEST(Recipes, EachFitsTheMachinesItNames) {
  for (const std::string& file : RecipeFiles()) {
    RunSpec run = WithDefaults(*ReadRunSpec({.files = {file}}, RunSpec()));
    if (run.model().vocabulary_size() == 0) run.mutable_model()->set_vocabulary_size(5000);
    const Inventory inventory = Describe(run.model(), run.data().microbatch());
    const auto plan = MakePlan(
        inventory, {run.data(), run.optim(), run.compute(), run.cluster(), run.parallel()});
    EXPECT_TRUE(plan.ok()) << file << ": " << plan.status();
  }
}

TEST(Recipes, EachIsSummedTheSameWayOnAnyNumberOfRanks) {
  for (const std::string& file : RecipeFiles()) {
    RunSpec run = WithDefaults(*ReadRunSpec({.files = {file}}, RunSpec()));
    if (run.model().vocabulary_size() == 0) run.mutable_model()->set_vocabulary_size(5000);
    const Inventory inventory = Describe(run.model(), run.data().microbatch());
    std::set<int> virtual_replicas;
    for (const int ranks : {1, 4, 64}) {
      ClusterSpec cluster;
      cluster.set_devices_per_node(ranks);
      const auto plan =
          MakePlan(inventory, {run.data(), run.optim(), run.compute(), cluster, run.parallel()});
      if (!plan.ok()) continue;  // fewer layers than ranks
      virtual_replicas.insert(plan->virtual_replicas());
      EXPECT_EQ(plan->virtual_replicas() % plan->data_parallel_size(), 0) << file;
    }
    EXPECT_EQ(virtual_replicas.size(), 1u) << file;
  }
}

TEST(Recipes, ThePapersModelsHaveItsNumberOfParameters) {
  const auto millions = [](const std::string& name) {
    const RunSpec run = Recipe(name);
    return static_cast<double>(Describe(run.model(), run.data().microbatch()).NumElements()) / 1e6;
  };
  EXPECT_NEAR(millions("deepnet_1000l"), 3806.2, 0.05);
  EXPECT_NEAR(millions("deepnet_100l"), 863.6, 0.05);
  EXPECT_NEAR(millions("m2m100_418m"), 483.9, 0.05);
  EXPECT_NEAR(millions("m2m100_12b"), 11800, 10);
}

TEST(Recipes, LanguageModelsLearnFromTheQuickStartsCorpus) {
  EXPECT_EQ(Recipe("language_model").model().architecture(), DECODER_ONLY);
  EXPECT_EQ(Recipe("masked_language_model").model().architecture(), ENCODER_ONLY);
  for (const char* name : {"language_model", "masked_language_model"}) {
    EXPECT_EQ(Recipe(name).data().folder(), Recipe("quickstart").data().folder());
  }
}

TEST(Recipes, TheSmallThousandLayersLearnFromTheQuickStartsCorpus) {
  const RunSpec run = Recipe("small_1000l");
  EXPECT_EQ(run.model().encoder_layers() + run.model().decoder_layers(), 1000);
  EXPECT_EQ(run.data().folder(), Recipe("quickstart").data().folder());
}

}  // namespace
}  // namespace deepnet
