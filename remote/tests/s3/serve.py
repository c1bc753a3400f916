"""Serves S3 as moto has it, on a port of loopback that the system chooses, and prints the endpoint.

One request is answered at a time: moto looks whether an object exists before it makes it, and two threads could look at once.
"""

import logging
import threading

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

logging.getLogger("werkzeug").disabled = True
app = DomainDispatcherApplication(create_backend_app)
turn = threading.Lock()


def one_at_a_time(environ, start_response):
    with turn:
        return list(app(environ, start_response))


server = make_server("127.0.0.1", 0, one_at_a_time, threaded=True)
print(f"http://127.0.0.1:{server.port}", flush=True)
server.serve_forever()
