// libFuzzer's entry: `fuzzer --target=NAME [libFuzzer's flags] [FOLDER...]`. tests/fuzz/run.py
// calls it, and first `fuzzer --write-large=FOLDER`, which writes LargeInputs() there.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>

#include "tests/fuzz/inputs.h"

namespace {

const deepnet::testing::FuzzTarget* chosen = nullptr;  // by the command line, once

}  // namespace

// The names and types of both functions are libFuzzer's. It passes over flags that begin with --.
extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  constexpr std::string_view kFlag = "--target=", kWrite = "--write-large=";
  for (int i = 1; i < *argc; ++i) {
    const std::string_view word = (*argv)[i];
    if (word.starts_with(kWrite)) {
      int number = 0;
      for (const std::string& input : deepnet::testing::LargeInputs()) {
        std::ofstream(std::string(word.substr(kWrite.size())) + "/large" + std::to_string(number++))
            << input;
      }
      std::exit(0);
    }
    if (!word.starts_with(kFlag)) continue;
    for (const auto& target : deepnet::testing::FuzzTargets()) {
      if (target.name == word.substr(kFlag.size())) chosen = &target;
    }
  }
  if (chosen != nullptr) return 0;
  std::fputs("fuzzer: --target=NAME: one of\n", stderr);
  for (const auto& target : deepnet::testing::FuzzTargets()) {
    std::fprintf(stderr, "  %.*s\n", static_cast<int>(target.name.size()), target.name.data());
  }
  std::exit(2);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  chosen->run({reinterpret_cast<const char*>(data), size});
  return 0;
}
