// A command is a list of integers: which call, on which state, with which arguments.
#include "trainer/decode/pipeline_scorer.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "parallel/base/check.h"
#include "parallel/base/status_macros.h"

namespace deepnet {
namespace {

using IdLists = std::vector<std::vector<int32_t>>;

constexpr double kUnitFraction = 10000;  // 1 as a fraction in a command

enum class Call : int32_t { kStart, kReorder, kStep, kDrop, kScorePairs, kShow, kStop };

struct Command {
  Call call = Call::kStop;
  int32_t state = 0;
  std::span<const int32_t> arguments;
};

std::vector<int32_t> Pack(const Command& command) {
  std::vector<int32_t> packed = {static_cast<int32_t>(command.call), command.state};
  packed.insert(packed.end(), command.arguments.begin(), command.arguments.end());
  return packed;
}

// `packed` must outlive the result.
Command Unpack(std::span<const int32_t> packed) {
  DEEPNET_CHECK(packed.size() >= 2) << "a command of " << packed.size() << " numbers";
  return {static_cast<Call>(packed[0]), packed[1], packed.subspan(2)};
}

// Appends the length of `list`, then `list`.
void AddList(const std::vector<int32_t>& list, std::vector<int32_t>& packed) {
  packed.push_back(static_cast<int32_t>(list.size()));
  packed.insert(packed.end(), list.begin(), list.end());
}

IdLists UnpackLists(std::span<const int32_t> packed) {
  IdLists lists;
  while (!packed.empty()) {
    const auto list = packed.subspan(1, static_cast<size_t>(packed[0]));
    lists.emplace_back(list.begin(), list.end());
    packed = packed.subspan(1 + list.size());
  }
  return lists;
}

std::vector<int32_t> PackPairs(std::span<const EncodedPair> pairs) {
  std::vector<int32_t> packed;
  for (const EncodedPair& pair : pairs) {
    AddList(pair.source, packed);
    AddList(pair.labels, packed);
    AddList(pair.input, packed);
  }
  return packed;
}

std::vector<EncodedPair> UnpackPairs(std::span<const int32_t> packed) {
  IdLists lists = UnpackLists(packed);
  std::vector<EncodedPair> pairs;
  for (size_t i = 0; i + 2 < lists.size(); i += 3) {
    pairs.push_back({std::move(lists[i]), std::move(lists[i + 1]), std::move(lists[i + 2])});
  }
  return pairs;
}

}  // namespace

// The driver's state of its own chunks. The others drop theirs when this one is destroyed.
struct PipelineScorer::State : public DecoderState {
  State(PipelineScorer& scorer, size_t rows) : scorer(scorer), rows(static_cast<int>(rows)) {}
  ~State() override {
    if (own == nullptr) return;
    scorer.link_.SendCommand(Pack({Call::kDrop, id, {}}), scorer.link_.route().steppers);
  }

  int num_rows() const override { return rows; }

  PipelineScorer& scorer;
  int rows;
  int32_t id = 0;                     // name of the state on the other ranks
  std::unique_ptr<DecoderState> own;  // null: the model was not asked any more
};

std::unique_ptr<DecoderState> PipelineScorer::Start(std::span<const std::vector<int32_t>> sources) {
  auto state = std::make_unique<State>(*this, sources.size());
  if (is_stopping_()) return state;
  std::vector<int32_t> packed;
  for (const std::vector<int32_t>& source : sources) AddList(source, packed);
  state->id = next_state_++;
  link_.SendCommand(Pack({Call::kStart, state->id, packed}), link_.route().followers);
  state->own = scorer_.Start(sources);
  return state;
}

void PipelineScorer::Reorder(DecoderState& decoder_state, std::span<const int32_t> parents) {
  auto& state = static_cast<State&>(decoder_state);
  state.rows = static_cast<int>(parents.size());
  if (state.own == nullptr) return;
  link_.SendCommand(Pack({Call::kReorder, state.id, parents}), link_.route().steppers);
  scorer_.Reorder(*state.own, parents);
}

void PipelineScorer::Step(DecoderState& decoder_state, std::span<const int32_t> tokens,
                          const native::TokenChoices& choices) {
  auto& state = static_cast<State&>(decoder_state);
  if (state.own != nullptr && !is_stopping_()) {
    link_.SendCommand(Pack({Call::kStep, state.id, tokens}), link_.route().steppers);
    scorer_.Step(*state.own, tokens, choices);
    if (link_.status().ok()) return;
  }
  std::fill_n(choices.chosen, choices.count * choices.k,
              native::TokenScore{-std::numeric_limits<float>::infinity(), -1});
}

std::vector<double> PipelineScorer::LogProbabilities(std::span<const EncodedPair> pairs) {
  if (!is_stopping_()) {
    link_.SendCommand(Pack({Call::kScorePairs, 0, PackPairs(pairs)}), link_.route().followers);
    std::vector<double> log_probs = pair_scorer_.LogProbabilities(pairs);
    if (link_.status().ok()) return log_probs;
  }
  return std::vector<double>(pairs.size(), std::numeric_limits<double>::quiet_NaN());
}

void PipelineScorer::Show(const std::string& what, double fraction) {
  std::vector<int32_t> packed = {static_cast<int32_t>(fraction * kUnitFraction)};
  packed.insert(packed.end(), what.begin(), what.end());
  link_.SendCommand(Pack({Call::kShow, 0, packed}), link_.route().followers);
}

absl::Status PipelineScorer::Stop() {
  link_.SendCommand(Pack({Call::kStop, 0, {}}), link_.route().followers);
  return link_.Finish();
}

absl::Status ServePipeline(Transformer& model, PipelineLink& link, const ShowProgress& show) {
  ModelScorer scorer(model, &link);
  ModelPairScorer pair_scorer(model, &link);
  const std::vector<int>& steppers = link.route().steppers;
  const bool steps = std::count(steppers.begin(), steppers.end(), link.route().rank) > 0;
  std::map<int32_t, std::unique_ptr<DecoderState>> states;
  while (true) {
    const std::vector<int32_t> packed = link.ReceiveCommand();
    RETURN_IF_ERROR(link.status());
    const Command command = Unpack(packed);
    switch (command.call) {
      case Call::kStart: {
        auto state = scorer.Start(UnpackLists(command.arguments));
        if (steps) states[command.state] = std::move(state);
        break;
      }
      case Call::kReorder:
        scorer.Reorder(*states.at(command.state), command.arguments);
        break;
      case Call::kStep:
        scorer.Step(*states.at(command.state), command.arguments, {});
        break;
      case Call::kDrop:
        states.erase(command.state);
        break;
      case Call::kScorePairs:
        pair_scorer.LogProbabilities(UnpackPairs(command.arguments));
        break;
      case Call::kShow:
        if (!show) break;
        show({command.arguments.begin() + 1, command.arguments.end()},
             command.arguments[0] / kUnitFraction);
        break;
      case Call::kStop:
        return link.Finish();
    }
  }
}

}  // namespace deepnet
