"""What is read off runs and said of them: quantities, statistics, verdicts, findings, differences."""

import math
import unittest

from sample_results import E, R, sample_result

NAN = math.nan


def corpus(words=6.15):
    """A corpus of whose words so many nats are known, wherever one looks."""
    return {"word_frequency_nll": words, "word_frequency_dev_nll": words, "word_frequency_test_nll": words}


def trained(middle, last):
    """A cell of 300 steps whose losses fall from 8.9 to `middle` and end at `last`."""
    steps = [{"step": s, "nll": 8.9 if s < 50 else middle if s < 200 else last} for s in range(10, 301, 10)]
    return {"status": R.DONE, "steps": steps}


def findings(result):
    return "\n".join(R.findings(R.experiment_of(result), result))


def find(result, name):
    return next(cell for cell in result["cells"] if cell["name"] == name)


def unlearn(cell):
    """Ends it as Post-LN ends: at what word frequencies give."""
    cell["test"]["nll"] = 6.16


def fail(cell):
    cell.update(status=R.FAILED, exit_code=6)
    del cell["test"]


class Numbers(unittest.TestCase):
    def test_numbers_are_short(self):
        texts = {0: "0", 28.94: "28.9", 0.0005: "5e-4", 1000: "1,000", NAN: "not a number", math.inf: "infinite"}
        for value, text in texts.items():
            self.assertEqual(R.short(value), text)
        self.assertEqual(R.short(530.4, 2), "530")
        self.assertEqual(R.short(R.rounded(1772152, 2)), "1,800,000")
        self.assertEqual((R.clock(61), R.clock(3723.4)), ("1:01", "1:02:03"))

    def test_losses_have_two_digits_unless_they_are_off_the_scale(self):
        self.assertEqual(R.quantity_text("test_nll", 1.4e7), "14,000,000")
        self.assertEqual(R.quantity_text("test_nll", 5.29), "5.29")


class Quantities(unittest.TestCase):
    def scored(self, direction):
        test = {"directions": [{"direction": direction}], "bleu": 31.1, "bleu_to_english": 33.2}
        return {"test": {**test, "bleu_from_english": 29.0}}

    def test_both_sides_of_english_are_read_off_the_test(self):
        self.assertEqual(R.score(self.scored("de-en"), "test_bleu_to_english"), 33.2)
        self.assertEqual(R.score(self.scored("en-de"), "test_bleu_from_english"), 29.0)

    def test_a_side_without_a_direction_has_no_score(self):
        self.assertIsNone(R.score(self.scored("en-de"), "test_bleu_to_english"))
        self.assertIsNone(R.score(self.scored("de-en"), "test_bleu_from_english"))
        self.assertIsNone(R.score({}, "test_bleu_to_english"))

    def test_a_figure_that_does_not_exist_is_none_and_not_0(self):
        scores = {"nll": None, "bleu": 31.1, "directions": [{"direction": "de-en", "nll": None}]}
        cell = {"test": scores, "validations": [{"step": 1, "nll": 6.5}, {"step": 2, "nll": None}]}
        self.assertEqual([R.score(cell, quantity) for quantity in ("test_nll", "test_bleu", "dev_nll")], [None, 31.1, None])
        self.assertIsNone(R.score_of(scores["directions"][0], "test_nll"))
        self.assertEqual(R.curve(cell, "dev_nll"), [(1, 6.5)])

    def test_table_two_shows_the_columns_of_the_paper(self):
        shown = {panel.quantity for panel in E.make_experiment("table2", "paper").panels}
        self.assertLessEqual({"test_bleu", "test_bleu_to_english", "test_bleu_from_english"}, shown)

    def test_of_losses_the_low_ones_are_good_and_of_nothing_else(self):
        for quantity in R.QUANTITIES:
            self.assertEqual(R.is_loss(quantity), R.unit(quantity) == "nats a token")
            self.assertEqual(R.is_bleu(quantity), "BLEU" in R.unit(quantity))

    def test_what_is_not_finite_is_read_as_protobuf_writes_it(self):
        cell = {"steps": [{"step": 10, "nll": 7.5}, {"step": 20, "nll": "NaN"}]}
        self.assertTrue(math.isnan(R.score(cell, "train_nll")))
        self.assertEqual(R.curve(cell, "train_nll"), [(10, 7.5)])

    def test_of_instruments_the_first_record_from_a_step_on(self):
        cell = sample_result("fig4")["cells"][0]
        self.assertEqual(R.find_record(cell, 10)["step"], 10)
        self.assertEqual(R.find_record(cell, 0)["step"], 30)
        self.assertIsNone(R.find_record(cell, 31))
        self.assertEqual(len(R.layer_curve(cell, "gradient_norm", 30)), 18)

    def test_of_many_records_every_kth_and_the_last(self):
        kept = R.thinned(list(range(1000)), 300)
        self.assertEqual((kept[:3], kept[-1]), ([0, 4, 8], 999))
        self.assertLessEqual(len(kept), 301)


    def test_scores_of_a_matrix_are_those_of_the_seeds_that_ended(self):
        result = sample_result("table3", seeds=2)
        fail(result["cells"][0])
        self.assertIn("BLEU on average over 12 directions", findings(result))

    def test_a_layer_is_what_its_name_says(self):
        for name, found in (("decoder.layers.3", [(4, 1.0)]), ("decoder.layers", []), ("decoder.layers.\u00b2", []),
                            ("decoder.layers.3.ffn", [(4, 1.0)]), ("decoder.layers.3x", [])):  # fmt: skip
            self.assertEqual(R.decoder_gradients({"layers": [{"name": name, "gradient_norm": 1.0}]}), found)


