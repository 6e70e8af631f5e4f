"""The page in a real browser: every plot drawn, its texts large enough and apart, nothing on the console, no
scrolling sideways, at the width of a desk and of two telephones. Needs `chromium` (or the program that
DEEPNET_BROWSER names) and fails without one: ctest label "browser"."""

import html
import json
import os
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

from report_test import drawings, page
from sample_results import E, sample_result

BROWSER = os.environ.get("DEEPNET_BROWSER", "chromium")
MIN_PLOT_TEXT = 11  # pixels of a letter's body; less is hard to read

# In a frame, because a browser's window cannot be as narrow as a telephone. What the page is, as one attribute: its
# widths, each drawing's size as laid out, and of the texts inside drawings the smallest height and those that touch
# another or leave their figure.
FRAME = """<!DOCTYPE html><meta charset="utf-8"><link rel="icon" href="data:,">
<body style="margin:0"><iframe style="border:0;width:%WIDTH%px;height:900px" srcdoc="%PAGE%"></iframe>
<script>
const kTouch = 3;  // pixels by which boxes of letters may overlap: they are higher than letters
onload = () => {
  const page = frames[0].document, root = page.documentElement, drawings = {}, wrong = [];
  const fontSize = e => parseFloat(frames[0].getComputedStyle(e).fontSize);
  let smallest = 1000;
  for (const svg of page.querySelectorAll("svg")) {
    const box = svg.getBoundingClientRect(), figure = svg.closest("figure").getBoundingClientRect();
    drawings[svg.id] = {width: box.width, height: box.height, shapes: svg.querySelectorAll("path, rect, use").length};
    const texts = [...svg.querySelectorAll("text")].map(e => [e.textContent, e.getBoundingClientRect()]);
    for (const e of svg.querySelectorAll("text")) {
      smallest = Math.min(smallest, fontSize(e) * svg.getScreenCTM().a);
    }
    texts.forEach(([name, a], i) => {
      if (a.left < figure.left || a.right > figure.right) wrong.push(svg.id + ": " + name + " leaves");
      for (const [other, b] of texts.slice(i + 1)) {
        const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
        const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
        if (across > kTouch && down > kTouch) wrong.push(svg.id + ": " + name + " touches " + other);
      }
    });
  }
  const small = [...page.querySelectorAll("p, li, td, th, figcaption")].filter(e => fontSize(e) < 13).length;
  document.body.dataset.found = JSON.stringify({inner: frames[0].innerWidth, scroll: root.scrollWidth,
      small: small, smallest: smallest, wrong: wrong.join("; "), drawings: drawings});
};
</script></body>"""


class ReportInBrowser(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.results = [sample_result(name, 2) for name in E.experiment_names()]
        cls.page = page(*cls.results)

    def open(self, width):
        with tempfile.TemporaryDirectory() as folder:
            frame = Path(folder) / "frame.html"
            frame.write_text(FRAME.replace("%WIDTH%", str(width)).replace("%PAGE%", html.escape(self.page)), encoding="utf-8")
            words = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}/profile"]
            words += ["--window-size=1400,1000", "--hide-scrollbars"]  # a telephone's take no room
            words += ["--enable-logging=stderr", "--dump-dom", frame.as_uri()]
            done = subprocess.run(words, encoding="utf-8", capture_output=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr[-1000:])
        said = [line for line in done.stderr.split("\n") if ":CONSOLE" in line]
        self.assertEqual([line for line in said if "source: chrome://" not in line], [])  # the browser's own pages
        found = re.search(r'data-found="([^"]*)"', done.stdout)
        self.assertIsNotNone(found, done.stdout[-500:])
        return json.loads(html.unescape(found[1]))

    def test_every_plot_is_there_and_nothing_scrolls_sideways(self):
        for width in (1280, 390, 360):
            with self.subTest(width=width):
                found = self.open(width)
                self.assertEqual(found["inner"], width)
                self.assertLessEqual(found["scroll"], width)
                self.assertEqual(found["small"], 0, "texts of less than 13 pixels")
                self.assertGreaterEqual(found["smallest"], MIN_PLOT_TEXT)
                self.assertEqual(found["wrong"], "")
                wanted = [identity for result in self.results for identity in drawings(result)]
                self.assertEqual(sorted(found["drawings"]), sorted(wanted))
                for identity, drawing in found["drawings"].items():
                    self.assertGreater(drawing["width"], 300 if width < 500 else 400, identity)
                    self.assertGreater(drawing["height"], 100, identity)
                    self.assertGreater(drawing["shapes"], 3, identity)


if __name__ == "__main__":
    unittest.main()
