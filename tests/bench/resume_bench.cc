// Measures how soon a run with 1 GB of state resumes: from the start of `deepnet train` on its
// folder to the end of its first step, beside a plain reading of the same files and a step as they
// come later.
//
//   resume_bench PROGRAM FOLDER [ROUNDS]      FOLDER: new, on the disk that counts
//
// Makes a corpus and a checkpoint of 12 + 12 layers, width 512. Each round: the checkpoint is taken
// out of the page cache and read plainly; taken out again, and the program started, which is killed
// after some steps, so that each round goes on from the same checkpoint. Twice: with free memory as
// the machine happens to have it, and with as much as the program needs at hand (touch_memory.h).
// Exit code 1 where, the latter, starting and the first step take more than 3 s beyond that reading
// and a later step at the median.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include <sys/mman.h>

#include "parallel/base/check.h"
#include "parallel/base/clock.h"
#include "parallel/base/statistics.h"
#include "tests/support/child_process.h"
#include "tests/support/touch_memory.h"

namespace deepnet {
namespace {

namespace fs = std::filesystem;

constexpr double kAllowedSeconds = 3.0;
constexpr int kSavedStep = 2;
constexpr int kLaterSteps = 4;                       // of a start, after its first
constexpr int64_t kProgramBytes = int64_t{5} << 30;  // that it needs, page cache included

constexpr char kRun[] = R"(# proto-file: proto/run.proto
# proto-message: deepnet.RunSpec
folder: "run" seed: 3
model { encoder_layers: 12 decoder_layers: 12 d_model: 512 ffn_dim: 2048 num_heads: 8
        residual: DEEPNORM dropout: 0.1 }
data { folder: "corpus" max_sentence_tokens: 150
       microbatch { max_source_tokens: 500 max_target_tokens: 500 max_sentences: 100 } }
optim { learning_rate: 1e-4 warmup_steps: 4 }
compute { dtype: FLOAT32 }
train { validate_every_steps: -1 log_every_steps: 1 checkpoint_every_steps: 1000000 }
prepare { table { file: "$udhr" languages: "de" languages: "fr" }
          tokenizer { vocab_size: 300 } }
)";

class Bench {
 public:
  Bench(std::string program, fs::path root) : program_(std::move(program)), root_(std::move(root)) {
    fs::create_directories(root_);
    std::string run = kRun;
    const std::string udhr = fs::absolute("tests/trainer/data/testdata/udhr.tsv");
    run.replace(run.find("$udhr"), 5, udhr);
    std::ofstream(root_ / "run.textproto") << run;
    MustRun(Words("prepare", {}));
    MustRun(Words("train", {"--set", absl::StrCat("train.steps=", kSavedStep)}));
    for (const auto& entry : fs::directory_iterator(root_ / "run/step-00000002")) {
      files_.push_back(entry.path());
      bytes_ += static_cast<int64_t>(entry.file_size());
    }
  }
  ~Bench() { fs::remove_all(root_); }

  int64_t bytes() const { return bytes_; }

  // Takes the checkpoint's files out of the page cache; the share that stayed there.
  double Forget() const {
    int64_t pages = 0, resident = 0;
    for (const fs::path& path : files_) {
      const int file = open(path.c_str(), O_RDONLY);
      DEEPNET_CHECK(file >= 0) << path;
      DEEPNET_CHECK(fdatasync(file) == 0);
      DEEPNET_CHECK(posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED) == 0);
      const size_t size = fs::file_size(path);
      void* const view = mmap(nullptr, size, PROT_READ, MAP_SHARED, file, 0);
      DEEPNET_CHECK(view != MAP_FAILED);
      const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
      std::vector<unsigned char> states((size + page - 1) / page);
      DEEPNET_CHECK(mincore(view, size, states.data()) == 0);
      for (const unsigned char state : states) resident += state & 1;
      pages += static_cast<int64_t>(states.size());
      munmap(view, size);
      close(file);
    }
    return static_cast<double>(resident) / static_cast<double>(pages);
  }

