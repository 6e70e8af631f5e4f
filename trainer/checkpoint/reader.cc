// A file is read block by block, ascending, each verified before a byte of it is used. Extents and
// blocks are both sorted, so one pass over both copies what they share.
#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

#include "parallel/base/check.h"
#include "parallel/base/crc32c.h"
#include "parallel/base/status_macros.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/format.h"

namespace deepnet {
namespace {

// Bytes of a file that are wanted, and where to.
struct Piece {
  int64_t begin;  // bytes in the file
  int64_t end;
  char* destination;
};

// A tensor with bytes in [begin, end) of the file, for an error's text.
std::string NameTensorsIn(const ShardFile& file, int64_t begin, int64_t end) {
  std::string first;
  int others = -1;
  for (const TensorExtent& extent : file.extents()) {
    const int64_t extent_end = extent.offset() + extent.num_elements() * kElementBytes;
    if (extent.offset() >= end || extent_end <= begin) continue;
    if (first.empty()) first = absl::StrCat("'", extent.name(), "'");
    ++others;
  }
  if (first.empty()) return "no tensor";
  return others == 0 ? first : absl::StrCat(first, " and ", others, " more");
}

// Reads one file of a checkpoint.
class BlockReader {
 public:
  BlockReader(FileSystem& fs, std::string path, const ShardFile& file, int64_t block_bytes)
      : fs_(fs), path_(std::move(path)), file_(file), block_bytes_(block_bytes) {
    buffer_.resize(static_cast<size_t>(std::min(block_bytes_, file_.bytes())));
  }

  absl::Status CheckSize() {
    ASSIGN_OR_RETURN(const int64_t bytes, fs_.Size(path_));
    if (bytes == file_.bytes()) return absl::OkStatus();
    return absl::DataLossError(
        absl::StrCat("'", path_, "' has ", bytes, " bytes; its manifest says ", file_.bytes()));
  }

  int64_t num_blocks() const { return file_.block_crc32c_size(); }
  int64_t Begin(int64_t block) const { return block * block_bytes_; }
  int64_t End(int64_t block) const { return std::min(Begin(block) + block_bytes_, file_.bytes()); }

  // The verified bytes of a block; valid until the next call.
  absl::StatusOr<std::string_view> Read(int64_t block) {
    const size_t bytes = static_cast<size_t>(End(block) - Begin(block));
    const std::span<char> wanted(buffer_.data(), bytes);
    ASSIGN_OR_RETURN(const int64_t read, fs_.ReadAt(path_, Begin(block), wanted));
    const std::string_view contents(buffer_.data(), static_cast<size_t>(read));
    const uint32_t checksum = Crc32c(contents);
    const uint32_t expected = file_.block_crc32c(static_cast<int>(block));
    if (contents.size() == bytes && checksum == expected) return contents;
    return absl::DataLossError(absl::StrFormat(
        "'%s' is damaged in block %d (bytes %d to %d): checksum %08x, its manifest says %08x; %s "
        "is stored there",
        path_, block, Begin(block), End(block) - 1, checksum, expected,
        NameTensorsIn(file_, Begin(block), End(block))));
  }

