"""The page: every drawing, nothing foreign, texts of runs harmless; and the tables as CSV."""

import re
import unittest

from sample_results import E, R, sample_result

import report  # found by sample_results


def drawings(result):
    """Ids of the drawings of a result's page."""
    experiment = R.experiment_of(result)
    ids = [f"{experiment.name}-published-{i + 1}" for i in range(len(experiment.published))]
    for i, panel in enumerate(experiment.panels):
        ids.append(f"{experiment.name}-own-{i + 1}")
        if panel.kind == "MATRIX":
            ids += [f"{ids[-1]}-{k}" for k in range(2, len(R.group_seeds(result, panel)) + 1)]
    return ids


def page(*results):
    return report.make_report(list(results))


class Report(unittest.TestCase):
    def test_holds_every_drawing_once_and_every_id_once(self):
        for name in E.experiment_names():
            result = sample_result(name)
            html = page(result)
            self.assertEqual(re.findall(r'<svg id="([^"]*)"', html).sort(), drawings(result).sort(), name)
            self.assertEqual(html.count("<svg "), len(drawings(result)), name)
            for identity in drawings(result):
                self.assertEqual(html.count(f'<svg id="{identity}"'), 1, identity)
            ids = re.findall(r' id="([^"]*)"', html)
            self.assertEqual(len(ids), len(set(ids)), name)

    def test_needs_nothing_else(self):
        html = page(sample_result("fig6"))
        for foreign in ("<script", "http:", "https:", "@import", "src=", "<image"):
            self.assertNotIn(foreign, html)
        self.assertNotRegex(html, r"url\((?!#)")

    def test_the_same_results_give_the_same_bytes(self):
        self.assertEqual(page(sample_result("table3")), page(sample_result("table3")))

    def test_is_dark_where_the_reader_is(self):
        html = page(sample_result("fig6"))
        self.assertIn("stroke: var(--plot-c2410c)", html)
        self.assertIn("--plot-c2410c: #fb923c;", html)
        svgs = "".join(re.findall(r"<svg.*?</svg>", html, re.S))
        self.assertNotRegex(svgs, ": #(c2410c|1c1917|57534e|ffffff)")

    def test_a_diverged_cell_has_a_cross_in_a_row_of_its_method(self):
        html = page(sample_result("table1"))
        own = html[html.index('<svg id="table1-own-1"') : html.index("</svg>", html.index('<svg id="table1-own-1"'))]
        self.assertIn("✕ ReZero", own)
        self.assertNotIn("✕ DeepNet", own)

    def test_a_loss_that_nothing_learns_at_is_a_cross_and_no_scale_of_the_plot(self):
        result = sample_result("ablation")
        for cell in result["cells"]:
            if cell["series"] == "neither":
                cell["test"]["nll"] = 1.4e7
        drawn = report.draw_panel(result, E.make_experiment("ablation").panels[0], "id")
        self.assertIn("✕ neither", drawn)
        self.assertNotIn("00,000", drawn)

    def test_what_is_no_number_is_not_drawn(self):
        line = report.Line("deepnet", [(6, 27.0), (18, float("nan"))])
        self.assertEqual(line.points, [(6, 27.0)])
        self.assertNotIn("nan", report.draw_lines("id", "t", [line], "x", "y"))

    def test_without_a_point_it_says_so(self):
        self.assertIn("nothing measured yet", report.draw_lines("id", "t", [report.Line("deepnet", [])], "x", "y"))

    def test_numbers_below_the_axis_do_not_touch(self):
        self.assertEqual(report.apart([6, 6.2, 18], 6, 18, False, 280), [6, 18])

    def test_a_band_and_a_level_say_what_they_are(self):
        drawn = report.draw_published(E.make_experiment("fig5").published[0], "id")
        self.assertIn("Post-LN jumps between 0.1 and 0.47", drawn)
        drawn = report.draw_published(E.make_experiment("fig4").published[1], "id")
        self.assertIn("root of the width, 512", drawn)

    def test_the_good_end_has_the_strong_colour(self):
        strong, weak = report.mixed(1), report.mixed(0.06)
        for low_is_good in (True, False):
            html = report.draw_heat_map("id", "t", ["a", "b"], ["r"], [[5.0, 6.0]], "x", "y", low_is_good)
            self.assertEqual(html.index(strong) < html.index(weak), low_is_good)

    def test_missing_values_are_blank_or_crosses(self):
        html = report.draw_heat_map("id", "t", ["a", "b", "c"], ["r"], [[None, "diverged", 1.0]], "x", "y", False)
        self.assertEqual(html.count("✕"), 1)
        self.assertIn("<title>r, b: diverged</title>", html)

    def test_of_many_names_only_as_many_are_written_as_there_is_room_for(self):
        names = [f"x{i}" for i in range(100)]
        html = report.draw_heat_map("id", "t", names, names, [[1.0] * 100] * 100, "x", "y", False)
        written = len(re.findall(r">x\d+<", html))
        self.assertTrue(8 <= written <= 40, written)

    def test_matrices_have_one_scale(self):
        result = sample_result("table3")  # the first cell is deeper and stands second
        for direction in result["cells"][0]["test"]["directions"]:
            direction["spbleu"] *= 0.1
        html = page(result)
        second = html.index("<svg", html.index("<svg") + 4)
        self.assertIn(report.mixed(1), html[:second])  # the weaker one must not look as strong
        self.assertNotIn(report.mixed(1), html[second:])

    def test_a_matrix_without_scores_says_so_beside_one_that_has_them(self):
        result = sample_result("table3")
        result["cells"][0]["status"] = R.FAILED
        del result["cells"][0]["test"]
        self.assertIn("nothing measured yet", page(result))

    def test_states_what_differs_and_the_commands(self):
        html = page(sample_result("table1"))
        for words in (
            "What differs from the paper",
            "WMT-17 English-German",
            "launch/lab/lab.py run table1",
            "deepnet train --config lab/small.textproto",
        ):
            self.assertIn(words, html)
        html = page(sample_result("tuning"))
        self.assertIn("What was set on top of the recipe", html)
        self.assertNotIn("What differs from the paper", html)

    def test_notes_stand_on_the_page_of_an_experiment_with_the_method_only(self):
        result = sample_result("fig6")
        self.assertNotIn("Which form of each method", page(result))
        result["cells"][0]["run"] = {"model": {"residual": "REZERO"}}
        self.assertIn("<li>DeepNet: published in float32", page(result))

    def test_several_experiments_stand_one_below_the_other(self):
        html = page(sample_result("fig5"), sample_result("fig6"))
        self.assertLess(html.index('<section id="fig5">'), html.index('<section id="fig6">'))
        self.assertIn('<a href="#fig6">', html)

    def test_an_experiment_without_one_cell_still_has_its_page(self):
        for name in E.experiment_names():
            self.assertIn("nothing measured yet", page({**sample_result(name), "cells": []}))

    def test_words_of_runs_cannot_break_the_page(self):
        result = sample_result("fig6")
        result["cells"][0].update(status=R.FAILED, error='<b>"quoted" & gone')
        self.assertIn("&lt;b&gt;&#34;quoted&#34; &amp; gone", page(result))

    def test_a_table_says_how_many_seeds_did_not_learn(self):
        result = sample_result("fig6", 3)
        next(c for c in result["cells"] if c["name"] == "deepnet-6-s2")["test"]["nll"] = 6.2
        self.assertIn(", word frequencies only: 1 of 3</td>", page(result))

    def test_a_table_of_runs_has_a_row_a_run(self):
        result = sample_result("table1", 2)
        table = report.runs_table(result)
        self.assertEqual(len(table), 60)
        row = table.set_index("name").loc["post-ln-50-s2"]
        self.assertEqual((row.verdict, row.status, row.seed, row.steps), ("word frequencies only", "done", 2, 300))
        self.assertAlmostEqual(row.test_nll, 6.16)


if __name__ == "__main__":
    unittest.main()
