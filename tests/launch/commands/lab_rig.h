// The laboratory with a shell script in the place of `deepnet train` and `deepnet evaluate`.
// Header-only.
#pragma once

#include <filesystem>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "launch/commands/lab_cells.h"
#include "launch/commands/lab_files.h"
#include "launch/commands/lab_instruments.h"
#include "launch/commands/lab_list.h"
#include "launch/commands/lab_report.h"
#include "launch/commands/lab_run.h"
#include "tests/launch/commands/run_command.h"
#include "tests/trainer/data/prepared_corpus.h"
#include "tests/trainer/data/temp_folder.h"

namespace deepnet::testing {

// Post-LN from 18 layers on diverges, the run of 50 layers of DeepNet fails as long as there is a
// file "broken". A run that is told to wait says so and waits to be stopped.
inline constexpr char kStandIn[] = R"(#!/bin/sh
command=$1
echo "$*" >> calls
for word in "$@"; do
  case $word in
    folder=*) folder=${word#folder=} ;;
    *wait-here*) wait=yes ;;
  esac
done
if [ $command = evaluate ]; then
  echo '{"kind":"evaluate","nll":5.8,"directions":[{"direction":"xx-en","nll":5.8}]}'
  exit 0
fi
mkdir -p "$folder"
echo '{"kind":"train","step":10,"nll":8.9,"seconds":1}' > "$folder/metrics.jsonl"
echo '{"kind":"train","step":300,"nll":5.9,"seconds":30}' >> "$folder/metrics.jsonl"
echo weights > "$folder/step-300"
if [ "$wait" = yes ]; then
  trap 'exit 75' TERM
  echo waiting > waiting
  while :; do sleep 0.05; done
fi
case $folder in
  *post-ln-18*|*post-ln-50*) exit 7 ;;
  *deepnet-50*) [ -f broken ] && { echo "error: broken for a test" >&2; exit 6; } ;;
esac
exit 0
)";

// A prepared corpus and the script, in a folder that is the current one while the test runs.
class LabRig : public ::testing::Test {
 protected:
  LabRig() : old_(std::filesystem::current_path()) {
    recipes_ = std::filesystem::absolute("launch/recipes");
    WriteOpus(folder_);
    EXPECT_TRUE(PrepareIn(folder_, "opus100_folder: \"opus\" output_folder: \"data\"").ok());
    folder_.Write("deepnet.sh", kStandIn);
    chmod(folder_.Path("deepnet.sh").c_str(), 0755);
    std::filesystem::current_path(folder_.path());
  }
  ~LabRig() override { std::filesystem::current_path(old_); }

  Outcome RunLab(std::vector<std::string> words) {
    // Of `deepnet lab`, what needs no model.
    const Command lab{.name = "lab",
                      .subcommands = {MakeLabListCommand(), MakeLabRunCommand(),
                                      MakeLabReportCommand(), MakeLabInstrumentsCommand()}};
    return RunCommand(lab, std::move(words));
  }

  // `experiment` into the folder out, by the script.
  Outcome RunHere(const std::string& experiment, const std::vector<std::string>& more) {
    std::vector<std::string> words = {"run",       experiment, "--data",    "data",
                                      "--out",     "out",      "--program", "./deepnet.sh",
                                      "--recipes", recipes_,   "--set",     "data.directions="};
    words.insert(words.end(), more.begin(), more.end());
    return RunLab(words);
  }

  // The ablation's DeepNet and Post-LN at 6, 18 and 50 layers: six runs.
  Outcome RunAblation(const std::vector<std::string>& more = {}) {
    std::vector<std::string> words = {"--only", "deepnet", "--only", "post-ln"};
    words.insert(words.end(), more.begin(), more.end());
    return RunHere("ablation", words);
  }

  LabResult Result() { return ReadLabResult(*MakePosixFileSystem(), "out").value_or(LabResult()); }

  int NumCalls(const std::string& command) {
    std::istringstream calls(folder_.Read("calls"));
    int count = 0;
    for (std::string line; std::getline(calls, line);) count += line.starts_with(command) ? 1 : 0;
    return count;
  }

  const std::filesystem::path old_;
  std::string recipes_;
  TempFolder folder_;
};

}  // namespace deepnet::testing
