// Prints the output of a model for given ids, for comparison with other programs that run the same
// weights.
//
//   peer_model CHECKPOINT MAX_TOKENS LOG_PROBS_FILE < cases > hypotheses
//
// A case is a line "source ids;forced ids;target ids", ids separated by blanks. LOG_PROBS_FILE gets
// float32: for each case, for each of </s>, forced and target ids fed in turn, the logarithms of
// the distribution of the next id over the vocabulary. stdout gets the best hypothesis of a beam of
// 5, a line of ids each.

#include <cstdint>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "parallel/base/check.h"
#include "tests/support/host_scorer.h"
#include "tests/support/load_model.h"
#include "trainer/decode/search.h"

namespace deepnet {
namespace {

struct Case {
  std::vector<int32_t> source, forced, target;
};

std::vector<int32_t> ReadIds(std::istream& line) {
  std::string part;
  std::getline(line, part, ';');
  std::istringstream words(part);
  std::vector<int32_t> ids;
  for (int32_t id = 0; words >> id;) ids.push_back(id);
  return ids;
}

void WriteLogProbs(Scorer& scorer, const Case& one, std::ostream& out) {
  const std::unique_ptr<DecoderState> state = scorer.Start({&one.source, 1});
  std::vector<int32_t> fed = {kEos};
  fed.insert(fed.end(), one.forced.begin(), one.forced.end());
  fed.insert(fed.end(), one.target.begin(), one.target.end());
  for (const int32_t token : fed) {
    const std::vector<float> log_probs = testing::StepForAll(scorer, *state, {&token, 1});
    out.write(reinterpret_cast<const char*>(log_probs.data()),
              static_cast<std::streamsize>(log_probs.size() * sizeof(float)));
  }
}

int Main(const std::string& checkpoint, int max_tokens, const std::string& log_probs_file) {
  ComputeSpec compute;
  compute.set_dtype(FLOAT32);
  const auto loaded = LoadModel(checkpoint, compute);
  if (!loaded.ok()) {
    std::cerr << loaded.status() << "\n";
    return 1;
  }
  LoadedModel& model = **loaded;
  std::ofstream log_probs(log_probs_file, std::ios::binary);
  SearchBatch batch;
  for (std::string text; std::getline(std::cin, text);) {
    std::istringstream line(text);
    Case one;
    one.source = ReadIds(line);
    one.forced = ReadIds(line);
    one.target = ReadIds(line);
    WriteLogProbs(*model.scorer, one, log_probs);
    batch.sources.push_back(one.source);
    batch.prefixes.push_back(one.forced);
  }
  const SearchOptions options{.max_tokens = max_tokens, .forbidden = model.vocabulary->TagIds()};
  for (const std::vector<Hypothesis>& best : Search(*model.scorer, batch, options)) {
    DEEPNET_CHECK(!best.empty());
    for (const int32_t token : best[0].tokens) std::cout << token << " ";
    std::cout << "\n";
  }
  return log_probs.good() ? 0 : 1;
}

}  // namespace
}  // namespace deepnet

int main(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "usage: peer_model CHECKPOINT MAX_TOKENS LOG_PROBS_FILE < cases\n";
    return 2;
  }
  return deepnet::Main(argv[1], std::stoi(argv[2]), argv[3]);
}
