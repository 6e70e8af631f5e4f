// A FileSystem in memory that forgets at a crash all that its contract allows it to forget, and
// that can be stopped before any call.
//
// Example:
//   MemoryFileSystem fs;
//   fs.StopAfter(7);                          // the eighth changing call and all later ones fail
//   (void)SaveCheckpoint(fs, ...);
//   fs.Crash(CrashKind::kLoseUnsynced);       // and the machine is back
//   FindLatest(fs, ...);
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "parallel/base/file_system.h"

namespace deepnet::testing {

enum class CrashKind {
  kKeepAll,       // only the process dies
  kLoseUnsynced,  // power is lost: only what is promised survives
  kLoseSome,      // power is lost: of the rest, some survives; appended bytes may survive as zeros
};

// May be used from several threads.
class MemoryFileSystem final : public FileSystem {
 public:
  MemoryFileSystem();
  ~MemoryFileSystem() override;

  absl::StatusOr<std::unique_ptr<AppendFile>> OpenForAppend(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<AppendFile>> CreateNew(const std::string& path) override;
  absl::StatusOr<int64_t> ReadAt(const std::string& path, int64_t offset,
                                 std::span<char> buffer) override;
  absl::StatusOr<int64_t> Size(const std::string& path) override;
  absl::StatusOr<FileType> TypeOf(const std::string& path) override;
  absl::StatusOr<std::vector<std::string>> List(const std::string& folder) override;
  absl::Status Rename(const std::string& from, const std::string& to) override;
  absl::Status Delete(const std::string& path) override;
  absl::Status DeleteTree(const std::string& path) override;
  absl::Status MakeFolder(const std::string& path) override;
  absl::Status SyncFolder(const std::string& folder) override;

  // Makes `path` a symbolic link. `target` is taken from the root, not from the link's folder.
  void MakeLink(const std::string& target, const std::string& path);

  // Lets `calls` changing calls (Append, Sync, Close, Rename, ...; not reading) succeed; the next
  // one fails, an Append having added half of its bytes; then all fail until Crash().
  void StopAfter(int64_t calls);

  // The number of changing calls so far.
  int64_t num_changing_calls() const;

  // Ends the outage that StopAfter() began. `seed` chooses what survives kLoseSome.
  void Crash(CrashKind kind, uint64_t seed = 0);

  // Inverts bit `bit` of a byte of a file, durably. The file and the byte must exist.
  void FlipBit(const std::string& path, int64_t offset, int bit);

 private:
  friend class MemoryAppendFile;
  struct Node;
  struct Change;

  // Returns what `path` leads to; `follow`: also where the last part is a link.
  std::shared_ptr<Node> Find(const std::string& path, bool follow = true) const;
  absl::StatusOr<std::shared_ptr<Node>> FindFolder(const std::string& path) const;
  absl::Status CountCall();
  void ForgetUnsynced(Node& node, CrashKind kind, std::mt19937_64& random);

  mutable std::recursive_mutex mutex_;  // guards all below; methods call each other
  std::shared_ptr<Node> root_;
  int64_t num_changing_calls_ = 0;
  std::optional<int64_t> calls_left_;  // until the stop
};

// Deletes `path` and what is in it by calls of `fs` for each, so that each can be the one that
// fails.
absl::Status DeleteTreeByCalls(FileSystem& fs, const std::string& path);

}  // namespace deepnet::testing
