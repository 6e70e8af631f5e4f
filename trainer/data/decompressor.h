// The compressed forms that LineReader understands.
#pragma once

#include <memory>
#include <string_view>

#include "trainer/data/line_reader.h"

namespace deepnet {

// The decompressor for a file that starts with `first_bytes` (at least 4, or the whole file): by
// its magic number gzip (several members are one text), zstandard (several frames likewise), else
// plain.
std::unique_ptr<Decompressor> MakeDecompressor(std::string_view first_bytes);

}  // namespace deepnet
