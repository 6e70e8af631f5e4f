#include "parallel/base/file_system.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <random>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include <sys/stat.h>

#include "parallel/base/exit_code.h"
#include "parallel/base/fd_stream.h"
#include "parallel/base/status_macros.h"

namespace deepnet {
namespace {

// For errno as the failed call left it.
absl::Status ErrnoStatus(const std::string& what, const std::string& path) {
  return absl::ErrnoToStatus(errno, absl::StrCat("cannot ", what, " '", path, "'"));
}

// Returns ErrnoStatus where a call returned something else than 0.
absl::Status StatusOf(int result, const char* what, const std::string& path) {
  return result == 0 ? absl::OkStatus() : ErrnoStatus(what, path);
}

absl::Status LinkStatus(const std::string& path) {
  return FailedPrecondition("'", path, "' is a symbolic link; nothing is written through it");
}

// Returns the names in an open folder, without "." and "..".
absl::StatusOr<std::vector<std::string>> NamesIn(DIR* folder, const std::string& path) {
  std::vector<std::string> names;
  errno = 0;
  while (const dirent* entry = readdir(folder)) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  if (errno != 0) return ErrnoStatus("list", path);
  return names;
}

constexpr std::string_view kUnusedStart = ".deepnet-";

using OpenFolder = std::unique_ptr<DIR, int (*)(DIR*)>;

// Visits the entry `name` of the open folder `parent`, and what is in it first. It goes by open
// folders and not by paths, so that a folder that becomes a link meanwhile leads nowhere.
enum class Visit { kLookForMounts, kDelete };
absl::Status VisitTree(int parent, const char* name, const std::string& path, Visit visit) {
  struct statx info;
  if (statx(parent, name, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT, STATX_TYPE, &info) != 0) {
    return ErrnoStatus("look at", path);
  }
  const bool is_folder = S_ISDIR(info.stx_mode);
  if (is_folder) {
    if ((info.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0) {
      return FailedPrecondition("'", path, "' is a mount point; it is not deleted");
    }
    const int flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
    const int fd = TEMP_FAILURE_RETRY(openat(parent, name, flags));
    if (fd < 0) return ErrnoStatus("open the folder", path);
    const OpenFolder folder(fdopendir(fd), closedir);
    if (folder == nullptr) {
      close(fd);
      return absl::ResourceExhaustedError(absl::StrCat("cannot list '", path, "'"));
    }
    ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(folder.get(), path));
    for (const std::string& inner : names) {
      RETURN_IF_ERROR(VisitTree(fd, inner.c_str(), JoinPath(path, inner), visit));
    }
  }
  if (visit == Visit::kLookForMounts) return absl::OkStatus();
  return StatusOf(unlinkat(parent, name, is_folder ? AT_REMOVEDIR : 0), "delete", path);
}

// The disk is set to work after so many bytes, or it would idle until Sync() and then be waited
// for.
constexpr size_t kWritebackBytes = size_t{8} << 20;

class PosixAppendFile final : public AppendFile {
 public:
  PosixAppendFile(std::string path, int fd, Durability durability)
      : path_(std::move(path)), descriptor_(fd), durability_(durability) {}

  absl::Status Append(std::string_view bytes) override {
    while (!bytes.empty()) {
      const ssize_t written =
          TEMP_FAILURE_RETRY(write(descriptor_.fd(), bytes.data(), bytes.size()));
      if (written < 0) return ErrnoStatus("write to", path_);
      bytes.remove_prefix(static_cast<size_t>(written));
      waiting_bytes_ += static_cast<size_t>(written);
      if (waiting_bytes_ < kWritebackBytes) continue;
      waiting_bytes_ = 0;
      // Covers the whole file: pages that are clean or under way cost nothing. Makes nothing
      // durable and may fail; Sync() reports that.
      if (durability_ == Durability::kDisk) {
        sync_file_range(descriptor_.fd(), 0, 0, SYNC_FILE_RANGE_WRITE);
      }
    }
    return absl::OkStatus();
  }

  absl::Status Sync() override {
    if (durability_ == Durability::kProcessEnd) return absl::OkStatus();
    return StatusOf(TEMP_FAILURE_RETRY(fsync(descriptor_.fd())), "sync", path_);
  }

  // Not again after EINTR: the descriptor is gone, and perhaps already somebody else's.
  absl::Status Close() override {
    if (close(descriptor_.Release()) != 0 && errno != EINTR) return ErrnoStatus("close", path_);
    return absl::OkStatus();
  }

