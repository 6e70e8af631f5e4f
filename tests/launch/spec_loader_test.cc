#include "launch/spec_loader.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <google/protobuf/util/json_util.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "launch/defaults.h"
#include "launch/field_names.h"
#include "launch/spec_printer.h"
#include "parallel/base/exit_code.h"

namespace deepnet {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::Gt;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::StartsWith;

class SpecLoader : public ::testing::Test {
 protected:
  SpecLoader() {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = std::filesystem::path(::testing::TempDir()) / "spec_loader" / test->name();
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }

  std::string Write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name) << text;
    return name;
  }

  absl::StatusOr<RunSpec> Read(const std::vector<std::string>& files,
                               const std::vector<std::string>& sets = {}) {
    return ReadRunSpec({.root = folder_, .files = files, .sets = sets}, RunSpec());
  }

  std::string Error(const std::vector<std::string>& files,
                    const std::vector<std::string>& sets = {}) {
    const auto run = Read(files, sets);
    if (run.ok()) return "";
    EXPECT_EQ(GetExitCode(run.status()), ExitCode::kBadConfig);
    return std::string(run.status().message());
  }

  RunSpec Set(const std::string& set) {
    const auto run = Read({}, {set});
    EXPECT_TRUE(run.ok()) << run.status();
    return run.value_or(RunSpec());
  }

  std::filesystem::path folder_;
};

TEST_F(SpecLoader, ReadsATextprotoBelowTheRoot) {
  const auto run =
      Read({Write("tiny.textproto", "seed: 7 model { d_model: 64 residual: PRE_LN }")});
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->seed(), 7);
  EXPECT_EQ(run->model().d_model(), 64);
  EXPECT_EQ(run->model().residual(), PRE_LN);
}

TEST_F(SpecLoader, NamesAByteOrderMarkAndWhatIsNotUtf8) {
  for (const char* name : {"windows.textproto", "windows.json"}) {
    const bool json = absl::EndsWith(name, "json");
    Write(name, absl::StrCat("\xef\xbb\xbf", json ? "{\"seed\": 7}" : "seed: 7"));
    EXPECT_EQ(Error({name}), absl::StrCat(name,
                                          ": begins with a byte order mark: save it as UTF-8 "
                                          "without one"));
    Write(name, std::string("\xff\xfes\0e\0", 6));
    EXPECT_EQ(Error({name}), absl::StrCat(name,
                                          ": UTF-16, convert it to UTF-8 (iconv -f UTF-16 "
                                          "-t UTF-8)"));
  }
  std::filesystem::create_directory(folder_ / "folder");
  EXPECT_THAT(Error({"folder"}), HasSubstr("folder: cannot be read: "));
}

TEST_F(SpecLoader, ANumberWithACommaIsNamed) {
  constexpr char kComma[] = "a number has a decimal point, and no comma: 0.5, 1000";
  Write("comma.textproto", "seed: 1\noptim { learning_rate: 0,005 }\ntrain { steps: 50,000 }\n");
  EXPECT_THAT(Error({"comma.textproto"}), HasSubstr(absl::StrCat("comma.textproto:2: ", kComma)));
  for (const char* set : {"optim.learning_rate=0,005", "train.steps=50,000"}) {
    EXPECT_THAT(Error({}, {set}), HasSubstr(absl::StrCat("--set ", set, ": ", kComma)));
  }
  EXPECT_TRUE(Read({}, {"data.directions=de-en,en-de"}).ok());
  EXPECT_EQ(Error({}, {"train.steps=10 000"}), "--set train.steps=10 000: one value is needed");
}

TEST_F(SpecLoader, ARunWithoutANameIsCalledAsItsLastFile) {
  Write("a.textproto", "seed: 1");
  Write("b.textproto", "seed: 2");
  EXPECT_EQ(Read({"a.textproto", "b.textproto"})->name(), "b");
  EXPECT_EQ(Read({"a.textproto"}, {"name=mine"})->name(), "mine");
  Write("k\xe4se.textproto", "seed: 1");
  EXPECT_EQ(Read({"k\xe4se.textproto"})->name(), "k\\xe4se");
}

