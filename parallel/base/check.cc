#include "parallel/base/check.h"

#include <cstdio>
#include <cstdlib>

#include "parallel/base/utf8.h"

namespace deepnet::internal {

CheckFailure::CheckFailure(const char* file, int line, const char* condition) {
  stream_ << file << ':' << line << ": check failed: " << condition << ". ";
}

CheckFailure::~CheckFailure() {
  std::fprintf(stderr, "%s\n", ShownLines(stream_.str()).c_str());
  std::abort();
}

}  // namespace deepnet::internal
