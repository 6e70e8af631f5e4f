// The file seam: everything that has to survive a crash is written through it, so that tests can
// stop the world after any single call. Paths use '/'; relative ones are relative to the process's
// folder.
//
// Durable means that it survives loss of power, and begins:
//   bytes appended to a file       when Sync() of that file has returned;
//   a new file's name in a folder  when SyncFolder() of that folder has returned;
//   a renaming or a deletion       likewise; two folders need two calls;
//   a new folder                   when MakeFolder() has returned.
// Until then a crash may keep all of it, none of it, or any part, in any order. The end of a
// process keeps all that it did.
//
// Errors name the path and have the code of errno. An object may be used by one thread at a time
// per path, and by any number that read it.
//
// Folders are shared with people and with other users. So nothing is written or deleted through a
// symbolic link that stands at the end of a path (one further up is followed: users keep folders
// where there is room), and nothing is deleted that this program has not made. What it makes for a
// time has a name that nobody else gives: one with kUnfinishedEnd, or UnusedName().
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace deepnet {

// A file open for appending. The destructor closes it and ignores errors.
class AppendFile {
 public:
  virtual ~AppendFile() = default;

  // Adds all of `bytes` at the end, or fails having added any part of them.
  virtual absl::Status Append(std::string_view bytes) = 0;

  // Waits until everything appended is durable. After a failure nothing is known of the file.
  virtual absl::Status Sync() = 0;

  // Closes the file; no other call may follow. Does not make anything durable.
  virtual absl::Status Close() = 0;
};

// The kinds of what stands under a name; a link is one whatever it leads to.
enum class FileType { kNone, kFile, kFolder, kLink, kOther };

class FileSystem {
 public:
  virtual ~FileSystem() = default;

  // Creates the file if it does not exist; its folder must exist. Fails at a link.
  virtual absl::StatusOr<std::unique_ptr<AppendFile>> OpenForAppend(const std::string& path) = 0;

  // Creates the file. kAlreadyExists where there is one, or a link: if several processes try, on
  // whatever hosts, exactly one succeeds.
  virtual absl::StatusOr<std::unique_ptr<AppendFile>> CreateNew(const std::string& path) = 0;

  // Fills `buffer` with the bytes from `offset` on. Returns how many there were: fewer than asked
  // only at the end of the file.
  virtual absl::StatusOr<int64_t> ReadAt(const std::string& path, int64_t offset,
                                         std::span<char> buffer) = 0;

  // Returns the bytes of a file. FailedPrecondition for what is none: a folder, a pipe, a device.
  virtual absl::StatusOr<int64_t> Size(const std::string& path) = 0;

  // Returns what there is of this name.
  virtual absl::StatusOr<FileType> TypeOf(const std::string& path) = 0;

  // Returns the names in a folder, sorted, without "." and "..".
  virtual absl::StatusOr<std::vector<std::string>> List(const std::string& folder) = 0;

  // Atomic: at any moment `to` is the old or the new one. A file replaces a file; a folder only an
  // empty one.
  virtual absl::Status Rename(const std::string& from, const std::string& to) = 0;

  // Deletes a file, a link or an empty folder.
  virtual absl::Status Delete(const std::string& path) = 0;

  // Deletes `path` and, if it is a folder, everything in it, also while others change it. Links are
  // deleted and never followed. FailedPrecondition, with nothing deleted, where the folder or one
  // in it is a mount point. The caller is sure that this program has made it:
  // tests/lint/file_calls.py lists all callers with their reasons.
  virtual absl::Status DeleteTree(const std::string& path) = 0;

  // Makes the folder and those above it. OK if it exists.
  virtual absl::Status MakeFolder(const std::string& path) = 0;

  // Waits until the names in `folder` are durable.
  virtual absl::Status SyncFolder(const std::string& folder) = 0;
};

// How durable Sync() and SyncFolder() make what was written.
enum class Durability {
  kDisk,        // it survives loss of power, as the contract above says
  kProcessEnd,  // they wait for nothing: it outlives the process but not the machine, as with cp
};

// The operating system's files.
std::unique_ptr<FileSystem> MakePosixFileSystem(Durability durability = Durability::kDisk);

// A file system in front of `inner`, which outlives it and its files. After every call of it or of
// one of its files, `called` gets the path, on the thread that made the call.
std::unique_ptr<FileSystem> MakeObservedFileSystem(
    FileSystem& inner, std::function<void(const std::string& path)> called);

// Returns "folder/name".
std::string JoinPath(std::string_view folder, std::string_view name);

// Returns the folder that holds `path`: "." for a bare name, "/" for a name at the root.
std::string ParentFolder(std::string_view path);

// Returns where `path` leads: links at its end are followed. FailedPrecondition at one of another
// user than root, who could lead the program anywhere.
absl::StatusOr<std::string> FollowOwnLinks(std::string path);

// Returns true if something is mounted at `path`, so that it can be neither renamed nor replaced.
bool IsMountPoint(const std::string& path);

// Returns true if `path` is `folder` or in it, once the links of both are followed.
bool LiesIn(const std::string& path, const std::string& folder);

// Returns true for what can only be the name of something in a folder: not empty, no '/', neither
// "." nor "..", no control characters.
bool IsFileName(std::string_view name);

// Reads a whole file. FailedPrecondition beyond `limit_bytes`, so that a wrong path cannot fill the
// memory.
absl::StatusOr<std::string> ReadWholeFile(FileSystem& fs, const std::string& path,
                                          int64_t limit_bytes);

// The same for a file or a pipe, such as /dev/stdin, that a user named on a command line.
absl::StatusOr<std::string> ReadFileOrPipe(const std::string& path, int64_t limit_bytes);

// The ending of the names of folders that are being written or deleted. What has such a name may be
// deleted: only this program gives it.
inline constexpr char kUnfinishedEnd[] = ".deepnet-unfinished";

// Returns ".deepnet-" and sixteen random hexadecimal digits: the name of a file that takes another
// one when it is complete. IsUnusedName knows such names again.
std::string UnusedName();
bool IsUnusedName(std::string_view name);

// Returns true if there is something of this name, be it a link that leads nowhere.
absl::StatusOr<bool> Exists(FileSystem& fs, const std::string& path);

// Deletes the tree `path`, if there is one.
absl::Status DeleteIfThere(FileSystem& fs, const std::string& path);

// Makes a folder for files of this program alone, or takes one that is there. FailedPrecondition
// where there is a link.
absl::Status MakeOwnFolder(FileSystem& fs, const std::string& path);

// A file that appears whole, in the place of an earlier one, or not at all.
class FileReplacement {
 public:
  // Fails at a link or a device: it would be replaced by a file. `fs` is borrowed.
  static absl::StatusOr<std::unique_ptr<FileReplacement>> Begin(FileSystem& fs,
                                                                const std::string& path);

  // Deletes what was written, unless it was committed.
  ~FileReplacement();
  FileReplacement(const FileReplacement&) = delete;
  FileReplacement& operator=(const FileReplacement&) = delete;

  absl::Status Append(std::string_view bytes) { return file_->Append(bytes); }

  // Gives the file its name. Then it is durable, and no other call may follow.
  absl::Status Commit();

 private:
  FileReplacement(FileSystem& fs, std::string path);

  FileSystem& fs_;
  const std::string path_;
  const std::string unfinished_;      // the name until then
  std::unique_ptr<AppendFile> file_;  // null once it has its name
};

// Creates the file or replaces it, atomically and durably (FileReplacement).
absl::Status ReplaceFile(FileSystem& fs, const std::string& path, std::string_view contents);

}  // namespace deepnet
