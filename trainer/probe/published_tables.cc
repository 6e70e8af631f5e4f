#include "trainer/probe/published.h"

namespace deepnet {

PublishedSettings Iwslt14Settings() {
  return {.corpus = "IWSLT-14 German-English, 160,000 pairs (inferred)",
          .width = "512 / 2,048 / 8",
          .depth = "10 to 100",
          .vocabulary = "not published",
          .steps = "8,000",
          .batch = "4,000",
          .rate = "5e-4, inverse square root, warm-up 4,000",
          .dropout = "0.4",
          .weight_decay = "1e-4",
          .clip_norm = "off",
          .adam = "0.9, 0.98; 1e-8",
          .label_smoothing = "0.1",
          .precision = "float16 (ReZero: float32)",
          .metric = "BLEU on the test set, fairseq's own",
          .seeds = "not published"};
}

PublishedSettings Figure3Settings() {
  PublishedSettings settings = Iwslt14Settings();
  settings.depth = "18 (figure 3b: 6 to 24)";
  settings.steps = "not published; 30 epochs are shown";
  settings.metric = "gradient norm of decoder layers, loss on the validation set";
  return settings;
}

PublishedSettings Figure4Settings() {
  PublishedSettings settings = Iwslt14Settings();
  settings.depth = "18";
  settings.steps = "30 are shown";
  settings.rate = "5e-4, inverse square root, warm-up 4,000; one curve without warm-up";
  settings.metric = "model update, norm of what enters norms, gradient norm of decoder layers";
  return settings;
}

PublishedSettings Figure5Settings() {
  PublishedSettings settings = Iwslt14Settings();
  settings.width = "64 / 128 / 2";
  settings.depth = "6 to 100";
  settings.steps = "not published";
  settings.metric = "model update, in which norm is not published";
  return settings;
}

PublishedSettings Wmt17Settings() {
  return {.corpus = "WMT-17 English-German, 4.5 million pairs (inferred)",
          .width = "512 / 2,048 / 8 (figure 7c: to 1,024 / 4,096 / 16)",
          .depth = "6, 18, 50, 100 (figure 7: 18)",
          .vocabulary = "not published",
          .steps = "100,000 (figure 7: 30,000)",
          .batch = "524,288 (figure 7b: 262,144 to 1,048,576)",
          .rate =
              "1.5e-3 (without norm and figure 7c: 5e-4; figure 7a: 5e-4 to 1.5e-3), inverse "
              "square root, warm-up 4,000",
          .dropout = "0.4",
          .weight_decay = "1e-4 (figure 7c: 0)",
          .clip_norm = "off (figure 7c: 1)",
          .adam = "0.9, 0.98; 1e-8 (figure 7c: 1e-6)",
          .label_smoothing = "0.1",
          .precision = "float16 (ReZero: float32)",
          .metric = "BLEU on the test set, fairseq's own (figure 7: validation loss)",
          .seeds = "not published"};
}

PublishedSettings Opus100Settings() {
  return {.corpus = "OPUS-100, 55 million pairs (by its authors), 100 languages",
          .width = "512 / 2,048 / 8",
          .depth = "6, 10, 50, 100, 500",
          .vocabulary = "about 250,000 (inferred)",
          .steps = "4 epochs, about 25,000 (inferred)",
          .batch = "524,288",
          .rate = "5e-4, inverse square root, warm-up 4,000",
          .dropout = "0.1",
          .weight_decay = "0",
          .clip_norm = "off",
          .adam = "0.9, 0.98; 1e-8",
          .label_smoothing = "0.1",
          .precision = "float16",
          .metric = "sacreBLEU, mean over 94 pairs (inferred)",
          .seeds = "not published"};
}

PublishedSettings Languages102Settings() {
  return {.corpus =
              "CCMatrix, CCAligned, OPUS, Tatoeba: 102 languages, 1,932 directions, "
              "12 billion pairs",
          .width = "1,024 / 4,096 / 16",
          .depth = "100 (M2M-100: 24, 12 billion parameters)",
          .vocabulary = "about 250,000 (inferred)",
          .steps = "260,000",
          .batch = "1,048,576",
          .rate = "5e-4, inverse square root, warm-up 6,000",
          .dropout = "0.1",
          .weight_decay = "0",
          .clip_norm = "1",
          .adam = "0.9, 0.98; 1e-6",
          .label_smoothing = "0.1",
          .precision = "float16",
          .metric = "BLEU by M2M-100's scripts; Flores: spBLEU over 7,482 directions",
          .seeds = "not published"};
}

PublishedTable PublishedTable2() {
  return {.title = "Average BLEU on OPUS-100",
          .source =
              "Printed in table 2. The baseline is Zhang et al. (2020), another architecture "
              "with a smaller vocabulary and batch, not run here.",
          .header = {"model", "layers", "parameters", "X to English", "English to X", "mean"},
          .rows = {{"Baseline", "12", "133 M", "27.5", "21.4", "24.5"},
                   {"Baseline", "24", "173 M", "29.5", "22.9", "26.2"},
                   {"Baseline", "48", "254 M", "31.4", "24.0", "27.7"},
                   {"DeepNet", "200", "863 M", "33.2", "29.0", "31.1"},
                   {"DeepNet", "1,000", "3.8 B", "33.9", "30.2", "32.1"}}};
}

PublishedTable PublishedTable3() {
  return {.title = "Against M2M-100: mean BLEU over directions",
          .source = "Printed in table 3; the right-most column is spBLEU over 87 languages.",
          .header = {"model", "layers", "parameters", "WMT", "OPUS", "TED", "Flores"},
          .rows = {{"M2M-100", "48", "12 B", "31.9", "18.4", "18.7", "13.6"},
                   {"DeepNet", "200", "3.2 B", "33.9", "23.0", "20.1", "18.6"}}};
}

}  // namespace deepnet