 private:
  const std::string path_;
  Descriptor descriptor_;
  const Durability durability_;
  size_t waiting_bytes_ = 0;  // appended since the disk was last set to work
};

class PosixFileSystem final : public FileSystem {
 public:
  explicit PosixFileSystem(Durability durability) : durability_(durability) {}

  absl::StatusOr<std::unique_ptr<AppendFile>> OpenForAppend(const std::string& path) override {
    return Open(path, 0, "open for appending");
  }

  absl::StatusOr<std::unique_ptr<AppendFile>> CreateNew(const std::string& path) override {
    return Open(path, O_EXCL, "create");
  }

  absl::StatusOr<int64_t> ReadAt(const std::string& path, int64_t offset,
                                 std::span<char> buffer) override {
    const Descriptor file(TEMP_FAILURE_RETRY(open(path.c_str(), O_RDONLY | O_CLOEXEC)));
    if (!file.ok()) return ErrnoStatus("open", path);
    size_t done = 0;
    while (done < buffer.size()) {
      const ssize_t bytes =
          TEMP_FAILURE_RETRY(pread(file.fd(), buffer.data() + done, buffer.size() - done,
                                   static_cast<off_t>(offset) + static_cast<off_t>(done)));
      if (bytes < 0) return ErrnoStatus("read", path);
      if (bytes == 0) break;
      done += static_cast<size_t>(bytes);
    }
    return static_cast<int64_t>(done);
  }

  absl::StatusOr<int64_t> Size(const std::string& path) override {
    struct stat info;
    if (stat(path.c_str(), &info) != 0) return ErrnoStatus("look at", path);
    if (!S_ISREG(info.st_mode)) {
      return FailedPrecondition("'", path, "' is ",
                                S_ISDIR(info.st_mode) ? "a folder" : "a pipe or a device",
                                ", not a file");
    }
    return static_cast<int64_t>(info.st_size);
  }

  absl::StatusOr<FileType> TypeOf(const std::string& path) override {
    struct stat info;
    if (lstat(path.c_str(), &info) != 0) {
      if (errno == ENOENT || errno == ENOTDIR) return FileType::kNone;
      return ErrnoStatus("look at", path);
    }
    if (S_ISREG(info.st_mode)) return FileType::kFile;
    if (S_ISDIR(info.st_mode)) return FileType::kFolder;
    return S_ISLNK(info.st_mode) ? FileType::kLink : FileType::kOther;
  }

  absl::StatusOr<std::vector<std::string>> List(const std::string& folder) override {
    const OpenFolder open_folder(opendir(folder.c_str()), closedir);
    if (open_folder == nullptr) return ErrnoStatus("list", folder);
    ASSIGN_OR_RETURN(std::vector<std::string> names, NamesIn(open_folder.get(), folder));
    std::sort(names.begin(), names.end());
    return names;
  }

  absl::Status Rename(const std::string& from, const std::string& to) override {
    if (rename(from.c_str(), to.c_str()) == 0) return absl::OkStatus();
    return ErrnoStatus(absl::StrCat("rename to '", to, "' what is"), from);
  }

  absl::Status Delete(const std::string& path) override {
    return StatusOf(remove(path.c_str()), "delete", path);
  }

  absl::Status DeleteTree(const std::string& path) override {
    RETURN_IF_ERROR(VisitTree(AT_FDCWD, path.c_str(), path, Visit::kLookForMounts));
    return VisitTree(AT_FDCWD, path.c_str(), path, Visit::kDelete);
  }

  absl::Status MakeFolder(const std::string& path) override {
    const std::string parent = ParentFolder(path);
    if (mkdir(path.c_str(), 0777) == 0) return SyncFolder(parent);
    if (errno == ENOENT && parent.size() < path.size()) {
      RETURN_IF_ERROR(MakeFolder(parent));
      if (mkdir(path.c_str(), 0777) == 0) return SyncFolder(parent);
    }
    struct stat info;
    const int error = errno;
    if (error == EEXIST && stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) {
      return absl::OkStatus();
    }
    errno = error;
    return ErrnoStatus("make the folder", path);
  }

  absl::Status SyncFolder(const std::string& folder) override {
    if (durability_ == Durability::kProcessEnd) return absl::OkStatus();
    const Descriptor open_folder(
        TEMP_FAILURE_RETRY(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)));
    if (!open_folder.ok()) return ErrnoStatus("open the folder", folder);
    return StatusOf(TEMP_FAILURE_RETRY(fsync(open_folder.fd())), "sync the folder", folder);
  }