class Statistics(unittest.TestCase):
    def test_spread_leaves_out_what_is_no_number(self):
        spread = R.Spread([1.0, 2.0, 6.0, NAN, 1e300])
        self.assertEqual((spread.count, spread.low, spread.high), (3, 1.0, 6.0))
        self.assertAlmostEqual(spread.mean, 3.0)
        self.assertAlmostEqual(spread.deviation, math.sqrt(7))

    def test_one_value_has_no_deviation(self):
        self.assertEqual((R.Spread([4.0]).deviation, R.Spread([]).count), (0.0, 0))

    def test_fit_of_an_exact_law_is_the_law(self):
        xs = [12, 20, 100, 200, 1000]
        fit = R.fit_logarithm(xs, [3.66 * math.log10(x) + 21.9 for x in xs])
        self.assertAlmostEqual(fit["slope"], 3.66)
        self.assertAlmostEqual(fit["offset"], 21.9)
        self.assertAlmostEqual(fit["slope_error"], 0.0, places=6)

    def test_errors_of_a_fit_are_those_of_the_textbook(self):
        fit = R.fit_logarithm([1, 10, 100], [0.0, 1.0, 3.0])
        self.assertAlmostEqual(fit["slope"], 1.5)
        self.assertAlmostEqual(fit["offset"], -1 / 6)
        variance = 1 / 36 + 4 / 36 + 1 / 36  # residuals 1/6, -1/3, 1/6
        self.assertAlmostEqual(fit["slope_error"], math.sqrt(variance / 2))
        self.assertAlmostEqual(fit["offset_error"], math.sqrt(variance * (1 / 3 + 1 / 2)))

    def test_no_fit_through_one_depth(self):
        self.assertIsNone(R.fit_logarithm([10, 10], [1.0, 2.0]))
        self.assertIsNone(R.fit_logarithm([-1, 10], [1.0, 2.0]))

    def test_a_law_takes_three_depths_and_runs_that_ended_as_planned(self):
        def groups(*cells):
            made = [{"series": "a", "x": x, "status": status, "steps": [{"step": 1, "nll": nll}]} for x, nll, status in cells]
            return R.group_seeds({"cells": made}, E.Panel("SCORE", "train_nll", ""))

        two = (10, 1.0, R.DONE), (100, 2.0, R.DONE)
        found = groups(*two, (1000, 9.0, R.FAILED))
        self.assertEqual([group.spread.count for group in found], [1, 1, 0])
        self.assertIsNone(R.fit_series(found, "a"))
        found = groups(*two, (1000, 3.0, R.DONE), (1000, 9.0, R.DIVERGED))
        self.assertEqual([(group.spread.count, group.diverged) for group in found], [(1, 0), (1, 0), (1, 1)])
        self.assertAlmostEqual(R.fit_series(found, "a")["slope"], 1.0)


