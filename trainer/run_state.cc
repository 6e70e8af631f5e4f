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

struct Buffer {
  const char* prefix;
  at::Tensor device;  // where the model has it
  at::Tensor host;    // the same tensor if that is the CPU
};

std::vector<Buffer> Buffers(const Parameters& parameters, bool moments) {
  std::vector<Buffer> buffers = {{kWeightPrefix, parameters.weights(), {}}};
  if (moments) {
    buffers.push_back({kMoment1Prefix, parameters.moment1(), {}});
    buffers.push_back({kMoment2Prefix, parameters.moment2(), {}});
  }
  for (Buffer& buffer : buffers) buffer.host = buffer.device.to(at::kCPU);
  return buffers;
}

template <typename Tensor>
std::vector<Tensor> Slices(const std::vector<Buffer>& buffers, const Inventory& inventory) {
  std::vector<Tensor> tensors;
  for (const Buffer& buffer : buffers) {
    float* data = buffer.host.data_ptr<float>();
    for (const Parameter& p : inventory.parameters) {
      tensors.push_back({buffer.prefix + p.name,
                         p.shape,
                         {data + p.offset, static_cast<size_t>(p.NumElements())}});
    }
  }
  return tensors;
}

absl::Status FileError(const std::string& file, const char* what) {
  return WithExitCode(absl::NotFoundError(absl::StrCat(file, ": ", what)), ExitCode::kCheckpoint);
}

}  // namespace

absl::Status SaveParameters(FileSystem& fs, const std::string& run_folder, const Manifest& manifest,
                            const Parameters& parameters) {
  const std::vector<Buffer> buffers = Buffers(parameters, /*moments=*/true);
  return SaveCheckpoint(fs, run_folder, manifest,
                        Slices<NamedTensor>(buffers, parameters.inventory()));
}

absl::Status LoadParameters(FileSystem& fs, const std::string& checkpoint_folder,
                            const Manifest& manifest, bool moments, Parameters& parameters) {
  const std::vector<Buffer> buffers = Buffers(parameters, moments);
  RETURN_IF_ERROR(ReadTensors(fs, checkpoint_folder, manifest,
                              Slices<MutableNamedTensor>(buffers, parameters.inventory())));
  for (const Buffer& buffer : buffers) {
    if (!buffer.host.is_same(buffer.device)) buffer.device.copy_(buffer.host);
  }
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

absl::Status SaveVocabulary(const std::string& tokenizer_file,
                            const std::vector<std::string>& languages,
                            const std::string& run_folder) {
  return SaveVocabulary(*MakePosixFileSystem(), tokenizer_file, languages, run_folder);
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

std::string WeightsHash(const Parameters& parameters) {
  const at::Tensor host = parameters.weights().to(at::kCPU);
  const uint64_t hash = HashName(
      {reinterpret_cast<const char*>(host.data_ptr<float>()), static_cast<size_t>(host.nbytes())});
  return absl::StrFormat("%016x", hash);
}

}  // namespace deepnet
