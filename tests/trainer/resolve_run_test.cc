#include "trainer/resolve_run.h"

#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launch/defaults.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/file_system.h"
#include "parallel/base/logging.h"
#include "parallel/base/status_macros.h"
#include "parallel/comm/communicator.h"
#include "tests/parity/training_runs.h"
#include "tests/support/forwarding_communicator.h"
#include "tests/support/run_ranks.h"
#include "tests/support/seal_blocks.h"
#include "tests/trainer/data/prepared_corpus.h"
#include "tests/trainer/data/temp_folder.h"
#include "trainer/checkpoint/checkpoint.h"

namespace deepnet {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

bool IsCluster(const Buffer& buffer) {
  ClusterSpec cluster;
  return cluster.ParseFromArray(buffer.data, static_cast<int>(buffer.bytes)) &&
         cluster.nodes() == 1 && cluster.devices_per_node() == 2 && cluster.device_memory_gib() > 0;
}

bool IsCompute(const Buffer& buffer) {
  ComputeSpec compute;
  return compute.ParseFromArray(buffer.data, static_cast<int>(buffer.bytes)) &&
         compute.device() == "cpu" && compute.threads_per_rank() == 1;
}

// Changes what ranks are told.
class DamagingCommunicator final : public ForwardingCommunicator {
 public:
  using Change = std::function<void(int rank, Buffer sent)>;

  DamagingCommunicator(Communicator& inner, Change change)
      : ForwardingCommunicator(inner), change_(std::move(change)) {}

  TransferOr AllGather(Buffer mine, std::span<const Buffer> all) override {
    ASSIGN_OR_RETURN(auto transfer, inner().AllGather(mine, all));
    RETURN_IF_ERROR(transfer->Wait());
    for (int r = 0; r < size(); ++r) change_(r, all[r]);
    return transfer;
  }

