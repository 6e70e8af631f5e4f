// From a RunSpec to text.
#pragma once

#include <string>

#include "proto/run.pb.h"

namespace deepnet {

// Returns `run` as a textproto that ReadRunSpec reads back: the fields that are set.
std::string ToTextproto(RunSpec run);

// The same with every field of proto/*.proto, also those that are 0, false or empty. A field that
// is not set and has no value that means so stands in a comment.
std::string ToCompleteTextproto(RunSpec run);

}  // namespace deepnet