TEST_F(SpecLoader, AllMistakesOfATextprotoAreNamedWithTheirLines) {
  Write("bad.textproto",
        "seed: 1\n"
        "model {\n"
        "  encoder_layerz: 3\n"
        "  residual: DEEPNROM\n"
        "  d_model: \"wide\"\n"
        "  num_heads: 4\n"
        "}\n"
        "optimm { rate: 1 }\n");
  EXPECT_EQ(Error({"bad.textproto"}),
            "bad.textproto:3: ModelSpec has no field 'encoder_layerz'; did you mean "
            "'encoder_layers'?\n"
            "bad.textproto:4: residual has no value 'DEEPNROM'; did you mean 'DEEPNORM'?\n"
            "bad.textproto:5: Expected integer, got: \"wide\"\n"
            "bad.textproto:8: RunSpec has no field 'optimm'; did you mean 'optim'?");
}

TEST_F(SpecLoader, ATornTextprotoIsRefusedWithItsLine) {
  Write("torn.textproto", "model {\n  d_model: 64\n");
  EXPECT_THAT(Error({"torn.textproto"}), HasSubstr("torn.textproto:3: Expected"));
}

TEST_F(SpecLoader, AMillionLevelsAreAMistakeOfTheirLine) {
  std::string deep = "seed: 1\nmodel ", brackets = "model: ";
  for (int i = 0; i < 1'000'000; ++i) {
    deep += "{x ";
    brackets += "[";
  }
  Write("deep.textproto", deep);
  EXPECT_THAT(Error({"deep.textproto"}), HasSubstr("deep.textproto:2: Message is too deep"));
  Write("brackets.textproto", brackets);
  EXPECT_THAT(Error({"brackets.textproto"}), HasSubstr("brackets.textproto:1: "));
  EXPECT_FALSE(Error({}, {"data.temperature=" + deep.substr(deep.find('{'))}).empty());
}

TEST_F(SpecLoader, AFileOfUnknownFieldsIsNotListedToItsEnd) {
  std::string text;
  for (int i = 0; i < 100'000; ++i) text += "a" + std::to_string(i) + ": 1\n";
  Write("many.textproto", text);
  const std::string error = Error({"many.textproto"});
  EXPECT_EQ(std::count(error.begin(), error.end(), '\n'), 999);
}

TEST_F(SpecLoader, AConfigurationMayComeFromAPipeAndIsBounded) {
  const std::string pipe = folder_ / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  std::thread writer([&] { std::ofstream(pipe) << "seed: 7"; });
  EXPECT_EQ(Read({"pipe"})->seed(), 7);
  writer.join();
  Write("huge.textproto", "seed: 7");
  std::filesystem::resize_file(folder_ / "huge.textproto", uintmax_t{64} << 30);
  for (const std::string file : {"huge.textproto", "/dev/zero"}) {
    EXPECT_THAT(Error({file}), AllOf(HasSubstr(file), HasSubstr("more than 67108864 bytes")));
  }
  EXPECT_THAT(Error({"."}), HasSubstr(".: cannot be read: "));
}

TEST_F(SpecLoader, AMissingValueIsOneMistake) {
  Write("bad.textproto", "model {\n  d_model:\n  num_heads: 4\n}\n");
  EXPECT_EQ(Error({"bad.textproto"}), "bad.textproto:3: Expected integer, got: num_heads");
}

TEST_F(SpecLoader, AnUnknownValueIsNamedAlsoBeforeAFieldThatBeginsWithIt) {
  Write("bad.textproto", "model {\n  residual: num\n  num_heads: 4\n  d_modle: 3\n}\n");
  EXPECT_THAT(Error({"bad.textproto"}),
              AllOf(StartsWith("bad.textproto:2: residual has no value 'num'; there are: "),
                    EndsWith("\nbad.textproto:4: ModelSpec has no field 'd_modle'; did you mean "
                             "'d_model'?")));
}

TEST(SpecPrinter, SaysWhatIsNotSetAndLeavesOutWhatItDoesNotKnow) {
  RunSpec run;
  run.set_seed(7);
  run.mutable_instruments()->set_every_steps(5);
  EXPECT_THAT(ToCompleteTextproto(run), AllOf(HasSubstr("\n  # length_penalty: not set\n"),
                                              HasSubstr("\n  every_steps: 5\n")));
  const std::string text = ToTextproto(run);
  run.GetReflection()->MutableUnknownFields(&run)->AddVarint(100000, 1);
  EXPECT_EQ(ToTextproto(run), text);
}

TEST_F(SpecLoader, MistakesOfAllSourcesAreListedTogether) {
  Write("a.textproto", "sead: 1");
  Write("b.json", R"({"model": {"d_modle": 3}})");
  EXPECT_EQ(
      Error({"a.textproto", "b.json", "absent.textproto"}, {"model.num_headz=3", "seed"}),
      "a.textproto:1: RunSpec has no field 'sead'; did you mean 'seed'?\n"
      "b.json: model.d_modle: ModelSpec has no field 'd_modle'; did you mean 'd_model'?\n"
      "absent.textproto: cannot be read: cannot open '" +
          (folder_ / "absent.textproto").string() +
          "': No such file or directory\n"
          "--set model.num_headz=3: ModelSpec has no field 'num_headz'; did you mean 'num_heads'?\n"
          "--set seed: needs the form FIELD=VALUE");
}

TEST_F(SpecLoader, AFieldUnlikeAnyOtherGetsTheWholeList) {
  EXPECT_THAT(Error({}, {"xyzzyxyzzy=1"}), HasSubstr("there are: name, seed, folder, model"));
}

TEST_F(SpecLoader, JsonReadsTheSameRunByEitherSpelling) {
  Write("a.textproto",
        "seed: 9 model { encoder_layers: 3 residual: DEEPNORM dropout: 0.1 "
        "unscaled_embedding: true }"
        "data { directions: 'de-en' temperature { temperature: 5 } } optim { warmup_steps: 0 }");
  Write("a.json",
        R"({"seed": "9", "model": {"encoderLayers": 3, "residual": "DEEPNORM", "dropout": 0.1,
                                    "unscaledEmbedding": true},
            "data": {"directions": ["de-en"], "temperature": [{"temperature": 5}]},
            "optim": {"warmup_steps": 0}})");
  const auto text = Read({"a.textproto"}), json = Read({"a.json"});
  ASSERT_TRUE(text.ok()) << text.status();
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(*text, *json));
}

