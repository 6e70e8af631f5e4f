// One command line of the program, run inside a test. Header-only.
#pragma once

#include <sstream>
#include <string>
#include <vector>

#include "launch/commands/command.h"

namespace deepnet::testing {

struct Outcome {
  int code;
  std::string out, err;
};

// `deepnet <command.name> <words>`.
inline Outcome RunCommand(const Command& command, std::vector<std::string> words,
                          WorkDescriber* describe_work = nullptr) {
  words.insert(words.begin(), command.name);
  std::istringstream in;
  std::ostringstream out, err;
  const int code = RunProgram({command}, words,
                              {.in = in, .out = out, .err = err, .describe_work = describe_work});
  return {code, out.str(), err.str()};
}

}  // namespace deepnet::testing
