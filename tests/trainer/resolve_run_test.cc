#include "trainer/resolve_run.h"

#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launch/defaults.h"
#include "parallel/base/logging.h"
#include "parallel/base/status_macros.h"
#include "parallel/comm/communicator.h"
#include "tests/parity/training_runs.h"
#include "tests/support/run_ranks.h"

namespace deepnet {
namespace {

using ::testing::HasSubstr;

bool IsCluster(const Buffer& buffer) {
  ClusterSpec cluster;
  return cluster.ParseFromArray(buffer.data, static_cast<int>(buffer.bytes)) &&
         cluster.nodes() == 1 && cluster.devices_per_node() == 2 && cluster.device_memory_gib() > 0;
}

// Damages what the other ranks say about their memory.
class DamagingCommunicator final : public ForwardingCommunicator {
 public:
  explicit DamagingCommunicator(Communicator& inner) : ForwardingCommunicator(inner) {}

  TransferOr AllGather(Buffer mine, std::span<const Buffer> all) override {
    ASSIGN_OR_RETURN(auto transfer, inner().AllGather(mine, all));
    if (!IsCluster(mine)) return transfer;
    RETURN_IF_ERROR(transfer->Wait());
    for (int r = 0; r < size(); ++r) {
      if (r == rank()) continue;
      std::memset(all[r].data, 0xff, static_cast<size_t>(all[r].bytes));
      ++damaged_;
    }
    return transfer;
  }

  int damaged() const { return damaged_; }

 private:
  int damaged_ = 0;
};

TEST(ResolveRun, RefusesAClusterThatDidNotSurviveBeingSent) {
  const std::filesystem::path root =
      std::filesystem::path(::testing::TempDir()) / ("deepnet_resolve_" + std::to_string(getpid()));
  std::filesystem::create_directories(root);
  ASSERT_TRUE(testing::MakeCorpus(root, "corpus", {"de", "fr"}, 300).ok());
  RunSpec run;
  run.mutable_model()->set_residual(DEEPNORM);
  run.mutable_model()->set_encoder_layers(2);
  run.mutable_model()->set_decoder_layers(2);
  run.mutable_model()->set_d_model(32);
  run.mutable_model()->set_ffn_dim(64);
  run.mutable_model()->set_num_heads(2);
  run.mutable_data()->set_folder("corpus");
  run.mutable_data()->set_max_sentence_tokens(60);
  run.mutable_data()->mutable_microbatch()->set_max_target_tokens(100);
  run.mutable_optim()->set_learning_rate(1e-3);
  run.mutable_compute()->set_device("cpu");
  run.mutable_compute()->set_dtype(FLOAT32);
  run.mutable_compute()->set_threads_per_rank(1);
  run.set_folder("run");
  run = WithDefaults(run);
  const auto fs = MakePosixFileSystem();
  const auto resolve = [&](Communicator& world) {
    std::ostringstream text;
    Logger log({.stream = &text});
    return ResolveRun(run, {.root = root.string()}, world, *fs, log).status();
  };
  for (const absl::Status& status : RunRanks(2, resolve)) EXPECT_TRUE(status.ok()) << status;
  const auto statuses = RunRanks(2, [&](Communicator& world) {
    DamagingCommunicator damaging(world);
    const absl::Status status = resolve(damaging);
    EXPECT_EQ(damaging.damaged(), 1);
    return status;
  });
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("ClusterSpec"));
  }
  std::filesystem::remove_all(root);
}

}  // namespace
}  // namespace deepnet
