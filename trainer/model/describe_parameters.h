// The parameters of a model, appended layer by layer in flat order with what they start at:
// matrices with their deviation, vectors with their value. Which there are follows from the model's
// scheme (trainer/model/scheme.h); names are those of trainer/model/describe.h. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "parallel/plan/inventory.h"
#include "proto/model.pb.h"
#include "trainer/model/scheme.h"

namespace deepnet {

// A sub-layer's place, and what the model's scheme makes of it.
struct Sublayer {
  int stack = 0;
  int layer = 0;
  SublayerKind kind = SublayerKind::kSelfAttention;
  SublayerScheme scheme;
  std::string prefix;  // "encoder.layers.3."
};

Sublayer MakeSublayer(const ModelSpec& model, int stack, int layer, SublayerKind kind);

// Every Add* appends to the layer that was added to the Inventory last. The offset of a parameter
// is the number of elements appended before it. Tied matrices are appended where they are used
// first and referred to from later layers by index.
class ParameterList {
 public:
  // Both must outlive the list; `inventory` has no parameters yet.
  ParameterList(const ModelSpec& model, Inventory& inventory)
      : model_(model), inventory_(inventory) {}

  // Tokens, learned positions and the norm behind them.
  void AddSourceEmbedding();
  void AddTargetEmbedding();
  void AddAttention(const Sublayer& sublayer);
  void AddFeedForward(const Sublayer& sublayer);
  // DLCL: weights of what layer `index` reads and the norm of its output; with the last layer, the
  // weights of what leaves the stack.
  void AddHistory(int stack, int index);
  void AddStackEnd(int stack);
  void AddOutput();

 private:
  int64_t Width() const { return model_.d_model(); }
  int64_t FfnWidth() const { return model_.ffn_dim(); }

  void AddParameter(Parameter parameter);
  void AddUse(std::string_view name);
  void AddTable(std::string name, Role role, int64_t rows, int zero_row, double gain);
  bool SharesTable() const;  // one matrix for both embeddings and the output
  void AddPositions(int stack);
  void AddWeight(const std::string& block, Role role, int64_t out, int64_t in, double gain);
  void AddBias(const std::string& block, Role role, int64_t out);
  void AddNorm(const std::string& block, int64_t features);
  void AddVector(std::string name, Role role, int64_t size, double value);
  void AddQueryKeyValue(const std::string& block, const Sublayer& sublayer);
  void AddLast(const std::string& block, Role role, int64_t in, const Sublayer& sublayer);
  void AddJoin(const Sublayer& sublayer);
  void AddShifts(const Sublayer& sublayer);

  const ModelSpec& model_;
  Inventory& inventory_;
  int64_t offset_ = 0;
};

}  // namespace deepnet