class Verdicts(unittest.TestCase):
    def test_follow_from_the_losses(self):
        self.assertEqual(R.judge(trained(6.5, 5.8), corpus()), R.LEARNED)
        self.assertEqual(R.judge(trained(6.5, 6.14), corpus()), R.WORDS)
        self.assertEqual(R.judge(trained(8.9, 8.85), corpus()), R.STUCK)
        self.assertEqual(R.judge(trained(5.5, 6.0), corpus()), R.ROSE)

    def test_without_word_frequencies_nothing_is_said_of_them(self):
        self.assertEqual(R.judge(trained(6.5, 6.14), corpus(0)), R.LEARNED)

    def test_a_few_steps_are_not_judged(self):
        cell = trained(8.9, 8.9)
        cell["steps"] = cell["steps"][:5]
        self.assertEqual(R.judge(cell, corpus()), R.SHORT)

    def test_what_was_only_scored_is_not_called_too_short(self):
        cell = {"status": R.DONE, "test": {"directions": [{"direction": "de-en"}]}}
        self.assertEqual(R.judge(cell, corpus()), R.SHORT)
        self.assertEqual(R.verdict_text(cell, corpus()), "scored, not trained here")

    def test_a_diverged_cell_is_not_a_failed_one(self):
        cell = {**trained(6.5, "NaN"), "status": R.DIVERGED}
        self.assertEqual(R.judge(cell, corpus()), R.GONE)
        self.assertEqual(R.verdict_text(cell, corpus()), "diverged: not finite after step 300")
        cell.update(status=R.FAILED, exit_code=6, error="error: does not fit")
        self.assertEqual(R.verdict_text(cell, corpus()), "failed, exit code 6: error: does not fit")

    def test_held_out_text_counts_more_than_training(self):
        cell = {**trained(6.5, 5.0), "test": {"nll": 6.2, "directions": [{"direction": "de-en"}]}}
        self.assertEqual(R.judge(cell, corpus()), R.WORDS)

    def test_say_the_numbers_they_rest_on(self):
        texts = [R.verdict_text(trained(*losses), corpus()) for losses in ((6.5, 6.14), (8.9, 8.85), (5.5, 6.0))]
        self.assertEqual(texts[0], "word frequencies only: 6.14, they alone give 6.15")
        self.assertEqual(texts[1], "did not leave its starting loss: 8.9 to 8.85")
        self.assertEqual(texts[2], "loss rose again: lowest 5.5, 6 at the end")


