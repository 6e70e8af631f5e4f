#include "tests/support/child_process.h"

#include <fcntl.h>
#include <unistd.h>

#include <sys/resource.h>
#include <sys/wait.h>

#include "parallel/base/check.h"
#include "parallel/base/clock.h"

namespace deepnet::testing {

ChildOutcome RunChild(const std::vector<std::string>& words) {
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  int ends[2];
  DEEPNET_CHECK(pipe2(ends, O_CLOEXEC) == 0);

  ChildOutcome outcome;
  const double start = SecondsNow();
  const pid_t child = fork();
  DEEPNET_CHECK(child >= 0);
  if (child == 0) {
    dup2(ends[1], STDOUT_FILENO);
    dup2(ends[1], STDERR_FILENO);
    execvp(argv[0], argv.data());
    _exit(127);
  }
  close(ends[1]);
  char buffer[4096];
  for (ssize_t count; (count = read(ends[0], buffer, sizeof(buffer))) > 0;) {
    outcome.output.append(buffer, static_cast<size_t>(count));
  }
  close(ends[0]);
  int status = 0;
  rusage usage{};
  DEEPNET_CHECK(wait4(child, &status, 0, &usage) == child);
  outcome.seconds = SecondsNow() - start;
  outcome.peak_bytes = usage.ru_maxrss * int64_t{1024};  // Linux counts KiB
  if (WIFEXITED(status)) outcome.code = WEXITSTATUS(status);
  return outcome;
}

}  // namespace deepnet::testing
