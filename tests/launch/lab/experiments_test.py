"""Experiments as data: their runs, what may be asked of them, and what the paper published."""

import math
import re
import unittest
from pathlib import Path

from sample_results import E, R

ROOT = Path(__file__).resolve().parents[3]
DEEP = [name for name in E.experiment_names() if E.make_experiment(name).depths]


class Experiments(unittest.TestCase):
    def refuses(self, words, *arguments, **options):
        with self.assertRaises(E.UserError) as caught:
            E.make_experiment(*arguments, **options)
        self.assertEqual(caught.exception.code, 2)
        self.assertIn(words, str(caught.exception))

    def test_every_figure_and_table_is_there(self):
        names = "fig3 fig4 fig5 fig6 fig7 fig8 table1 table2 table3 ablation tuning".split()
        self.assertEqual(E.experiment_names(), names)

    def test_numbers_of_runs_are_those_of_the_documentation(self):
        small = [len(E.make_experiment(name).cells) for name in E.experiment_names()]
        self.assertEqual(small, [12, 4, 36, 40, 18, 5, 90, 12, 2, 15, 20])
        paper = [len(E.make_experiment(name, "paper").cells) for name in E.experiment_names()[:-1]]
        self.assertEqual(paper, [12, 4, 12, 100, 9, 5, 40, 2, 2, 15])

    def test_cells_have_names_of_their_own_and_recipes_that_exist(self):
        for name in E.experiment_names():
            for size in ("small", "paper") if name != "tuning" else ("small",):
                cells = E.make_experiment(name, size).cells
                self.assertTrue(cells, name)
                self.assertEqual(len({cell.name for cell in cells}), len(cells), name)
                for cell in cells:
                    self.assertTrue((ROOT / "launch" / "recipes" / cell.recipe).is_file(), cell.recipe)
                    self.assertIn(f"seed={cell.seed}", cell.sets)

    def test_panels_show_cells_that_exist(self):
        for name in E.experiment_names():
            experiment = E.make_experiment(name)
            for panel in experiment.panels:
                self.assertIn(panel.group, {cell.group for cell in experiment.cells}, f"{name}: {panel.title}")
                self.assertIn(panel.at, {0} | {cell.x for cell in experiment.cells}, f"{name}: {panel.title}")
                self.assertIn(panel.quantity, R.QUANTITIES)

    def test_more_seeds_are_more_cells_of_the_same_names(self):
        one, three = E.make_experiment("fig6", seeds=1), E.make_experiment("fig6", seeds=3)
        self.assertEqual(len(three.cells), 3 * len(one.cells))
        self.assertEqual(one.cells[0].name, three.cells[0].name)

    def test_only_some_series(self):
        some = E.make_experiment("table1", only=["deepnet", "post-ln"])
        self.assertEqual({cell.series for cell in some.cells}, {"deepnet", "post-ln"})
        self.refuses("no series 'no-such', but deepnet, post-ln", "table1", only=["no-such"])
        self.refuses("no series 'keel', but deepnet", "fig7", only=["keel"])

    def test_small_depths_come_first_whatever_block_of_runs_they_are_in(self):
        for size in ("small", "paper"):
            depths = [cell.x for cell in E.make_experiment("table1", size).cells]
            self.assertEqual(depths, sorted(depths))
            self.assertGreater(len(set(depths)), 1)

    def test_any_method_at_any_depth_is_run_with_the_experiments_settings(self):
        for name in DEEP:
            own = E.make_experiment(name)
            every = E.make_experiment(name, seeds=1, only=list(E.METHODS), at=[14, 6, 14])
            self.assertEqual(len(every.cells), 2 * len(E.METHODS), name)
            self.assertEqual(every.cells[0].x, 6)
            layers = 14 // own.depths
            self.assertIn(f"model.encoder_layers={layers}", every.cells[-1].sets)
            self.assertIn(f"model.decoder_layers={layers}", every.cells[-1].sets)
            self.assertEqual(every.cells[-1].recipe, own.cells[0].recipe)
        added = E.make_experiment("fig6", only=["branch-norm", "deepnet"], at=[100])
        # The experiment's own first.
        self.assertEqual([cell.name for cell in added.cells], ["deepnet-100-s1", "branch-norm-100-s1"])
        self.assertIn("model.residual=BRANCH_NORM", added.cells[1].sets)

    def test_a_method_without_norm_has_the_lower_rate_of_table_one(self):
        cells = {c.series: c for c in E.make_experiment("table1", seeds=1, only=["residual-only", "keel"], at=[6]).cells}
        self.assertIn("optim.learning_rate=2.7e-3", cells["residual-only"].sets)
        self.assertIn("optim.learning_rate=8e-3", cells["keel"].sets)

    def test_without_a_warm_up_means_that_wherever_it_is_asked_for(self):
        cold = E.make_experiment("fig6", only=["post-ln-cold"], at=[6])
        self.assertIn("optim.warmup_steps=0", cold.cells[0].sets)

    def test_rezero_is_trained_without_half_precision(self):
        for cell in E.make_experiment("table1", "paper").cells:
            self.assertEqual("compute.dtype=FLOAT32" in cell.sets, cell.series == "rezero", cell.name)

    def test_table_three_scores_the_weights_it_is_compared_with(self):
        trained, scored = E.make_experiment("table3", "paper").cells
        self.assertEqual(trained.checkpoint, "")
        self.assertEqual((scored.series, scored.checkpoint), ("M2M-100", "runs/m2m100_12b"))

    def test_only_some_places_of_the_axis(self):
        some = E.make_experiment("table1", seeds=2, only=["deepnet"], at=[6, 50])
        names = {"deepnet-6-s1", "deepnet-6-s2", "deepnet-50-s1", "deepnet-50-s2"}
        self.assertEqual({cell.name for cell in some.cells}, names)
        self.refuses("no runs at '7', but ", "fig7", at=[7])
        for depth in (0.0, -6.0, 6.5, 1e9):
            self.refuses("but at any number of layers a side", "table1", at=[depth])
        self.refuses("no runs at '7', but at any even number of layers", "fig8", at=[7])

    def test_unknown_names_and_sizes_are_errors(self):
        self.refuses("no experiment 'fig2', but fig3, fig4", "fig2")
        self.refuses("the paper has no such experiment", "tuning", size="paper")

    def test_tuning_with_factors_of_one_is_the_papers_own_model(self):
        n = 24.0
        depth = (n**5) ** (1 / 16)
        own = {
            "encoder_alpha": 0.81 * depth,
            "encoder_beta": 0.87 / depth,
            "decoder_alpha": (3 * n) ** 0.25,
            "decoder_beta": (12 * n) ** -0.25,
        }
        for cell in E.make_experiment("tuning").cells:
            for field, value in own.items():
                factor = cell.x if field.endswith("alpha") else cell.y
                self.assertIn(f"model.deepnorm.{field}={factor * value:g}", cell.sets)

    def test_a_swept_setting_takes_what_hangs_on_it_along(self):
        widths = [c for c in E.make_experiment("fig7", seeds=1).cells if c.group == "width"]
        for cell in widths:
            self.assertIn(f"model.ffn_dim={4 * cell.x:g}", cell.sets)
            self.assertIn(f"model.num_heads={cell.x / 32:g}", cell.sets)


