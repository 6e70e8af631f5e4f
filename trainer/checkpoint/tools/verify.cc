#include "trainer/checkpoint/tools/verify.h"

#include <algorithm>
#include <utility>

#include "parallel/base/status_macros.h"
#include "trainer/checkpoint/block_reader.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/tools/tensor_reader.h"

namespace deepnet {
namespace {

// The file as a whole; its blocks are looked at all the same, unless there is none.
void VerifySize(FileSystem& fs, const std::string& path, BlockReader& reader, const ShardFile& file,
                std::vector<Damage>& damage) {
  const absl::Status status = reader.CheckSize();
  if (status.ok()) return;
  const int64_t present = std::min(fs.Size(path).value_or(0), file.bytes());
  damage.push_back({.file = file.file(),
                    .begin = present,
                    .end = file.bytes(),
                    .text = std::string(status.message()),
                    .tensors = TensorsIn(file, present, file.bytes())});
}

}  // namespace

absl::StatusOr<VerifyReport> VerifyCheckpoint(FileSystem& fs, const std::string& checkpoint_folder,
                                              const ToolOptions& options) {
  ASSIGN_OR_RETURN(const Manifest manifest, ReadManifestWithin(fs, checkpoint_folder, options));
  VerifyReport report{.folder = checkpoint_folder,
                      .step = manifest.step(),
                      .files = manifest.files_size(),
                      .bytes = TensorBytes(manifest),
                      .tensors = static_cast<int64_t>(IndexTensors(manifest).size())};
  int64_t done = 0;
  for (const ShardFile& file : manifest.files()) {
    const std::string path = JoinPath(checkpoint_folder, file.file());
    BlockReader reader(fs, path, file, manifest.block_bytes());
    report.blocks += reader.num_blocks();
    VerifySize(fs, path, reader, file, report.damage);
    const bool readable = fs.Size(path).ok();
    for (int64_t block = 0; readable && block < reader.num_blocks(); ++block) {
      const int64_t begin = reader.Begin(block), end = reader.End(block);
      if (const absl::Status status = reader.Verify(block); !status.ok()) {
        report.damage.push_back({.file = file.file(),
                                 .block = block,
                                 .begin = begin,
                                 .end = end,
                                 .text = std::string(status.message()),
                                 .tensors = TensorsIn(file, begin, end)});
      }
      done += end - begin;
      if (options.progress) options.progress(done, report.bytes);
    }
  }
  return report;
}

}  // namespace deepnet