  double ReadPlainly() const {
    std::vector<char> buffer(16 << 20);
    const double began = SecondsNow();
    for (const fs::path& path : files_) {
      const int file = open(path.c_str(), O_RDONLY);
      DEEPNET_CHECK(file >= 0) << path;
      ssize_t count = 1;
      while (count > 0) count = read(file, buffer.data(), buffer.size());
      DEEPNET_CHECK(count == 0) << path;
      close(file);
    }
    return SecondsNow() - began;
  }

  // Seconds from the start of the program to the end of its first step and of each after it.
  std::vector<double> Resume() const {
    std::string command = "echo process $$; exec";
    const int64_t end = kSavedStep + 1 + kLaterSteps;
    for (const std::string& word : Words("train", {"--set", "train.steps=1000000"})) {
      absl::StrAppend(&command, " '", word, "'");
    }
    std::vector<double> ends;
    int process = 0;
    std::string output;
    const double began = SecondsNow();
    FILE* const pipe = popen((command + " 2>&1").c_str(), "r");
    DEEPNET_CHECK(pipe != nullptr);
    char line[4096];
    while (std::fgets(line, sizeof(line), pipe) != nullptr) {
      output += line;
      std::sscanf(line, "process %d", &process);
      const std::string text = line;
      const std::string next = absl::StrCat("step ", kSavedStep + 1 + ends.size(), " ");
      if (text.find("train ") == text.npos || text.find(next) == text.npos) continue;
      ends.push_back(SecondsNow() - began);
      if (kSavedStep + static_cast<int64_t>(ends.size()) == end) kill(process, SIGKILL);
    }
    pclose(pipe);
    DEEPNET_CHECK(static_cast<int>(ends.size()) >= 1 + kLaterSteps) << output;
    return ends;
  }

 private:
  std::vector<std::string> Words(const std::string& command,
                                 const std::vector<std::string>& more) const {
    std::vector<std::string> words = {program_, command, "--config", root_ / "run.textproto",
                                      "--root", root_};
    if (command == "train") words.insert(words.end(), {"--log-seconds", "0"});
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  static void MustRun(const std::vector<std::string>& words) {
    const testing::ChildOutcome outcome = testing::RunChild(words);
    DEEPNET_CHECK(outcome.code == 0) << outcome.output;
  }

  const std::string program_;
  const fs::path root_;
  std::vector<fs::path> files_;  // of the checkpoint
  int64_t bytes_ = 0;            // of them
};

int Main(const std::string& program, const std::string& folder, int rounds) {
  const Bench bench(program, folder);
  std::printf("%.2f GB in the checkpoint\n", static_cast<double>(bench.bytes()) * 1e-9);
  std::vector<double> beyond[2];  // [memory at hand]
  for (int round = 0; round < 2 * rounds; ++round) {
    const bool at_hand = round % 2 == 1;
    double cached = bench.Forget();
    const double reading = bench.ReadPlainly();
    if (at_hand) testing::TouchMemory(kProgramBytes);
    cached = std::max(cached, bench.Forget());
    const std::vector<double> ends = bench.Resume();
    std::vector<double> steps;
    for (size_t i = 1; i < ends.size(); ++i) steps.push_back(ends[i] - ends[i - 1]);
    beyond[at_hand].push_back(ends[0] - reading - Median(steps));
    std::printf(
        "memory %s: start to the end of the first step %.2f s; plain reading %.2f s "
        "(%.0f %% in the page cache before), a later step %.2f s; beyond both %.2f s\n",
        at_hand ? "at hand" : "as it is", ends[0], reading, 100 * cached, Median(steps),
        beyond[at_hand].back());
    std::fflush(stdout);
  }
  std::printf(
      "beyond reading and a step: %.2f s at the median (%.2f s with memory as it is), %.2f s "
      "allowed\n",
      Median(beyond[1]), Median(beyond[0]), kAllowedSeconds);
  return Median(beyond[1]) <= kAllowedSeconds ? 0 : 1;
}

}  // namespace
}  // namespace deepnet

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: resume_bench PROGRAM FOLDER [ROUNDS]\n");
    return 2;
  }
  return deepnet::Main(argv[1], argv[2], argc > 3 ? std::atoi(argv[3]) : 3);
}
