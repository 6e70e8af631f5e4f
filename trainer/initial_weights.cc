#include "trainer/initial_weights.h"

#include <filesystem>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include <ATen/ATen.h>

#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/run_state.h"

namespace deepnet {
namespace {

// `count` rows from `row` of the new table are those from `earlier` of the old one.
struct RowRun {
  int64_t row = 0, earlier = 0, count = 0;
};

// In order of rows, as few as there can be.
std::vector<RowRun> MatchRows(const Vocabulary& earlier, const Vocabulary& vocabulary) {
  absl::flat_hash_map<std::string, int32_t> ids;
  for (int32_t id = 0; id < earlier.size(); ++id) ids.emplace(earlier.Piece(id), id);
  std::vector<RowRun> runs;
  for (int32_t id = 0; id < vocabulary.size(); ++id) {
    const auto found = ids.find(vocabulary.Piece(id));
    if (found == ids.end()) continue;
    if (!runs.empty() && runs.back().row + runs.back().count == id &&
        runs.back().earlier + runs.back().count == found->second) {
      ++runs.back().count;
    } else {
      runs.push_back({.row = id, .earlier = found->second, .count = 1});
    }
  }
  return runs;
}

// The shape in which `name` is stored; {} if it is not.
std::vector<int64_t> StoredShape(const Manifest& manifest, const std::string& name) {
  for (const ShardFile& file : manifest.files()) {
    for (const TensorExtent& extent : file.extents()) {
      if (extent.name() == name) return {extent.shape().begin(), extent.shape().end()};
    }
  }
  return {};
}

absl::Status CheckArchitecture(const Manifest& manifest, const std::string& path,
                               Architecture architecture) {
  const Architecture earlier = manifest.run().model().architecture();
  if (earlier == architecture) return absl::OkStatus();
  return WithExitCode(
      absl::FailedPreconditionError(
          absl::StrCat("--init-from ", path, ": model.architecture is ", Architecture_Name(earlier),
                       " in the checkpoint and ", Architecture_Name(architecture), " in this run")),
      ExitCode::kCheckpoint);
}

}  // namespace

absl::StatusOr<InitialRows> TakeWeights(FileSystem& fs, const std::string& path,
                                        const Vocabulary& vocabulary, Architecture architecture,
                                        Parameters& parameters) {
  ASSIGN_OR_RETURN(const std::string folder, ResolveCheckpoint(fs, path));
  ASSIGN_OR_RETURN(const Manifest manifest, ReadManifest(fs, folder));
  RETURN_IF_ERROR(CheckArchitecture(manifest, path, architecture));
  ASSIGN_OR_RETURN(const std::unique_ptr<Vocabulary> earlier,
                   LoadVocabulary(std::filesystem::path(folder).parent_path().string()));
  const std::vector<RowRun> runs = MatchRows(*earlier, vocabulary);

  const at::Tensor host = parameters.weights().to(at::kCPU);  // itself where it is there
  float* const weights = host.data_ptr<float>();
  std::vector<MutableNamedTensor> tensors;
  for (const Parameter& p : parameters.inventory().parameters) {
    const std::string name = kWeightPrefix + p.name;
    float* const data = weights + p.offset;
    if (p.role != Role::kEmbedding) {
      tensors.push_back({name, p.shape, {data, static_cast<size_t>(p.NumElements())}});
      continue;
    }
    std::vector<int64_t> shape = StoredShape(manifest, name);
    if (shape.size() != 2 || shape[1] != p.shape[1] || shape[0] < earlier->size()) shape = p.shape;
    for (const RowRun& run : runs) {  // a shape that does not fit is refused by ReadTensors
      tensors.push_back({name,
                         shape,
                         {data + run.row * p.shape[1], static_cast<size_t>(run.count * p.shape[1])},
                         run.earlier * p.shape[1]});
    }
  }
  RETURN_IF_ERROR(ReadTensors(fs, folder, manifest, tensors));
  if (!host.is_same(parameters.weights())) parameters.weights().copy_(host);

  InitialRows rows;
  for (const RowRun& run : runs) rows.taken += run.count;
  rows.drawn = vocabulary.size() - rows.taken;
  return rows;
}

}  // namespace deepnet
