// config.json: what Hugging Face's libraries, and `import`, know of a model.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
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

// What keeps `model` from being computed by transformers' M2M100ForConditionalGeneration, a phrase
// each ("residual is DEEPNORM"); empty: nothing does.
std::vector<std::string> DifferencesFromM2m(const ModelSpec& model);

// The config.json of a checkpoint with our ids and unchanged weights: model_type m2m_100 where that
// class computes the same, else deepnet, which no class of transformers does.
HfConfig MakeHfConfig(const Manifest& manifest, const std::vector<std::string>& languages);

// JSON of `config`, indented.
std::string HfConfigJson(const HfConfig& config);

// Reads config.json of `folder`; the RunSpec of an export may have the field names of an earlier
// program.
absl::StatusOr<HfConfig> ReadHfConfig(FileSystem& fs, const std::string& folder,
                                      const ToolOptions& options);

// The model of an m2m_100 folder; keys that are not there have M2M100Config's values. FAILED_
// PRECONDITION (ExitCode::kCheckpoint) names every key with which no model of ours can be made.
absl::StatusOr<ModelSpec> ModelOfM2m(const HfConfig& config);

}  // namespace deepnet