 private:
  absl::StatusOr<std::unique_ptr<AppendFile>> Open(const std::string& path, int more_flags,
                                                   const std::string& what) const {
    // O_NONBLOCK: a pipe that nobody reads is an error, and not for ever.
    const int flags =
        O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | more_flags;
    const int fd = TEMP_FAILURE_RETRY(open(path.c_str(), flags, 0666));
    if (fd < 0 && errno == ELOOP) return LinkStatus(path);
    if (fd < 0) return ErrnoStatus(what, path);
    return std::make_unique<PosixAppendFile>(path, fd, durability_);
  }

  const Durability durability_;
};

using Observer = std::function<void(const std::string& path)>;

class ObservedAppendFile final : public AppendFile {
 public:
  ObservedAppendFile(std::unique_ptr<AppendFile> inner, std::string path, const Observer& called)
      : inner_(std::move(inner)), path_(std::move(path)), called_(called) {}

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
  const Observer& called_;
};

class ObservedFileSystem final : public FileSystem {
 public:
  ObservedFileSystem(FileSystem& inner, Observer called)
      : inner_(inner), called_(std::move(called)) {}

  absl::StatusOr<std::unique_ptr<AppendFile>> OpenForAppend(const std::string& path) override {
    return Observed(path, inner_.OpenForAppend(path));
  }
  absl::StatusOr<std::unique_ptr<AppendFile>> CreateNew(const std::string& path) override {
    return Observed(path, inner_.CreateNew(path));
  }
  absl::StatusOr<int64_t> ReadAt(const std::string& path, int64_t offset,
                                 std::span<char> buffer) override {
    return After(path, inner_.ReadAt(path, offset, buffer));
  }
  absl::StatusOr<int64_t> Size(const std::string& path) override {
    return After(path, inner_.Size(path));
  }
  absl::StatusOr<FileType> TypeOf(const std::string& path) override {
    return After(path, inner_.TypeOf(path));
  }
  absl::StatusOr<std::vector<std::string>> List(const std::string& folder) override {
    return After(folder, inner_.List(folder));
  }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    return After(from, inner_.Rename(from, to));
  }
  absl::Status Delete(const std::string& path) override { return After(path, inner_.Delete(path)); }
  absl::Status DeleteTree(const std::string& path) override {
    return After(path, inner_.DeleteTree(path));
  }
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

  absl::StatusOr<std::unique_ptr<AppendFile>> Observed(
      const std::string& path, absl::StatusOr<std::unique_ptr<AppendFile>> file) {
    called_(path);
    RETURN_IF_ERROR(file.status());
    return std::make_unique<ObservedAppendFile>(*std::move(file), path, called_);
  }

  FileSystem& inner_;
  const Observer called_;
};

}  // namespace

std::unique_ptr<FileSystem> MakeObservedFileSystem(FileSystem& inner, Observer called) {
  return std::make_unique<ObservedFileSystem>(inner, std::move(called));
}

std::unique_ptr<FileSystem> MakePosixFileSystem(Durability durability) {
  return std::make_unique<PosixFileSystem>(durability);
}

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

absl::StatusOr<std::string> FollowOwnLinks(std::string path) {
  constexpr int kMaxLinks = 40;  // as the kernel
  for (int links = 0;; ++links) {
    while (path.size() > 1 && path.back() == '/') path.pop_back();
    struct stat info;
    if (lstat(path.c_str(), &info) != 0 || !S_ISLNK(info.st_mode)) return path;
    if (info.st_uid != geteuid() && info.st_uid != 0) {
      return FailedPrecondition("'", path, "' is a symbolic link that another user made");
    }
    std::error_code error;
    const auto target = std::filesystem::read_symlink(path, error);
    if (error || links == kMaxLinks) {
      return FailedPrecondition("'", path, "' is a symbolic link to itself");
    }
    path = (std::filesystem::path(ParentFolder(path)) / target).lexically_normal().string();
  }
}

