// Checks of invariants: a broken one ends the process and says where and why. Bad input is not
// checked by these; it is a Status.
//
// Example:
//   DEEPNET_CHECK(rows > 0) << "microbatch " << mb << " is empty";
//   DEEPNET_CHECK_EQ(x.size(), y.size());
#pragma once

#include <sstream>

namespace deepnet::internal {

// Collects the message; its destructor prints "file:line: check failed: ..." and aborts.
class CheckFailure {
 public:
  CheckFailure(const char* file, int line, const char* condition);
  [[noreturn]] ~CheckFailure();
  std::ostream& stream() { return stream_; }

 private:
  std::ostringstream stream_;
};

// Turns a stream into void, with lower precedence than <<.
struct Voidify {
  void operator&(std::ostream&) const {}
};

}  // namespace deepnet::internal

#define DEEPNET_CHECK(condition)                 \
  (condition) ? (void)0                          \
              : ::deepnet::internal::Voidify() & \
                    ::deepnet::internal::CheckFailure(__FILE__, __LINE__, #condition).stream()

#define DEEPNET_CHECK_EQ(a, b) DEEPNET_CHECK((a) == (b)) << (a) << " against " << (b) << ". "
#define DEEPNET_CHECK_LE(a, b) DEEPNET_CHECK((a) <= (b)) << (a) << " against " << (b) << ". "
#define DEEPNET_CHECK_LT(a, b) DEEPNET_CHECK((a) < (b)) << (a) << " against " << (b) << ". "