class Findings(unittest.TestCase):
    def table1(self, seeds):
        return sample_result("table1", seeds)

    def test_say_who_learned_at_the_greatest_depth(self):
        text = findings(self.table1(2))
        self.assertIn("At 50 layers a side (nats a token): learned: DeepNet 5.9", text)
        self.assertIn("word frequencies only: Post-LN", text)
        self.assertIn("Did not train in the paper, and did not learn here: Post-LN at 18", text)

    def test_a_failed_run_is_no_evidence_for_the_paper_or_against_it(self):
        result = self.table1(1)
        fail(find(result, "post-ln-50-s1"))
        fail(find(result, "deepnet-50-s1"))
        text = findings(result)
        self.assertIn("did not learn here: Post-LN at 18 (0 of 1 seed)", text)
        self.assertNotIn("Trained in the paper, but", text)

    def test_a_run_that_is_too_short_is_no_evidence_either(self):
        result = self.table1(1)
        cell = find(result, "post-ln-50-s1")
        cell["steps"] = cell["steps"][:5]
        self.assertIn("Post-LN at 18 (0 of 1 seed)", findings(result))

    def test_one_seed_of_three_is_not_called_learning(self):
        result = self.table1(3)
        unlearn(find(result, "ds-init-50-s1"))
        unlearn(find(result, "ds-init-50-s2"))
        fail(find(result, "admin-50-s3"))
        text = findings(result)
        self.assertIn(
            "Did not train in the paper; here, some seeds learned, with other sizes, data and steps: "
            "DS-Init at 50 (1 of 3 seeds)",
            text,
        )
        self.assertIn("Admin at 50 (2 of 2 seeds)", text)

    def test_what_the_paper_trained_and_this_run_did_not_is_said_too(self):
        result = self.table1(3)
        for seed in (1, 2, 3):
            unlearn(find(result, f"pre-ln-50-s{seed}"))
        unlearn(find(result, "dlcl-18-s2"))
        text, other = findings(result), ", with other sizes, data and steps: "
        self.assertIn(f"Trained in the paper, but did not learn here{other}Pre-LN at 50 (0 of 3 seeds)", text)
        self.assertIn(f"Trained in the paper; here, only some seeds learned{other}DLCL at 18 (2 of 3 seeds)", text)

    def test_a_published_score_that_is_half_a_translation_is_called_neither(self):
        result = sample_result("fig6")
        for cell in result["cells"]:
            if "test" in cell:
                unlearn(cell)
        text = findings(result)  # at 50 layers: DS-Init 13.1 of 31.7 BLEU
        self.assertIn("Pre-LN at 50 (0 of 1 seed)", text)
        self.assertNotIn("DS-Init at 50", text)

    def test_every_verdict_has_the_spread_of_its_own_seeds(self):
        result = self.table1(3)
        for seed, loss in ((1, 5.40), (2, 5.90), (3, 6.14)):
            find(result, f"pre-ln-50-s{seed}")["test"]["nll"] = loss
        text = findings(result)
        self.assertIn("Pre-LN 5.65 (2 of 3 seeds, 5.40 to 5.90)", text)
        self.assertIn("Pre-LN 6.14 (1 of 3 seeds)", text)

    def test_name_what_is_missing(self):
        result = sample_result("fig6")
        del result["cells"][1:]
        self.assertIn(" not run yet", findings(result))
        self.assertIn("In the paper's figure, but not run here: Post-LN", findings(result))

    def test_one_seed_has_no_spread(self):
        self.assertIn("One seed each", findings(sample_result("fig6", 1)))
        text = findings(sample_result("fig6", 2))
        self.assertIn("Seeds lie at most 0.013 apart", text)
        self.assertNotIn("One seed each", text)

    def test_the_fit_has_its_errors(self):
        self.assertIn("DeepNet: (-0.060 ± 0.000) log10(layers in all)", findings(sample_result("fig8")))

    def test_ratios_over_depth_are_of_the_model_update(self):
        self.assertIn("Post-LN: the largest over depth is 17 times the smallest.", findings(sample_result("fig5")))

    def test_curves_and_layers_say_their_ends(self):
        text = findings(sample_result("fig4"))
        self.assertIn("How far the model has moved on a fixed batch, step 30: DeepNet 0.354, Post-LN 17.9", text)
        self.assertIn("step 30, top layer over lowest: DeepNet 2.3, Post-LN 70", text)

    def test_of_a_grid_its_ends_and_where_it_did_not_learn(self):
        result = sample_result("tuning")
        for cell in result["cells"]:
            cell["test"]["nll"] = 5 + 0.1 * cell["x"] + 0.01 * cell["y"]
        gone = result["cells"][0]
        gone["status"] = R.DIVERGED
        del gone["test"]
        text = findings(result)
        self.assertIn(
            "Lowest (nats a token): 5.06 at alpha times 0.5, beta times 1; highest: 5.24 at alpha times 2, beta times 4.",
            text,
        )
        self.assertIn("Diverged: at alpha times 0.5, beta times 0.5.", text)

    def test_of_a_grid_with_seeds_how_many_did_not_learn(self):
        result = sample_result("tuning", 3)
        for cell in result["cells"][:2]:  # two seeds of one place
            cell["status"] = R.DIVERGED
            del cell["test"]
        self.assertIn("Diverged: at alpha times 0.5, beta times 0.5 (2 of 3 seeds).", findings(result))

    def test_a_terminal_gets_the_same_sentences_without_markup(self):
        result = sample_result("table1", 2)
        text = R.findings_text(result)
        for sentence in R.findings(R.experiment_of(result), result):
            self.assertIn(f"\n- {sentence}\n", text)
        self.assertNotRegex(text, "[<&]")


def as_trained(name):
    """As defaults fill it in."""
    result = sample_result(name)
    for cell in result["cells"]:
        cell["run"] = {"optim": {"beta1": 0.9, "beta2": 0.98, "epsilon": 1e-8, "label_smoothing": 0.1}}
    return result


def with_fields(result, block, **fields):
    for cell in result["cells"]:
        cell["run"].setdefault(block, {}).update(fields)
    return result


