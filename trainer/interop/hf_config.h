// config.json and tensor names: how Hugging Face's libraries, and `import`, describe a model.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "parallel/base/file_system.h"
#include "proto/checkpoint.pb.h"
#include "proto/interop.pb.h"
#include "trainer/checkpoint/tools/tool_options.h"

namespace deepnet {

inline constexpr char kConfigFile[] = "config.json";
inline constexpr char kM2mType[] = "m2m_100";
inline constexpr char kMarianType[] = "marian";
inline constexpr char kDeepnetType[] = "deepnet";

// Returns what keeps transformers' M2M100ForConditionalGeneration from computing `model`, a phrase
// each ("residual is DEEPNORM"); empty if nothing does.
std::vector<std::string> DifferencesFromM2m(const ModelSpec& model);

// Returns the config.json of a checkpoint with our ids and unchanged weights: model_type m2m_100
// where that class computes the same, else deepnet, which transformers has no class for.
HfConfig MakeHfConfig(const Manifest& manifest, const std::vector<std::string>& languages);

// Returns the JSON of `config`, indented.
std::string HfConfigJson(const HfConfig& config);

// Reads config.json of `folder`; the RunSpec of an export may have the field names of an earlier
// program.
absl::StatusOr<HfConfig> ReadHfConfig(FileSystem& fs, const std::string& folder,
                                      const ToolOptions& options);

// Returns the model of an m2m_100 folder; missing keys have M2M100Config's values. Fails with
// FAILED_PRECONDITION (ExitCode::kCheckpoint), naming every key that no model here can have.
absl::StatusOr<ModelSpec> ModelOfM2m(const HfConfig& config);

// Returns the name of a parameter's tensor in M2M-100 and Marian: ours after "model.", but for the
// output projection (docs/design/names.md).
std::string HfName(std::string_view parameter);

// Returns true for tensors of a Hugging Face folder that are redundant where all embeddings are one
// and positions are computed: copies of the embedding, tables of positions.
bool IsRepeatedInHf(std::string_view name);

}  // namespace deepnet
