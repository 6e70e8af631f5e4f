// Readers of files and flags as functions of bytes that may be anything. libFuzzer calls
// them with bytes that it makes up (fuzzer.cc), a test with the examples of corpus/
// (inputs_test.cc). Each must return: not crash, hang, or take more memory than tests/fuzz/run.py
// allows.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace deepnet::testing {

inline constexpr int kMaxInputBytes = 1 << 20;

struct FuzzTarget {
  std::string_view name;  // that of its folder in corpus/
  void (*run)(std::string_view bytes);
};

std::span<const FuzzTarget> FuzzTargets();

// Returns inputs of kMaxInputBytes, for every target: one piece again and again, such as the
// beginning of a message inside of a message. What a reader does for each piece must not add up to
// its stack, its memory or its time.
std::vector<std::string> LargeInputs();

}  // namespace deepnet::testing