class Textproto(unittest.TestCase):
    def test_what_the_program_prints_is_read(self):
        text = 'name: "a" "b" # no\nlist: [1, 2]\nlist: 3\nat { x: 1e-05 y: -2 z: nan on: true kind: SOME_NAME }\nat {}'
        read = E.parse_textproto(text)
        self.assertEqual((read["name"], read["list"]), ("ab", [1, 2, 3]))
        first, second = read["at"]
        self.assertEqual((first["x"], first["y"], first["on"], first["kind"], second), (1e-5, -2, True, "SOME_NAME", {}))
        self.assertTrue(math.isnan(first["z"]))
        self.assertEqual(E.parse_textproto(r'a: "say \"it\"\n"'), {"a": 'say "it"\n'})


class Methods(unittest.TestCase):
    def test_no_two_look_alike(self):
        for colour in ("light", "dark"):
            looks = {(getattr(method, colour), method.dash) for method in E.METHODS.values()}
            self.assertEqual(len(looks), len(E.METHODS))
            self.assertTrue(all(re.fullmatch("#[0-9a-f]{6}", look[0]) for look in looks))

    def test_an_unknown_one_keeps_its_name(self):
        self.assertEqual(E.method_of("other").label, "other")

    def test_the_papers_ten_all_exist(self):
        keys = {cell.series for cell in E.make_experiment("fig6").cells}
        self.assertEqual(len(keys), 10)
        self.assertTrue(all(E.METHODS[key].residual for key in keys))