TEST_F(SpecLoader, AllMistakesOfAJsonFileAreNamedByTheirPaths) {
  Write("bad.json", R"({"model": {"d_model": "wide", "residual": "POSTLN", "num_heads": 2.5,
                                  "unscaled_embedding": "yes", "dropout": "much"},
                        "data": {"directions": "de-en", "folder": 3}, "seed": true,
                        "optim": 3})");
  EXPECT_EQ(Error({"bad.json"}),
            "bad.json: data.directions: a list is needed\n"
            "bad.json: data.folder: a string is needed\n"
            "bad.json: model.d_model: a whole number is needed\n"
            "bad.json: model.dropout: a number is needed\n"
            "bad.json: model.num_heads: a whole number is needed\n"
            "bad.json: model.residual: residual has no value 'POSTLN'; did you mean 'POST_LN'?\n"
            "bad.json: model.unscaled_embedding: true or false is needed\n"
            "bad.json: optim: an object is needed\n"
            "bad.json: seed: a whole number is needed");
  Write("torn.json", R"({"model": {)");
  EXPECT_THAT(Error({"torn.json"}), HasSubstr("torn.json: not JSON: "));
}

TEST_F(SpecLoader, ALaterFileWinsFieldByFieldAndReplacesLists) {
  Write("a.textproto",
        "model { d_model: 64 num_heads: 4 } data { directions: ['de-en', 'en-de'] }");
  Write("b.textproto", "model { d_model: 128 } data { directions: 'fr-en' }");
  Write("c.json", R"({"model": {"num_heads": 8}, "data": {"directions": ["it-en"]}})");
  const auto run = Read({"a.textproto", "b.textproto"});
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->model().d_model(), 128);
  EXPECT_EQ(run->model().num_heads(), 4);
  EXPECT_THAT(run->data().directions(), ElementsAre("fr-en"));
  const auto with_json = Read({"a.textproto", "c.json"});
  EXPECT_EQ(with_json->model().num_heads(), 8);
  EXPECT_EQ(with_json->model().d_model(), 64);
  EXPECT_THAT(with_json->data().directions(), ElementsAre("it-en"));
}

