// deepnet lab instruments: what the instruments of a run saw, a line a record.
#pragma once

#include <string>

#include "launch/commands/command.h"
#include "proto/lab.pb.h"

namespace deepnet {

Command MakeLabInstrumentsCommand();

// The table that it prints of `cell`'s records; stacks that the model has not are left out.
std::string InstrumentsText(const LabCell& cell);

}  // namespace deepnet
