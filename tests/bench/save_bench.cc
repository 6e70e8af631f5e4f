// Measures what saving about 1 GB of state costs a rank that trains: how long training stands
// still, how fast the disk is written beside `dd` with as many bytes, how soon a state is loaded.
// (How soon a run goes on: resume_bench.)
//
//   save_bench FOLDER [ROUNDS]      FOLDER: new, on the disk that counts
//
// Each round, in turns: dd with one fsync; a save that training waits for; a save beside training;
// loading and a step. Prints a line a round and the medians.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "parallel/base/check.h"
#include "parallel/base/clock.h"
#include "parallel/base/file_system.h"
#include "parallel/base/statistics.h"
#include "parallel/comm/communicator.h"
#include "tests/support/child_process.h"
#include "trainer/async_checkpointer.h"
#include "trainer/bench/bench.h"
#include "trainer/data/batcher.h"
#include "trainer/kernels/compute.h"
#include "trainer/model/describe.h"
#include "trainer/train_step.h"

namespace deepnet {
namespace {

constexpr int32_t kVocabulary = 90'000;
constexpr int64_t kPieceBytes = 16 << 20;  // that dd writes at once, as a save does

RunSpec ModelOfOneGigabyte() {
  absl::StatusOr<RunSpec> run = BenchRun("A");
  DEEPNET_CHECK(run.ok()) << run.status().ToString();
  run->mutable_model()->set_d_model(512);
  run->mutable_model()->set_ffn_dim(2048);
  run->mutable_model()->set_num_heads(8);
  run->mutable_model()->set_vocabulary_size(kVocabulary);
  MicrobatchSpec& capacity = *run->mutable_data()->mutable_microbatch();
  capacity.set_max_source_tokens(500);
  capacity.set_max_target_tokens(500);
  capacity.set_max_sentences(100);
  *run->mutable_compute() = ResolveCompute(run->compute());
  return *run;
}

struct Figures {
  double dd = 0, blocking = 0, stall = 0, beside = 0, load = 0, step = 0;  // seconds
};

class Bench {
 public:
  Bench(const RunSpec& run, std::string folder)
      : fs_(MakePosixFileSystem()), folder_(std::move(folder)) {
    const Inventory whole = Describe(run.model(), run.data().microbatch());
    auto part = MakeRankContext(run, whole, LonePlan(whole, 1), alone_);
    DEEPNET_CHECK(part.ok()) << part.status().ToString();
    part_ = *std::move(part);
    part_->model->parameters().Initialize(1);
    part_->model->Refresh();
    const auto lengths = ReadBenchLengths("tests/bench/lengths.json");
    DEEPNET_CHECK(lengths.ok()) << lengths.status().ToString();
    const MicrobatchSpec& c = run.data().microbatch();
    microbatches_ = MakeBenchMicrobatches(
        *lengths, {c.max_source_tokens(), c.max_target_tokens(), c.max_sentences()}, kVocabulary,
        /*seed=*/1);
  }

  int64_t bytes() const { return RankSnapshot(*part_, /*copies=*/false).bytes(); }

  // Seconds of the next step.
  double Step(AsyncCheckpointer* saver = nullptr) {
    const Microbatch& mb = microbatches_[static_cast<size_t>(step_) % microbatches_.size()];
    const double began = SecondsNow();
    const StepOptions hooks = {.before_update = [&] {
      if (saver != nullptr) saver->AwaitCopy();
    }};
    const auto result = RunTrainStep({{mb}, mb.num_source_tokens, mb.num_target_tokens}, step_,
                                     step_ + 1, *part_, hooks);
    DEEPNET_CHECK(result.ok()) << result.status().ToString();
    ++step_;
    return SecondsNow() - began;
  }

