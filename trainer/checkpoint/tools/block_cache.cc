#include "trainer/checkpoint/tools/block_cache.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "parallel/base/check.h"
#include "parallel/base/status_macros.h"
#include "trainer/checkpoint/block_reader.h"
#include "trainer/checkpoint/format.h"

namespace deepnet {

BlockCache::BlockCache(FileSystem& fs, std::string folder, const Manifest& manifest)
    : fs_(fs), folder_(std::move(folder)), manifest_(manifest) {}

void BlockCache::Hold(int64_t num_blocks, bool ahead) {
  DEEPNET_CHECK(num_blocks >= 1 && held_.empty());
  most_ = static_cast<size_t>(num_blocks);
  ahead_ = ahead && num_blocks >= 2;
}

absl::StatusOr<std::string_view> BlockCache::Get(int file, int64_t block) {
  Held* held = Find(file, block);
  if (held != nullptr && held == coming_) {
    RETURN_IF_ERROR(TakeComing());
  } else if (held == nullptr) {
    held = &MakeRoom(file, block, nullptr);
    RETURN_IF_ERROR(Read(file, block, *held));
    held->file = file;
    held->block = block;
  }
  held->last_use = ++uses_;
  if (ahead_) ReadAhead(*held);
  return std::string_view(held->bytes.data(), held->bytes.size());
}

BlockCache::Held* BlockCache::Find(int file, int64_t block) {
  for (const std::unique_ptr<Held>& held : held_) {
    if (held->file == file && held->block == block) return held.get();
  }
  return nullptr;
}

// Files are read from their beginning to their end: what lies before a block goes first, then what
// has not been used for longest.
BlockCache::Held& BlockCache::MakeRoom(int file, int64_t block, const Held* in_use) {
  if (held_.size() < most_) return *held_.emplace_back(std::make_unique<Held>());
  Held* oldest = nullptr;
  for (const std::unique_ptr<Held>& held : held_) {
    if (held.get() == in_use || held.get() == coming_) continue;
    const auto rank = [&](const Held& h) {
      const bool is_behind = h.file == -1 || (h.file == file && h.block < block);
      return std::make_pair(!is_behind, h.last_use);
    };
    if (oldest == nullptr || rank(*held) < rank(*oldest)) oldest = held.get();
  }
  DEEPNET_CHECK(oldest != nullptr);
  oldest->file = -1;
  return *oldest;
}

// Leaves `held` without a name: in another thread nobody may look at it yet.
absl::Status BlockCache::Read(int file, int64_t block, Held& held) {
  const ShardFile& description = manifest_.files(file);
  BlockReader reader(fs_, JoinPath(folder_, description.file()), description,
                     manifest_.block_bytes());
  held.bytes.resize(static_cast<size_t>(reader.End(block) - reader.Begin(block)));
  return CheckpointError(reader.Read(block, held.bytes),
                         absl::StrCat("reading checkpoint '", folder_, "'"));
}

absl::Status BlockCache::TakeComing() {
  absl::Status status = task_.Wait();
  if (!status.ok()) coming_->file = -1;
  coming_ = nullptr;
  return status;
}

// The block after the one in use, or the first of the next file. What is wrong with it matters when
// it is asked for.
void BlockCache::ReadAhead(const Held& in_use) {
  if (coming_ != nullptr) {
    if (!task_.Done()) return;
    TakeComing().IgnoreError();
  }
  int file = in_use.file;
  int64_t block = in_use.block + 1;
  if (block == manifest_.files(file).block_crc32c_size()) {
    ++file;
    block = 0;
  }
  if (file == manifest_.files_size() || Find(file, block) != nullptr) return;
  if (manifest_.files(file).block_crc32c().empty()) return;
  Held& next = MakeRoom(file, block, &in_use);
  next.file = file;
  next.block = block;
  next.last_use = uses_;
  coming_ = &next;
  task_.Start([this, file, block, &next] { return Read(file, block, next); });
}

}  // namespace deepnet
