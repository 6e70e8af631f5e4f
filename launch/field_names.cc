#include "launch/field_names.h"

#include <algorithm>
#include <cstdlib>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

namespace deepnet {
namespace {

using google::protobuf::Descriptor;

// Columns: fairseq, Marian, Hugging Face, Megatron-LM, here, note. docs/peers.md has it as a table.
constexpr ForeignField kForeignFields[] = {
    {"--encoder-layers", "--enc-depth", "encoder_layers num_hidden_layers",
     "encoder-num-layers num-layers", "model.encoder_layers"},
    {"--decoder-layers", "--dec-depth", "decoder_layers num_decoder_layers", "decoder-num-layers",
     "model.decoder_layers"},
    {"--encoder-embed-dim --decoder-embed-dim", "--dim-emb", "d_model hidden_size", "hidden-size",
     "model.d_model"},
    {"--encoder-ffn-embed-dim --decoder-ffn-embed-dim", "--transformer-dim-ffn",
     "encoder_ffn_dim decoder_ffn_dim ffn_dim d_ff intermediate_size", "ffn-hidden-size",
     "model.ffn_dim"},
    {"--encoder-attention-heads --decoder-attention-heads", "--transformer-heads",
     "encoder_attention_heads decoder_attention_heads num_attention_heads num_heads",
     "num-attention-heads", "model.num_heads"},
    {"--encoder-normalize-before --decoder-normalize-before",
     "--transformer-preprocess --transformer-postprocess", "",
     "apply-residual-connection-post-layernorm", "model.residual",
     "DEEPNORM, POST_LN, PRE_LN and 19 more: docs/design/residuals.md"},
    {"--share-all-embeddings --share-decoder-input-output-embed",
     "--tied-embeddings-all --tied-embeddings", "tie_word_embeddings",
     "untie-embeddings-and-output-weights", "model.tied_embeddings"},
    {"--activation-fn", "--transformer-ffn-activation", "activation_function hidden_act", "",
     "model.activation"},
    {"--dropout", "--transformer-dropout", "dropout hidden_dropout_prob dropout_rate",
     "hidden-dropout", "model.dropout"},
    {"--attention-dropout", "--transformer-dropout-attention",
     "attention_dropout attention_probs_dropout_prob", "attention-dropout",
     "model.attention_dropout"},
    {"--activation-dropout --relu-dropout", "--transformer-dropout-ffn", "activation_dropout", "",
     "model.activation_dropout"},
    {"", "--dim-vocabs", "vocab_size", "", "model.vocabulary_size",
     "left out, the corpus says it; prepare.tokenizer.vocab_size decides it"},
    {"", "", "max_position_embeddings", "max-position-embeddings", "model.max_positions"},
    {"--max-tokens", "--mini-batch-words", "per_device_train_batch_size", "micro-batch-size",
     "data.microbatch.max_target_tokens",
     "tokens, not sentences; data.microbatch.max_sentences bounds those"},
    {"--batch-size --max-sentences", "--mini-batch", "", "", "data.microbatch.max_sentences"},
    {"--update-freq", "--optimizer-delay", "gradient_accumulation_steps", "global-batch-size",
     "data.global_microbatches",
     "microbatches of all replicas together; fairseq's and Hugging Face's count is per GPU, "
     "Megatron's is sentences"},
    {"--max-source-positions --max-target-positions", "--max-length", "", "seq-length",
     "data.max_sentence_tokens"},
    {"--sampling-temperature", "", "", "", "data.temperature"},
    {"--lang-pairs", "", "", "", "data.directions"},
    {"--sentencepiece-alpha", "--sentencepiece-alphas", "", "", "data.subword_alpha"},
    {"--mask-prob", "", "mlm_probability", "mask-prob", "data.mlm_probability"},
    {"--optimizer", "", "optim", "", "optim.optimizer"},
    {"--lr", "--learn-rate", "learning_rate", "lr", "optim.learning_rate"},
    {"--warmup-updates", "--lr-warmup", "warmup_steps", "lr-warmup-iters", "optim.warmup_steps"},
    {"--warmup-init-lr", "--lr-warmup-start-rate", "", "lr-warmup-init",
     "optim.initial_learning_rate"},
    {"--lr-scheduler", "--lr-decay-inv-sqrt", "lr_scheduler_type", "lr-decay-style",
     "optim.schedule"},
    {"--total-num-update", "", "", "lr-decay-iters", "optim.decay_steps"},
    {"", "--mini-batch-words-ref", "", "", "optim.reference_batch_tokens"},
    {"", "", "", "lr-wsd-decay-iters", "optim.wsd_decay_steps"},
    {"--min-lr", "", "", "min-lr", "optim.final_learning_rate"},
    {"--adam-betas", "--optimizer-params", "adam_beta1", "adam-beta1", "optim.beta1",
     "and optim.beta2"},
    {"", "", "adam_beta2", "adam-beta2", "optim.beta2"},
    {"--adam-eps", "", "adam_epsilon", "adam-eps", "optim.epsilon"},
    {"--weight-decay", "", "weight_decay", "weight-decay", "optim.weight_decay"},
    {"--clip-norm", "--clip-norm", "max_grad_norm", "clip-grad", "optim.clip_norm"},
    {"--label-smoothing", "--label-smoothing", "label_smoothing_factor", "label-smoothing",
     "optim.label_smoothing"},
    {"--ema-decay", "--exponential-smoothing", "", "", "optim.ema_decay", "Marian's is 1 minus it"},
    {"--max-update", "--after", "max_steps", "train-iters", "train.steps"},
    {"--stop-time-hours", "", "", "exit-duration-in-mins", "train.exit_after_minutes"},
    {"--save-interval-updates", "--save-freq", "save_steps", "save-interval",
     "train.checkpoint_every_steps"},
    {"--validate-interval-updates", "--valid-freq", "eval_steps", "eval-interval",
     "train.validate_every_steps"},
    {"--patience", "--early-stopping", "early_stopping_patience", "", "train.patience"},
    {"--keep-interval-updates", "", "save_total_limit", "", "train.keep_checkpoints"},
    {"--log-interval", "--disp-freq", "logging_steps", "log-interval", "train.log_every_steps"},
    {"--save-dir", "--model", "output_dir", "save", "folder"},
    {"--beam", "--beam-size", "num_beams", "", "decode.beam_size"},
    {"--lenpen", "--normalize", "", "", "decode.length_penalty"},
    {"--sampling-topk", "", "top_k", "", "decode.sampling_top_k"},
    {"--sampling-topp", "", "top_p", "", "decode.sampling_top_p"},
    {"", "", "epsilon_cutoff", "", "decode.sampling_epsilon"},
    {"--fp16-init-scale", "", "", "initial-loss-scale", "optim.fp16_init_scale"},
    {"--fp16-scale-window", "", "", "loss-scale-window", "optim.fp16_scale_window"},
    {"--fp16-scale-tolerance", "", "", "", "optim.fp16_scale_tolerance"},
    {"--min-loss-scale", "", "", "min-loss-scale", "optim.min_loss_scale"},
    {"--threshold-loss-scale", "", "", "", "optim.threshold_loss_scale"},
    {"--bf16 --fp16", "--precision --fp16", "bf16 fp16 torch_dtype", "bf16 fp16", "compute.dtype",
     "BFLOAT16, FLOAT32 or, on GPUs, FLOAT16"},
    {"--cpu", "", "no_cuda use_cpu", "", "compute.device", "auto, cpu or cuda"},
    {"", "--cpu-threads", "", "", "compute.threads_per_rank"},
    {"", "", "", "pipeline-model-parallel-size", "parallel.pipeline_parallel_size"},
    {"--distributed-world-size", "--devices", "", "data-parallel-size",
     "parallel.data_parallel_size", "left out, the planner decides it"},
    {"", "", "", "virtual-pipeline-model-parallel-size num-layers-per-virtual-pipeline-stage",
     "parallel.virtual_pipeline_size"},
    {"--checkpoint-activations", "", "gradient_checkpointing", "recompute-granularity",
     "parallel.recompute", "left out, the planner decides it"},
    {"", "", "", "distributed-timeout-minutes", "parallel.comm_timeout_seconds"},
    {"", "", "", "tensor-model-parallel-size tensor-parallel-size", "",
     "no tensor parallelism: depth is the problem here, not width"},
    {"", "", "", "context-parallel-size sequence-parallel", "",
     "no sequence parallelism: sentences are short, depth is the problem"},
    {"--arch", "--type", "model_type", "", "",
     "an architecture has no name: model says layers, widths and residual"},
    {"--max-epoch", "--after-epochs", "num_train_epochs", "", "",
     "sentences are drawn by temperature, not in epochs: train.steps or train.max_train_minutes"},
};

struct ProgramColumn {
  const char* program;
  const char* const ForeignField::*names;
};
constexpr ProgramColumn kPrograms[] = {{"fairseq", &ForeignField::fairseq},
                                       {"Marian", &ForeignField::marian},
                                       {"Hugging Face", &ForeignField::hugging_face},
                                       {"Megatron-LM", &ForeignField::megatron}};

std::vector<std::string> NamesIn(const ForeignField& foreign, const ProgramColumn& column) {
  return absl::StrSplit(foreign.*column.names, ' ', absl::SkipEmpty());
}

// "--Dim-Emb" and "dim_emb" are one name.
std::string PlainName(const std::string& name) {
  const size_t start = std::min(name.find_first_not_of('-'), name.size());
  return absl::StrReplaceAll(absl::AsciiStrToLower(name.substr(start)), {{"-", "_"}});
}

// The end of the sentence about a field of other programs; empty: no program has it.
std::string ForeignText(const std::string& name) {
  const std::string plain = PlainName(name);
  for (const ForeignField& foreign : kForeignFields) {
    for (const ProgramColumn& column : kPrograms) {
      for (const std::string& theirs : NamesIn(foreign, column)) {
        if (PlainName(theirs) != plain) continue;
        const std::string whose = absl::StrCat(column.program, "'s ", theirs);
        const std::string field = foreign.field, note = foreign.note;
        if (field.empty()) return absl::StrCat("; ", whose, " is not here: ", note);
        return absl::StrCat("; did you mean '", field, "' (", whose, ")?",
                            note.empty() ? "" : absl::StrCat(" ", note));
      }
    }
  }
  return "";
}

}  // namespace

int EditDistance(std::string_view a, std::string_view b) {
  // distance[i][j]: between the first i letters of a and the first j of b.
  std::vector<std::vector<int>> distance(a.size() + 1, std::vector<int>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        distance[i][j] = static_cast<int>(i + j);
        continue;
      }
      const int replaced = distance[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      distance[i][j] = std::min({replaced, distance[i - 1][j] + 1, distance[i][j - 1] + 1});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) distance[i][j] = std::min(distance[i][j], distance[i - 2][j - 2] + 1);
    }
  }
  return distance[a.size()][b.size()];
}

