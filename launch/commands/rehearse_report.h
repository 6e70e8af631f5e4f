// What `rehearse` prints: a table for people, or JSON.
#pragma once

#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "launch/commands/rehearse_cases.h"
#include "parallel/exec/rehearsal.h"

namespace deepnet {

struct RehearsalSetting {
  bool threads = false;  // ranks are threads of this process, else MPI's
  std::string payload;   // "small"
  std::string corpus;    // the run's data folder
  bool has_corpus = false;
};

class RehearsalReport {
 public:
  // `out` outlives it. `shape`: any of the cases.
  RehearsalReport(const RehearsalCase& shape, RehearsalSetting setting, bool json,
                  std::ostream& out)
      : shape_(shape), setting_(std::move(setting)), json_(json), out_(out) {}

  void Begin();
  void Add(const RehearsalCase& done, const Rehearsal& result);
  void End();

 private:
  std::string Row(const RehearsalCase& done, const Rehearsal& result) const;
  std::string JsonRow(const RehearsalCase& done, const Rehearsal& result) const;
  std::string LastLines() const;

  const RehearsalCase& shape_;
  const RehearsalSetting setting_;
  const bool json_;
  std::ostream& out_;
  int rows_ = 0;
  std::vector<double> data_waits_;  // of all steps of all cases
  double mean_lateness_ = 0.0;      // the largest of all cases
};

}  // namespace deepnet
