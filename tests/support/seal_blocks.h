// For tests that change the contents of a shard on purpose.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "parallel/base/crc32c.h"
#include "trainer/data/corpus_shard.h"

namespace deepnet::testing {

// Makes the checksums of all blocks those of the contents, as far as they lie inside of `bytes`.
inline void SealBlocks(std::string& bytes) {
  ShardHeader header = {};
  std::memcpy(&header, bytes.data(), sizeof(header));
  const auto end = static_cast<size_t>(header.checksums_offset);
  size_t checksum = end;
  for (size_t begin = kShardDataOffset; begin < end; begin += kShardBlockBytes, checksum += 4) {
    if (checksum + 4 > bytes.size()) return;
    const uint32_t crc = Crc32c(
        std::string_view(bytes).substr(begin, std::min<size_t>(kShardBlockBytes, end - begin)));
    std::memcpy(bytes.data() + checksum, &crc, sizeof(crc));
  }
}

}  // namespace deepnet::testing
