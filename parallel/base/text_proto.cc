#include "parallel/base/text_proto.h"

#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/text_format.h>

namespace deepnet {
namespace {

// Takes errors and warnings, which the parser would print.
class SilentCollector final : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int, int, const std::string&) override {}
};

using google::protobuf::io::Tokenizer;

// Returns false, and tells `errors`, at a number like 010, which the format takes for octal.
bool IsDecimal(const std::string& text, google::protobuf::io::ErrorCollector& errors) {
  google::protobuf::io::ArrayInputStream input(text.data(), static_cast<int>(text.size()));
  SilentCollector silent;  // the parser says what else is wrong
  Tokenizer tokenizer(&input, &silent);
  tokenizer.set_allow_f_after_float(true);
  tokenizer.set_comment_style(Tokenizer::SH_COMMENT_STYLE);
  tokenizer.set_require_space_after_number(false);
  tokenizer.set_allow_multiline_strings(true);
  while (tokenizer.Next()) {
    const Tokenizer::Token& token = tokenizer.current();
    const bool begins = tokenizer.previous().type != Tokenizer::TYPE_INTEGER;  // not in "10 000"
    const bool octal = token.type == Tokenizer::TYPE_INTEGER && begins && token.text.size() > 1 &&
                       token.text[0] == '0' && (token.text[1] | 0x20) != 'x';
    if (!octal) continue;
    errors.AddError(token.line, token.column,
                    "\"" + token.text + "\" would be octal: leave out the 0 in front");
    return false;
  }
  return true;
}

}  // namespace

bool ParseTextProto(const std::string& text, google::protobuf::Message* message,
                    const TextProtoOptions& options) {
  SilentCollector silent;
  google::protobuf::io::ErrorCollector& errors =
      options.errors == nullptr ? silent : *options.errors;
  if (!IsDecimal(text, errors)) return false;
  google::protobuf::TextFormat::Parser parser;
  parser.SetRecursionLimit(kMaxTextProtoDepth);
  parser.AllowUnknownField(options.skips_unknown_fields);
  parser.RecordErrorsTo(&errors);
  return options.merges ? parser.MergeFromString(text, message)
                        : parser.ParseFromString(text, message);
}

}  // namespace deepnet
