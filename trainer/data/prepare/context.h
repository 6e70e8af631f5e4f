// PrepareContext has what the stages of Prepare() share: options, ranks, what earlier stages found.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "parallel/base/clock.h"
#include "parallel/base/file_system.h"
#include "parallel/comm/agreement.h"
#include "proto/data.pb.h"
#include "proto/prepare.pb.h"
#include "trainer/data/prepare/cleaning.h"
#include "trainer/data/prepare/options.h"
#include "trainer/data/prepare/parallel_text.h"
#include "trainer/data/prepare/parts.h"

namespace deepnet {

struct PrepareContext {
  bool IsFirst() const { return world.rank() == 0; }
  // Returns the ranks that do `count` things which are dealt in turn.
  std::vector<int> OwnersInTurn(size_t count) const;
  bool IsMine(size_t number) const;                                // of those
  std::string Scratch() const { return temporary + kScratch; }     // for finished parts
  std::string OutputScratch() const { return output + kScratch; }  // once the corpus is published
  // For unfinished files, of this rank in this preparation alone: a rank that a killed job left
  // overwrites nothing.
  std::string OwnFolder() const;
  double Seconds() const { return SecondsNow() - start; }
  void Say(const std::string& line) const;
  void Warn(const std::string& what) const;  // nothing if there is nothing to say

  // AgreeOnStatus with the exit code of data. Collective.
  absl::Status Agree(const absl::Status& mine);

  // Returns the parts of all ranks, where part i is the next one of rank owners[i]. Collective.
  absl::StatusOr<std::vector<PreparedPart>> AllGatherParts(const CorpusParts& mine,
                                                           const std::vector<int>& owners);

  // Keeps a part that this rank has finished: moves its files from OwnFolder() to `parts`, where
  // one of that name has the same contents.
  absl::Status Keep(const std::string& name, const PreparedPart& part);

  // Notes the hash of an input once it was read to its end.
  void NoteInput(const LineReader& file);

  // Returns the filter of this corpus's text; `held_out` is sealed before training text is judged.
  TextFilter Filter() const { return {spec.cleaning(), languages, &held_out}; }

  // Reads the texts of one split of a language pair and calls `visit` with every pair and what the
  // filter says of it. Notes the files of dev and test, which are read once.
  absl::Status JudgeTexts(
      const LanguagePairTexts& texts, std::string_view split,
      const std::function<absl::Status(DropReason, const RawPair&, const PairReader&)>& visit);

  static constexpr char kScratch[] = "/.deepnet-scratch";  // in the temporary folder

  // The arguments of Prepare(), borrowed.
  const PrepareSpec& spec;
  const std::string& output;  // absolute
  const std::string& root;
  const ProgressFn& progress;
  const PrepareOptions& options;

  const std::unique_ptr<FileSystem> files = MakePosixFileSystem();
  SelfCommunicator alone = {};
  Communicator& world = options.world != nullptr ? *options.world : alone;
  // Becomes `output`, or lies in it if that is a mount point.
  const std::string temporary =
      IsMountPoint(output) ? JoinPath(output, kUnfinishedEnd) : output + kUnfinishedEnd;
  const double start = SecondsNow();
  const PartStore parts = PartStore(Scratch());
  bool has_parts = false;       // there is something to continue with
  bool all_have_ended = false;  // with an error: no rank reads or writes any more

  // Found by the first stages.
  std::string token = {};  // of this preparation: a rank that an earlier one left has another
  int num_threads = spec.threads() > 0 ? spec.threads() : 2;  // of this rank
  std::vector<std::string> host_cores = {};            // UsableCoreList of the ranks of this host
  std::vector<LanguagePairTexts> texts = {};           // in the order of their names
  std::vector<const LanguagePairTexts*> trained = {};  // those of `texts` with training text
  std::map<std::string, InputFile> inputs = {};        // by path
  std::vector<std::string> languages = {};             // sorted
  HeldOutSentences held_out = {};
  std::vector<PreparedPart> scans = {};  // of `trained`
};

}  // namespace deepnet
