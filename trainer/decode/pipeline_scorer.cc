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

// `state` is the number of a state, or 0 for calls on none.
void Tell(PipelineLink& link, std::span<const int> ranks, Call call, int32_t state,
          std::span<const int32_t> arguments = {}) {
  std::vector<int32_t> command = {static_cast<int32_t>(call), state};
  command.insert(command.end(), arguments.begin(), arguments.end());
  link.SendCommand(command, ranks);
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
    Tell(scorer.link_, scorer.link_.route().steppers, Call::kDrop, id);
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
  Tell(link_, link_.route().followers, Call::kStart, state->id, packed);
  state->own = scorer_.Start(sources);
  return state;
}

void PipelineScorer::Reorder(DecoderState& decoder_state, std::span<const int32_t> parents) {
  auto& state = static_cast<State&>(decoder_state);
  state.rows = static_cast<int>(parents.size());
  if (state.own == nullptr) return;
  Tell(link_, link_.route().steppers, Call::kReorder, state.id, parents);
  scorer_.Reorder(*state.own, parents);
}

void PipelineScorer::Step(DecoderState& decoder_state, std::span<const int32_t> tokens,
                          const native::TokenChoices& choices) {
  auto& state = static_cast<State&>(decoder_state);
  if (state.own != nullptr && !is_stopping_()) {
    Tell(link_, link_.route().steppers, Call::kStep, state.id, tokens);
    scorer_.Step(*state.own, tokens, choices);
    if (link_.status().ok()) return;
  }
  std::fill_n(choices.chosen, choices.count * choices.k,
              native::TokenScore{-std::numeric_limits<float>::infinity(), -1});
}

std::vector<double> PipelineScorer::LogProbabilities(std::span<const EncodedPair> pairs) {
  if (!is_stopping_()) {
    std::vector<int32_t> packed;
    for (const EncodedPair& pair : pairs) {
      for (const auto* list : {&pair.source, &pair.labels, &pair.input}) AddList(*list, packed);
    }
    Tell(link_, link_.route().followers, Call::kScorePairs, 0, packed);
    std::vector<double> log_probs = pair_scorer_.LogProbabilities(pairs);
    if (link_.status().ok()) return log_probs;
  }
  return std::vector<double>(pairs.size(), std::numeric_limits<double>::quiet_NaN());
}

void PipelineScorer::Show(const std::string& what, double fraction) {
  std::vector<int32_t> packed = {static_cast<int32_t>(fraction * kUnitFraction)};
  packed.insert(packed.end(), what.begin(), what.end());
  Tell(link_, link_.route().followers, Call::kShow, 0, packed);
}

absl::Status PipelineScorer::Stop() {
  Tell(link_, link_.route().followers, Call::kStop, 0);
  return link_.Finish();
}

absl::Status ServePipeline(Transformer& model, PipelineLink& link, const ShowProgress& show) {
  ModelScorer scorer(model, &link);
  ModelPairScorer pair_scorer(model, &link);
  const std::vector<int>& steppers = link.route().steppers;
  const bool steps = std::count(steppers.begin(), steppers.end(), link.route().rank) > 0;
  std::map<int32_t, std::unique_ptr<DecoderState>> states;
  while (true) {
    const std::vector<int32_t> command = link.ReceiveCommand();
    RETURN_IF_ERROR(link.status());
    DEEPNET_CHECK(command.size() >= 2) << "a command of " << command.size() << " numbers";
    const int32_t state = command[1];
    const std::span<const int32_t> arguments = std::span(command).subspan(2);
    switch (static_cast<Call>(command[0])) {
      case Call::kStart: {
        auto started = scorer.Start(UnpackLists(arguments));
        if (steps) states[state] = std::move(started);
        break;
      }
      case Call::kReorder:
        scorer.Reorder(*states.at(state), arguments);
        break;
      case Call::kStep:
        scorer.Step(*states.at(state), arguments, {});
        break;
      case Call::kDrop:
        states.erase(state);
        break;
      case Call::kScorePairs:
        pair_scorer.LogProbabilities(UnpackPairs(arguments));
        break;
      case Call::kShow:
        if (show) show({arguments.begin() + 1, arguments.end()}, arguments[0] / kUnitFraction);
        break;
      case Call::kStop:
        return link.Finish();
    }
  }
}

}  // namespace deepnet
