// Blocks are read in pieces, so that the checksum is taken while a piece is in the processor's
// cache, and so that comparing needs no room for a whole block.
#include "trainer/checkpoint/block_reader.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "parallel/base/check.h"
#include "parallel/base/crc32c.h"
#include "parallel/base/status_macros.h"
#include "trainer/checkpoint/format.h"

namespace deepnet {
namespace {

constexpr int64_t kPieceBytes = int64_t{1} << 20;

std::string NameTensors(const std::vector<std::string>& tensors) {
  if (tensors.empty()) return "no tensor";
  const std::string first = absl::StrCat("'", tensors.front(), "'");
  return tensors.size() == 1 ? first : absl::StrCat(first, " and ", tensors.size() - 1, " more");
}

}  // namespace

BlockReader::BlockReader(FileSystem& fs, std::string path, const ShardFile& file,
                         int64_t block_bytes)
    : fs_(fs), path_(std::move(path)), file_(file), block_bytes_(block_bytes) {}

int64_t BlockReader::End(int64_t block) const {
  return std::min(Begin(block) + block_bytes_, file_.bytes());
}

absl::Status BlockReader::CheckSize() {
  ASSIGN_OR_RETURN(const int64_t bytes, fs_.Size(path_));
  if (bytes == file_.bytes()) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("'", path_, "' has ", bytes, " bytes; its manifest says ", file_.bytes()));
}

absl::Status BlockReader::Read(int64_t block, std::span<char> into) {
  const int64_t bytes = End(block) - Begin(block);
  DEEPNET_CHECK(static_cast<int64_t>(into.size()) == bytes) << path_ << ", block " << block;
  uint32_t checksum = 0;
  int64_t done = 0;
  while (done < bytes) {
    const int64_t wanted = std::min(kPieceBytes, bytes - done);
    const std::span<char> piece =
        into.subspan(static_cast<size_t>(done), static_cast<size_t>(wanted));
    ASSIGN_OR_RETURN(const int64_t read, fs_.ReadAt(path_, Begin(block) + done, piece));
    checksum = Crc32c({piece.data(), static_cast<size_t>(read)}, checksum);
    done += read;
    if (read < wanted) break;
  }
  return Compare(block, done, checksum);
}

absl::Status BlockReader::Verify(int64_t block) {
  const int64_t bytes = End(block) - Begin(block);
  std::vector<char> buffer(static_cast<size_t>(std::min(kPieceBytes, bytes)));
  uint32_t checksum = 0;
  int64_t done = 0;
  while (done < bytes) {
    const std::span<char> piece(buffer.data(),
                                static_cast<size_t>(std::min(kPieceBytes, bytes - done)));
    ASSIGN_OR_RETURN(const int64_t read, fs_.ReadAt(path_, Begin(block) + done, piece));
    checksum = Crc32c({piece.data(), static_cast<size_t>(read)}, checksum);
    done += read;
    if (read < static_cast<int64_t>(piece.size())) break;
  }
  return Compare(block, done, checksum);
}

absl::Status BlockReader::Compare(int64_t block, int64_t bytes_read, uint32_t checksum) const {
  const uint32_t expected = file_.block_crc32c(static_cast<int>(block));
  if (bytes_read == End(block) - Begin(block) && checksum == expected) return absl::OkStatus();
  return absl::DataLossError(absl::StrFormat(
      "'%s' is damaged in block %d (bytes %d to %d): checksum %08x, its manifest says %08x; %s is "
      "stored there",
      path_, block, Begin(block), End(block) - 1, checksum, expected,
      NameTensors(TensorsIn(file_, Begin(block), End(block)))));
}

std::vector<std::string> TensorsIn(const ShardFile& file, int64_t begin, int64_t end) {
  std::vector<std::string> names;
  for (const TensorExtent& extent : file.extents()) {
    const int64_t extent_end = extent.offset() + extent.num_elements() * kElementBytes;
    if (extent.offset() >= end || extent_end <= begin) continue;
    if (std::find(names.begin(), names.end(), extent.name()) == names.end()) {
      names.push_back(extent.name());
    }
  }
  return names;
}

}  // namespace deepnet
