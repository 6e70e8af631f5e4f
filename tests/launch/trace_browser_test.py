"""A trace opened in Perfetto's own page, in a real browser: its ranks and lines are there, and nothing was refused.
Needs `chromium` (or the program that DEEPNET_BROWSER names) and the page of fetch_perfetto.sh: ctest labels "browser"
and "perfetto"."""

import functools
import http.server
import os
import queue
import subprocess
import tempfile
import threading
import unittest
from pathlib import Path

BROWSER = os.environ.get("DEEPNET_BROWSER", "chromium")
PROGRAM = os.environ["DEEPNET_PROGRAM"]
HERE = Path(__file__).parent

RUN = """# proto-file: proto/run.proto
# proto-message: deepnet.RunSpec
folder: "run"
model { encoder_layers: 2 decoder_layers: 2 d_model: 16 ffn_dim: 32 num_heads: 2 residual: DEEPNORM
        max_positions: 300 vocabulary_size: 100 }
data { folder: "none" global_microbatches: 4 max_sentence_tokens: 70
       microbatch { max_source_tokens: 82 max_target_tokens: 82 max_sentences: 2 } }
optim { learning_rate: 1e-3 }
cluster { nodes: 1 devices_per_node: 2 }
parallel { pipeline_parallel_size: 2 schedule: "1f1b" }
compute { device: "cpu" dtype: FLOAT32 }
"""

# Perfetto in a frame. Once its page shows the trace, or has not for a minute, what it shows is sent home.
FRAME = """<!DOCTYPE html><meta charset="utf-8"><link rel="icon" href="data:,">
<iframe style="width:1300px;height:800px"></iframe>
<script>
document.querySelector("iframe").src = `/index.html#!/?url=${location.origin}/trace.json`;
const started = Date.now();
const look = () => {
  const text = frames[0].document.body?.innerText ?? "";
  const there = WANTED.every(word => text.includes(word));
  if (!there && Date.now() - started < 60000) return setTimeout(look, 200);
  fetch("/shown", {method: "POST", body: text});
};
look();
</script>"""


class Page(http.server.SimpleHTTPRequestHandler):
    def __init__(self, files, shown, *arguments, **named):
        self.files, self.shown = files, shown
        super().__init__(*arguments, **named)

    def do_GET(self):
        body = self.files.get(self.path)
        if body is None:
            return super().do_GET()
        self.send_response(200)
        self.send_header("Content-Type", "application/json" if self.path.endswith("json") else "text/html")
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        self.shown.put(self.rfile.read(int(self.headers["Content-Length"])).decode())
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        pass


class TraceInBrowser(unittest.TestCase):
    def shown(self, trace, wanted):
        """The text of Perfetto's page with that trace."""
        perfetto = subprocess.check_output([HERE / "fetch_perfetto.sh"], encoding="utf-8").strip()
        shown = queue.Queue()
        files = {"/trace.json": trace, "/frame.html": FRAME.replace("WANTED", repr(wanted)).encode()}
        page = functools.partial(Page, files, shown, directory=perfetto)
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), page) as server, tempfile.TemporaryDirectory() as folder:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            words = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}/profile"]
            words += ["--remote-debugging-port=0", f"http://127.0.0.1:{server.server_port}/frame.html"]
            browser = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                return shown.get(timeout=120)
            finally:
                browser.terminate()
                browser.wait()
                server.shutdown()

    def test_perfetto_shows_every_rank(self):
        with tempfile.TemporaryDirectory() as folder:
            run = Path(folder) / "run.textproto"
            run.write_text(RUN, encoding="utf-8")
            trace = Path(folder) / "trace.json"
            subprocess.run([PROGRAM, "rehearse", "--config", run, "--trace", trace], check=True, capture_output=True)
            text = self.shown(trace.read_bytes(), ["rank 0", "rank 1"])
        self.assertIn("rank 0", text)
        self.assertIn("rank 1", text)
        self.assertNotIn("something went wrong", text)


if __name__ == "__main__":
    unittest.main()
