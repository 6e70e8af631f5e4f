// A file system in front of another one that tells of every call that has ended: who waits for a
// disk can show that the disk gets on.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "parallel/base/file_system.h"

namespace deepnet {

class WatchedFileSystem final : public FileSystem {
 public:
  // Told the path; by any thread that uses the file system or its files.
  using Called = std::function<void(const std::string& path)>;

  // `inner` outlives this.
  WatchedFileSystem(FileSystem& inner, Called called) : inner_(inner), called_(std::move(called)) {}

  absl::StatusOr<std::unique_ptr<AppendFile>> OpenForAppend(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<AppendFile>> CreateNew(const std::string& path) override;
  absl::StatusOr<int64_t> ReadAt(const std::string& path, int64_t offset,
                                 std::span<char> buffer) override {
    return After(path, inner_.ReadAt(path, offset, buffer));
  }
  absl::StatusOr<int64_t> Size(const std::string& path) override {
    return After(path, inner_.Size(path));
  }
  absl::StatusOr<bool> Exists(const std::string& path) override {
    return After(path, inner_.Exists(path));
  }
  absl::StatusOr<std::vector<std::string>> List(const std::string& folder) override {
    return After(folder, inner_.List(folder));
  }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    return After(from, inner_.Rename(from, to));
  }
  absl::Status Delete(const std::string& path) override { return After(path, inner_.Delete(path)); }
  absl::Status MakeFolder(const std::string& path) override {
    return After(path, inner_.MakeFolder(path));
  }
  absl::Status SyncFolder(const std::string& folder) override {
    return After(folder, inner_.SyncFolder(folder));
  }

 private:
  template <typename Result>
  Result After(const std::string& path, Result result) {
    called_(path);
    return result;
  }

  FileSystem& inner_;
  const Called called_;
};

}  // namespace deepnet