std::optional<std::string> NearestName(std::string_view name,
                                       const std::vector<std::string>& candidates) {
  std::optional<std::string> best;
  int best_distance = 0;
  for (const std::string& candidate : candidates) {
    // The distance is no less than the difference in length, and above half of the name nothing is
    // near; so a name of thousands of letters costs nothing.
    const auto longer = static_cast<int>(candidate.size()) - static_cast<int>(name.size());
    if (2 * std::abs(longer) > static_cast<int>(name.size())) continue;
    const int distance =
        EditDistance(absl::AsciiStrToLower(std::string(name)), absl::AsciiStrToLower(candidate));
    if (!best.has_value() || distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  if (best.has_value() && 2 * best_distance > static_cast<int>(name.size())) return std::nullopt;
  return best;
}

std::string SuggestName(std::string_view name, const std::vector<std::string>& candidates) {
  const std::optional<std::string> nearest = NearestName(name, candidates);
  if (nearest.has_value()) return absl::StrCat("; did you mean '", *nearest, "'?");
  return absl::StrCat("; there are: ", absl::StrJoin(candidates, ", "));
}

std::span<const ForeignField> ForeignFields() { return kForeignFields; }

std::string NoSuchField(const Descriptor& type, const std::string& name) {
  const std::string problem = absl::StrCat(type.name(), " has no field '", name, "'");
  const std::string plain = PlainName(name);
  if (type.FindFieldByName(plain) != nullptr) {  // dashes, capitals
    return absl::StrCat(problem, "; did you mean '", plain, "'?");
  }
  const std::string foreign = ForeignText(name);
  if (!foreign.empty()) return problem + foreign;
  std::vector<std::string> names;
  for (int i = 0; i < type.field_count(); ++i) names.push_back(type.field(i)->name());
  return problem + SuggestName(name, names);
}

}  // namespace deepnet