bool IsMountPoint(const std::string& path) {
  struct statx info;
  return statx(AT_FDCWD, path.c_str(), AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT, STATX_TYPE, &info) ==
             0 &&
         (info.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0;
}

bool LiesIn(const std::string& path, const std::string& folder) {
  std::error_code error;
  const auto inner = std::filesystem::weakly_canonical(path, error);
  const auto outer = std::filesystem::weakly_canonical(folder, error);
  return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first == outer.end();
}

bool IsFileName(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && std::ranges::all_of(name, [](char c) {
    return c != '/' && !absl::ascii_iscntrl(static_cast<unsigned char>(c));
  });
}

absl::StatusOr<std::string> ReadWholeFile(FileSystem& fs, const std::string& path,
                                          int64_t limit_bytes) {
  ASSIGN_OR_RETURN(const int64_t bytes, fs.Size(path));
  if (bytes > limit_bytes) {
    return FailedPrecondition("'", path, "' has ", bytes, " bytes; at most ", limit_bytes,
                              " make sense");
  }
  std::string contents(static_cast<size_t>(bytes), '\0');
  ASSIGN_OR_RETURN(const int64_t read, fs.ReadAt(path, 0, contents));
  contents.resize(static_cast<size_t>(read));
  return contents;
}

absl::StatusOr<std::string> ReadFileOrPipe(const std::string& path, int64_t limit_bytes) {
  const Descriptor file(TEMP_FAILURE_RETRY(open(path.c_str(), O_RDONLY | O_CLOEXEC)));
  if (!file.ok()) return ErrnoStatus("open", path);
  std::string contents, block(size_t{1} << 16, '\0');
  while (true) {
    const ssize_t bytes = TEMP_FAILURE_RETRY(read(file.fd(), block.data(), block.size()));
    if (bytes < 0) return ErrnoStatus("read", path);
    if (bytes == 0) return contents;
    contents.append(block, 0, static_cast<size_t>(bytes));
    if (static_cast<int64_t>(contents.size()) > limit_bytes) {
      return FailedPrecondition("'", path, "' has more than ", limit_bytes,
                                " bytes, the most that make sense");
    }
  }
}

std::string UnusedName() {
  std::random_device random;
  return absl::StrFormat("%s%08x%08x", kUnusedStart, random(), random());
}

bool IsUnusedName(std::string_view name) {
  return name.starts_with(kUnusedStart) && name.size() == kUnusedStart.size() + 16 &&
         std::all_of(name.begin() + kUnusedStart.size(), name.end(), absl::ascii_isxdigit);
}

absl::StatusOr<bool> Exists(FileSystem& fs, const std::string& path) {
  ASSIGN_OR_RETURN(const FileType type, fs.TypeOf(path));
  return type != FileType::kNone;
}

absl::Status DeleteIfThere(FileSystem& fs, const std::string& path) {
  ASSIGN_OR_RETURN(const bool exists, Exists(fs, path));
  return exists ? fs.DeleteTree(path) : absl::OkStatus();
}

absl::Status MakeOwnFolder(FileSystem& fs, const std::string& path) {
  ASSIGN_OR_RETURN(const FileType type, fs.TypeOf(path));
  return type == FileType::kLink ? LinkStatus(path) : fs.MakeFolder(path);
}

FileReplacement::FileReplacement(FileSystem& fs, std::string path)
    : fs_(fs), path_(std::move(path)), unfinished_(JoinPath(ParentFolder(path_), UnusedName())) {}

absl::StatusOr<std::unique_ptr<FileReplacement>> FileReplacement::Begin(FileSystem& fs,
                                                                        const std::string& path) {
  ASSIGN_OR_RETURN(const FileType type, fs.TypeOf(path));
  if (type == FileType::kLink) return LinkStatus(path);
  if (type == FileType::kOther) {
    return FailedPrecondition("'", path, "' is no regular file");
  }
  auto replacement = std::unique_ptr<FileReplacement>(new FileReplacement(fs, path));
  ASSIGN_OR_RETURN(replacement->file_, WithPrefix(absl::StrCat("cannot write '", path, "'"),
                                                  fs.CreateNew(replacement->unfinished_)));
  return replacement;
}

FileReplacement::~FileReplacement() {
  if (file_ == nullptr) return;
  file_.reset();
  fs_.Delete(unfinished_).IgnoreError();
}

absl::Status FileReplacement::Commit() {
  RETURN_IF_ERROR(file_->Sync());
  RETURN_IF_ERROR(file_->Close());
  RETURN_IF_ERROR(fs_.Rename(unfinished_, path_));
  file_ = nullptr;
  return fs_.SyncFolder(ParentFolder(path_));
}

absl::Status ReplaceFile(FileSystem& fs, const std::string& path, std::string_view contents) {
  ASSIGN_OR_RETURN(const auto file, FileReplacement::Begin(fs, path));
  RETURN_IF_ERROR(file->Append(contents));
  return file->Commit();
}

}  // namespace deepnet
