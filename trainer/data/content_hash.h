// 64-bit content hashes: of sentences (duplicates), of files and corpora (identity). Fast, the same
// on every little-endian host, not cryptographic: it finds changes, not forgers. Persistent: frozen
// by a test.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace deepnet {

// Hash of `bytes`; `seed` chains several.
uint64_t HashBytes(std::string_view bytes, uint64_t seed = 0);

// Hash of a file's bytes: that of a ContentHasher.
uint64_t HashContent(std::string_view bytes);

// Hash of a stream of bytes, however it is cut into calls.
class ContentHasher {
 public:
  void Update(std::string_view bytes);
  uint64_t Digest() const;  // of everything so far

 private:
  std::string pending_;  // less than one block
  uint64_t hash_ = 0;    // of the full blocks
};

}  // namespace deepnet
