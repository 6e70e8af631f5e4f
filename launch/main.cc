// The program `deepnet`: a table of subcommands.
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include "launch/commands/command.h"
#include "launch/device_group.h"
#include "parallel/base/fd_stream.h"
#include "trainer/data/mapped_file.h"
#include "trainer/kernels/device_errors.h"
#include "trainer/model/work.h"

int main(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // a file beyond ulimit -f is an error of its write
  deepnet::KeepStandardDescriptors();
  deepnet::SetCudaDefaults();
  deepnet::SurviveLostPages();
  const std::vector<deepnet::Command> commands = {
      deepnet::MakePrepareCommand(),    deepnet::MakeDescribeCommand(),
      deepnet::MakePlanCommand(),       deepnet::MakeRehearseCommand(),
      deepnet::MakeTrainCommand(),      deepnet::MakeTranslateCommand(),
      deepnet::MakeScoreCommand(),      deepnet::MakeEvaluateCommand(),
      deepnet::MakeDoctorCommand(),     deepnet::MakeBenchCommand(),
      deepnet::MakeCheckpointCommand(), deepnet::MakeLabCommand(),
  };
  const std::vector<std::string> words(argv + 1, argv + argc);
  deepnet::FdStream in(STDIN_FILENO), out(STDOUT_FILENO);
  const int code =
      deepnet::RunProgram(commands, words,
                          {in, out, std::cerr, deepnet::HasCuda,
                           [] { return deepnet::StatusOfException(); }, deepnet::DescribeWork});
  // LibTorch's static destructors are a third of what a short command costs; nothing needs them.
  std::fflush(nullptr);
  _exit(code);
}
