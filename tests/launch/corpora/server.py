"""An HTTP server of files on 127.0.0.1 that can be slow, cut connections, spoil bytes and refuse ranges."""

import dataclasses
import http.server
import re
import threading


@dataclasses.dataclass
class File:
    """A file and how it is served. What is counted down holds for the next answers only."""

    data: bytes
    etag: str | None = '"1"'
    ranges: bool = True
    cut_after: list = dataclasses.field(default_factory=list)  # bytes of the body, an answer each; then all of it
    stand_still: int = 0  # answers that send half and then nothing until the server stops
    trickle: int = 0  # answers that send half, then a byte at a time
    spoil: int = 0  # answers with a wrong byte in the middle
    refuse: int = 0  # answers with code 503
    claims: dict = dataclasses.field(default_factory=dict)  # headers in the place of right ones
    lie: int = 0  # answers to ranges with another range than was asked for
    asked: list = dataclasses.field(default_factory=list)  # the Range header of each GET
    sent: int = 0  # bytes of bodies


class Server:
    """Serves `files` by name until stop()."""

    def __init__(self, files):
        self.files = files
        self.stopping = threading.Event()
        self.began = threading.Event()  # half of a file that stands still was sent
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_HEAD(self):
                server.answer(self, None)

            def do_GET(self):
                server.answer(self, server.files.get(self.path[1:]))

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self):
        self.stopping.set()
        self.http.shutdown()
        self.http.server_close()

    def answer(self, handler, file):
        handler.close_connection = True
        if handler.command == "HEAD" and handler.path[1:] in self.files:
            handler.send_response(200)
            handler.send_header("Content-Length", str(len(self.files[handler.path[1:]].data)))
            handler.end_headers()
            return
        if file is None:
            handler.send_error(404)
            return
        file.asked.append(handler.headers["Range"])
        if file.refuse:
            file.refuse -= 1
            self.head(handler, 503, {"Content-Length": "0", **file.claims})
            return
        begin = self.begin_of(handler, file)
        if begin >= len(file.data) > 0:
            self.head(handler, 416, {"Content-Range": f"bytes */{len(file.data)}", "Content-Length": "0"})
            return
        self.send(handler, file, begin)

    def head(self, handler, code, headers):
        handler.send_response(code)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.end_headers()

    def begin_of(self, handler, file):
        found = re.fullmatch(r"bytes=(\d+)-", handler.headers["Range"] or "")
        version = handler.headers["If-Range"]
        if not found or not file.ranges or (version and version != file.etag):
            return 0
        return int(found[1])

    def send(self, handler, file, begin):
        code, headers, body = 200, {}, file.data[begin:]
        if begin:
            code = 206
            if file.lie:
                file.lie -= 1
                begin, body = 0, file.data
            headers["Content-Range"] = f"bytes {begin}-{len(file.data) - 1}/{len(file.data)}"
        if file.etag:
            headers["ETag"] = file.etag
        self.head(handler, code, {"Content-Length": str(len(body)), **headers, **file.claims})
        if file.spoil:
            file.spoil -= 1
            middle = len(body) // 2
            body = body[:middle] + bytes([body[middle] ^ 1]) + body[middle + 1 :]
        if file.cut_after:
            self.write(handler, file, body[: file.cut_after.pop(0)])
        elif file.stand_still or file.trickle:
            self.send_slowly(handler, file, body)
        else:
            self.write(handler, file, body)

    def send_slowly(self, handler, file, body):
        half = len(body) // 2
        self.write(handler, file, body[:half])
        self.began.set()
        if file.stand_still:
            file.stand_still -= 1
            self.stopping.wait()
            return
        file.trickle -= 1
        while half < len(body) and not self.stopping.wait(0.01):
            if not self.write(handler, file, body[half : half + 1]):
                return
            half += 1

    def write(self, handler, file, piece):
        try:
            handler.wfile.write(piece)
        except OSError:  # the client gave up
            return False
        file.sent += len(piece)
        return True
