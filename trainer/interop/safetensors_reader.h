// Reads the safetensors files of a Hugging Face folder, one or several with an index, in pieces.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "parallel/base/file_system.h"
#include "trainer/checkpoint/tools/tool_options.h"
#include "trainer/interop/float_type.h"

namespace deepnet {

struct IncomingTensor {
  std::vector<int64_t> shape;
  FloatType type = FloatType::kFloat32;
  std::string file;    // in the folder
  int64_t offset = 0;  // bytes from the start of the file

  int64_t NumElements() const;
};

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
