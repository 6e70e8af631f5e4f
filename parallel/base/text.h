// Numbers as people read them.
#pragma once

#include <cstdint>
#include <string>

namespace deepnet {

// 1536 -> "1.5 KiB"; no fraction below 1 KiB.
std::string ByteText(int64_t bytes);

}  // namespace deepnet