def published(name):
    return [line for plot in E.make_experiment(name).published for line in E.published_lines(plot)]


class Published(unittest.TestCase):
    def paper(self, name):
        return E.make_experiment(name).paper

    def test_the_law_of_depth_through_the_papers_points_is_the_stated_one(self):
        (_, _, points, _), (_, _, law, is_fit) = published("fig8")
        fit = R.fit_logarithm(*zip(*points))
        self.assertAlmostEqual(fit["slope"], 3.66, delta=0.1)
        self.assertAlmostEqual(fit["offset"], 21.9, delta=0.3)
        self.assertTrue(is_fit)
        self.assertAlmostEqual(law[-1][1], 3.66 * 3 + 21.9)

    def test_table_one_marks_what_diverged_at_a_hundred_layers(self):
        diverged = {E.method_of(method).label for method, _, points, _ in published("table1") if math.isnan(points[-1][1])}
        self.assertEqual(diverged, {"Post-LN", "DS-Init", "Admin", "ReZero", "R-Fixup", "T-Fixup", "NormFormer"})

    def test_every_line_has_a_value_for_each_place(self):
        for name in E.experiment_names():
            for plot in E.make_experiment(name).published:
                for line in E.many(plot, "line"):
                    self.assertIn(line["method"], E.METHODS)
                    self.assertEqual(len(E.many(line, "x")), len(E.many(line, "y")), f"{name}: {line}")
            for table in E.make_experiment(name).tables:
                for row in table["row"]:
                    self.assertEqual(len(row["of"]), len(table["header"]))

    def test_figures_of_the_cause_have_their_own_settings(self):
        self.assertIn("18", self.paper("fig3")["depth"])
        self.assertEqual((self.paper("fig4")["depth"], self.paper("fig4")["steps"]), ("18", "30 are shown"))
        self.assertEqual(self.paper("fig5")["depth"], "6 to 100")
        self.assertEqual((self.paper("fig5")["sizes"], self.paper("fig5")["steps"]), ("64 / 128 / 2", "not published"))
        for name in ("fig3", "fig4", "fig5"):
            self.assertNotIn("BLEU", self.paper(name)["metric"])
            self.assertNotEqual(self.paper(name)["steps"], self.paper("fig6")["steps"])
        self.assertIn("BLEU", self.paper("fig6")["metric"])

    def test_every_setting_is_given(self):
        for name in E.experiment_names():
            paper = self.paper(name)
            missing = set(self.paper("fig6")) - set(paper) if paper else set()
            self.assertFalse(missing, name)
        self.assertEqual(self.paper("tuning"), {})

    def test_figure_sevens_rates_are_there(self):
        rate = self.paper("fig7")["learning_rate"]
        self.assertIn("figure 7c: 5e-4", rate)
        self.assertIn("1.5e-3", rate)

    def test_what_the_paper_does_not_say_is_called_inferred(self):
        for name, setting in (
            ("fig6", "corpus"),
            ("table1", "corpus"),
            ("fig8", "vocabulary"),
            ("fig8", "steps"),
            ("table3", "vocabulary"),
        ):
            self.assertIn("(inferred)", self.paper(name)[setting])

    def test_deep_post_ln_of_figure_five_is_a_range(self):
        band = E.make_experiment("fig5").published[0]["band"]
        self.assertEqual([band[side] for side in ("left", "right", "low", "high")], [60, 100, 0.1, 0.47])

    def test_residuals_md_says_what_table_one_says_of_who_fails_where(self):
        lines = (ROOT / "docs" / "design" / "residuals.md").read_text(encoding="utf-8").split("\n")
        rows = lines[lines.index("| diverged at | schemes |") + 2 :]
        rows = [row.split("|") for row in rows[: rows.index("")]]
        self.assertEqual(len(rows), 4)  # 18, 50, 100, and never
        for method, _, points, _ in published("table1"):
            scheme = E.METHODS[method].residual
            fails = next((x for x, y in points if math.isnan(y)), 0)
            for row in rows:
                depth = int(re.match(r"\s*(\d*)", row[1])[1] or 0)
                said = re.search(rf"\b{scheme}\b", row[2]) is not None
                self.assertEqual(said, depth == fails, f"{scheme} at {row[1]}")


if __name__ == "__main__":
    unittest.main()
