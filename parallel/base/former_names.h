// Names of fields and enum values that earlier programs wrote into text forms: a corpus's
// manifest.textproto, the config.json of an export. Binary forms hold numbers, which never change.
//
// Example:
//   const std::string text = WithTodaysNames(file_contents, *CorpusManifest::descriptor());
//   parser.ParseFromString(text, &manifest);
#pragma once

#include <span>
#include <string>

#include <google/protobuf/descriptor.h>

namespace deepnet {

// `name` is what field `number` of the message `type`, or value `number` of the enum `type`, was
// called once. It may still be its name.
struct FormerFieldName {
  const char* type;  // without the package: "ModelSpec"
  int number;
  const char* name;
};

// All names that a released program wrote and that may have changed since.
std::span<const FormerFieldName> FormerNames();

// Returns `text`, a message `type` in protobuf's text format or JSON (with the names of the .proto
// file), with former names replaced by today's. Names of both kinds may stand side by side; unknown
// ones and everything else stay. What is no such text comes back as something that does not parse
// either.
std::string WithTodaysNames(const std::string& text, const google::protobuf::Descriptor& type,
                            std::span<const FormerFieldName> names = FormerNames());

}  // namespace deepnet
