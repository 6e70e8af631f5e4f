// The program `deepnet`: a table of subcommands.
#include <iostream>
#include <string>
#include <vector>

#include "launch/commands/bench.h"
#include "launch/commands/checkpoint.h"
#include "launch/commands/describe.h"
#include "launch/commands/evaluate.h"
#include "launch/commands/lab.h"
#include "launch/commands/plan.h"
#include "launch/commands/prepare.h"
#include "launch/commands/rehearse.h"
#include "launch/commands/score.h"
#include "launch/commands/train.h"
#include "launch/commands/translate.h"
#include "launch/program.h"

int main(int argc, char** argv) {
  const std::vector<deepnet::Command> commands = {
      deepnet::MakePrepareCommand(), deepnet::MakeDescribeCommand(),
      deepnet::MakePlanCommand(),    deepnet::MakeRehearseCommand(),
      deepnet::MakeTrainCommand(),   deepnet::MakeTranslateCommand(),
      deepnet::MakeScoreCommand(),   deepnet::MakeEvaluateCommand(),
      deepnet::MakeBenchCommand(),   deepnet::MakeCheckpointCommand(),
      deepnet::MakeLabCommand(),
  };
  const std::vector<std::string> words(argv + 1, argv + argc);
  return deepnet::RunProgram(commands, words, {std::cin, std::cout, std::cerr});
}