class Differences(unittest.TestCase):
    def row(self, result, what):
        rows = R.differences(R.experiment_of(result), result)
        return next((here for name, _, here in rows if name == what), "")

    def test_rows_that_say_the_same_are_left_out(self):
        result = with_fields(as_trained("fig6"), "train", steps=8000)
        for what, paper, here in R.differences(R.experiment_of(result), result):
            self.assertNotIn(what, ("steps", "Adam's beta1, beta2; epsilon", "label smoothing"))
            self.assertNotEqual(paper, here)

    def test_what_is_measured_is_what_the_panels_show(self):
        measured = "what is measured"
        text = "loss on the test set, loss while training; 200 test sentences a direction"
        self.assertEqual(self.row(as_trained("fig6"), measured), text)
        self.assertIn("spBLEU on the test set", self.row(as_trained("table3"), measured))
        self.assertNotIn("loss", self.row(as_trained("table3"), measured))
        self.assertIn("model update", self.row(as_trained("fig5"), measured))

    def test_precision_is_that_of_the_runs(self):
        result = as_trained("fig6")
        self.assertEqual(self.row(result, "precision"), "float32, or bfloat16 where that is faster")
        with_fields(result, "compute", dtype="BFLOAT16")
        self.assertEqual(self.row(result, "precision"), "bfloat16 products, float32 sums")
        result["cells"][0]["run"]["compute"]["dtype"] = "FLOAT32"
        self.assertEqual(self.row(result, "precision"), "float32; bfloat16 products, float32 sums")

    def test_adams_constants_are_compared(self):
        result = with_fields(as_trained("fig6"), "optim", beta2=0.999, label_smoothing=0)
        self.assertEqual(self.row(result, "Adam's beta1, beta2; epsilon"), "0.9, 0.999; 1e-8")
        self.assertEqual(self.row(result, "label smoothing"), "0")

    def test_every_other_field_that_was_set_is_there(self):
        result = as_trained("fig6")
        for cell in result["cells"]:  # the last one counts; a rate has a row of its own
            cell["sets"] += ["model.norm=BATCH_NORM", "model.norm=RMS_NORM", "optim.learning_rate=1e-3"]
        result["cells"][0]["sets"].append("data.directions=")
        self.assertEqual(self.row(result, "set: model.norm"), "RMS_NORM")
        self.assertEqual(self.row(result, "set: data.directions"), "all in 1 runs")
        for field in ("optim.learning_rate", "seed", "model.residual", "model.encoder_layers"):
            self.assertEqual(self.row(result, f"set: {field}"), "", field)

    def test_without_published_settings_every_field_that_was_set_is_there(self):
        result = as_trained("tuning")
        for cell in result["cells"]:
            cell["sets"].append("optim.learning_rate=1e-3")
        self.assertEqual(self.row(result, "set: optim.learning_rate"), "1e-3")
        self.assertEqual(self.row(result, "corpus"), "")

    def notes(self, residual, block="model", **fields):
        result = with_fields(as_trained("fig6"), "model", residual=residual)
        return "\n".join(R.method_notes(with_fields(result, block, **fields)))

    def test_admin_says_whether_it_had_its_profile(self):
        self.assertIn("Admin: omega starts from one number a stack", self.notes("ADMIN"))
        measured = self.notes("ADMIN", scheme={"admin_omega": [1.0, 2.0]})
        self.assertIn("Admin: omega starts from a measured profile", measured)
        self.assertNotIn("one number a stack", measured)

    def test_ds_init_says_its_exponent(self):
        self.assertIn("DS-Init: layer l starts l^(-1/2) times smaller, as in its", self.notes("DS_INIT"))
        quarter = self.notes("DS_INIT", scheme={"ds_exponent": 0.25})
        self.assertIn("DS-Init: layer l starts l^-0.25 times smaller; its paper", quarter)

    def test_t_fixup_says_its_schedule(self):
        self.assertIn("T-Fixup: trained with the schedule of the other methods", self.notes("T_FIXUP"))
        shifted = self.notes("T_FIXUP", "optim", schedule="SHIFTED_INVERSE_SQRT")
        self.assertIn("T-Fixup: trained without warm-up, as its authors do", shifted)

    def test_a_method_of_one_form_has_no_note(self):
        self.assertEqual(self.notes("POST_LN"), "")
        self.assertIn("ReZero: published in float32", self.notes("REZERO"))


class Instruments(unittest.TestCase):
    def test_of_a_run_are_a_line_a_record(self):
        records = sample_result("fig4")["cells"][0]["instruments"]
        lines = R.instruments_text(records).split("\n")
        self.assertEqual(lines[0].split(), "step decoder update / weight share of the stream model update".split())
        self.assertEqual(lines[30].split(), "30 2.34 0.05 to 0.05 0.5 to 0.5 0.354".split())
        self.assertEqual(lines[-2], "decoder: the largest gradient norm of a layer over the smallest.")


if __name__ == "__main__":
    unittest.main()
