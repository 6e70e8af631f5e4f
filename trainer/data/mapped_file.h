// Files as memory, and what happens when one of them shrinks or its disk fails while it is read:
// the system then has no page to give and sends SIGBUS, which would end the process.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace deepnet {

// A file as read-only memory, shared by copies. Pages come from the file as they are touched and
// may leave memory again.
class MappedFile {
 public:
  // Fails naming the file.
  static absl::StatusOr<MappedFile> Open(const std::string& path);

  std::string_view bytes() const { return {data_.get(), size_}; }
  const std::string& path() const { return path_; }

  // OK, or DataLoss naming the file once a page could not be read since SurviveLostPages(): bytes()
  // are zeros from there on. Ask before what was read is used.
  absl::Status Intact() const;

  struct Mapping;  // what the handler of SIGBUS knows of a file

 private:
  std::string path_;
  std::shared_ptr<const char> data_;
  size_t size_ = 0;
  const Mapping* mapping_ = nullptr;  // null: an empty file
};

// From now on a page of a MappedFile that cannot be read does not end the process. Other SIGBUS go
// to the handler that there was. For main().
void SurviveLostPages();

}  // namespace deepnet
