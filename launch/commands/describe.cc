// Everything printed here is read off two values: StackScaling and Inventory. Parameters that share
// layer kind, role, shape and initial value are one line of the table; so are layers of a kind.

#include "trainer/model/describe.h"

#include <algorithm>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

#include "launch/commands/command.h"
#include "launch/validate.h"
#include "parallel/base/json.h"
#include "parallel/base/logging.h"
#include "parallel/base/status_macros.h"
#include "parallel/base/units.h"
#include "parallel/plan/inventory.h"
#include "trainer/model/architecture.h"
#include "trainer/model/scheme.h"

namespace deepnet {
namespace {

constexpr char kRow[] = "%-17s %14s %15s %15s\n";

// "0.2500", or "0.2500..1.0000" where the two differ.
std::string Text(const ValueRange& range) {
  if (range.least == range.greatest) return absl::StrFormat("%.4f", range.least);
  return absl::StrFormat("%.4f..%.4f", range.least, range.greatest);
}

std::string ScalingText(const ModelSpec& model) {
  std::string text =
      absl::StrFormat(kRow, Residual_Name(model.residual()), "alpha", "beta", "q, k");
  for (const int stack : {0, 1}) {
    if (LayersOf(model, stack) == 0) continue;
    const StackScaling scaling = MakeStackScaling(model, stack);
    absl::StrAppendFormat(&text, kRow, stack == 0 ? "  encoder" : "  decoder", Text(scaling.alpha),
                          Text(scaling.beta), Text(scaling.query_key));
  }
  return text +
         "alpha: on the stream; gains of Xavier's deviation: beta of v, out, fc1 and fc2, and of "
         "q, k\n";
}

// Returns how stack `stack`, 0 the encoder, is scaled, for programs.
JsonObject ScalingJson(const ModelSpec& model, int stack) {
  const StackScaling scaling = MakeStackScaling(model, stack);
  return JsonObject()
      .Add("layers", LayersOf(model, stack))
      .Add("least_alpha", scaling.alpha.least, 9)
      .Add("greatest_alpha", scaling.alpha.greatest, 9)
      .Add("least_beta", scaling.beta.least, 9)
      .Add("greatest_beta", scaling.beta.greatest, 9)
      .Add("least_query_key", scaling.query_key.least, 9)
      .Add("greatest_query_key", scaling.query_key.greatest, 9);
}

// Parameters that only differ in the layer they stand in.
struct ParameterGroup {
  LayerKind kind;         // of the layer that owns them
  const Parameter* like;  // the first one
  int64_t tensors = 0;
  int64_t elements = 0;
};

std::vector<ParameterGroup> GroupParameters(const Inventory& inventory) {
  std::vector<ParameterGroup> groups;
  int next = 0;  // owned by the first layer that lists it
  for (const Layer& layer : inventory.layers) {
    for (const int i : layer.parameters) {
      if (i < next) continue;
      next = i + 1;
      const Parameter& p = inventory.parameters[i];
      auto group = std::find_if(groups.begin(), groups.end(), [&](const ParameterGroup& g) {
        return g.kind == layer.kind && g.like->role == p.role && g.like->shape == p.shape &&
               g.like->initial_std == p.initial_std && g.like->initial_value == p.initial_value;
      });
      if (group == groups.end()) group = groups.insert(groups.end(), {layer.kind, &p});
      ++group->tensors;
      group->elements += p.NumElements();
    }
  }
  return groups;
}

// All layers of one kind: they cost the same.
struct LayerGroup {
  const Layer* first;
  const Layer* last;
  int count = 0;
  int64_t elements = 0;  // of one layer
  // These bytes are kept by a layer, with an embedding's stream and the first branch's input, which
  // the layer behind it holds.
  ActivationBytes kept = {};
};

std::vector<LayerGroup> GroupLayers(const Inventory& inventory) {
  std::vector<LayerGroup> groups;
  for (const Layer& layer : inventory.layers) {
    if (groups.empty() || groups.back().first->kind != layer.kind) {
      LayerGroup& group = groups.emplace_back(LayerGroup{&layer, &layer});
      for (const int i : layer.parameters) group.elements += inventory.parameters[i].NumElements();
      group.kept = layer.kept[NONE];
      if (layer.looks_up) {
        const Layer& next = inventory.layers[layer.position + 1];
        const int64_t elements = inventory.stacks[next.stack].stream_elements;
        group.kept.bytes += 4 * elements;
        group.kept.operands += elements;
      }
    }
    groups.back().last = &layer;
    ++groups.back().count;
  }
  return groups;
}

std::string BoundaryText(const Layer& layer) {
  if (layer.inputs.empty()) return "-";
  return absl::StrJoin(layer.inputs, ", ", [](std::string* out, const BoundaryTensor& tensor) {
    absl::StrAppend(out, tensor.name, " ", absl::StrJoin(tensor.shape, "x"));
  });
}

std::string InitialText(const Parameter& p) {
  return p.initial_std > 0 ? absl::StrFormat("N(0, %.6f)", p.initial_std)
                           : absl::StrFormat("%g", p.initial_value);
}

std::string HeadText(const ModelSpec& model, const Inventory& inventory) {
  std::string text = absl::StrFormat(
      "%s, width %d, inner width %d, %d heads, %s rows of vocabulary\n", LayersText(model),
      model.d_model(), model.ffn_dim(), model.num_heads(), WithCommas(model.vocabulary_size()));
  absl::StrAppendFormat(
      &text, "%s parameters in %s tensors, inventory %s\n\n", WithCommas(inventory.NumElements()),
      WithCommas(static_cast<int64_t>(inventory.parameters.size())), inventory.Hash());
  return text + ScalingText(model);
}

constexpr char kGroupRow[] = "%-17s %-17s %12s %8s %14s  %s\n";

// One row per kind of matrix; of vectors, one row per kind of layer and value they start at.
std::string ParameterGroupsText(const ModelSpec& model, const Inventory& inventory) {
  std::string text = absl::StrFormat(kGroupRow, "parameters of", "role", "shape", "tensors",
                                     "elements", "start at");
  const auto append = [&](const ParameterGroup& group, const std::string& role,
                          const std::string& shape) {
    absl::StrAppendFormat(&text, kGroupRow, KindNameIn(model, group.kind), role, shape,
                          WithCommas(group.tensors), WithCommas(group.elements),
                          InitialText(*group.like));
  };
  std::vector<ParameterGroup> vectors;
  for (const ParameterGroup& group : GroupParameters(inventory)) {
    if (group.like->initial_std > 0) {
      append(group, std::string(RoleName(group.like->role)), absl::StrJoin(group.like->shape, "x"));
      continue;
    }
    auto same = std::find_if(vectors.begin(), vectors.end(), [&](const ParameterGroup& g) {
      return g.kind == group.kind && g.like->initial_value == group.like->initial_value;
    });
    if (same == vectors.end()) same = vectors.insert(vectors.end(), {group.kind, group.like});
    same->tensors += group.tensors;
    same->elements += group.elements;
  }
  for (const ParameterGroup& group : vectors) {
    append(group, group.like->role == Role::kNormGain ? "norm gains" : "biases", "");
  }
  return text;
}

std::string LayerGroupsText(const ModelSpec& model, const Inventory& inventory) {
  std::string text =
      absl::StrFormat("%-17s %5s %13s %10s %10s %10s  %s\n", "layers", "count", "elements", "GFLOP",
                      "state MiB", "operands M", "a cut before it carries");
  for (const LayerGroup& group : GroupLayers(inventory)) {
    const Layer& layer = *group.first;
    absl::StrAppendFormat(&text, "%-17s %5d %13s %10.4g %10.4g %10.4g  %s\n",
                          KindNameIn(model, layer.kind), group.count, WithCommas(group.elements),
                          layer.forward_flops / 1e9, group.kept.bytes / kMib,
                          group.kept.operands / 1e6, BoundaryText(layer));
    absl::StrAppend(&text, "  ", layer.name,
                    group.count == 1 ? "" : absl::StrCat(" .. ", group.last->name), "\n");
  }
  absl::StrAppend(
      &text,
      "Each layer; GFLOP: forward pass of a full microbatch. Kept for its backward pass: "
      "float32\nstate, and millions of elements of the type of the products' operands.\n");
  return text;
}

std::string ParametersText(const Inventory& inventory) {
  std::string text;
  for (const Parameter& p : inventory.parameters) {
    absl::StrAppendFormat(&text, "%-54s %13s  %-17s %-16s %d\n", p.name,
                          absl::StrJoin(p.shape, "x"), std::string(RoleName(p.role)),
                          InitialText(p), p.offset);
  }
  return text;
}

JsonObject ParameterJson(const Parameter& p) {
  return JsonObject()
      .Add("name", p.name)
      .Add("shape", p.shape)
      .Add("role", RoleName(p.role))
      .Add("initial_std", p.initial_std, 9)
      .Add("initial_value", p.initial_value, 6)
      .Add("offset", p.offset);
}

JsonObject BoundaryJson(const BoundaryTensor& tensor) {
  return JsonObject()
      .Add("name", tensor.name)
      .Add("shape", tensor.shape)
      .Add("dtype", tensor.dtype)
      .Add("needs_gradient", tensor.needs_gradient);
}

std::string Json(const ModelSpec& model, const Inventory& inventory, bool with_parameters) {
  const auto group_json = [&](const ParameterGroup& group) {
    return JsonObject()
        .Add("layer", KindNameIn(model, group.kind))
        .Add("role", RoleName(group.like->role))
        .Add("shape", group.like->shape)
        .Add("tensors", group.tensors)
        .Add("elements", group.elements)
        .Add("initial_std", group.like->initial_std, 9)
        .Add("initial_value", group.like->initial_value, 6);
  };
  const auto layer_json = [&](const LayerGroup& group) {
    return JsonObject()
        .Add("kind", KindNameIn(model, group.first->kind))
        .Add("count", group.count)
        .Add("first", group.first->name)
        .Add("last", group.last->name)
        .Add("elements", group.elements)
        .Add("forward_flops", group.first->forward_flops)
        .Add("activation_bytes", group.kept.bytes)
        .Add("activation_operands", group.kept.operands)
        .Add("inputs", JsonObjects(group.first->inputs, BoundaryJson));
  };
  JsonObject json;
  json.Add("architecture", Architecture_Name(model.architecture()))
      .Add("residual", Residual_Name(model.residual()))
      .Add("encoder", ScalingJson(model, 0))
      .Add("decoder", ScalingJson(model, 1))
      .Add("parameters", inventory.NumElements())
      .Add("tensors", inventory.parameters.size())
      .Add("inventory_hash", inventory.Hash())
      .Add("initial_values", JsonObjects(GroupParameters(inventory), group_json))
      .Add("layers", JsonObjects(GroupLayers(inventory), layer_json));
  if (with_parameters) json.Add("tensor_list", JsonObjects(inventory.parameters, ParameterJson));
  return JsonOf(json) + "\n";
}

absl::Status RunDescribe(const CommandLine& line) {
  ASSIGN_OR_RETURN(const RunSpec run, LoadRunSpec(line));
  const Inventory inventory = Describe(run.model(), run.data().microbatch());
  const bool with_parameters = line.flags.Switch("parameters");
  if (line.flags.Switch("json")) {
    line.out << Json(run.model(), inventory, with_parameters);
  } else if (with_parameters) {
    line.out << ParametersText(inventory);
  } else {
    line.out << HeadText(run.model(), inventory) << "\n"
             << ParameterGroupsText(run.model(), inventory) << "\n"
             << LayerGroupsText(run.model(), inventory);
  }
  return absl::OkStatus();
}

}  // namespace

Command MakeDescribeCommand() {
  return {.name = "describe",
          .summary = "Print layers, parameters, initial values and costs of a model.",
          .description =
              "Prints how each stack is scaled, how many parameters there are and how they start, "
              "what a layer of each kind costs and what a cut before it would carry. Allocates "
              "nothing and reads no corpus: works for models larger than this machine.",
          .spec = SpecUse::kRequired,
          .plans = true,
          .validate = ValidateForPlan,
          .flags = {SwitchFlag("parameters",
                               "List every parameter: name, shape, role, initial value, first "
                               "element in flat order."),
                    JsonFlag()},
          .run = RunDescribe};
}

}  // namespace deepnet