TEST_F(SpecLoader, AWrittenZeroReplacesAnEarlierValue) {
  Write("a.textproto", "model { dropout: 0.1 } optim { label_smoothing: 0.1 }");
  Write("b.textproto", "model { dropout: 0 }");
  Write("b.json", R"({"model": {"dropout": 0}})");
  EXPECT_EQ(Read({"a.textproto", "b.textproto"})->model().dropout(), 0.0);
  EXPECT_EQ(Read({"a.textproto", "b.json"})->model().dropout(), 0.0);
  EXPECT_EQ(Read({"a.textproto"}, {"model.dropout=0"})->model().dropout(), 0.0);
}

TEST_F(SpecLoader, SetChangesEveryKindOfField) {
  EXPECT_EQ(Set("model.encoder_layers=50").model().encoder_layers(), 50);
  EXPECT_EQ(Set("optim.learning_rate=1.5e-3").optim().learning_rate(), 1.5e-3);
  EXPECT_EQ(Set("model.residual=POST_LN").model().residual(), POST_LN);
  EXPECT_TRUE(Set("model.unscaled_embedding=true").model().unscaled_embedding());
  EXPECT_EQ(Set("folder=runs/my run").folder(), "runs/my run");
  EXPECT_EQ(Set("folder=\"runs/a\"").folder(), "runs/a");
  EXPECT_EQ(Set("folder=a=b").folder(), "a=b");
  EXPECT_EQ(Set("folder=a\\n\"b").folder(), "a\\n\"b");  // as it is typed
  EXPECT_THAT(Set("data.directions=de-en, en-de").data().directions(),
              ElementsAre("de-en", "en-de"));
  EXPECT_THAT(Set("data.directions=[\"de-en\"]").data().directions(), ElementsAre("de-en"));
}

TEST_F(SpecLoader, SetReadsMessagesWithOrWithoutBraces) {
  EXPECT_EQ(Set("model.deepnorm=beta_rule: TORCHSCALE").model().deepnorm().beta_rule(), TORCHSCALE);
  EXPECT_EQ(Set("data.microbatch={max_target_tokens: 500}").data().microbatch().max_target_tokens(),
            500);
  const RunSpec run =
      Set("data.temperature=[{from_step: 0 temperature: 1}, {from_step: 9 temperature: 5}]");
  ASSERT_EQ(run.data().temperature_size(), 2);
  EXPECT_EQ(run.data().temperature(1).from_step(), 9);
}

TEST_F(SpecLoader, SetReplacesAListAndAnEmptyValueClearsAField) {
  Write("a.textproto", "data { directions: ['de-en', 'en-de'] max_sentence_tokens: 7 }");
  EXPECT_THAT(Read({"a.textproto"}, {"data.directions=fr-en"})->data().directions(),
              ElementsAre("fr-en"));
  const auto cleared = Read({"a.textproto"}, {"data.directions=", "data.max_sentence_tokens="});
  EXPECT_EQ(cleared->data().directions_size(), 0);
  EXPECT_EQ(cleared->data().max_sentence_tokens(), 0);
}

TEST_F(SpecLoader, SetExplainsWhatIsWrong) {
  EXPECT_EQ(
      Error({}, {"model.d_model=wide", "model.residual=POSTLN", "seed.x=1", "model={d_model: x}"}),
      "--set model.d_model=wide: Expected integer, got: wide\n"
      "--set model.residual=POSTLN: residual has no value 'POSTLN'; did you mean "
      "'POST_LN'?\n"
      "--set seed.x=1: 'seed' has no fields of its own\n"
      "--set model={d_model: x}: Expected integer, got: x");
}

TEST_F(SpecLoader, WhatIsPrintedReadsBack) {
  Write("a.textproto", "seed: 3 model { d_model: 64 dropout: 0.1 } optim { beta1: 0 }");
  const RunSpec run = WithDefaults(*Read({"a.textproto"}));
  Write("copy.textproto", ToTextproto(run));
  const auto copy = Read({"copy.textproto"});
  ASSERT_TRUE(copy.ok()) << copy.status();
  EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(run, *copy));
}

