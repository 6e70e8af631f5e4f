// A file as read-only memory.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace deepnet {

// Movable; pages come from the file as they are touched and may leave memory again.
class MappedFile {
 public:
  // Fails naming the file.
  static absl::StatusOr<MappedFile> Open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::string_view bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }

 private:
  MappedFile(std::string path, const char* data, size_t size);

  std::string path_;
  const char* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace deepnet
