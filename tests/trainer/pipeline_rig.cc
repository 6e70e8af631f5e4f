#include "tests/trainer/pipeline_rig.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "parallel/base/check.h"
#include "trainer/kernels/aten.h"
#include "trainer/model/describe.h"

namespace deepnet::testing {
namespace {

// Tracks which actions of a pipeline of `num_chunks` are done and which can come next.
class Progress {
 public:
  explicit Progress(int num_chunks) : num_chunks_(num_chunks) {}

  bool Ready(const Action& a) const {
    switch (a.op) {
      case Op::kForward:
        return a.chunk == 0 || Did(Op::kForward, a.chunk - 1, a.microbatch);
      case Op::kBackwardWeight:
        return Did(Op::kBackwardInput, a.chunk, a.microbatch);
      default:
        return Did(Op::kForward, a.chunk, a.microbatch) &&
               (a.chunk + 1 == num_chunks_ || Did(Op::kBackward, a.chunk + 1, a.microbatch) ||
                Did(Op::kBackwardInput, a.chunk + 1, a.microbatch));
    }
  }
  void Do(const Action& a) { done_.insert({a.op, a.chunk, a.microbatch}); }

 private:
  bool Did(Op op, int chunk, int microbatch) const {
    return done_.count({op, chunk, microbatch}) > 0;
  }

  int num_chunks_;
  std::set<std::tuple<Op, int, int>> done_;
};

}  // namespace

std::string Layout::ToText() const {
  return absl::StrCat("ends ", absl::StrJoin(chunk_ends, ","), " ranks ",
                      absl::StrJoin(placement.rank_of_chunk, ","), " recompute ",
                      absl::StrJoin(recompute, ",", [](std::string* out, const RecomputeChoice& o) {
                        absl::StrAppend(out, Recompute_Name(o.level), "/", o.segment);
                      }));
}

Layout OneRank(int num_layers) {
  return {.chunk_ends = {num_layers}, .placement = {.rank_of_chunk = {0}}};
}

std::vector<Action> InOneOrder(const Schedule& schedule, int num_chunks) {
  Progress progress(num_chunks);
  std::vector<Action> order;
  std::vector<size_t> next(schedule.actions.size(), 0);
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t r = 0; r < schedule.actions.size(); ++r) {
      if (next[r] == schedule.actions[r].size()) continue;
      const Action& action = schedule.actions[r][next[r]];
      if (!progress.Ready(action)) continue;
      progress.Do(action);
      order.push_back(action);
      ++next[r];
      moved = true;
    }
  }
  for (size_t r = 0; r < schedule.actions.size(); ++r) {
    DEEPNET_CHECK_EQ(next[r], schedule.actions[r].size()) << "rank " << r << " is stuck";
  }
  return order;
}

std::vector<Action> RandomOrder(int num_chunks, int num_microbatches, bool split,
                                std::mt19937& random) {
  Progress progress(num_chunks);
  // Per chunk: forwards, backwards, and weight gradients, each in ascending order.
  std::vector<std::vector<Action>> lists;
  for (int c = 0; c < num_chunks; ++c) {
    std::vector<Action> forward, backward, weight;
    // A chunk splits none of its backward passes, or all: then weights come in ascending order.
    const bool splits = split && random() % 2 == 0;
    for (int m = 0; m < num_microbatches; ++m) {
      forward.push_back({Op::kForward, c, m});
      backward.push_back({splits ? Op::kBackwardInput : Op::kBackward, c, m});
      if (splits) weight.push_back({Op::kBackwardWeight, c, m});
    }
    lists.insert(lists.end(), {forward, backward, weight});
  }
  std::vector<Action> order;
  std::vector<size_t> next(lists.size(), 0);
  for (;;) {
    std::vector<size_t> ready;
    for (size_t l = 0; l < lists.size(); ++l) {
      if (next[l] < lists[l].size() && progress.Ready(lists[l][next[l]])) ready.push_back(l);
    }
    if (ready.empty()) return order;
    const size_t l = ready[random() % ready.size()];
    order.push_back(lists[l][next[l]++]);
    progress.Do(order.back());
  }
}

PipelineRig::PipelineRig(const ModelSpec& spec, const MicrobatchSpec& capacity, Ops& ops,
                         const Layout& layout, const PipelineOptions& options)
    : layout_(layout),
      whole_(Describe(spec, capacity)),
      stage_messages_(
          MakeStageMessages(whole_, layout.chunk_ends, layout.placement, options.operand_type)) {
  DEEPNET_CHECK_EQ(layout.chunk_ends.back(), static_cast<int>(whole_.layers.size()));
  for (int r = 0; r < layout.placement.NumRanks(); ++r) {
    ranks_.push_back(MakeRank(spec, capacity, ops, r, options));
  }
}