 private:
  const Change change_;
};

RunSpec SmallRun() {
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
  return WithDefaults(run);
}

TEST(ResolveRun, WarnsOfWhatWillNotBeLearnedOrValidated) {
  const testing::TempFolder folder;
  std::string longer;
  for (int i = 0; i < 100; ++i) longer += "x ";
  folder.Write("de-en.tsv", "ein Haus\ta house\nein Baum\ta tree\n");
  folder.Write("it-en.tsv", longer + "\ty " + longer + "\n");
  folder.Write("dev.tsv", "der Baum\tthe tree\n");
  const std::string train =
      "tokenizer { vocab_size: 24 } text { source_language: 'de' target_language: 'en' tsv_file: "
      "'de-en.tsv' } text { source_language: 'it' target_language: 'en' tsv_file: 'it-en.tsv' }";
  const std::string dev =
      "text { source_language: 'de' target_language: 'en' tsv_file: 'dev.tsv' split: 'dev' }";
  ASSERT_TRUE(testing::PrepareIn(folder, train, nullptr, "without").ok());
  ASSERT_TRUE(testing::PrepareIn(folder, train + dev, nullptr, "with").ok());
  const auto fs = MakePosixFileSystem();
  const auto warnings = [&](const std::string& corpus, int tokens, const std::string& direction) {
    RunSpec run = SmallRun();
    run.mutable_data()->set_folder(corpus);
    run.mutable_data()->set_max_sentence_tokens(tokens);
    run.mutable_data()->add_directions(direction);
    std::ostringstream text;
    Logger log({.stream = &text});
    SelfCommunicator world;
    const auto resolved = ResolveRun(run, {.root = folder.path()}, world, *fs, log);
    EXPECT_TRUE(resolved.ok()) << resolved.status();
    return text.str();
  };
  constexpr char kLong[] =
      "warning: it-en: nothing of it is learned: every pair has a side of more than 60 pieces";
  constexpr char kNoDev[] = "warning: the corpus has no dev sentences of these directions";
  EXPECT_THAT(warnings("with", 60, "*-en"), AllOf(HasSubstr(kLong), Not(HasSubstr(kNoDev))));
  EXPECT_THAT(warnings("without", 60, "de-en"), AllOf(HasSubstr(kNoDev), Not(HasSubstr(kLong))));
  EXPECT_THAT(warnings("with", 60, "en-de"), AllOf(Not(HasSubstr(kLong)), Not(HasSubstr(kNoDev))));
}

TEST(ResolveRun, RefusesAClusterThatDidNotSurviveBeingSentAndOtherCopiesOfTheCorpus) {
  const std::filesystem::path root =
      std::filesystem::path(::testing::TempDir()) / ("deepnet_resolve_" + std::to_string(getpid()));
  std::filesystem::create_directories(root);
  ASSERT_TRUE(testing::MakeCorpus(root, "corpus", {"de", "fr"}, 300).ok());
  const RunSpec run = SmallRun();
  const auto fs = MakePosixFileSystem();
  const auto resolve = [&](Communicator& world) {
    std::ostringstream text;
    Logger log({.stream = &text});
    return ResolveRun(run, {.root = root.string()}, world, *fs, log).status();
  };
  for (const absl::Status& status : RunRanks(2, resolve)) EXPECT_TRUE(status.ok()) << status;
  const auto statuses = RunRanks(2, [&](Communicator& world) {
    int damaged = 0;
    DamagingCommunicator damaging(world, [&](int rank, Buffer sent) {
      if (rank == world.rank() || !IsCluster(sent)) return;
      std::memset(sent.data, 0xff, static_cast<size_t>(sent.bytes));
      ++damaged;
    });
    const absl::Status status = resolve(damaging);
    EXPECT_EQ(damaged, 1);
    return status;
  });
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("ClusterSpec"));
  }

  // A plan is for the rank with the least memory, whichever that is.
  for (const int least : {0, 1}) {
    const auto too_little = RunRanks(2, [&](Communicator& world) {
      DamagingCommunicator communicator(world, [&](int rank, Buffer sent) {
        if (rank != least || !IsCluster(sent)) return;
        ClusterSpec cluster;
        ASSERT_TRUE(cluster.ParseFromArray(sent.data, static_cast<int>(sent.bytes)));
        cluster.set_device_memory_gib(1e-6);
        ASSERT_TRUE(cluster.SerializeToArray(sent.data, static_cast<int>(sent.bytes)));
      });
      return resolve(communicator);
    });
    for (const absl::Status& status : too_little) {
      EXPECT_EQ(GetExitCode(status), ExitCode::kDoesNotFit) << least << ": " << status;
    }
  }

  // Rank 0 decides the arithmetic, but not how many threads others have.
  std::vector<int> threads(2);
  std::atomic<int> changed = 0;
  const auto told = RunRanks(2, [&](Communicator& world) -> absl::Status {
    DamagingCommunicator communicator(world, [&](int rank, Buffer sent) {
      if (world.rank() == 0 || rank != 0 || !IsCompute(sent)) return;
      ComputeSpec compute;
      ASSERT_TRUE(compute.ParseFromArray(sent.data, static_cast<int>(sent.bytes)));
      compute.set_threads_per_rank(7);
      ++changed;
      ASSERT_TRUE(compute.SerializeToArray(sent.data, static_cast<int>(sent.bytes)));
    });
    std::ostringstream text;
    Logger log({.stream = &text});
    ASSIGN_OR_RETURN(const ResolvedRun resolved,
                     ResolveRun(run, {.root = root.string()}, communicator, *fs, log));
    threads[world.rank()] = resolved.run.compute().threads_per_rank();
    return absl::OkStatus();
  });
  EXPECT_TRUE(FirstError(told).ok()) << FirstError(told);
  EXPECT_EQ(changed, 1);
  EXPECT_EQ(threads, std::vector<int>({1, 1}));

  // A copy of the corpus that has other pairs behind the same manifest.
  const std::filesystem::path other = root / "other";
  std::filesystem::create_directories(other);
  std::filesystem::copy(root / "corpus", other / "corpus");
  const auto resolve_apart = [&](Communicator& world) {
    std::ostringstream text;
    Logger log({.stream = &text});
    const std::string own = (world.rank() == 0 ? root : other).string();
    return ResolveRun(run, {.root = own}, world, *fs, log).status();
  };
  for (const absl::Status& status : RunRanks(2, resolve_apart)) {
    EXPECT_EQ(GetExitCode(status), ExitCode::kPreflight) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("does not see what rank 0 wrote there"));
  }
  const std::string shard = (other / "corpus/train.de-en.pairs").string();
  std::string bytes = *ReadWholeFile(*fs, shard, 1 << 20);
  bytes[kShardDataOffset] ^= 1;
  testing::SealBlocks(bytes);
  ASSERT_TRUE(ReplaceFile(*fs, shard, bytes).ok());
  for (const absl::Status& status : RunRanks(2, resolve_apart)) {
    EXPECT_EQ(GetExitCode(status), ExitCode::kPreflight) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("data of the corpus is not the same on all ranks: rank 1"));
  }
  std::filesystem::remove_all(root);
}

