// A file system with faults on demand: one call that fails, writes that come short, a disk of a
// given size. Also counts what is read.
//
// Example, the third changing call fails as a broken disk's does:
//   FaultFileSystem fs(*MakePosixFileSystem());
//   fs.FailCall(2, absl::DataLossError("EIO"));
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "parallel/base/file_system.h"

namespace deepnet::testing {

// Passes everything on to `inner`. May be used from several threads where `inner` may.
class FaultFileSystem final : public FileSystem {
 public:
  explicit FaultFileSystem(FileSystem& inner) : inner_(inner) {}  // outlives this

  absl::StatusOr<std::unique_ptr<AppendFile>> OpenForAppend(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<AppendFile>> CreateNew(const std::string& path) override;
  absl::StatusOr<int64_t> ReadAt(const std::string& path, int64_t offset,
                                 std::span<char> buffer) override;
  absl::StatusOr<int64_t> Size(const std::string& path) override { return inner_.Size(path); }
  absl::StatusOr<FileType> TypeOf(const std::string& path) override { return inner_.TypeOf(path); }
  absl::StatusOr<std::vector<std::string>> List(const std::string& folder) override {
    return inner_.List(folder);
  }
  absl::Status Rename(const std::string& from, const std::string& to) override;
  absl::Status Delete(const std::string& path) override;
  absl::Status DeleteTree(const std::string& path) override;
  absl::Status MakeFolder(const std::string& path) override;
  absl::Status SyncFolder(const std::string& folder) override;

  // Changing calls (Append, Sync, Close, Rename, ...; not reading) and reads are counted from 0,
  // together; call `number` fails with `status`, an Append after half of its bytes.
  void FailCall(int64_t number, absl::Status status);
  // Leaves room for `bytes` more bytes; an Append that needs more adds what fits and fails with
  // kResourceExhausted. Deleting a file makes room again.
  void SetRoom(int64_t bytes);
  int64_t num_calls() const;
  // The changing calls since the last ClearChanges(), "rename run/a run/b"; one line for several of
  // a kind and path in a row. Names that nobody uses (UnusedName()) are called "unused".
  std::vector<std::string> changes() const;
  void ClearChanges();
  // Lets every change fail that changes() calls so.
  void FailChange(std::string change, absl::Status status);
  int64_t read_bytes() const;  // bytes that ReadAt has returned

 private:
  friend class FaultAppendFile;

  // Counts a call; `kind` and `path` describe a changing one.
  absl::Status Count(const char* kind = "", const std::string& path = "");
  // Returns how many of `wanted` bytes fit.
  size_t Reserve(size_t wanted);

  FileSystem& inner_;
  mutable std::mutex mutex_;  // guards all below
  int64_t calls_ = 0;
  int64_t read_bytes_ = 0;
  std::vector<std::string> changes_;
  std::string failing_change_;
  int64_t failing_call_ = -1;
  absl::Status failure_;
  int64_t room_ = std::numeric_limits<int64_t>::max();
};

}  // namespace deepnet::testing
