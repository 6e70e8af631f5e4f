#include "trainer/run_state.h"

#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include <ATen/ATen.h>

#include "parallel/base/exit_code.h"
#include "parallel/base/philox.h"
#include "parallel/base/status_macros.h"
#include "trainer/checkpoint/checkpoint.h"

namespace deepnet {
namespace {

constexpr char kTokenizer[] = "tokenizer.model";
constexpr char kLanguages[] = "languages.txt";
constexpr int64_t kMaxTokenizerBytes = int64_t{1} << 30;

absl::Status FileError(const std::string& file, const char* what) {
  return WithExitCode(absl::NotFoundError(absl::StrCat(file, ": ", what)), ExitCode::kCheckpoint);
}

}  // namespace

absl::Status LoadWeights(FileSystem& fs, const std::string& checkpoint_folder,
                         const Manifest& manifest, Parameters& parameters) {
  const at::Tensor host = parameters.weights().to(at::kCPU);  // itself where it is there
  float* const data = host.data_ptr<float>();
  std::vector<MutableNamedTensor> tensors;
  for (const Parameter& p : parameters.inventory().parameters) {
    tensors.push_back({.name = kWeightPrefix + p.name,
                       .shape = p.shape,
                       .data = {data + p.offset, static_cast<size_t>(p.NumElements())}});
  }
  RETURN_IF_ERROR(ReadTensors(fs, checkpoint_folder, manifest, tensors));
  if (!host.is_same(parameters.weights())) parameters.weights().copy_(host);
  return absl::OkStatus();
}

absl::Status SaveVocabulary(FileSystem& fs, const std::string& tokenizer_file,
                            const std::vector<std::string>& languages,
                            const std::string& run_folder) {
  const auto save = [&]() -> absl::Status {
    ASSIGN_OR_RETURN(const std::string tokenizer,
                     ReadWholeFile(fs, tokenizer_file, kMaxTokenizerBytes));
    std::string list;
    for (const std::string& language : languages) absl::StrAppend(&list, language, "\n");
    RETURN_IF_ERROR(fs.MakeFolder(run_folder));
    RETURN_IF_ERROR(ReplaceFile(fs, JoinPath(run_folder, kTokenizer), tokenizer));
    return ReplaceFile(fs, JoinPath(run_folder, kLanguages), list);
  };
  return WithExitCode(save(), ExitCode::kCheckpoint);
}

absl::StatusOr<std::unique_ptr<Vocabulary>> LoadVocabulary(const std::string& run_folder) {
  const std::string list = absl::StrCat(run_folder, "/", kLanguages);
  std::ifstream in(list);
  if (!in) return FileError(list, "not found; is this a run folder?");
  std::vector<std::string> languages;
  for (std::string line; std::getline(in, line);) languages.push_back(line);
  auto vocabulary = Vocabulary::Open(absl::StrCat(run_folder, "/", kTokenizer), languages);
  if (!vocabulary.ok()) return WithExitCode(vocabulary.status(), ExitCode::kCheckpoint);
  return std::make_unique<Vocabulary>(std::move(*vocabulary));
}

bool UpdateBest(Manifest& state, const std::string& metric, double value, Better better) {
  BestScore* best = nullptr;
  for (BestScore& known : *state.mutable_best()) {
    if (known.metric() == metric) best = &known;
  }
  if (best == nullptr) {
    best = state.add_best();
    best->set_metric(metric);
  } else if (better == Better::kGreater ? value <= best->value() : value >= best->value()) {
    return false;
  }
  best->set_value(value);
  best->set_step(state.step());
  return true;
}

std::vector<uint64_t> ParameterHashes(const Parameters& parameters) {
  const at::Tensor host = parameters.weights().to(at::kCPU);
  std::vector<uint64_t> hashes;
  for (const Parameter& p : parameters.inventory().parameters) {
    hashes.push_back(HashName({reinterpret_cast<const char*>(host.data_ptr<float>() + p.offset),
                               static_cast<size_t>(p.NumElements()) * sizeof(float)}));
  }
  return hashes;
}

std::string WeightsHash(std::span<const uint64_t> parameter_hashes) {
  return absl::StrFormat("%016x", HashName({reinterpret_cast<const char*>(parameter_hashes.data()),
                                            parameter_hashes.size_bytes()}));
}

}  // namespace deepnet
