#include "tests/trainer/interop/large_model.h"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "parallel/base/status_macros.h"
#include "tests/support/save_checkpoint.h"
#include "tests/trainer/interop/interop_samples.h"
#include "trainer/checkpoint/format.h"
#include "trainer/model/describe.h"

namespace deepnet::testing {
namespace {

constexpr int kWidth = 512;

// Returns a model with as many layers as `bytes` of weights take.
ModelSpec ModelOf(int64_t bytes) {
  ModelSpec model = SampleModel(DEEPNORM);
  model.set_d_model(kWidth);
  model.set_ffn_dim(4 * kWidth);
  while (Describe(model, {}).NumElements() * kElementBytes < bytes) {
    model.set_encoder_layers(model.encoder_layers() + 1);
    model.set_decoder_layers(model.decoder_layers() + 1);
  }
  return model;
}

}  // namespace

absl::Status SaveLargeModel(FileSystem& fs, const std::string& run_folder,
                            const LargeModel& large) {
  const ModelSpec model = ModelOf(large.bytes);
  const Inventory inventory = Describe(model, {});
  int64_t longest = 0;
  for (const Parameter& parameter : inventory.parameters) {
    longest = std::max(longest, parameter.NumElements());
  }
  const std::vector<float> elements = RandomWeights(longest, 1);
  std::vector<NamedTensor> tensors;
  for (const Parameter& parameter : inventory.parameters) {
    tensors.push_back(
        {kWeightPrefix + parameter.name, parameter.shape,
         std::span<const float>(elements).first(static_cast<size_t>(parameter.NumElements()))});
  }
  Manifest manifest;
  manifest.set_block_bytes(large.block_bytes);
  *manifest.mutable_run()->mutable_model() = model;
  manifest.set_inventory_hash(inventory.Hash());
  manifest.set_tokenizer_hash(SampleVocabulary().hash());
  RETURN_IF_ERROR(SaveCheckpoint(fs, run_folder, std::move(manifest), tensors));
  RETURN_IF_ERROR(ReplaceFile(fs, JoinPath(run_folder, kRunTokenizerFile), SampleTokenizer()));
  return ReplaceFile(fs, JoinPath(run_folder, kRunLanguagesFile), "de\nen\n");
}

}  // namespace deepnet::testing
