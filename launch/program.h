// The program around the subcommands: picks one, reads its flags, prints help, maps errors to
// codes.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "launch/commands/command.h"

namespace deepnet {

struct Streams {
  std::istream& in;
  std::ostream& out;
  std::ostream& err;
};

// Runs the subcommand that `words` (the command line without the program's name) asks for. Returns
// the exit code of the process. Exceptions of libraries end as code 1 with their text.
int RunProgram(const std::vector<Command>& commands, const std::vector<std::string>& words,
               const Streams& streams);

}  // namespace deepnet