// Every field, below every message: `run` filled by the number of calls so far.
void FillEverything(google::protobuf::Message* message, int* count) {
  const auto& type = *message->GetDescriptor();
  const auto& reflection = *message->GetReflection();
  for (int i = 0; i < type.field_count(); ++i) {
    const auto* field = type.field(i);
    ++*count;
    using Field = google::protobuf::FieldDescriptor;
    const bool many = field->is_repeated();
    switch (field->cpp_type()) {
      case Field::CPPTYPE_MESSAGE:
        FillEverything(many ? reflection.AddMessage(message, field)
                            : reflection.MutableMessage(message, field),
                       count);
        break;
      case Field::CPPTYPE_STRING:
        many ? reflection.AddString(message, field, "a \"b\"")
             : reflection.SetString(message, field, "a \"b\"");
        break;
      case Field::CPPTYPE_DOUBLE:
        many ? reflection.AddDouble(message, field, 0.1 * *count)
             : reflection.SetDouble(message, field, 0.1 * *count);
        break;
      case Field::CPPTYPE_BOOL:
        reflection.SetBool(message, field, true);
        break;
      case Field::CPPTYPE_ENUM:
        reflection.SetEnum(message, field,
                           field->enum_type()->value(field->enum_type()->value_count() - 1));
        break;
      case Field::CPPTYPE_INT32:
        reflection.SetInt32(message, field, *count);
        break;
      case Field::CPPTYPE_INT64:
        reflection.SetInt64(message, field, *count);
        break;
      case Field::CPPTYPE_UINT64:
        reflection.SetUInt64(message, field, *count);
        break;
      default:
        FAIL() << field->full_name() << ": add its kind";
    }
  }
}

// The names of all fields below `type`, as a complete textproto has them at the start of a line.
void ExpectNamesAllFields(const google::protobuf::Descriptor& type, const std::string& text) {
  for (int i = 0; i < type.field_count(); ++i) {
    EXPECT_THAT(text, ::testing::ContainsRegex("\n *(# )?" + type.field(i)->name() + "( \\{|:)"));
    const auto* inner = type.field(i)->message_type();
    if (inner != nullptr && !type.field(i)->is_repeated()) ExpectNamesAllFields(*inner, text);
  }
}

TEST_F(SpecLoader, TheCompleteTextNamesEveryFieldAndReadsBack) {
  RunSpec full;
  int count = 0;
  FillEverything(&full, &count);
  RunSpec plain = WithDefaults(RunSpec());
  plain.set_name("plain");
  for (const RunSpec& run : {full, plain}) {
    const std::string text = ToCompleteTextproto(run);
    ExpectNamesAllFields(*RunSpec::descriptor(), "\n" + text);
    Write("complete.textproto", text);
    const auto copy = Read({"complete.textproto"});
    ASSERT_TRUE(copy.ok()) << copy.status();
    EXPECT_EQ(ToCompleteTextproto(*copy), text);
    // An absent message and an empty one are the same to all who read a RunSpec.
    RunSpec expected = run;
    if (!run.has_instruments()) expected.mutable_instruments()->set_every_steps(0);
    EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equivalent(expected, *copy));
  }
}

TEST_F(SpecLoader, ARecipesCompleteTextGivesTheSameRunAgain) {
  const auto run = ReadRunSpec({.files = {"launch/recipes/quickstart.textproto"}}, RunSpec());
  ASSERT_TRUE(run.ok()) << run.status();
  const std::string text = ToCompleteTextproto(WithDefaults(*run));
  EXPECT_THAT(text, HasSubstr("dropout: 0\n"));  // a zero that is a value
  Write("complete.textproto", text);
  EXPECT_EQ(ToCompleteTextproto(WithDefaults(*Read({"complete.textproto"}))), text);
}

TEST_F(SpecLoader, NamesOfOtherProgramsGetTheFieldHere) {
  Write("a.textproto", "lr: 5e-4\nmodel {\n  dim-emb: 512\n  lr: 1\n}\n");
  EXPECT_EQ(
      Error({"a.textproto"}, {"max-update=7", "model.encoder_embed_dim=8",
                              "parallel.tensor_parallel_size=2", "--update-freq=4"}),
      "a.textproto:1: RunSpec has no field 'lr'; did you mean 'optim.learning_rate' (fairseq's "
      "--lr)?\n"
      "a.textproto:3: ModelSpec has no field 'dim_emb'; did you mean 'model.d_model' (Marian's "
      "--dim-emb)?\n"
      "a.textproto:4: ModelSpec has no field 'lr'; did you mean 'optim.learning_rate' (fairseq's "
      "--lr)?\n"
      "--set max-update=7: RunSpec has no field 'max_update'; did you mean 'train.steps' "
      "(fairseq's --max-update)?\n"
      "--set model.encoder_embed_dim=8: ModelSpec has no field 'encoder_embed_dim'; did you "
      "mean 'model.d_model' (fairseq's --encoder-embed-dim)?\n"
      "--set parallel.tensor_parallel_size=2: ParallelSpec has no field "
      "'tensor_parallel_size'; Megatron-LM's tensor-parallel-size is not here: no tensor "
      "parallelism: depth is the problem here, not width\n"
      "--set --update-freq=4: RunSpec has no field 'update_freq'; did you mean "
      "'data.global_microbatches' (fairseq's --update-freq)? microbatches of all replicas "
      "together; fairseq's and Hugging Face's count is per GPU, Megatron's is sentences");
}

