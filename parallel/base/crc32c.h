// CRC-32C (Castagnoli, reflected polynomial 0x82F63B78): the checksum of files. Detects every error
// of up to 32 consecutive bits; takes the processor's instruction where there is one, a table
// elsewhere.
//
// Example:
//   Crc32c("123456789");                        // 0xE3069283
//   Crc32c("6789", Crc32c("12345"));            // the same
#pragma once

#include <cstdint>
#include <string_view>

namespace deepnet {

// Returns the checksum of `bytes`; `so_far` is that of the bytes before them.
uint32_t Crc32c(std::string_view bytes, uint32_t so_far = 0);

namespace internal {

// Computes the same without the instruction.
uint32_t Crc32cByTable(std::string_view bytes, uint32_t so_far = 0);

}  // namespace internal
}  // namespace deepnet
