#include "trainer/data/mapped_file.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include <sys/mman.h>
#include <sys/stat.h>

namespace deepnet {

MappedFile::MappedFile(std::string path, const char* data, size_t size)
    : path_(std::move(path)), data_(data), size_(size) {}

MappedFile::MappedFile(MappedFile&& other) noexcept { *this = std::move(other); }

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<char*>(data_), size_);
}

absl::StatusOr<MappedFile> MappedFile::Open(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return absl::NotFoundError(absl::StrCat(path, ": ", strerror(errno)));
  struct stat status = {};
  const bool known = fstat(file, &status) == 0;
  const auto size = static_cast<size_t>(status.st_size);
  void* data = nullptr;
  if (known && size > 0) data = mmap(nullptr, size, PROT_READ, MAP_SHARED, file, 0);
  const int error = errno;
  close(file);
  if (!known || data == MAP_FAILED) {
    return absl::UnavailableError(absl::StrCat(path, ": ", strerror(error)));
  }
  return MappedFile(path, static_cast<const char*>(data), size);
}

}  // namespace deepnet
