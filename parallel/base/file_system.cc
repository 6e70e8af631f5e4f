#include "parallel/base/file_system.h"

#include "absl/strings/str_cat.h"

#include "parallel/base/status_macros.h"

namespace deepnet {

std::string JoinPath(std::string_view folder, std::string_view name) {
  std::string path(folder);
  if (!path.empty() && path.back() != '/') path += '/';
  return path.append(name);
}

std::string ParentFolder(std::string_view path) {
  const std::string_view::size_type slash = path.find_last_of('/');
  if (slash == std::string_view::npos) return ".";
  return std::string(slash == 0 ? "/" : path.substr(0, slash));
}

absl::StatusOr<std::string> ReadWholeFile(FileSystem& fs, const std::string& path,
                                          int64_t limit_bytes) {
  ASSIGN_OR_RETURN(const int64_t bytes, fs.Size(path));
  if (bytes > limit_bytes) {
    return absl::FailedPreconditionError(
        absl::StrCat("'", path, "' has ", bytes, " bytes; at most ", limit_bytes, " make sense"));
  }
  std::string contents(static_cast<size_t>(bytes), '\0');
  ASSIGN_OR_RETURN(const int64_t read, fs.ReadAt(path, 0, contents));
  contents.resize(static_cast<size_t>(read));
  return contents;
}

absl::Status ReplaceFile(FileSystem& fs, const std::string& path, std::string_view contents) {
  const std::string temporary = absl::StrCat(path, ".tmp");
  ASSIGN_OR_RETURN(const bool left_over, fs.Exists(temporary));
  if (left_over) RETURN_IF_ERROR(fs.Delete(temporary));
  ASSIGN_OR_RETURN(const std::unique_ptr<AppendFile> file, fs.OpenForAppend(temporary));
  RETURN_IF_ERROR(file->Append(contents));
  RETURN_IF_ERROR(file->Sync());
  RETURN_IF_ERROR(file->Close());
  RETURN_IF_ERROR(fs.Rename(temporary, path));
  return fs.SyncFolder(ParentFolder(path));
}

absl::Status DeleteTree(FileSystem& fs, const std::string& path) {
  const absl::StatusOr<std::vector<std::string>> names = fs.List(path);
  if (names.ok()) {
    for (const std::string& name : *names) RETURN_IF_ERROR(DeleteTree(fs, JoinPath(path, name)));
  }
  return fs.Delete(path);
}

}  // namespace deepnet
