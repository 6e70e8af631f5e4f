// Both ways take eight bytes a turn. The table way keeps eight tables, where table k advances a
// byte by k further bytes, so that the eight look-ups of a turn do not wait for each other.
#include "parallel/base/crc32c.h"

#include <array>
#include <bit>
#include <cstddef>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace deepnet {
namespace {

constexpr uint32_t kPolynomial = 0x82F63B78;

using Tables = std::array<std::array<uint32_t, 256>, 8>;

constexpr Tables MakeTables() {
  Tables tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    tables[0][byte] = crc;
  }
  for (size_t k = 1; k < tables.size(); ++k) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint32_t before = tables[k - 1][byte];
      tables[k][byte] = (before >> 8) ^ tables[0][before & 0xFF];
    }
  }
  return tables;
}

constexpr Tables kTables = MakeTables();

uint64_t Load64(const char* bytes) {
  static_assert(std::endian::native == std::endian::little);
  uint64_t word;
  std::memcpy(&word, bytes, sizeof(word));
  return word;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t Crc32cByInstruction(std::string_view bytes,
                                                               uint32_t so_far) {
  uint64_t crc = ~so_far;
  const char* next = bytes.data();
  const char* const end = next + bytes.size();
  for (; end - next >= 8; next += 8) crc = _mm_crc32_u64(crc, Load64(next));
  uint32_t rest = static_cast<uint32_t>(crc);
  for (; next < end; ++next) rest = _mm_crc32_u8(rest, static_cast<unsigned char>(*next));
  return ~rest;
}
#endif

}  // namespace

uint32_t Crc32cByTable(std::string_view bytes, uint32_t so_far) {
  uint32_t crc = ~so_far;
  const char* next = bytes.data();
  const char* const end = next + bytes.size();
  for (; end - next >= 8; next += 8) {
    const uint64_t word = Load64(next) ^ crc;
    crc = 0;
    for (size_t k = 0; k < 8; ++k) crc ^= kTables[7 - k][(word >> (8 * k)) & 0xFF];
  }
  for (; next < end; ++next) {
    crc = (crc >> 8) ^ kTables[0][(crc ^ static_cast<unsigned char>(*next)) & 0xFF];
  }
  return ~crc;
}

uint32_t Crc32c(std::string_view bytes, uint32_t so_far) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("sse4.2")) return Crc32cByInstruction(bytes, so_far);
#endif
  return Crc32cByTable(bytes, so_far);
}

}  // namespace deepnet
