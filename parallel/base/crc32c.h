// CRC-32C (Castagnoli, reflected polynomial 0x82F63B78): the checksum of files. Detects every error
// of up to 32 consecutive bits.
#pragma once

#include <cstdint>
#include <string_view>

namespace deepnet {

// Returns the checksum of `bytes`; `so_far` is that of the bytes before them. Crc32c("123456789")
// is 0xE3069283.
uint32_t Crc32c(std::string_view bytes, uint32_t so_far = 0);

// Computes the same without the processor's instruction.
uint32_t Crc32cByTable(std::string_view bytes, uint32_t so_far = 0);

}  // namespace deepnet
