// Readers of files and flags as functions of bytes that may be anything. libFuzzer calls
// them with bytes that it makes up (fuzzer.cc), a test with the examples of corpus/
// (inputs_test.cc). Each must return: not crash, hang, or take more memory than tests/fuzz/run.py
// allows.
#pragma once

#include <span>
#include <string_view>

namespace deepnet::testing {

struct FuzzTarget {
  std::string_view name;  // that of its folder in corpus/
  void (*run)(std::string_view bytes);
};

std::span<const FuzzTarget> FuzzTargets();

}  // namespace deepnet::testing
