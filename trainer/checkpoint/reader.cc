// A file is read block by block, ascending, each verified before a byte of it is used. Extents and
// blocks are both sorted, so one pass over both copies what they share.
#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "parallel/base/check.h"
#include "parallel/base/status_macros.h"
#include "trainer/checkpoint/block_reader.h"
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

// Reads the blocks that hold parts of `pieces` (ascending, disjoint) and copies those.
absl::Status ReadPieces(BlockReader& reader, std::span<const Piece> pieces) {
  std::vector<char> contents;
  for (int64_t block = 0; block < reader.num_blocks() && !pieces.empty(); ++block) {
    const int64_t begin = reader.Begin(block), end = reader.End(block);
    if (pieces.front().begin >= end) continue;
    contents.resize(static_cast<size_t>(end - begin));
    RETURN_IF_ERROR(reader.Read(block, contents));
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
      RETURN_IF_ERROR(CheckpointError(reader.Verify(block), context));
    }
  }
  return absl::OkStatus();
}

}  // namespace deepnet
