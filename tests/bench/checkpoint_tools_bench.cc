// `deepnet checkpoint` on a checkpoint four times as large as --memory, against cp of the same
// files in the same folder, in turns:
//
//   checkpoint_tools_bench PROGRAM FOLDER [MEMORY_MIB [ROUNDS]]
//
// makes FOLDER, fills it with up to 4 * 4 * MEMORY_MIB (default 256), and deletes it. Memory is the
// peak of the process that is resident, as the kernel counts it (wait4), minus the peak of `deepnet
// checkpoint --help`: the program and its libraries, LibTorch included, before it does anything.
// Seconds are those of the whole process, its start included. The rate is bytes of the checkpoint a
// second; shares of cp's rate are medians over the rounds. cp leaves its copy in the page cache;
// tools that write wait until theirs is on the disk, hence the second column, cp and fsync; with
// --no-sync they do as cp does.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "parallel/base/clock.h"
#include "parallel/base/file_system.h"
#include "parallel/base/statistics.h"
#include "tests/support/child_process.h"
#include "tests/support/large_checkpoint.h"
#include "tests/support/touch_memory.h"

namespace deepnet {
namespace {

using deepnet::testing::ChildOutcome;
using deepnet::testing::RunChild;
using deepnet::testing::SaveLargeCheckpoint;
using deepnet::testing::TouchMemory;

constexpr double kMib = 1024.0 * 1024.0;

struct Tool {
  std::string name;
  std::vector<std::string> words;
  std::string output;  // deleted after each run; empty: none
  int code = 0;        // that it exits with
  std::vector<double> seconds = {}, of_cp = {}, of_cp_and_sync = {};
  int64_t peak_bytes = 0;
};

ChildOutcome RunOrExit(const std::vector<std::string>& words, int code = 0) {
  ChildOutcome outcome = RunChild(words);
  if (outcome.code == code) return outcome;
  std::fprintf(stderr, "%s failed with %d:\n%s\n", words[0].c_str(), outcome.code,
               outcome.output.c_str());
  std::exit(1);
}

// Waits until the files in `folder` are on the disk.
void SyncFiles(FileSystem& fs, const std::string& folder) {
  const absl::StatusOr<std::vector<std::string>> names = fs.List(folder);
  if (!names.ok()) std::exit(1);
  for (const std::string& name : *names) {
    const int file = open(JoinPath(folder, name).c_str(), O_RDONLY);
    if (file < 0 || fsync(file) != 0) std::exit(1);
    close(file);
  }
}

class Bench {
 public:
  Bench(std::string program, std::string folder, int64_t memory_mib)
      : program_(std::move(program)),
        folder_(std::move(folder)),
        memory_bytes_(memory_mib << 20),
        memory_flag_("--memory=" + std::to_string(memory_mib) + "MiB") {}

  bool Prepare() {
    for (const int64_t step : {1, 2}) {
      const absl::Status saved =
          SaveLargeCheckpoint(*fs_, Path("run"), {.bytes = 4 * memory_bytes_, .step = step});
      if (!saved.ok()) {
        std::fprintf(stderr, "%s\n", std::string(saved.message()).c_str());
        return false;
      }
    }
    idle_ = RunOrExit({program_, "checkpoint", "--help"});
    Add("verify", {source_}, "");
    Add("reshard", {source_, "--files=3", "--output", Path("reshard")}, Path("reshard"));
    Add("reshard --no-sync", {source_, "--files=3", "--no-sync", "--output", Path("unsynced")},
        Path("unsynced"));
    Add("average of 2", {Path("run"), "--last=2", "--output", Path("average")}, Path("average"));
    Add("diff with itself", {source_, source_}, "");
    Add("diff of two", {source_, JoinPath(folder_, "run/step-00000002")}, "", 5);
    return true;
  }

