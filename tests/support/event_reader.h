// TensorBoard's view of a folder of event files, read slowly.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "proto/tensorboard.pb.h"

namespace deepnet::testing {

// Returns the events of a file up to the first that is torn or damaged. Their checksums are taken
// bit by bit.
std::vector<tensorboard::Event> ReadEventFile(const std::string& path);

// The figures that TensorBoard shows of a folder, by tag and step.
using ShownFigures = std::map<std::string, std::map<int64_t, float>>;
ShownFigures ReadShownFigures(const std::string& folder);

}  // namespace deepnet::testing
