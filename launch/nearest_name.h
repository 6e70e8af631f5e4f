// What a misspelt name was probably meant to be.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace deepnet {

// Insertions, deletions, replacements and swaps of neighbours that turn `a` into `b`.
int EditDistance(std::string_view a, std::string_view b);

// The candidate with the smallest distance to `name`, the first of equals; nothing where even that
// one differs in more than half of the letters.
std::optional<std::string> NearestName(std::string_view name,
                                       const std::vector<std::string>& candidates);

// "; did you mean 'x'?" or, where nothing is near, "; there are: a, b, c".
std::string SuggestName(std::string_view name, const std::vector<std::string>& candidates);

}  // namespace deepnet