  void Round() {
    SyncFiles(*fs_, source_);
    TouchMemory(5 * memory_bytes_);
    const ChildOutcome copy = RunOrExit({"cp", "-r", source_, Path("copy")});
    const double start = SecondsNow();
    SyncFiles(*fs_, Path("copy"));
    const double copy_and_sync = copy.seconds + SecondsNow() - start;
    copy_seconds_.push_back(copy.seconds);
    copy_and_sync_seconds_.push_back(copy_and_sync);
    Delete(Path("copy"));
    for (Tool& tool : tools_) {
      TouchMemory(5 * memory_bytes_);
      const ChildOutcome outcome = RunOrExit(tool.words, tool.code);
      if (!tool.output.empty()) Delete(tool.output);
      tool.seconds.push_back(outcome.seconds);
      tool.of_cp.push_back(copy.seconds / outcome.seconds);
      tool.of_cp_and_sync.push_back(copy_and_sync / outcome.seconds);
      tool.peak_bytes = std::max(tool.peak_bytes, outcome.peak_bytes);
    }
  }

  void Print() const {
    const double mib = 4.0 * static_cast<double>(memory_bytes_) / kMib;
    std::printf("checkpoint of %.0f MiB, %s; idle: %.0f MiB, %.2f s\n\n", mib, memory_flag_.c_str(),
                static_cast<double>(idle_.peak_bytes) / kMib, idle_.seconds);
    std::printf(
        "| | seconds | MiB/s | of cp's rate | of cp and fsync | peak, MiB | of --memory |\n");
    std::printf("|---|---|---|---|---|---|---|\n");
    const double copy = Median(copy_seconds_), copy_and_sync = Median(copy_and_sync_seconds_);
    std::printf("| cp | %.2f | %.0f | 1 | | | |\n", copy, mib / copy);
    std::printf("| cp and fsync | %.2f | %.0f | | 1 | | |\n", copy_and_sync, mib / copy_and_sync);
    for (const Tool& tool : tools_) {
      const double seconds = Median(tool.seconds);
      const double peak = static_cast<double>(tool.peak_bytes - idle_.peak_bytes);
      std::printf("| %s | %.2f | %.0f | %.2f | %.2f | %.0f | %.2f |\n", tool.name.c_str(), seconds,
                  mib / seconds, Median(tool.of_cp), Median(tool.of_cp_and_sync), peak / kMib,
                  peak / static_cast<double>(memory_bytes_));
    }
  }

  void Delete(const std::string& path) { fs_->DeleteTree(path).IgnoreError(); }

 private:
  std::string Path(const std::string& name) const { return JoinPath(folder_, name); }

  void Add(const std::string& name, std::vector<std::string> words, const std::string& output,
           int code = 0) {
    const std::string verb = name.substr(0, name.find(' '));
    words.insert(words.begin(), {program_, "checkpoint", verb});
    words.push_back(memory_flag_);
    tools_.push_back({.name = name, .words = std::move(words), .output = output, .code = code});
  }

  const std::unique_ptr<FileSystem> fs_ = MakePosixFileSystem();
  const std::string program_, folder_;
  const int64_t memory_bytes_;
  const std::string memory_flag_;
  const std::string source_ = JoinPath(folder_, "run/step-00000001");
  ChildOutcome idle_;
  std::vector<Tool> tools_;
  std::vector<double> copy_seconds_, copy_and_sync_seconds_;
};

}  // namespace
}  // namespace deepnet

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: checkpoint_tools_bench PROGRAM FOLDER [MEMORY_MIB [ROUNDS]]\n");
    return 2;
  }
  const std::string folder = argv[2];
  if (access(folder.c_str(), F_OK) == 0) {
    std::fprintf(stderr, "%s exists: it would be deleted\n", folder.c_str());
    return 2;
  }
  deepnet::Bench bench(argv[1], folder, argc > 3 ? std::atoi(argv[3]) : 256);
  const int rounds = argc > 4 ? std::atoi(argv[4]) : 5;
  const bool prepared = bench.Prepare();
  for (int round = 0; prepared && round < rounds; ++round) bench.Round();
  if (prepared) bench.Print();
  bench.Delete(folder);
  return prepared ? 0 : 1;
}
