// Safetensors files, as Hugging Face's libraries read and write them: eight bytes of length, a JSON
// header, the elements; several with an index beside them where they become too large. Format:
// https://github.com/huggingface/safetensors. What goes into one is read a run of elements at a
// time: weights of a checkpoint, possibly with rows in another order.
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
#include "proto/model.pb.h"
#include "trainer/checkpoint/tools/tensor_reader.h"

namespace deepnet {

// Fills `into` with the elements of a tensor from `first_element` on, in its own order.
using ElementReader = std::function<absl::Status(int64_t first_element, std::span<float> into)>;

// Returns a reader of the matrix whose rows are `rows`, which are borrowed, of the matrix
// [.., width] that `matrix` reads: embeddings, where another program numbers its vocabulary.
ElementReader ReadRows(ElementReader matrix, std::span<const int64_t> rows, int64_t width);

// A tensor to be written. `read` is called for its elements in order and in pieces.
struct OutgoingTensor {
  std::string name;
  std::vector<int64_t> shape;
  ElementReader read;
};

// Returns a reader of the weight `parameter`. Fails with FAILED_PRECONDITION
// (ExitCode::kCheckpoint) if the checkpoint has none or one of another shape. `reader` must outlive
// the result.
absl::StatusOr<ElementReader> ReadStoredWeight(TensorReader& reader, const std::string& parameter,
                                               const std::vector<int64_t>& shape);

// Returns all weights of `model`, in its order, under our names.
absl::StatusOr<std::vector<OutgoingTensor>> StoredWeights(const ModelSpec& model,
                                                          TensorReader& reader);

// Types in which other programs store floating-point numbers.
enum class FloatType { kFloat32, kBfloat16, kFloat16 };

int64_t BytesOf(FloatType type);

// Appends `values`, little-endian; rounded to nearest, ties to even, NaN stays NaN. Not kFloat16.
void AppendFloats(FloatType type, std::span<const float> values, std::string* bytes);

// The inverse, exact. `bytes` holds as many numbers as `values`.
void ReadFloats(FloatType type, std::string_view bytes, std::span<float> values);

struct SafetensorsLayout {
  FloatType type = FloatType::kFloat32;
  int64_t max_shard_bytes = 5'000'000'000;  // elements of a file; a larger tensor has its own
};

// Elements that are converted at a time.
inline constexpr int64_t kCopyElements = int64_t{1} << 18;

// Bytes of memory that writing takes besides the list of tensors.
inline constexpr int64_t kSafetensorsWriteBytes = int64_t{4} << 20;

// Writes model.safetensors into `folder`, which exists, or model-00001-of-00003.safetensors and so
// on with model.safetensors.index.json. Files are durable when this returns, their names are not.
// Rank 0 of options.world writes the index; files are dealt to all ranks in turn.
absl::Status WriteSafetensors(FileSystem& fs, const std::string& folder,
                              std::span<const OutgoingTensor> tensors,
                              const SafetensorsLayout& layout, const ToolOptions& options);

// A tensor of a safetensors file.
struct IncomingTensor {
  std::vector<int64_t> shape;
  FloatType type = FloatType::kFloat32;
  std::string file;    // in the folder
  int64_t offset = 0;  // bytes from the start of the file
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