 private:
  FileSystem& fs_;
  const std::string path_;
  const ShardFile& file_;
  const int64_t block_bytes_;
  std::string buffer_;
};

// Reads the blocks that hold parts of `pieces` (ascending, disjoint) and copies those.
absl::Status ReadPieces(BlockReader& reader, std::span<const Piece> pieces) {
  for (int64_t block = 0; block < reader.num_blocks() && !pieces.empty(); ++block) {
    const int64_t begin = reader.Begin(block), end = reader.End(block);
    if (pieces.front().begin >= end) continue;
    ASSIGN_OR_RETURN(const std::string_view contents, reader.Read(block));
    for (const Piece& piece : pieces) {
      if (piece.begin >= end) break;
      const int64_t from = std::max(piece.begin, begin);
      const int64_t to = std::min(piece.end, end);
      std::memcpy(piece.destination + (from - piece.begin), contents.data() + (from - begin),
                  static_cast<size_t>(to - from));
    }
    while (!pieces.empty() && pieces.front().end <= end) pieces = pieces.subspan(1);
  }
  return absl::OkStatus();
}

// What is wanted, by name; parts of one tensor stand in the order in which they were given.
using Wanted = std::multimap<std::string_view, const MutableNamedTensor*>;

Wanted IndexByName(std::span<const MutableNamedTensor> tensors) {
  Wanted wanted;
  for (const MutableNamedTensor& tensor : tensors) {
    int64_t elements = 1;
    for (const int64_t size : tensor.shape) elements *= size;
    const int64_t end = tensor.first_element + static_cast<int64_t>(tensor.data.size());
    DEEPNET_CHECK(tensor.first_element >= 0 && end <= elements) << tensor.name;
    wanted.emplace(tensor.name, &tensor);
  }
  return wanted;
}

template <typename Shape>
std::string ShapeText(const Shape& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

// Every wanted tensor is stored with the shape it should have. (Manifests hold whole tensors.)
absl::Status CheckWanted(const Manifest& manifest, Wanted wanted) {
  for (const ShardFile& file : manifest.files()) {
    for (const TensorExtent& extent : file.extents()) {
      const std::vector<int64_t> shape(extent.shape().begin(), extent.shape().end());
      const auto [begin, end] = wanted.equal_range(extent.name());
      for (auto found = begin; found != end; ++found) {
        if (shape == found->second->shape) continue;
        return absl::FailedPreconditionError(absl::StrCat("'", extent.name(), "' has shape ",
                                                          ShapeText(shape), ", not ",
                                                          ShapeText(found->second->shape)));
      }
      wanted.erase(begin, end);
    }
  }
  if (wanted.empty()) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat("'", std::string(wanted.begin()->first), "'",
                                          wanted.size() == 1 ? "" : " (and others)",
                                          " is not stored there"));
}

// What of `extent` belongs to `wanted`; empty (begin >= end) if nothing.
Piece Overlap(const TensorExtent& extent, const MutableNamedTensor& wanted) {
  const int64_t begin = std::max(extent.first_element(), wanted.first_element);
  const int64_t end = std::min(extent.first_element() + extent.num_elements(),
                               wanted.first_element + static_cast<int64_t>(wanted.data.size()));
  if (begin >= end) return {0, 0, nullptr};
  return {extent.offset() + (begin - extent.first_element()) * kElementBytes,
          extent.offset() + (end - extent.first_element()) * kElementBytes,
          reinterpret_cast<char*>(wanted.data.data() + (begin - wanted.first_element))};
}

// What to read of one file, ascending and disjoint.
std::vector<Piece> PiecesOf(const ShardFile& file, const Wanted& wanted) {
  std::vector<Piece> pieces;
  for (const TensorExtent& extent : file.extents()) {
    const auto [begin, end] = wanted.equal_range(extent.name());
    for (auto found = begin; found != end; ++found) {
      const Piece piece = Overlap(extent, *found->second);
      if (piece.begin < piece.end) pieces.push_back(piece);
    }
  }
  std::sort(pieces.begin(), pieces.end(),
            [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
  return pieces;
}

}  // namespace

absl::StatusOr<Manifest> ReadManifest(FileSystem& fs, const std::string& checkpoint_folder) {
  const std::string path = JoinPath(checkpoint_folder, kManifestFile);
  const absl::StatusOr<std::string> bytes = ReadWholeFile(fs, path, kMaxManifestBytes);
  if (!bytes.ok()) {
    return CheckpointError(bytes.status(),
                           absl::StrCat("'", checkpoint_folder, "' is no complete checkpoint"));
  }
  absl::StatusOr<Manifest> manifest = ParseManifest(*bytes);
  if (!manifest.ok()) {
    return CheckpointError(manifest.status(), absl::StrCat("'", path, "' is damaged or foreign"));
  }
  return manifest;
}

absl::Status ReadTensors(FileSystem& fs, const std::string& checkpoint_folder,
                         const Manifest& manifest, std::span<const MutableNamedTensor> tensors) {
  const std::string context = absl::StrCat("reading checkpoint '", checkpoint_folder, "'");
  const Wanted wanted = IndexByName(tensors);
  RETURN_IF_ERROR(CheckpointError(CheckWanted(manifest, wanted), context));
  for (const ShardFile& file : manifest.files()) {
    const std::vector<Piece> pieces = PiecesOf(file, wanted);
    if (pieces.empty()) continue;
    BlockReader reader(fs, JoinPath(checkpoint_folder, file.file()), file, manifest.block_bytes());
    RETURN_IF_ERROR(CheckpointError(reader.CheckSize(), context));
    RETURN_IF_ERROR(CheckpointError(ReadPieces(reader, pieces), context));
  }
  return absl::OkStatus();
}

absl::Status VerifyTensors(FileSystem& fs, const std::string& checkpoint_folder,
                           const Manifest& manifest) {
  const std::string context = absl::StrCat("verifying checkpoint '", checkpoint_folder, "'");
  for (const ShardFile& file : manifest.files()) {
    BlockReader reader(fs, JoinPath(checkpoint_folder, file.file()), file, manifest.block_bytes());
    RETURN_IF_ERROR(CheckpointError(reader.CheckSize(), context));
    for (int64_t block = 0; block < reader.num_blocks(); ++block) {
      RETURN_IF_ERROR(CheckpointError(reader.Read(block).status(), context));
    }
  }
  return absl::OkStatus();
}

}  // namespace deepnet
