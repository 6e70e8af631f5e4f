#include "trainer/data/pair_index.h"

namespace deepnet {

bool Direction::Matches(std::string_view pattern) const {
  for (const std::string& from : {source, std::string("*")}) {
    for (const std::string& to : {target, std::string("*")}) {
      if (Direction{.source = from, .target = to, .tag = tag}.Name() == pattern) return true;
    }
  }
  return false;
}

}  // namespace deepnet