TEST_F(SpecLoader, EveryNameThatPeopleAskedForIsKnown) {
  for (const char* name :
       {"lr", "learning_rate", "d_model", "max_update", "update_freq", "max-tokens",
        "tensor_parallel_size", "encoder_embed_dim", "dim-emb", "mini-batch-words",
        "warmup_updates", "num_hidden_layers", "micro_batch_size", "global_batch_size", "fp16"}) {
    EXPECT_THAT(Error({}, {std::string("train.") + name + "=1"}),
                ::testing::AnyOf(HasSubstr("did you mean"), HasSubstr("is not here")))
        << name;
  }
}

TEST_F(SpecLoader, DashesInNamesAreUnderscoresAndInValuesStay) {
  Write("a.textproto",
        "model { encoder-layers: 3 }  # a-b: c\ndata { directions: 'de-en' folder: \"a-b: c-d\" }");
  const auto run = Read({"a.textproto"}, {"model.decoder-layers=4"});
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->model().encoder_layers(), 3);
  EXPECT_EQ(run->model().decoder_layers(), 4);
  EXPECT_EQ(run->data().folder(), "a-b: c-d");
  EXPECT_THAT(run->data().directions(), ElementsAre("de-en"));
}

TEST_F(SpecLoader, DataTypesHaveTheirShortNames) {
  for (const char* name : {"bf16", "bfloat16", "BF16", "BFLOAT16"}) {
    const std::string text = std::string("compute { dtype: ") + name + " }";
    Write("a.textproto", text);
    Write("a.json", std::string(R"({"compute": {"dtype": ")") + name + "\"}}");
    for (const auto& run : {Read({"a.textproto"}), Read({"a.json"}),
                            Read({}, {std::string("compute.dtype=") + name})}) {
      ASSERT_TRUE(run.ok()) << run.status();
      EXPECT_EQ(run->compute().dtype(), BFLOAT16) << name;
    }
  }
  EXPECT_EQ(Set("compute.dtype=fp32").compute().dtype(), FLOAT32);
  EXPECT_EQ(Set("compute.dtype=fp16").compute().dtype(), FLOAT16);
  EXPECT_EQ(Set("compute.residual_dtype=float32").compute().residual_dtype(), FLOAT32);
}

TEST(ForeignFields, EachNamesAFieldThatExistsOrSaysWhyThereIsNone) {
  std::map<std::string, int> programs;
  for (const ForeignField& foreign : ForeignFields()) {
    ASSERT_FALSE(foreign.names.empty()) << foreign.field;
    EXPECT_TRUE(foreign.field.empty() ? !foreign.note.empty()
                                      : ReadRunSpec({.sets = {foreign.field + "="}}, {}).ok())
        << foreign.field << " " << foreign.names[0].second;
    for (const auto& [program, name] : foreign.names) {
      EXPECT_EQ(name.find_first_of("`|, "), std::string::npos) << name;
      ++programs[program];
    }
  }
  EXPECT_THAT(programs, ElementsAre(Pair("Hugging Face", Gt(40)), Pair("Marian", Gt(40)),
                                    Pair("Megatron-LM", Gt(40)), Pair("fairseq", Gt(40))));
}

