// Safetensors files, as Hugging Face's libraries read and write them: eight bytes of length, a JSON
// header, the elements; several with an index beside them where they become too large. Format:
// https://github.com/huggingface/safetensors.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "parallel/base/file_system.h"
#include "trainer/checkpoint/tools/tool_options.h"
#include "trainer/interop/tensor_source.h"

namespace deepnet {

// Types in which other programs store floating-point numbers.
enum class FloatType { kFloat32, kBfloat16, kFloat16 };

// "F32", "BF16" or "F16", its name in safetensors; and the inverse, nullopt for every other type.
std::string_view SafetensorsName(FloatType type);
std::optional<FloatType> FloatTypeOfSafetensors(std::string_view name);

int64_t BytesOf(FloatType type);

// Appends `values`, little-endian; rounded to nearest, ties to even, NaN stays NaN. Not kFloat16.
void AppendFloats(FloatType type, std::span<const float> values, std::string* bytes);

// The inverse, exact. `bytes` holds as many numbers as `values`.
void ReadFloats(FloatType type, std::string_view bytes, std::span<float> values);

struct SafetensorsLayout {
  FloatType type = FloatType::kFloat32;
  int64_t max_shard_bytes = 5'000'000'000;  // elements of a file; a larger tensor has its own
};

// Bytes of memory that writing takes besides the list of tensors.
inline constexpr int64_t kSafetensorsWriteBytes = int64_t{4} << 20;

// Writes model.safetensors into `folder`, which exists, or model-00001-of-00003.safetensors and so
// on with model.safetensors.index.json. Files are durable when this returns, their names are not.
absl::Status WriteSafetensors(FileSystem& fs, const std::string& folder,
                              std::span<const OutgoingTensor> tensors,
                              const SafetensorsLayout& layout, const ToolProgress& progress);

// A tensor of a safetensors file.
struct IncomingTensor {
  std::vector<int64_t> shape;
  FloatType type = FloatType::kFloat32;
  std::string file;    // in the folder
  int64_t offset = 0;  // bytes from the start of the file

  int64_t NumElements() const;
};

// The safetensors files of a Hugging Face folder, one or several with an index, read in pieces.
class SafetensorsFolder {
 public:
  // Reads and checks all headers: sizes against shapes and types, ranges against the file, the
  // index against its files. Errors carry ExitCode::kCheckpoint and name file and tensor. A folder
  // with pytorch_model.bin alone is refused with what to do.
  static absl::StatusOr<std::unique_ptr<SafetensorsFolder>> Open(FileSystem& fs,
                                                                 const std::string& folder,
                                                                 const ToolOptions& options);

  const std::map<std::string, IncomingTensor>& tensors() const { return tensors_; }

  // Fills `into` with the elements from `first_element` on, as float32.
  absl::Status Read(const IncomingTensor& tensor, int64_t first_element, std::span<float> into);

 private:
  SafetensorsFolder(FileSystem& fs, std::string folder) : fs_(fs), folder_(std::move(folder)) {}
  absl::Status ReadIndex(const ToolOptions& options);
  absl::Status ReadHeader(const std::string& file, const ToolOptions& options);

  FileSystem& fs_;
  const std::string folder_;
  std::map<std::string, IncomingTensor> tensors_;
};

}  // namespace deepnet
