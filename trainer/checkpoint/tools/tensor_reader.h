// Reads the logical tensors of a checkpoint a run of elements at a time, whichever files they lie
// in, within the bound on memory that all tools have.
//
// Example:
//   ASSIGN_OR_RETURN(const auto reader, TensorReader::Open(fs, "run/step-00000010", options));
//   RETURN_IF_ERROR(ShareMemory({{reader.get()}}, kReadManifestFactor, 0, options, "reading"));
//   for (const StoredTensor& tensor : reader->tensors()) {
//     RETURN_IF_ERROR(reader->Read(tensor, 0, first_elements));
//   }
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "parallel/base/file_system.h"
#include "parallel/comm/communicator.h"
#include "proto/checkpoint.pb.h"
#include "trainer/checkpoint/background_task.h"

namespace deepnet {

// Called now and then, from the calling thread, with the bytes done and the bytes in all.
using ToolProgress = std::function<void(int64_t done, int64_t total)>;

struct ToolOptions {
  // Bound on what the tool takes beyond the process as it starts, in bytes, however large the
  // checkpoint is. A tool that cannot keep it says so before it begins, with ExitCode::kDoesNotFit
  // and what it would need.
  int64_t memory_bytes = int64_t{256} << 20;
  ToolProgress progress = [](int64_t, int64_t) {};  // of this rank's share
  // The ranks that share the work of a tool that says so; every one calls it, sees the same files
  // and gets the same result. Null: this process alone.
  Communicator* world = nullptr;
};

// Bytes of buffers and all else that does not depend on the checkpoint.
inline constexpr int64_t kToolFixedBytes = int64_t{8} << 20;

// Bytes of memory for a byte of manifest.pb, at most, once it is parsed and indexed; and if another
// manifest of that size is made of it.
inline constexpr int64_t kReadManifestFactor = 10;
inline constexpr int64_t kWriteManifestFactor = 24;

// Fails with ExitCode::kDoesNotFit if `needed_bytes` are more than `options.memory_bytes`; `what`
// names what needs them.
absl::Status CheckMemory(int64_t needed_bytes, const ToolOptions& options, const std::string& what);

// ReadManifest(), after CheckMemory() of kReadManifestFactor.
absl::StatusOr<Manifest> ReadManifestWithin(FileSystem& fs, const std::string& checkpoint_folder,
                                            const ToolOptions& options);

// Bytes of all files of tensors.
int64_t TensorBytes(const Manifest& manifest);

// Keeps the blocks of a checkpoint that were used last and reads the next one in the background, so
// that a tool that is busy with the bytes does not wait for files or checksums.
//
// Every byte handed out was compared with its block's checksum. One thread at a time; `fs` is also
// read from a thread of this. Errors carry ExitCode::kCheckpoint; damage names file, block and
// tensor.
class BlockCache {
 public:
  // `fs` and `manifest`, the one of the checkpoint in `folder`, are borrowed.
  BlockCache(FileSystem& fs, std::string folder, const Manifest& manifest)
      : fs_(fs), folder_(std::move(folder)), manifest_(manifest) {}

  BlockCache(const BlockCache&) = delete;
  BlockCache& operator=(const BlockCache&) = delete;

  // Sets how many blocks may be held, at least 1 (the default), and if one of them may be the next
  // of a file, for which it takes 2. Call it before the first Get().
  void Hold(int64_t num_blocks, bool ahead);

  // Returns the bytes of block `block` of Manifest.files(file), valid until the next call.
  absl::StatusOr<std::string_view> Get(int file, int64_t block);

 private:
  struct Held {
    int file = -1;  // -1: none, or a damaged one
    int64_t block = -1;
    int64_t last_use = 0;
    std::vector<char> bytes = {};
  };

  Held* Find(int file, int64_t block);
  Held& MakeRoom(int file, int64_t block, const Held* in_use);
  absl::Status Read(int file, int64_t block, Held& held);
  absl::Status FinishComing();
  void ReadAhead(const Held& in_use);

  FileSystem& fs_;
  const std::string folder_;
  const Manifest& manifest_;
  size_t most_ = 1;
  bool ahead_ = false;
  int64_t uses_ = 0;
  std::vector<std::unique_ptr<Held>> held_;
  Held* coming_ = nullptr;  // belongs to task_ until FinishComing()
  BackgroundTask task_;     // destroyed first: it uses the others
};

// A run of a tensor's elements, and where it lies.
struct StoredPart {
  int file = 0;  // index in Manifest.files
  int64_t first_element = 0;
  int64_t num_elements = 0;
  int64_t offset = 0;  // bytes from the start of the file
};

struct StoredTensor {
  std::string name;  // with its prefix, "weight/encoder.layers.0.fc1.weight"
  std::vector<int64_t> shape;
  int64_t num_elements = 0;
  std::vector<StoredPart> parts = {};  // ascending, covering all elements exactly once
};

// Returns all tensors of a valid manifest, in the order in which its files first mention them:
// reading them in it passes once over each file, but for tensors that lie in several.
std::vector<StoredTensor> IndexTensors(const Manifest& manifest);

// Holds blocks as BlockCache does; what that says of bytes, threads and errors is true of this.
class TensorReader {
 public:
  // Reads the manifest and compares the sizes of all files. `fs` is borrowed.
  static absl::StatusOr<std::unique_ptr<TensorReader>> Open(FileSystem& fs,
                                                            const std::string& checkpoint_folder,
                                                            const ToolOptions& options);

  const std::string& folder() const { return folder_; }
  const Manifest& manifest() const { return manifest_; }
  const std::vector<StoredTensor>& tensors() const { return tensors_; }

  // Returns nullptr if there is none of that name.
  const StoredTensor* Find(std::string_view name) const;

  int64_t manifest_bytes() const { return manifest_bytes_; }
  int64_t block_bytes() const { return block_bytes_; }  // of the longest block there is

  // The most parts that a tensor consists of: so many files are read beside each other.
  int64_t most_parts() const { return most_parts_; }

  // Passes on to BlockCache::Hold().
  void HoldBlocks(int64_t num_blocks, bool ahead) { blocks_.Hold(num_blocks, ahead); }

  // Hands the bytes of elements [first_element, first_element + num_elements) to `use`, in order
  // and in pieces that are valid during the call and need not end at an element.
  absl::Status Visit(const StoredTensor& tensor, int64_t first_element, int64_t num_elements,
                     const std::function<absl::Status(std::string_view bytes)>& use);

  // Fills `into` with the elements from `first_element` on.
  absl::Status Read(const StoredTensor& tensor, int64_t first_element, std::span<float> into);

 private:
  TensorReader(FileSystem& fs, std::string folder, Manifest manifest, int64_t manifest_bytes);

  const std::string folder_;
  const Manifest manifest_;
  const int64_t manifest_bytes_;
  const std::vector<StoredTensor> tensors_;
  std::map<std::string_view, const StoredTensor*> by_name_;
  int64_t block_bytes_ = 0;
  int64_t most_parts_ = 1;
  BlockCache blocks_;
};

// Shares `options.memory_bytes` between readers that are used together: `manifest_factor` bytes for
// a byte of their manifests, `other_bytes` for the caller, the rest as blocks that are held: the
// one in use and the next one of every file that is read beside others, where they fit.
// ExitCode::kDoesNotFit if not even one block each fits; `what` says what is being done.
absl::Status ShareMemory(std::span<TensorReader* const> readers, int64_t manifest_factor,
                         int64_t other_bytes, const ToolOptions& options, const std::string& what);

}  // namespace deepnet
