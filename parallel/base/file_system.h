// The file seam: everything that has to survive a crash is written through it, so that tests can
// stop the world after any single call. Paths use '/'; relative ones are relative to the process's
// folder.
//
// Durable means that it survives loss of power, and begins:
//   bytes appended to a file       when Sync() of that file has returned;
//   a new file's name in a folder  when SyncFolder() of that folder has returned;
//   a renaming or a deletion       likewise; two folders need two calls;
//   a new folder                   when MakeFolder() has returned.
// Until then a crash may keep all of it, none of it, or any part, in any order. What a process did
// is visible at once to itself and to others on the same machine, and survives the death of the
// process.
//
// Errors name the path. kNotFound: it does not exist. kResourceExhausted: no space. Others as errno
// has it. An object may be used by one thread at a time per path, and by any number that read it.
//
// Example (replace a small file, never leaving half of one):
//   ASSIGN_OR_RETURN(const auto file, fs.OpenForAppend("run/latest.tmp"));
//   RETURN_IF_ERROR(file->Append("step-00000010\n"));
//   RETURN_IF_ERROR(file->Sync());
//   RETURN_IF_ERROR(file->Close());
//   RETURN_IF_ERROR(fs.Rename("run/latest.tmp", "run/latest"));
//   RETURN_IF_ERROR(fs.SyncFolder("run"));
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

class FileSystem {
 public:
  virtual ~FileSystem() = default;

  // Creates the file if it does not exist; its folder must exist.
  virtual absl::StatusOr<std::unique_ptr<AppendFile>> OpenForAppend(const std::string& path) = 0;

  // Creates the file. kAlreadyExists where there is one: if several processes try, on whatever
  // hosts, exactly one succeeds.
  virtual absl::StatusOr<std::unique_ptr<AppendFile>> CreateNew(const std::string& path) = 0;

  // Fills `buffer` with the bytes from `offset` on. Returns how many there were: fewer than asked
  // only at the end of the file.
  virtual absl::StatusOr<int64_t> ReadAt(const std::string& path, int64_t offset,
                                         std::span<char> buffer) = 0;

  // Returns the bytes of a file.
  virtual absl::StatusOr<int64_t> Size(const std::string& path) = 0;

  // Returns true if there is a file or a folder of this name.
  virtual absl::StatusOr<bool> Exists(const std::string& path) = 0;

  // Returns the names in a folder, sorted, without "." and "..".
  virtual absl::StatusOr<std::vector<std::string>> List(const std::string& folder) = 0;

  // Atomic: at any moment `to` is the old or the new one. A file replaces a file; a folder only an
  // empty one.
  virtual absl::Status Rename(const std::string& from, const std::string& to) = 0;

  // Deletes a file, or an empty folder.
  virtual absl::Status Delete(const std::string& path) = 0;

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

// Reads a whole file. FailedPrecondition beyond `limit_bytes`, so that a wrong path cannot fill the
// memory.
absl::StatusOr<std::string> ReadWholeFile(FileSystem& fs, const std::string& path,
                                          int64_t limit_bytes);

// Creates the file or replaces it, atomically and durably, by way of `path` + ".tmp".
absl::Status ReplaceFile(FileSystem& fs, const std::string& path, std::string_view contents);

// Deletes `path` and, if it is a folder, everything in it. Durable after SyncFolder() of its
// folder.
absl::Status DeleteTree(FileSystem& fs, const std::string& path);

}  // namespace deepnet
