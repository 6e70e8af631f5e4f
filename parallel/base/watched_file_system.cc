#include "parallel/base/watched_file_system.h"

#include <string_view>

#include "parallel/base/status_macros.h"

namespace deepnet {
namespace {

class WatchedAppendFile final : public AppendFile {
 public:
  WatchedAppendFile(std::unique_ptr<AppendFile> inner, std::string path,
                    WatchedFileSystem::Called called)
      : inner_(std::move(inner)), path_(std::move(path)), called_(std::move(called)) {}

  absl::Status Append(std::string_view bytes) override { return After(inner_->Append(bytes)); }
  absl::Status Sync() override { return After(inner_->Sync()); }
  absl::Status Close() override { return After(inner_->Close()); }

 private:
  absl::Status After(absl::Status status) {
    called_(path_);
    return status;
  }

  const std::unique_ptr<AppendFile> inner_;
  const std::string path_;
  const WatchedFileSystem::Called called_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<AppendFile>> WatchedFileSystem::OpenForAppend(
    const std::string& path) {
  ASSIGN_OR_RETURN(auto file, After(path, inner_.OpenForAppend(path)));
  return std::make_unique<WatchedAppendFile>(std::move(file), path, called_);
}

absl::StatusOr<std::unique_ptr<AppendFile>> WatchedFileSystem::CreateNew(const std::string& path) {
  ASSIGN_OR_RETURN(auto file, After(path, inner_.CreateNew(path)));
  return std::make_unique<WatchedAppendFile>(std::move(file), path, called_);
}

}  // namespace deepnet