  // `dd` with fsync, of at least as many bytes; seconds for as many.
  double WriteWithDd() {
    const std::string path = JoinPath(folder_, "plain.bin");
    const int64_t pieces = (bytes() + kPieceBytes - 1) / kPieceBytes;
    const testing::ChildOutcome outcome =
        testing::RunChild({"dd", "if=/dev/zero", "of=" + path, "bs=" + std::to_string(kPieceBytes),
                           "count=" + std::to_string(pieces), "conv=fsync"});
    DEEPNET_CHECK(outcome.code == 0) << outcome.output;
    Check(fs_->Delete(path));
    return outcome.seconds * static_cast<double>(bytes()) /
           static_cast<double>(pieces * kPieceBytes);
  }

  // A save with what it cost; beside steps if `copies`.
  SaveRecord Save(bool copies) {
    SaveRecord record;
    AsyncCheckpointer saver(*fs_,
                            {.folder = folder_,
                             .copies = copies,
                             .on_end = [&](const SaveRecord& ended) { record = ended; }},
                            *part_);
    Check(saver.Open());
    while (!saver.Ready()) Step();  // the copy's memory is taken beside a run's first steps
    Manifest state;
    state.set_step(step_);
    saver.Begin(state);
    while (copies && saver.busy()) {
      Step(&saver);
      if (saver.Ready()) Check(saver.Advance());
    }
    Check(saver.Finish());
    DEEPNET_CHECK(record.error().empty()) << record.error();
    return record;
  }

  double Load() {
    const double began = SecondsNow();
    const auto found = FindLatest(*fs_, folder_);
    DEEPNET_CHECK(found.ok() && found->has_value());
    Check(LoadRankState(*fs_, (*found)->folder, (*found)->manifest, *part_));
    part_->model->Refresh();
    return SecondsNow() - began;
  }

 private:
  static void Check(const absl::Status& status) { DEEPNET_CHECK(status.ok()) << status.ToString(); }

  std::unique_ptr<FileSystem> fs_;
  std::string folder_;
  SelfCommunicator alone_;
  std::unique_ptr<RankContext> part_;
  std::vector<Microbatch> microbatches_;
  int64_t step_ = 0;
};

double MedianOf(const std::vector<Figures>& rounds, double Figures::*figure) {
  std::vector<double> values;
  for (const Figures& round : rounds) values.push_back(round.*figure);
  return Median(std::move(values));
}

int Main(const std::string& folder, int rounds) {
  std::filesystem::create_directories(folder);
  Bench bench(ModelOfOneGigabyte(), folder);
  bench.Step();  // allocates what steps need
  std::vector<Figures> all;
  for (int round = 0; round < rounds; ++round) {
    Figures f;
    f.dd = bench.WriteWithDd();
    f.blocking = bench.Save(/*copies=*/false).seconds();
    bench.Step();
    const SaveRecord beside = bench.Save(/*copies=*/true);
    f.stall = beside.stall_seconds();
    f.beside = beside.seconds();
    f.load = bench.Load();
    f.step = bench.Step();
    std::printf(
        "dd %.2f s, blocking %.2f s, beside %.2f s with a stall of %.3f s, load %.2f s, "
        "step %.2f s\n",
        f.dd, f.blocking, f.beside, f.stall, f.load, f.step);
    all.push_back(f);
  }
  const double blocking = MedianOf(all, &Figures::blocking);
  std::printf(
      "%.2f GB: stall %.1f %% of a blocking save; a save writes at %.2f of dd's rate, beside "
      "steps at %.2f\n",
      static_cast<double>(bench.bytes()) * 1e-9, 100 * MedianOf(all, &Figures::stall) / blocking,
      MedianOf(all, &Figures::dd) / blocking,
      MedianOf(all, &Figures::dd) / MedianOf(all, &Figures::beside));
  std::filesystem::remove_all(folder);
  return 0;
}

}  // namespace
}  // namespace deepnet

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: save_bench FOLDER [ROUNDS]\n");
    return 2;
  }
  return deepnet::Main(argv[1], argc > 2 ? std::atoi(argv[2]) : 3);
}
