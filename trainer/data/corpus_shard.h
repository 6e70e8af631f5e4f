// The training pairs of one language pair on disk: one memory-mapped file of token ids.
//
// Layout, little-endian, all counts and offsets 64 bits (docs/design/data.md):
//   [0, 4096)   ShardHeader, zeros
//   tokens      both sides of pair 0, both sides of pair 1, ...; uint16 or uint32 ids, no tags,
//               no </s>
//   index       ShardEntry of each pair
//   lengths     LengthRow for 0, 1, ... pieces: sums over pairs by their longer side
//   checksums   CRC-32C of every mebibyte from byte 4096 up to here
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "trainer/data/content_hash.h"
#include "trainer/data/mapped_file.h"

namespace deepnet {

// Returns the content hash of a file's bytes. Fails naming the file.
absl::StatusOr<uint64_t> HashFile(const std::string& path);

inline constexpr uint32_t kShardVersion = 1;
inline constexpr int64_t kShardDataOffset = 4096;
inline constexpr int64_t kShardBlockBytes = 1 << 20;

// Persistent.
struct ShardHeader {
  char magic[8];         // "DNPAIRS\n"
  uint32_t version;      // kShardVersion
  uint32_t token_bytes;  // 2 or 4
  int64_t num_pairs;
  int64_t num_tokens;     // of both sides
  int64_t tokens_offset;  // bytes from the start of the file, as all offsets
  int64_t index_offset;
  int64_t lengths_offset;
  int64_t num_length_rows;
  int64_t checksums_offset;  // end of the data; the checksums run to the end of the file
  uint64_t content_hash;     // of [kShardDataOffset, checksums_offset)
  uint32_t reserved;         // 0
  uint32_t header_crc;       // CRC-32C of all bytes before
};
static_assert(sizeof(ShardHeader) == 88);

// Persistent. Pair i: num_first + num_second ids from token first_token on.
struct ShardEntry {
  int64_t first_token;
  uint32_t num_first;
  uint32_t num_second;
};
static_assert(sizeof(ShardEntry) == 16);

// Persistent. Row m: sums over the pairs whose longer side has m pieces.
struct LengthRow {
  uint64_t num_pairs;
  uint64_t first_tokens;
  uint64_t second_tokens;
  uint64_t first_squares;  // of lengths
  uint64_t second_squares;
};
static_assert(sizeof(LengthRow) == 40);

// Writes a shard front to back; memory: two buffers. The index waits in a file beside it.
class ShardWriter {
 public:
  // `vocabulary_size` decides between two and four bytes an id.
  static absl::StatusOr<std::unique_ptr<ShardWriter>> Create(const std::string& path,
                                                             int32_t vocabulary_size);
  ~ShardWriter();
  ShardWriter(const ShardWriter&) = delete;
  ShardWriter& operator=(const ShardWriter&) = delete;

  // Fails naming the file, for example when the disk is full.
  absl::Status Add(std::span<const int32_t> first, std::span<const int32_t> second);

  // Completes the file and syncs it to disk. Before that the file is no shard.
  absl::Status Finish();

 private:
  explicit ShardWriter(std::string path) : path_(std::move(path)) {}
  absl::Status Append(std::string_view bytes);  // to the checked part of the file
  absl::Status Failure() const;
  std::string IndexPath() const { return path_ + ".index"; }

  const std::string path_;
  std::unique_ptr<FILE, int (*)(FILE*)> file_{nullptr, fclose};
  std::unique_ptr<FILE, int (*)(FILE*)> index_file_{nullptr, fclose};
  bool wide_ = false;
  int64_t num_pairs_ = 0;
  int64_t num_tokens_ = 0;
  int64_t offset_ = kShardDataOffset;
  std::vector<LengthRow> lengths_;
  std::string scratch_;     // one pair's tokens
  uint32_t block_crc_ = 0;  // of the bytes since the last full block
  int64_t block_fill_ = 0;  // how many
  std::vector<uint32_t> checksums_;
  ContentHasher hasher_;
};

// A shard on disk. Immutable, safe from several threads. A block of kShardBlockBytes is compared
// with its checksum when something in it is read first, and not again.
class Shard {
 public:
  // Checks header, version, size, and that the parts lie inside; fails naming the file and what is
  // wrong. Ids from `vocabulary_size` on are damage.
  static absl::StatusOr<Shard> Open(const std::string& path,
                                    int32_t vocabulary_size = std::numeric_limits<int32_t>::max());

  // OK, or DataLoss naming file and place once something was damaged, or could not be read
  // (MappedFile): it came as pairs without tokens, or as no length. Ask before it is used.
  absl::Status Intact() const;

  // Reads all of it, compares checksums and content hash, and checks every pair and id.
  absl::Status CheckContent() const;

  int64_t num_pairs() const { return header_.num_pairs; }
  uint64_t content_hash() const { return header_.content_hash; }
  uint64_t ChecksumsHash() const;  // of all blocks' checksums
  std::span<const LengthRow> lengths() const;

  ShardEntry entry(int64_t pair) const;

  // Returns the token ids of one side of a pair.
  std::vector<int32_t> First(int64_t pair) const;
  std::vector<int32_t> Second(int64_t pair) const;

 private:
  struct Checked;  // what is known of the blocks, shared by copies

  Shard(MappedFile file, const ShardHeader& header, int32_t vocabulary_size);
  std::string_view Block(size_t block) const;
  bool CheckBlock(size_t block) const;
  bool AreGood(int64_t begin, int64_t bytes) const;  // `begin` counts from the start of the file
  std::vector<int32_t> Tokens(int64_t pair, int64_t begin, size_t count) const;
  void NoteDamage(std::string_view what) const;

  MappedFile file_;
  ShardHeader header_;
  const ShardEntry* index_;
  uint32_t vocabulary_size_;
  std::shared_ptr<Checked> checked_;
};

}  // namespace deepnet
