// JSON files, config.json and tensor names: how Hugging Face's libraries describe a model.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include <google/protobuf/message.h>

#include "parallel/base/file_system.h"
#include "proto/checkpoint.pb.h"
#include "proto/interop.pb.h"
#include "trainer/checkpoint/tools/tensor_reader.h"

namespace deepnet {

// Bytes of memory for a byte of JSON, at most, once it is parsed.
inline constexpr int64_t kJsonFactor = 16;

// Reads `json` into `message`; keys that it does not have are skipped. `under` is the field that
// takes the object, for objects whose keys are names; if empty, the message itself takes it. Fails
// with INVALID_ARGUMENT (ExitCode::kCheckpoint), naming `file` and what is wrong.
absl::Status ParseJson(const std::string& json, const std::string& under, const std::string& file,
                       google::protobuf::Message* message);

// ParseJson() of a file. NOT_FOUND if there is none; ExitCode::kDoesNotFit if it needs more memory
// than `options` allow, once it is parsed; ExitCode::kCheckpoint for all else.
absl::Status ReadJsonFile(FileSystem& fs, const std::string& path, const std::string& under,
                          const ToolOptions& options, google::protobuf::Message* message);

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
