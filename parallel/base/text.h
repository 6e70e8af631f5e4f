// Numbers and words as people and shells read them.
#pragma once

#include <cstdint>
#include <string>

namespace deepnet {

// 1536 -> "1.5 KiB"; no fraction below 1 KiB.
std::string ByteText(int64_t bytes);

// Returns `word` as a shell takes it for one word: in single quotes where it has to be.
std::string ShellQuoted(const std::string& word);

}  // namespace deepnet
