#include "trainer/train_session.h"

#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
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
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(
      R"(folder: 'run'
         model { encoder_layers: 1 decoder_layers: 1 d_model: 32 ffn_dim: 64 num_heads: 2
                 residual: DEEPNORM }
         data { folder: 'corpus' max_sentence_tokens: 60 microbatch { max_target_tokens: 100 } }
         optim { learning_rate: 1e-3 }
         compute { device: 'cpu' dtype: FLOAT32 threads_per_rank: 1 })",
      &run));
  run = WithDefaults(run);
  const auto files = MakePosixFileSystem();
  const auto statuses = RunRanks(2, [&](Communicator& world) -> absl::Status {
    std::ostringstream text;
    Logger log({.stream = &text});
    ASSIGN_OR_RETURN(ResolvedRun resolved,
                     ResolveRun(run, {.root = folder.path()}, world, *files, log));
    if (world.rank() == 1) resolved.run.mutable_data()->set_max_sentence_tokens(1);
    return MakeTrainSession(resolved, {}, world, *files, log).status();
  });
  for (const absl::Status& status : statuses) {
    EXPECT_TRUE(IsAgreed(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1: data.max_sentence_tokens: "));
  }
}

}  // namespace
}  // namespace deepnet
