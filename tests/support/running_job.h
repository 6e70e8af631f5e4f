// A job of the program that a test reads from and sends signals to while it runs.
#pragma once

#include <cstdio>
#include <initializer_list>
#include <string>
#include <vector>

namespace deepnet::testing {

// A running job and what it has said.
class RunningJob {
 public:
  explicit RunningJob(const std::string& command);
  ~RunningJob();
  RunningJob(const RunningJob&) = delete;
  RunningJob& operator=(const RunningJob&) = delete;

  // Reads on until `count` lines contain `text`; false: the job ended before.
  bool ReadUntil(const std::string& text, int count);
  // The exit code of the job, once it has ended.
  int End();

  const std::string& output() const { return output_; }
  // The numbers in lines "process N", in order of appearance.
  const std::vector<int>& ranks() const { return ranks_; }
  int last_step() const { return last_step_; }  // that was reported; -1: none

 private:
  void Take(const std::string& line);

  FILE* pipe_;
  std::string output_;
  std::vector<int> ranks_;
  int last_step_ = -1;
};

// Waits until the process has handlers for `signals`: before, it would just die of them.
void AwaitHandlers(int process, std::initializer_list<int> signals);

}  // namespace deepnet::testing
