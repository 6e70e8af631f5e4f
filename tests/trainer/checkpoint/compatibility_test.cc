#include "trainer/checkpoint/compatibility.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parallel/base/exit_code.h"

namespace deepnet {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Manifest SavedRun() {
  Manifest manifest;
  manifest.set_step(10);
  manifest.set_inventory_hash("aa");
  manifest.set_corpus_hash("bb");
  manifest.set_tokenizer_hash("cc");
  RunSpec& run = *manifest.mutable_run();
  run.set_seed(7);
  run.mutable_model()->set_encoder_layers(12);
  run.mutable_model()->set_residual(DEEPNORM);
  run.mutable_data()->mutable_microbatch()->set_max_target_tokens(900);
  run.mutable_data()->add_directions("de-en");
  return manifest;
}

// The same with another `run`.
Manifest Now(const RunSpec& run) {
  Manifest now = SavedRun();
  *now.mutable_run() = run;
  return now;
}

std::string Difference(const Manifest& now) {
  return std::string(CheckSameRun(SavedRun(), now).message());
}

TEST(CheckSameRun, PassesWhenOnlyWhatMayChangeHasChanged) {
  RunSpec run = SavedRun().run();
  run.set_folder("elsewhere");
  run.mutable_train()->set_steps(1000);
  run.mutable_optim()->set_learning_rate(0.1);
  run.mutable_model()->set_dropout(0.3);
  run.mutable_model()->mutable_deepnorm();  // empty: as if absent
  EXPECT_EQ(CheckSameRun(SavedRun(), Now(run)), absl::OkStatus());
}

TEST(CheckSameRun, NamesEveryDifferenceWithBothValues) {
  RunSpec run = SavedRun().run();
  run.set_seed(8);
  run.mutable_model()->set_encoder_layers(18);
  run.mutable_model()->set_residual(PRE_LN);
  run.mutable_data()->mutable_microbatch()->set_max_target_tokens(800);
  run.mutable_data()->add_directions("en-de");
  EXPECT_THAT(
      Difference(Now(run)),
      AllOf(
          HasSubstr("the checkpoint of step 10 is of another run: "),
          HasSubstr("seed is 7 in the checkpoint and 8 in this run"),
          HasSubstr("model.encoder_layers is 12 in the checkpoint and 18 in this run"),
          HasSubstr("model.residual is DEEPNORM in the checkpoint and PRE_LN in this run"),
          HasSubstr("data.directions is [\"de-en\"] in the checkpoint and [\"de-en\", \"en-de\"]"),
          HasSubstr("max_target_tokens: 900"), HasSubstr("max_target_tokens: 800")));
}

TEST(CheckSameRun, NamesEachFieldThatDecidesTheBits) {
  RunSpec run = SavedRun().run();
  run.mutable_data()->set_tags(M2M);
  run.mutable_data()->set_global_microbatches(5);
  run.mutable_data()->set_max_sentence_tokens(6);
  run.mutable_optim()->set_optimizer(ADAMW);
  run.mutable_optim()->set_virtual_replicas(3);
  EXPECT_THAT(Difference(Now(run)),
              AllOf(HasSubstr("data.tags is "), HasSubstr("data.global_microbatches is "),
                    HasSubstr("data.max_sentence_tokens is "), HasSubstr("optim.optimizer is "),
                    HasSubstr("optim.virtual_replicas is 0 in the checkpoint and 3")));
}

TEST(CheckSameRun, SaysAllInOneLine) {
  Manifest other = SavedRun();
  other.mutable_run()->mutable_data()->mutable_microbatch()->set_max_target_tokens(800);
  other.mutable_run()->mutable_data()->mutable_microbatch()->set_max_source_tokens(700);
  other.clear_corpus_hash();
  EXPECT_EQ(Difference(other),
            "the checkpoint of step 10 is of another run: data.microbatch is "
            "{ max_target_tokens: 900 } in the checkpoint and "
            "{ max_source_tokens: 700 max_target_tokens: 800 } in this run; the corpus's content "
            "hash is bb in the checkpoint and none in this run");
}

TEST(CheckSameRun, MorePairsThanTargetTokensAreAsManyPairs) {
  Manifest saved = SavedRun();
  const auto pairs = [](Manifest& manifest, int32_t max) {
    manifest.mutable_run()->mutable_data()->mutable_microbatch()->set_max_sentences(max);
  };
  Manifest now = saved;
  pairs(saved, 1000);
  pairs(now, 900);
  EXPECT_EQ(CheckSameRun(saved, now), absl::OkStatus());
  pairs(saved, 899);
  EXPECT_FALSE(CheckSameRun(saved, now).ok());
}

// As a newer program writes it.
TEST(CheckSameRun, AFieldOfAPartThatIsNotKnownIsNoDifference) {
  RunSpec run = SavedRun().run();
  MicrobatchSpec& microbatch = *run.mutable_data()->mutable_microbatch();
  microbatch.GetReflection()->MutableUnknownFields(&microbatch)->AddVarint(1000, 5);
  EXPECT_EQ(CheckSameRun(SavedRun(), Now(run)), absl::OkStatus());
}

TEST(CheckSameRun, NamesAnotherCorpusTokenizerOrInventory) {
  Manifest other = SavedRun();
  other.set_inventory_hash("a2");
  other.set_corpus_hash("b2");
  other.clear_tokenizer_hash();
  EXPECT_THAT(Difference(other),
              AllOf(HasSubstr("corpus's content hash is bb in the checkpoint and b2 in this run"),
                    HasSubstr("tokenizer's content hash is cc in the checkpoint and none in"),
                    HasSubstr("names and shapes is aa in the checkpoint and a2 in this run")));
}

TEST(CheckSameRun, CarriesTheExitCode) {
  EXPECT_EQ(GetExitCode(CheckSameRun(SavedRun(), Now({}))), ExitCode::kCheckpoint);
}

}  // namespace
}  // namespace deepnet