TEST(ResolveRun, ARunGoesOnWithTheChoicesItBeganWith) {
  const testing::TempFolder folder;
  ASSERT_TRUE(testing::MakeCorpus(folder.path(), "corpus", {"de", "fr"}, 300).ok());
  const auto fs = MakePosixFileSystem();
  const std::string run_folder = folder.Path("run");
  const auto resolve = [&](const RunSpec& run) {
    std::ostringstream text;
    Logger log({.stream = &text});
    SelfCommunicator world;
    return ResolveRun(run, {.root = folder.path(), .job_id = "job-77"}, world, *fs, log);
  };
  RunSpec run = SmallRun();
  run.mutable_data()->set_global_microbatches(4);
  run.mutable_optim()->set_virtual_replicas(4);
  run.mutable_compute()->set_matmul(LIBRARY);
  run.mutable_compute()->set_threads_per_rank(3);
  {
    const auto first = resolve(run);
    ASSERT_TRUE(first.ok()) << first.status();
    EXPECT_THAT(*ReadWholeFile(*fs, JoinPath(run_folder, "lock"), 10000), HasSubstr("job-77"));
    ASSERT_TRUE(BeginCheckpoint(*fs, run_folder, 0).ok());
    ASSERT_TRUE(CommitCheckpoint(*fs, run_folder, first->state).ok());
  }
  run.mutable_optim()->clear_virtual_replicas();
  *run.mutable_compute() = ComputeSpec();
  {
    const auto next = resolve(run);
    ASSERT_TRUE(next.ok()) << next.status();
    EXPECT_EQ(next->run.optim().virtual_replicas(), 4);
    EXPECT_EQ(next->run.compute().matmul(), LIBRARY);
    EXPECT_EQ(next->run.compute().threads_per_rank(), 3) << "a library's sums may depend on it";
  }
  run.mutable_compute()->set_dtype(BFLOAT16);
  const absl::Status refused = resolve(run).status();
  EXPECT_EQ(GetExitCode(refused), ExitCode::kCheckpoint) << refused;
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("goes on with the arithmetic it started with"));
}

TEST(ResolveRun, RefusesAJobOfAnotherSizeAndTextsThatWereChanged) {
  const testing::TempFolder folder;
  ASSERT_TRUE(testing::MakeCorpus(folder.path(), "corpus", {"de", "fr"}, 300).ok());
  const auto fs = MakePosixFileSystem();
  const auto refusal = [&](const RunSpec& run) {
    std::ostringstream text;
    Logger log({.stream = &text});
    SelfCommunicator world;
    return ResolveRun(run, {.root = folder.path()}, world, *fs, log).status();
  };
  RunSpec two = SmallRun();
  two.mutable_cluster()->set_nodes(2);
  const absl::Status of_ranks = refusal(two);
  EXPECT_EQ(GetExitCode(of_ranks), ExitCode::kBadConfig) << of_ranks;
  EXPECT_THAT(std::string(of_ranks.message()), HasSubstr("mpirun -n 2"));
  folder.Write("corpus/dev.de-en.de", "ein Satz\n");
  const absl::Status of_text = refusal(SmallRun());
  EXPECT_EQ(GetExitCode(of_text), ExitCode::kData) << of_text;
  EXPECT_THAT(std::string(of_text.message()), HasSubstr("dev.de-en.de"));
}

TEST(ResolveRun, ARunThatAnotherJobSavedMeanwhileIsToBeStartedAgain) {
  const testing::TempFolder folder;
  ASSERT_TRUE(testing::MakeCorpus(folder.path(), "corpus", {"de", "fr"}, 300).ok());
  const std::filesystem::path run = std::filesystem::path(folder.path()) / "run";
  std::filesystem::create_directory(run);
  folder.Write("run/lock", "of somebody who has just come");
  std::ostringstream text;
  Logger log({.stream = &text});
  SelfCommunicator world;
  const auto fs = MakePosixFileSystem();
  const auto leaves = [&](absl::Duration) {
    std::filesystem::create_directory(run / "step-00000004");
    std::filesystem::remove(run / "lock");
  };
  const TrainOptions options = {.root = folder.path(), .lock = {.wait = leaves}};
  const absl::Status status = ResolveRun(SmallRun(), options, world, *fs, log).status();
  EXPECT_TRUE(absl::IsAborted(status)) << status;
  EXPECT_EQ(GetExitCode(status), ExitCode::kCheckpoint);
  EXPECT_EQ(status.message(), "another job saved in run while this one started; start it again");
  EXPECT_FALSE(std::filesystem::exists(run / "lock"));
}

}  // namespace
}  // namespace deepnet
