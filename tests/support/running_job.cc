#include "tests/support/running_job.h"

#include <signal.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>

#include "absl/strings/str_cat.h"
#include <sys/wait.h>

namespace deepnet::testing {

RunningJob::RunningJob(const std::string& command)
    : pipe_(popen(("exec " + command + " 2>&1").c_str(), "r")) {}

RunningJob::~RunningJob() {
  if (pipe_ != nullptr) End();
}

bool RunningJob::ReadUntil(const std::string& text, int count) {
  char line[4096];
  while (count > 0 && fgets(line, sizeof(line), pipe_) != nullptr) {
    Take(line);
    if (std::string(line).find(text) != std::string::npos) --count;
  }
  return count == 0;
}

int RunningJob::End() {
  ReadUntil("no line says this", 1);
  const int status = pclose(pipe_);
  pipe_ = nullptr;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void RunningJob::Take(const std::string& line) {
  output_ += line;
  // Lines of two ranks may have become one.
  for (size_t at = line.find("process "); at != line.npos; at = line.find("process ", at + 1)) {
    int number = 0;
    if (sscanf(line.c_str() + at, "process %d", &number) == 1) ranks_.push_back(number);
  }
  const size_t train = line.find("train "), step = line.find("step ");
  if (train != line.npos && step != line.npos && step > train) {
    sscanf(line.c_str() + step, "step %d", &last_step_);
  }
}

void AwaitHandlers(int process, std::initializer_list<int> signals) {
  uint64_t wanted = 0, caught = 0;
  for (const int signal : signals) wanted |= uint64_t{1} << (signal - 1);
  while (kill(process, 0) == 0 && (caught & wanted) != wanted) {
    std::ifstream status(absl::StrCat("/proc/", process, "/status"));
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with("SigCgt:")) caught = std::stoull(line.substr(7), nullptr, 16);
    }
    usleep(1000);
  }
}

}  // namespace deepnet::testing
