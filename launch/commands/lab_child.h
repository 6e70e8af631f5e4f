// Programs that run beside this one: started, watched, asked to stop.
#pragma once

#include <chrono>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include <sys/types.h>

namespace deepnet {

// One running program. It leads a process group of its own, so that a Ctrl-C at the terminal
// reaches it by way of this program only, once; if this program dies, it gets SIGTERM. Movable; the
// destructor of one that still runs stops it and waits.
class ChildProgram {
 public:
  // `words`: a program's path, or a name to be looked for, and its arguments. Output goes to the
  // end of `log_file`; stdout to `output_file` instead, written anew, unless that is empty.
  // FailedPrecondition where it cannot be started; a name that is not found ends with code 127.
  static absl::StatusOr<ChildProgram> Start(const std::vector<std::string>& words,
                                            const std::string& log_file,
                                            const std::string& output_file);

  ChildProgram(ChildProgram&& other) noexcept;
  ChildProgram& operator=(ChildProgram&&) = delete;
  ~ChildProgram();

  // Asks it to save and end (SIGTERM). More than once does no harm.
  void Stop();

  // Whether it has ended; does not wait. From then on exit_code() counts: that of the program, or
  // 128 and the number of the signal that ended it.
  bool HasEnded();
  int exit_code() const { return exit_code_; }

 private:
  friend void WaitForChildren(std::span<ChildProgram* const> children,
                              std::chrono::milliseconds timeout);
  ChildProgram(pid_t pid, int descriptor) : pid_(pid), descriptor_(descriptor) {}

  pid_t pid_ = -1;
  int descriptor_ = -1;  // of the process: readable once it has ended
  bool ended_ = false;
  int exit_code_ = -1;
};

// Returns when one of `children` has ended, a signal came, or the time is up.
void WaitForChildren(std::span<ChildProgram* const> children, std::chrono::milliseconds timeout);

}  // namespace deepnet
