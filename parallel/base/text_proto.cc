#include "parallel/base/text_proto.h"

#include <google/protobuf/text_format.h>

namespace deepnet {
namespace {

// Takes errors and warnings, which the parser would print.
class SilentCollector final : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int, int, const std::string&) override {}
};

bool Read(const std::string& text, google::protobuf::Message* message,
          const TextProtoOptions& options, bool merge) {
  SilentCollector silent;
  google::protobuf::TextFormat::Parser parser;
  parser.SetRecursionLimit(kMaxTextProtoDepth);
  parser.AllowUnknownField(options.skips_unknown_fields);
  parser.RecordErrorsTo(options.errors == nullptr ? &silent : options.errors);
  return merge ? parser.MergeFromString(text, message) : parser.ParseFromString(text, message);
}

}  // namespace

bool ParseTextProto(const std::string& text, google::protobuf::Message* message,
                    const TextProtoOptions& options) {
  return Read(text, message, options, /*merge=*/false);
}

bool MergeTextProto(const std::string& text, google::protobuf::Message* message,
                    const TextProtoOptions& options) {
  return Read(text, message, options, /*merge=*/true);
}

}  // namespace deepnet
