// Extents (parallel/plan/shard.h) are ranges of a rank's buffers and may span parameters; a
// checkpoint knows parameters and ranges of their own elements. Everything here translates between
// the two. Every element of the model is in exactly one extent that is first in the chain, so those
// make a whole checkpoint.
#include "trainer/rank_state.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include <ATen/ATen.h>

#include "parallel/base/status_macros.h"
#include "parallel/comm/agreement.h"
#include "parallel/comm/collectives.h"
#include "trainer/run_state.h"

namespace deepnet {
namespace {

// A run of elements of one parameter that an extent holds.
struct ParameterRun {
  const Parameter* parameter = nullptr;
  int64_t first_element = 0;  // in the parameter's own order
  int64_t weight = 0;         // first element in the rank's weights
  int64_t state = 0;          // first element in the rank's moments
  int64_t count = 0;
};

std::vector<ParameterRun> RunsOf(const std::vector<Extent>& extents, const Inventory& held,
                                 bool only_first_in_chain) {
  std::vector<ParameterRun> runs;
  for (const Extent& extent : extents) {
    if (only_first_in_chain && !extent.first_in_chain) continue;
    for (const Parameter& p : held.parameters) {
      const int64_t begin = std::max(extent.weight, p.offset);
      const int64_t end = std::min(extent.weight + extent.count, p.offset + p.NumElements());
      if (begin >= end) continue;
      runs.push_back({.parameter = &p,
                      .first_element = begin - p.offset,
                      .weight = begin,
                      .state = extent.state + (begin - extent.weight),
                      .count = end - begin});
    }
  }
  return runs;
}

// On the host; the tensors themselves where they are there.
struct HostBuffers {
  explicit HostBuffers(const Parameters& parameters)
      : weights(parameters.weights().to(at::kCPU)),
        moment1(parameters.moment1().to(at::kCPU)),
        moment2(parameters.moment2().to(at::kCPU)) {}
  at::Tensor weights, moment1, moment2;
};

template <typename Tensor>
void AddMoments(const ParameterRun& run, const HostBuffers& buffers, std::vector<Tensor>& tensors) {
  const auto add = [&](const char* prefix, const at::Tensor& moment) {
    tensors.push_back(
        {.name = prefix + run.parameter->name,
         .shape = run.parameter->shape,
         .data = {moment.data_ptr<float>() + run.state, static_cast<size_t>(run.count)},
         .first_element = run.first_element});
  };
  add(kMoment1Prefix, buffers.moment1);
  add(kMoment2Prefix, buffers.moment2);
}

std::vector<NamedTensor> TensorsToSave(const RankPart& part, const HostBuffers& buffers) {
  std::vector<NamedTensor> tensors;
  for (const ParameterRun& run : RunsOf(part.layout.extents, part.model->parameters().inventory(),
                                        /*only_first_in_chain=*/true)) {
    tensors.push_back(
        {.name = kWeightPrefix + run.parameter->name,
         .shape = run.parameter->shape,
         .data = {buffers.weights.data_ptr<float>() + run.weight, static_cast<size_t>(run.count)},
         .first_element = run.first_element});
    AddMoments(run, buffers, tensors);
  }
  return tensors;
}

}  // namespace

RankSnapshot::RankSnapshot(const RankPart& part, bool copies) : part_(part) {
  const size_t elements = static_cast<size_t>(bytes()) / sizeof(float);
  if (copies) memory_ = std::make_unique_for_overwrite<float[]>(elements);
}

void RankSnapshot::TakeMemory() {
  if (memory_ != nullptr) std::memset(memory_.get(), 0, static_cast<size_t>(bytes()));
}

int64_t RankSnapshot::bytes() const {
  int64_t elements = 0;
  for (const Extent& extent : part_.layout.extents) {
    if (extent.first_in_chain) elements += extent.count;
  }
  return 3 * elements * static_cast<int64_t>(sizeof(float));
}

void RankSnapshot::Look() {
  const HostBuffers buffers(part_.model->parameters());
  tensors_ = TensorsToSave(part_, buffers);
  held_ = {buffers.weights, buffers.moment1, buffers.moment2};
}

void RankSnapshot::Copy() {
  if (memory_ == nullptr) return;
  float* next = memory_.get();
  for (NamedTensor& tensor : tensors_) {
    std::copy(tensor.data.begin(), tensor.data.end(), next);
    tensor.data = {next, tensor.data.size()};
    next += tensor.data.size();
  }
  held_.clear();
}

absl::Status LoadRankState(FileSystem& fs, const std::string& checkpoint_folder,
                           const Manifest& manifest, RankPart& part) {
  Parameters& parameters = part.model->parameters();
  HostBuffers buffers(parameters);
  std::vector<MutableNamedTensor> tensors;  // together, so that a block is read once
  for (const Parameter& p : parameters.inventory().parameters) {
    tensors.push_back({.name = kWeightPrefix + p.name,
                       .shape = p.shape,
                       .data = {buffers.weights.data_ptr<float>() + p.offset,
                                static_cast<size_t>(p.NumElements())}});
  }
  for (const ParameterRun& run :
       RunsOf(part.layout.extents, parameters.inventory(), /*only_first_in_chain=*/false)) {
    AddMoments(run, buffers, tensors);
  }
  RETURN_IF_ERROR(ReadTensors(fs, checkpoint_folder, manifest, tensors));
  if (!buffers.weights.is_same(parameters.weights())) {
    parameters.weights().copy_(buffers.weights);
    parameters.moment1().copy_(buffers.moment1);
    parameters.moment2().copy_(buffers.moment2);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> HashRankWeights(const RankPart& part, const Inventory& whole) {
  const Inventory& held = part.model->parameters().inventory();
  const std::vector<uint64_t> own = ParameterHashes(part.model->parameters());
  std::string lines;
  for (size_t i = 0; i < own.size(); ++i) {
    absl::StrAppend(&lines, held.parameters[i].name, " ", own[i], "\n");
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> all, AllGatherText(*part.world, lines));
  absl::flat_hash_map<std::string, uint64_t> hashes;
  for (const std::string& text : all) {
    for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
      const std::pair<std::string, std::string> entry = absl::StrSplit(line, ' ');
      uint64_t hash = 0;
      if (absl::SimpleAtoi(entry.second, &hash)) hashes.emplace(entry.first, hash);
    }
  }
  std::vector<uint64_t> in_order;
  for (const Parameter& p : whole.parameters) in_order.push_back(hashes.at(p.name));
  return WeightsHash(in_order);
}

}  // namespace deepnet
