// Writes tensors as Hugging Face's libraries want them: safetensors files (eight bytes of length, a
// JSON header, the elements), several with an index beside them where they become too large.
// Format: https://github.com/huggingface/safetensors.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"

#include "parallel/base/file_system.h"
#include "trainer/checkpoint/tools/tool_options.h"
#include "trainer/interop/float_type.h"
#include "trainer/interop/rows.h"

namespace deepnet {

// A tensor to be written; `read` is asked for it in order and in pieces.
struct OutgoingTensor {
  std::string name;
  std::vector<int64_t> shape;
  ElementReader read;

  int64_t NumElements() const;
};

struct SafetensorsLayout {
  FloatType type = FloatType::kFloat32;
  int64_t max_shard_bytes = 5'000'000'000;  // of elements a file; a larger tensor has its own
};

// Memory that writing takes besides the list of tensors.
inline constexpr int64_t kSafetensorsWriteBytes = int64_t{4} << 20;

// Into `folder`, which exists: model.safetensors, or model-00001-of-00003.safetensors and so on
// with model.safetensors.index.json. Files are durable when this returns, their names are not.
absl::Status WriteSafetensors(FileSystem& fs, const std::string& folder,
                              std::span<const OutgoingTensor> tensors,
                              const SafetensorsLayout& layout, const ToolProgress& progress);

}  // namespace deepnet