PipelineRig::Rank PipelineRig::MakeRank(const ModelSpec& spec, const MicrobatchSpec& capacity,
                                        Ops& ops, int rank, const PipelineOptions& options) {
  PipelineStageOptions stage{.seed = 9,
                             .label_smoothing = 0.1,
                             .virtual_replicas = options.virtual_replicas,
                             .chunks = {},
                             .messages = stage_messages_};
  std::vector<ChunkSpec> chunks;
  std::vector<int> rank_of_layer;
  for (int c = 0, first = 0; c < layout_.placement.NumChunks(); first = layout_.chunk_ends[c++]) {
    rank_of_layer.resize(layout_.chunk_ends[c], RankOf(c));
    if (RankOf(c) != rank) continue;
    stage.chunks.push_back(c);
    ChunkSpec& chunk = chunks.emplace_back();
    chunk.layers = {first, layout_.chunk_ends[c]};
    if (!layout_.recompute.empty()) chunk.recompute = layout_.recompute[c];
  }
  Rank made;
  made.model = std::make_unique<Transformer>(spec, capacity, ops, /*trainable=*/true, chunks);
  Parameters& parameters = made.model->parameters();
  parameters.Initialize(5);
  made.model->Refresh();
  ShardLayout sums = MakeShardLayout(whole_, parameters.inventory(), MakeBuckets(*made.model),
                                     {.stage_of_layer = rank_of_layer});
  sums.tied.clear();  // their sum needs the other ranks
  made.sums = std::make_unique<GradientSums>(
      ops, parameters, std::move(sums), Groups{},
      GradientSumsOptions{.local_replicas = options.virtual_replicas});
  made.stage = std::make_unique<PipelineStage>(*made.model, stage, *made.sums);
  return made;
}

void PipelineRig::Run(const StepBatch& batch, int64_t step, const std::vector<Action>& order) {
  for (Rank& rank : ranks_) rank.stage->BeginStep(batch, step);
  for (const Action& action : order) Take(action);
}

// Messages of even microbatches travel at once, those of odd ones when they are waited for, so that
// buffers live long on either side.
void PipelineRig::Take(const Action& action) {
  const int c = action.chunk, m = action.microbatch, last = layout_.placement.NumChunks() - 1;
  const bool early = m % 2 == 0;
  PipelineStage& stage = StageOf(c);
  const bool backward = action.op == Op::kBackward || action.op == Op::kBackwardInput;
  if (action.op == Op::kForward) {
    if (!early && c > 0) Send(Boundary::kOutput, c - 1, Boundary::kInput, c, m);
    DEEPNET_CHECK(stage.Forward(c, m).ok());
    if (early && c < last) Send(Boundary::kOutput, c, Boundary::kInput, c + 1, m);
  }
  if (backward && !early && c < last) {
    Send(Boundary::kInputGradient, c + 1, Boundary::kOutputGradient, c, m);
  }
  if (action.op == Op::kBackward) DEEPNET_CHECK(stage.Backward(c, m).ok());
  if (action.op == Op::kBackwardInput) DEEPNET_CHECK(stage.BackwardInput(c, m).ok());
  if (action.op == Op::kBackwardWeight) DEEPNET_CHECK(stage.BackwardWeight(c, m).ok());
  if (backward && early && c > 0) {
    Send(Boundary::kInputGradient, c, Boundary::kOutputGradient, c - 1, m);
  }
}

void PipelineRig::Send(Boundary from, int chunk, Boundary to, int receiver, int microbatch) {
  const int behind = std::max(chunk, receiver);
  if (!layout_.placement.Crosses(behind)) return;
  const std::vector<Buffer> sent = StageOf(chunk).Buffers(from, chunk, microbatch);
  const std::vector<Buffer> received = StageOf(receiver).Buffers(to, receiver, microbatch);
  const StageMessages& messages = stage_messages_[behind];
  DEEPNET_CHECK_EQ(sent.size(),
                   (from == Boundary::kOutput ? messages.forward : messages.backward).size());
  DEEPNET_CHECK_EQ(received.size(), sent.size());
  for (size_t i = 0; i < sent.size(); ++i) {
    DEEPNET_CHECK_EQ(sent[i].bytes, received[i].bytes);
    std::memcpy(received[i].data, sent[i].data, static_cast<size_t>(sent[i].bytes));
    bytes_sent_ += sent[i].bytes;
  }
  StageOf(chunk).Release(from, chunk, microbatch);
}

const std::vector<LossSums>& PipelineRig::losses() const {
  return ranks_[layout_.placement.rank_of_chunk.back()].stage->losses();
}

std::map<std::string, at::Tensor> PipelineRig::Gradients() const {
  std::map<std::string, at::Tensor> all;
  for (const Rank& rank : ranks_) {
    const Parameters& parameters = rank.model->parameters();
    const Inventory& inventory = parameters.inventory();
    for (const Use& use : parameters.uses()) {
      all[absl::StrCat(inventory.layers[use.layer].name, ":",
                       inventory.parameters[use.parameter].name)] =
          parameters.gradient().narrow(0, use.gradient_offset, use.count);
    }
  }
  return all;
}

}  // namespace deepnet::testing
