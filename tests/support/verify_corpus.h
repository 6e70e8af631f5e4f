// Compares all bytes of a prepared corpus with their checksums.
#pragma once

#include <cstring>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "parallel/base/crc32c.h"
#include "parallel/base/status_macros.h"
#include "trainer/data/content_hash.h"
#include "trainer/data/corpus.h"
#include "trainer/data/shard.h"

namespace deepnet::testing {

// Fails naming the first bad block of a shard that Shard::Open takes.
inline absl::Status VerifyShard(const std::string& path) {
  ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  ShardHeader header = {};
  std::memcpy(&header, file.bytes().data(), sizeof(header));
  const std::string_view data = file.bytes().substr(
      kShardDataOffset, static_cast<size_t>(header.checksums_offset - kShardDataOffset));
  const char* checksums = file.bytes().data() + header.checksums_offset;
  for (size_t begin = 0; begin < data.size(); begin += kShardBlockBytes) {
    uint32_t expected = 0;
    std::memcpy(&expected, checksums + begin / kShardBlockBytes * 4, sizeof(expected));
    if (Crc32c(data.substr(begin, kShardBlockBytes)) != expected) {
      return absl::DataLossError(absl::StrCat(path, ": bytes from ",
                                              kShardDataOffset + static_cast<int64_t>(begin),
                                              " on do not match their checksum"));
    }
  }
  ContentHasher hasher;
  hasher.Update(data);
  if (hasher.Digest() == header.content_hash) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(path, ": the content hash does not match"));
}

// Fails naming the first bad file.
inline absl::Status VerifyCorpus(const Corpus& corpus) {
  for (const CorpusFile& file : corpus.manifest().files()) {
    const std::string path = absl::StrCat(corpus.folder(), "/", file.name());
    if (absl::EndsWith(file.name(), ".pairs")) {
      RETURN_IF_ERROR(VerifyShard(path));
      continue;
    }
    ASSIGN_OR_RETURN(const uint64_t hash, HashFile(path));
    if (hash == file.hash()) continue;
    return absl::DataLossError(absl::StrCat(path, ": the content hash does not match"));
  }
  return absl::OkStatus();
}

}  // namespace deepnet::testing