// Compares the numbers behind "default" in the comments of proto/ with the fields of `message`, of
// which a 0 leaves the default to a later place. Returns how many there are.
int CompareWithComments(const google::protobuf::Message& message) {
  int compared = 0;
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const auto* field = message.GetDescriptor()->field(i);
    if (field->is_repeated()) continue;
    if (field->message_type() != nullptr) {
      compared += CompareWithComments(message.GetReflection()->GetMessage(message, field));
      continue;
    }
    std::ifstream file(field->file()->name());
    const std::string begin = absl::StrCat(" ", field->name(), " = ", field->number(), ";");
    for (std::string line, type; std::getline(file, line);) {
      if (absl::StartsWith(line, "message ")) type = line;
      const size_t at = line.find("default ");
      double stated = 0, value = 0;
      if (type != absl::StrCat("message ", message.GetDescriptor()->name(), " {") ||
          !absl::StrContains(line, begin) || at == std::string::npos ||
          sscanf(line.c_str() + at, "default %lf", &stated) != 1) {
        continue;
      }
      std::string text;
      google::protobuf::TextFormat::PrintFieldValueToString(message, field, -1, &text);
      EXPECT_TRUE(absl::SimpleAtod(text, &value) && (value == stated || value == 0))
          << type << line << text;
      ++compared;
    }
  }
  return compared;
}

TEST(Defaults, AreThoseThatTheCommentsOfProtoState) {
  RunSpec run;
  run.mutable_train()->mutable_spike()->set_deviations(1);  // its other fields need it
  run.mutable_instruments();
  run = WithDefaults(run);
  run.mutable_train()->mutable_spike()->set_deviations(0);
  EXPECT_GT(CompareWithComments(run), 40);
}

TEST(Defaults, FillWhatIsUnsetAndKeepWhatIsNot) {
  RunSpec run;
  run.mutable_data()->mutable_microbatch()->set_max_target_tokens(1000);
  run.mutable_optim()->set_warmup_steps(0);
  run.mutable_optim()->set_label_smoothing(0.0);
  run.mutable_decode()->set_beam_size(3);
  run = WithDefaults(run);
  EXPECT_EQ(run.data().microbatch().max_source_tokens(), 0);  // the corpus decides
  EXPECT_EQ(run.data().microbatch().max_sentences(), 250);
  run.mutable_data()->mutable_microbatch()->set_max_sentences(50'000'000);
  EXPECT_EQ(WithDefaults(run).data().microbatch().max_sentences(), 1000);  // a target token each
  EXPECT_EQ(run.optim().warmup_steps(), 0);
  EXPECT_EQ(run.optim().label_smoothing(), 0.0);
  EXPECT_EQ(run.optim().beta2(), 0.98);
  EXPECT_EQ(run.decode().beam_size(), 3);
  EXPECT_EQ(run.train().log_every_steps(), 10);
  EXPECT_EQ(run.compute().dtype(), DATA_TYPE_UNSPECIFIED);
}

TEST(Defaults, InstrumentsAreOffUntilNamed) {
  EXPECT_EQ(WithDefaults(RunSpec()).instruments().every_steps(), 0);
  RunSpec run;
  run.mutable_instruments();
  EXPECT_EQ(WithDefaults(run).instruments().every_steps(), 100);
  run.mutable_instruments()->set_every_steps(0);
  EXPECT_EQ(WithDefaults(run).instruments().every_steps(), 0);
}

TEST(Defaults, SpikesAreNotLookedForWithoutABand) {
  RunSpec run;
  SpikeSpec& spike = *run.mutable_train()->mutable_spike();
  EXPECT_EQ(WithDefaults(run).train().spike().window_steps(), 0);
  spike.set_deviations(6);
  spike.set_steps_before(0);
  EXPECT_EQ(WithDefaults(run).train().spike().window_steps(), 128);
  EXPECT_EQ(WithDefaults(run).train().spike().steps_before(), 0);
  EXPECT_EQ(WithDefaults(run).train().spike().steps_after(), 10);
}

TEST(Defaults, FillingTwiceChangesNothing) {
  const RunSpec once = WithDefaults(RunSpec());
  EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(once, WithDefaults(once)));
}

TEST(Defaults, LeaveRanksAndVirtualReplicasToTheJob) {
  const RunSpec run = WithDefaults(RunSpec());
  EXPECT_EQ(run.cluster().nodes(), 0);
  EXPECT_EQ(run.cluster().devices_per_node(), 0);
  EXPECT_EQ(run.optim().virtual_replicas(), 0);
}

}  // namespace
}  // namespace deepnet
