// The logical tensors of a checkpoint, read a run of elements at a time, in whichever files they
// lie.
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
#include "proto/checkpoint.pb.h"
#include "trainer/checkpoint/tools/block_cache.h"
#include "trainer/checkpoint/tools/tool_options.h"

namespace deepnet {

// Where a run of a tensor's elements lies.
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

// All tensors of a manifest that was read, in the order in which its files first mention them:
// reading them so passes once over each file but for tensors that lie in several.
std::vector<StoredTensor> IndexTensors(const Manifest& manifest);

// Every byte handed out was compared with its block's checksum. Holds blocks as BlockCache does.
// One thread at a time. Errors carry ExitCode::kCheckpoint; damage names file, block and tensor.
class TensorReader {
 public:
  // Reads the manifest and compares the sizes of all files. `fs` is borrowed.
  static absl::StatusOr<std::unique_ptr<TensorReader>> Open(FileSystem& fs,
                                                            const std::string& checkpoint_folder,
                                                            const ToolOptions& options);

  const std::string& folder() const { return folder_; }
  const Manifest& manifest() const { return manifest_; }
  const std::vector<StoredTensor>& tensors() const { return tensors_; }

  // nullptr: there is none of that name.
  const StoredTensor* Find(std::string_view name) const;

  int64_t manifest_bytes() const { return manifest_bytes_; }
  int64_t block_bytes() const { return block_bytes_; }  // of the longest block there is

  // In how many places a tensor can be: so many files are read beside each other.
  int64_t most_parts() const { return most_parts_; }

  // As BlockCache::Hold().
  void HoldBlocks(int64_t num_blocks, bool ahead) { blocks_.Hold(num_blocks, ahead); }

  // Hands the bytes of elements [first_element, first_element + num_elements) to `use`, in order
  // and in pieces that are valid during the call and need not end at an element.
  absl::Status Visit(const StoredTensor& tensor, int64_t first_element, int64_t num_elements,
                     const std::function<absl::Status(std::string_view bytes)>& use);

  // Fills `into` with the elements from `first_element` on.
  absl::Status Read(const StoredTensor& tensor, int64_t first_element, std::span<float> into);

 private:
  TensorReader(FileSystem& fs, std::string folder, Manifest manifest, int64_t manifest_bytes);
  absl::Status CheckSizes();

  FileSystem& fs_;
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
