// From files and `--set` to a RunSpec, by reflection: a field added to proto/*.proto can be set at
// once, and no code names it.
//
// Example:
//   SpecSources sources{.files = {"launch/recipes/quickstart.textproto"},
//                       .sets = {"model.encoder_layers=50", "model.residual=POST_LN"}};
//   ASSIGN_OR_RETURN(const RunSpec run, ReadRunSpec(sources, RunSpec()));
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "proto/run.pb.h"

namespace deepnet {

// Later ones win over earlier ones, sets over files.
struct SpecSources {
  std::string root = ".";          // folder that relative file names start from
  std::vector<std::string> files;  // textproto, or JSON if the name ends in .json
  std::vector<std::string> sets;   // "path.to.field=value"
};

// Returns `base` changed by `sources`. A singular field that a source names takes its value, 0
// included; a message is merged field by field; a repeated field is replaced as a whole.
//
// The value of a set is written as in a textproto, but a string needs no quotes, a list may be
// a,b,c, and an empty value resets the field to its default. Messages are textproto with or without
// braces: data.temperature=[{from_step: 0 temperature: 5}]. In sets and textprotos a dash in a
// field's name is an underscore; a DataType is also written bf16, bfloat16, fp32 or float32, in any
// case.
//
// INVALID_ARGUMENT lists the mistakes of all sources, a line each, starting with file:line or
// --set path: unknown fields and enum values with the nearest name, malformed values. The name of
// the run, where nothing sets it, becomes the stem of the last file.
absl::StatusOr<RunSpec> ReadRunSpec(const SpecSources& sources, RunSpec base);

}  // namespace deepnet
