"""A transport of your own: a party reached by JSON over HTTP, at `address = "http://…"` in the coordinator's settings.

Registered here for this process; an installed package uses an entry point in the group "gainroute.transports". To stay
short, it has no TLS and no authentication, and the description of the party is fixed.
"""

import asyncio
import json
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np

from gainroute.federation.transport import base

P = {"ann": [0.7, 0.2, 0.1], "ben": [0.1, 0.3, 0.6]}  # what the party answers with


class Party(BaseHTTPRequestHandler):
    def do_POST(self):
        ids = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        missing = [position for position, i in enumerate(ids) if i not in P]
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"rows": [P[i] for i in ids if i in P], "missing": missing}).encode())

    def log_request(self, *_):
        pass


@base.transports.register("http")
class HttpConnection:
    def __init__(self, name, address, tls):
        self.name, self.url = name, f"http://{address}"

    async def describe(self):
        return base.PartyDescription(self.name, ("a", "b", "c"), (base.ModelDescription("v1", 3),), ("float32",))

    async def posteriors(self, ids, *, model, request_id, posterior=True):
        try:
            with await asyncio.to_thread(urllib.request.urlopen, self.url, json.dumps(list(ids)).encode()) as response:
                answer = json.load(response)
        except OSError as error:
            raise base.PartyUnavailableError(self.name, str(error)) from error
        rows = np.array(answer["rows"], np.float32).reshape(-1, 3)
        how = {"posterior": posterior, "missing": answer["missing"]}
        return base.Reply.checked(self.name, rows, (len(ids), 3), rows.nbytes, **how)  # the only check there is

    async def embeddings(self, ids, *, model, codec, request_id):
        return await self.posteriors(ids, model=model, request_id=request_id, posterior=False)

    async def close(self): ...


with HTTPServer(("127.0.0.1", 0), Party) as server:
    threading.Thread(target=server.serve_forever, daemon=True).start()
    connection = base.connect("clinic", f"http://127.0.0.1:{server.server_port}")
    print(asyncio.run(connection.posteriors(["ben", "eve", "ann"], model="v1", request_id="example")).values)
    server.shutdown()
