#include "trainer/train_session.h"

#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launch/defaults.h"
#include "parallel/base/file_system.h"
#include "parallel/base/logging.h"
#include "parallel/base/status_macros.h"
#include "parallel/comm/agreement.h"
#include "tests/parity/training_runs.h"
#include "tests/support/run_ranks.h"
#include "tests/trainer/data/temp_folder.h"
#include "trainer/resolve_run.h"

namespace deepnet {
namespace {

using ::testing::HasSubstr;

// One rank's corpus has gone bad since the run was resolved.
TEST(MakeTrainSession, ARankWithoutBatchesEndsAllRanks) {
  const testing::TempFolder folder;
  ASSERT_TRUE(testing::MakeCorpus(folder.path(), "corpus", {"de", "fr"}, 300).ok());
  RunSpec run;
  run.set_folder("run");
  ModelSpec& model = *run.mutable_model();
  model.set_residual(DEEPNORM);
  model.set_encoder_layers(1);
  model.set_decoder_layers(1);
  model.set_d_model(32);
  model.set_ffn_dim(64);
  model.set_num_heads(2);
  run.mutable_data()->set_folder("corpus");
  run.mutable_data()->set_max_sentence_tokens(60);
  run.mutable_data()->mutable_microbatch()->set_max_target_tokens(100);
  run.mutable_optim()->set_learning_rate(1e-3);
  run.mutable_compute()->set_device("cpu");
  run.mutable_compute()->set_dtype(FLOAT32);
  run.mutable_compute()->set_threads_per_rank(1);
  run = WithDefaults(run);
  const auto files = MakePosixFileSystem();
  const auto statuses = RunRanks(2, [&](Communicator& world) -> absl::Status {
    std::ostringstream text;
    Logger log({.stream = &text});
    ASSIGN_OR_RETURN(ResolvedRun resolved,
                     ResolveRun(run, {.root = folder.path()}, world, *files, log));
    if (world.rank() == 1) resolved.run.mutable_data()->set_max_sentence_tokens(1);
    return MakeTrainSession(resolved, "", world, *files, log).status();
  });
  for (const absl::Status& status : statuses) {
    EXPECT_TRUE(IsAgreed(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1: data.max_sentence_tokens: "));
  }
}

}  // namespace
}  // namespace deepnet
