#include "trainer/bench_lengths.h"

#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>

#include "parallel/base/exit_code.h"

namespace deepnet {

absl::StatusOr<std::vector<std::pair<int, int>>> ReadBenchLengths(const std::string& file) {
  std::ifstream in(file);
  std::stringstream text;
  text << in.rdbuf();
  google::protobuf::ListValue list;
  if (!in || !google::protobuf::util::JsonStringToMessage(text.str(), &list).ok()) {
    return WithExitCode(
        absl::NotFoundError(absl::StrCat(file, ": not a JSON list of [source, target]")),
        ExitCode::kData);
  }
  std::vector<std::pair<int, int>> lengths;
  for (const auto& pair : list.values()) {
    const auto& values = pair.list_value().values();
    if (values.size() != 2 || values[0].number_value() < 1 || values[1].number_value() < 1) {
      return WithExitCode(absl::InvalidArgumentError(absl::StrCat(file, ": entry ", lengths.size(),
                                                                  " is not [source, target]")),
                          ExitCode::kData);
    }
    lengths.emplace_back(static_cast<int>(values[0].number_value()),
                         static_cast<int>(values[1].number_value()));
  }
  return lengths;
}

}  // namespace deepnet
